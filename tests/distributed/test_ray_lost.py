"""Ray's own processes are killed, or stand still: the run says so, saves, and ends with a code of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from getpass import getuser
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import pytest

from ganglion.errors import ClusterLostError
from ganglion.fleet import ray_thread
from ganglion.fleet.ray_thread import Health, RayThread, state
from ganglion.fleet.temporary_folders import PREFIX, disks, place, sweep
from ganglion.processes import python
from tests.distributed.test_restarts import marked

WORDS = ["cartpole/ppo", "--mode", "ray", "--explorers", "2", "log=[jsonl]", "log.every=1k steps", "eval=5k steps",
         "run.fast=eager"]  # fmt: skip
SORTS = {
    "explorers": [],
    "far": ["fleet.shared=false"],
    "learners": ["--learners", "2"],
    "central": ["fleet.inference=central", "fleet.shared=false"],
}
CASES = [(part, how, sort) for part in ("raylet", "gcs_server") for how in ("SIGKILL", "SIGSTOP") for sort in SORTS]
QUICK = ("raylet", "SIGKILL", "explorers")


class Started:
    """A command with Ray below it."""

    def __init__(self, folder: Path, *words: str) -> None:
        if find_spec("ray") is None:
            pytest.skip("needs the package ray: pip install 'ganglion[ray]'")
        self.folder, self.mark = folder, f"GANGLION_TEST_MARK={secrets.token_hex(8)}"
        name, value = self.mark.split("=")
        pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        where = [] if "node" in words else [f"run.dir={folder}"]
        command = python("ganglion", *words, *where)
        self.process = subprocess.Popen(command, env={**os.environ, name: value}, **pipes)

    def saved(self) -> int:
        """Env steps of the newest checkpoint."""
        return max((int(path.name.split("-")[0]) for path in (self.folder / "checkpoints").glob("[0-9]*")), default=0)

    def walked(self) -> int:
        """Env steps that were recorded."""
        with suppress(OSError, IndexError, ValueError):
            return int(json.loads((self.folder / "metrics.jsonl").read_text().splitlines()[-1])["env_steps"])
        return 0

    def until(self, reached: Callable[[], bool], seconds: float) -> None:
        ends = monotonic() + seconds
        while not reached():
            assert self.process.poll() is None, self.process.communicate()[1][-2_000:]
            assert monotonic() < ends
            sleep(0.1)

    def part(self, name: str) -> int:
        """One of Ray's own processes."""
        return next(pid for pid in marked(self.mark) if Path(f"/proc/{pid}/comm").read_text().strip() == name)

    def end(self) -> None:
        """Whatever became of it."""
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    made: list[Started] = []
    yield lambda *words: made.append(Started(tmp_path / "run", *words)) or made[-1]
    for started in made:
        started.end()


@pytest.mark.parametrize(
    ("part", "how", "sort"), [pytest.param(*c, marks=[] if c == QUICK else pytest.mark.soak) for c in CASES]
)
def test_it_is_saved_and_ends_with_a_code_of_its_own(
    start: Callable[..., Started], part: str, how: str, sort: str
) -> None:
    run = start("train", *WORDS, *SORTS[sort], "save.every=100M steps", "train.budget=100M steps")
    run.until(lambda: run.walked() > 5_000, 120)
    walked = run.walked()
    os.kill(run.part(part), signal.Signals[how])
    began = monotonic()
    told = run.process.communicate(timeout=90)[1]
    assert run.process.returncode == 5, told[-2_000:]
    assert monotonic() - began < 45, "30 s, and what a busy machine takes to save"
    assert "run.mode: Ray" in told and "Continue with: ganglion resume" in told and "Traceback" not in told
    assert run.saved() >= walked, "all that had come until then"
    ends = monotonic() + 100  # an agent of Ray's looks for its gcs for a minute
    while marked(run.mark) and monotonic() < ends:
        sleep(0.2)
    assert not marked(run.mark)
    sweep()  # as whoever comes next does
    assert not [path for where in (place(), *disks()) for path in where.glob(f"{PREFIX}{run.process.pid}-*")]


@pytest.mark.soak
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_a_restart_helps(start: Callable[..., Started], part: str) -> None:
    run = start("launch", "local", *WORDS, "--restarts", "2", "save.every=2k steps", "train.budget=40k steps")
    run.until(lambda: run.saved() > 0, 120)
    os.kill(run.part(part), signal.SIGKILL)
    told = run.process.communicate(timeout=240)[1]
    assert run.process.returncode == 0 and "exit code 5): resumed from its newest checkpoint" in told, told[-2_000:]


@pytest.mark.soak
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_one_that_stood_still_for_a_moment_is_not_lost(start: Callable[..., Started], part: str) -> None:
    run = start("train", *WORDS, "train.budget=60k steps")
    run.until(lambda: run.walked() > 0, 120)
    stopped = run.part(part)
    os.kill(stopped, signal.SIGSTOP)
    sleep(5)
    os.kill(stopped, signal.SIGCONT)
    told = run.process.communicate(timeout=240)[1]
    assert run.process.returncode == 0, told[-2_000:]


@pytest.mark.soak
@pytest.mark.parametrize("part", ["raylet", "gcs_server"])
def test_a_node_of_slurms_starts_ray_anew(
    start: Callable[..., Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """The first of a job, and the only one, without slurm."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho Submitted\n")
    (tmp_path / "sbatch").chmod(0o700)
    slurm = {"PROCID": "0", "NNODES": "1", "CPUS_ON_NODE": "2", "JOB_ID": "1", "LAUNCH_NODE_IPADDR": "127.0.0.1"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job = start("launch", "slurm", *WORDS, "--restarts", "2", "save.every=2k steps", "train.budget=40k steps")
    assert job.process.wait(60) == 0
    run = start("launch", "node", f"{tmp_path}/run.job")
    run.until(lambda: run.saved() > 0, 180)
    os.kill(run.part(part), signal.SIGKILL)
    told = run.process.communicate(timeout=300)[1]
    assert run.process.returncode == 0, told[-2_000:] + (tmp_path / "run.job" / "ray-0.out").read_text()[-2_000:]
    assert not [path for disk in disks() for path in disk.glob("ganglion-ray-*") if path.owner() == getuser()]


# ------------------------------------------------------------ the thread


class Well(Health):
    """Answers while it is well."""

    def __init__(self) -> None:
        self.pids, self.missed, self.why = {}, 0, ""

    def look(self) -> None:
        if self.why:
            raise ClusterLostError(self.why)

    def close(self) -> None: ...


@pytest.fixture
def health(monkeypatch: pytest.MonkeyPatch) -> Well:
    monkeypatch.setattr(ray_thread, "LOOK", 0.01)
    return Well()


def test_what_is_asked_is_brought_or_raised(health: Well) -> None:
    talk = RayThread(health, lambda: None)
    assert talk(lambda: talk(lambda: 3)) == 3
    with pytest.raises(TimeoutError, match="mine"):
        talk(lambda: exec_raise(TimeoutError("mine")))
    left: list[str] = []
    talk.close(lambda: left.append("left"), 1.0)
    assert left == ["left"]


def exec_raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("dies", [False, True])
def test_a_call_that_never_returns_is_not_waited_for(health: Well, dies: bool) -> None:
    """Neither where Ray is found dead, nor where it only seems well; and from then on nobody asks it anything."""
    lost: list[bool] = []
    talk = RayThread(health, lambda: lost.append(True))
    health.why, told = ("", r"within 0 s") if not dies else ("gone", "gone")
    never = Future[None]()
    with pytest.raises(ClusterLostError, match=told):
        talk(never.result, 0.05)
    health.why = ""
    with pytest.raises(ClusterLostError, match=told):
        talk(lambda: None)
    talk.close(never.result, 60.0)
    assert lost == [True]
    never.set_result(None)


def test_ray_that_cannot_be_left_is_lost(health: Well) -> None:
    lost, never = list[bool](), Future[None]()
    RayThread(health, lambda: lost.append(True)).close(never.result, 0.05)
    assert lost == [True]
    never.set_result(None)


class Ticks(Event):
    """An event that is waited for so often, each time for as long as it takes."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        return self.left < 0


def test_looks_are_counted_and_not_seconds() -> None:
    """A process that was stopped for an hour finds Ray as it left it; one whose learner was busy for as long knows
    that Ray is lost as soon as it asks."""
    health = Health.__new__(Health)
    health.pids, health.missed = {"raylet": os.getpid()}, 0
    for looks in (1, ray_thread.SILENT - 1):
        health.closed = Ticks(looks)
        health.count()
        health.look()
        health.look()  # asking is no look
    assert health.missed == ray_thread.SILENT
    health.closed = Ticks(1)
    health.count()
    with pytest.raises(ClusterLostError, match="has not answered for 20 s"):
        health.look()


def test_the_state_of_a_process() -> None:
    process = subprocess.Popen(["sleep", "60"])
    assert state(process.pid) in {"S", "R", "D"}  # D: its program is still being read from the disk
    process.send_signal(signal.SIGSTOP)
    ends = monotonic() + 10
    while state(process.pid) not in ray_thread.STOPPED and monotonic() < ends:
        sleep(0.01)
    assert state(process.pid) in ray_thread.STOPPED
    process.kill()
    while state(process.pid) not in ray_thread.ENDED and monotonic() < ends:
        sleep(0.01)
    assert state(process.pid) == "Z"
    process.wait()
    assert state(process.pid) == ""
