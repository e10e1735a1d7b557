"""Launching: the job that is written, what is refused, a run that is killed and goes on."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep

import pytest

from ganglion.cli import main
from ganglion.config.files import load
from ganglion.launch.restarts import Restarter, begun, command, text
from ganglion.launch.slurm import Node, free_port, make_secret, towards

Captured = pytest.CaptureFixture[str]
SLURM = ["launch", "slurm", "cartpole/ppo"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ------------------------------------------------------------ slurm


def test_the_job_is_shown(capsys: Captured, tmp_path: Path) -> None:
    more = [
        "--nodes",
        "2",
        "--cpus",
        "4",
        "--gpus",
        "1",
        "--partition",
        "main",
        "--time",
        "1-00:00:00",
        "--explorers",
        "8",
    ]
    assert main([*SLURM, *more, "--sbatch=--qos=high", "run.dir=out", "--dry-run"]) == 0
    script = capsys.readouterr().out
    for line in ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--gpus-per-node=1", "--partition=main",
                 "--time=1-00:00:00", "--qos=high", "--signal=TERM@60"):  # fmt: skip
        assert f"#SBATCH {line}\n" in script
    assert f"launch node {tmp_path}/out.job" in script and "umask 077" in script
    assert "token" not in script.replace("the token is a secret", "") and "6379" not in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    assert list(tmp_path.iterdir()) == []  # nothing was written


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["launch", "slrum", "cartpole/ppo"],
            "cannot launch on 'slrum'. Accepted: local, slurm. Did you mean 'slurm'?",
        ),
        (["launch"], "arguments are required: local|slurm"),
        ([*SLURM, "--node", "2"], "unknown option '--node'"),
        ([*SLURM, "--nodes", "0"], "--nodes should be between 1 and 100000, got 0"),
        ([*SLURM, "--nodes", "two"], "--nodes"),
        ([*SLURM, "--partition", "a b"], "--partition: should be letters"),
        ([*SLURM, "--sbatch=--x\n#SBATCH --y"], "--sbatch: should be letters"),
        ([*SLURM, "--mode", "threads"], "run.mode: nodes of slurm are joined by Ray. Accepted: ray, got 'threads'"),
        ([*SLURM, "--mode", "local"], "run.mode: nodes of slurm are joined by Ray"),
        ([*SLURM, "run.mode=files", "fleet.path=x"], "run.mode: nodes of slurm are joined by Ray"),
        ([*SLURM, "run.dir=a b"], "run.dir: should be letters"),
        ([*SLURM, "algo.lrr=1"], "algo.lrr"),
        ([*SLURM, "sweep.run.seed=[0,1]"], "launch starts one run, and a sweep is 2"),
        ([*SLURM, "--seeds", "3"], "--seeds: launch starts one run"),
        (["launch", "slurm"], "nothing to train"),
        (["launch", "local", "cartpole/ppo", "--nodes", "2"], "--nodes is for launch slurm, not local"),
        (["launch", "local", "cartpole/ppo", "--restarts", "-1"], "--restarts should be between 0 and 100000, got -1"),
        (["launch", "local", "cartpole/pppo"], "cartpole/ppo"),
        (["launch", "node", "nowhere"], "launch node: should be the folder of a job"),
    ],
)
def test_what_is_wrong_is_said(words: list[str], message: str, capsys: Captured) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_without_slurm_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(SLURM) == 2
    assert "there is no sbatch on PATH" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_it_is_submitted(monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path) -> None:
    """To an sbatch that only says what it was given; then to one that refuses."""
    pretend = tmp_path / "bin" / "sbatch"
    pretend.parent.mkdir()
    pretend.write_text("#!/bin/sh\necho Submitted batch job 7: $@\n")
    pretend.chmod(0o755)
    monkeypatch.setenv("PATH", f"{pretend.parent}:/usr/bin:/bin")
    assert main([*SLURM, "--restarts", "3", "--explorers", "5", "--learners", "2", "run.dir=out"]) == 0
    assert f"Submitted batch job 7: {tmp_path}/out.job/job.sh" in capsys.readouterr().out
    node = Node(tmp_path / "out.job", lambda line: None, {"SLURM_PROCID": "0"})
    assert node.job.restarts == 3 and node.job.needs == 6 and node.job.run == f"{tmp_path}/out"
    assert "mode: ray" in (tmp_path / "out.job" / "config.yaml").read_text()
    assert main([*SLURM, "run.dir=out"]) == 2
    assert "run.dir: " in (err := capsys.readouterr().err) and "out.job is there already" in err
    pretend.write_text("#!/bin/sh\necho no such partition >&2\nexit 1\n")
    assert main([*SLURM, "run.dir=other"]) == 2
    assert "sbatch refused the job: no such partition" in capsys.readouterr().err
    assert not (tmp_path / "other.job").exists()  # and another try is not in its own way


def test_the_token_is_in_no_argument(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"run": "r", "imports": [], "needs": 2, "restarts": 0}')
    node = Node(tmp_path, lambda line: None, {"SLURM_PROCID": "1", "SLURM_JOB_ID": "5", "PATH": "/bin"})
    make_secret(node.token)
    assert stat.S_IMODE(node.token.stat().st_mode) == 0o600 and len(node.token.read_text()) == 64
    settings = node.settings("127.0.0.1")
    assert settings["RAY_AUTH_TOKEN_PATH"] == str(node.token) and settings["RAY_AUTH_MODE"] == "token"
    assert towards(f"127.0.0.1:{free_port('127.0.0.1')}") == "127.0.0.1"


# ------------------------------------------------------------ here


def test_a_folder_with_odd_characters_is_the_same_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The run is told of it by a setting, which is YAML."""
    kept: list[Sequence[str]] = []
    monkeypatch.setattr(Restarter, "keep", lambda self, train, resume: (kept.extend((train, resume)), 0)[1])
    assert main(["launch", "local", "cartpole/ppo", "run.dir='a: b #1'"]) == 0
    train, resume = kept
    words = [word for word in train if word.startswith("run.dir=")]
    assert load("cartpole/ppo", words).run.dir == resume[-1] == f"{tmp_path}/a: b #1"


# ------------------------------------------------------------ restarts


class Script:
    """A stand-in for a run: makes its folder, and ends as it is told, life after life."""

    def __init__(self, folder: Path, *endings: str) -> None:
        self.folder, self.lives = folder, folder / "lives"
        lines = ["import os, pathlib, signal, sys, time", f"folder = pathlib.Path({str(folder)!r})"]
        lines += ["folder.mkdir(exist_ok=True)", "(folder / 'config.yaml').touch()"]
        lines += [f"lives = pathlib.Path({str(self.lives)!r})"]
        lines += ["lives.write_text((lives.read_text() if lives.exists() else '') + sys.argv[1] + ' ')"]
        lines += [f"exec({list(endings)!r}[len(lives.read_text().split()) - 1])"]
        self.program = "\n".join(lines)

    def keep(self, restarts: int) -> tuple[int, list[str], list[str]]:
        told: list[str] = []
        run = [sys.executable, "-S", "-c", self.program]
        code = Restarter(lambda: begun(str(self.folder)), restarts, told.append).keep([*run, "train"], [*run, "resume"])
        return code, self.lives.read_text().split(), told


DIE = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ganglion.launch.restarts.PAUSE", 0.0)


def test_a_run_that_is_killed_is_resumed(tmp_path: Path) -> None:
    code, lives, told = Script(tmp_path / "run", DIE, "sys.exit(1)", "sys.exit(0)").keep(5)
    assert (code, lives) == (0, ["train", "resume", "resume"])
    assert "killed by SIGKILL" in told[0] and "exit code 1" in told[1] and "3 restarts left" in told[1]


def test_a_run_that_lost_ray_is_resumed_once_that_is_mended(tmp_path: Path) -> None:
    made, mended = Script(tmp_path / "run", "sys.exit(5)", "sys.exit(0)"), list[int]()
    run = [sys.executable, "-S", "-c", made.program]
    keeper = Restarter(lambda: begun(str(made.folder)), 5, lambda line: None, mended.append)
    assert keeper.keep([*run, "train"], [*run, "resume"]) == 0
    assert made.lives.read_text().split() == ["train", "resume"] and mended == [5]


@pytest.mark.parametrize("code", [2, 3, 4, 130, 143])
def test_what_another_try_would_not_change_ends_it(tmp_path: Path, code: int) -> None:
    assert Script(tmp_path / "run", f"sys.exit({code})").keep(5) == (code, ["train"], [])


def test_restarts_run_out(tmp_path: Path) -> None:
    code, lives, told = Script(tmp_path / "run", DIE, DIE).keep(1)
    assert (code, lives) == (137, ["train", "resume"]) and "no restart is left" in told[-1]


def test_a_signal_is_the_runs(tmp_path: Path) -> None:
    """Which saves, and ends; it is not started again."""
    wait = "signal.signal(15, lambda *_: sys.exit(143)); (folder / 'ready').touch(); time.sleep(60)"
    made = Script(tmp_path / "run", wait)
    lines = ["import sys", "from ganglion.launch.restarts import Restarter, begun"]
    lines += [f"run = [sys.executable, '-S', '-c', {made.program!r}]"]
    lines += [
        f"sys.exit(Restarter(lambda: begun({str(made.folder)!r}), 5, print).keep([*run, 'train'], [*run, 'resume']))"
    ]
    launcher = subprocess.Popen([sys.executable, "-c", "\n".join(lines)])
    ends = monotonic() + 30
    while not (made.folder / "ready").exists() and monotonic() < ends:
        sleep(0.02)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(30) == 143 and made.lives.read_text().split() == ["train"]


def test_a_run_ends_with_its_launcher(tmp_path: Path) -> None:
    made = Script(tmp_path / "run", "(folder / 'pid').write_text(str(os.getpid())); time.sleep(60)")
    lines = ["import sys", "from ganglion.launch.restarts import Restarter, begun"]
    lines += [f"run = [sys.executable, '-S', '-c', {made.program!r}]"]
    lines += [f"Restarter(lambda: begun({str(made.folder)!r}), 5, print).keep([*run, 'train'], [*run, 'resume'])"]
    launcher = subprocess.Popen([sys.executable, "-c", "\n".join(lines)])
    ends = monotonic() + 30
    while not ((made.folder / "pid").exists() and (made.folder / "pid").read_text()) and monotonic() < ends:
        sleep(0.02)
    pid = int((made.folder / "pid").read_text())
    launcher.kill()
    launcher.wait()
    while monotonic() < ends and Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        sleep(0.02)
    assert monotonic() < ends


def test_commands_as_one_would_type_them() -> None:
    assert text(command("resume", "runs/a")) == "ganglion resume runs/a"


def test_a_signal_between_two_lives_ends_it(tmp_path: Path) -> None:
    made = Script(tmp_path / "run", DIE, "sys.exit(0)")
    run = [sys.executable, "-S", "-c", made.program]
    keeper = Restarter(lambda: begun(str(made.folder)), 5, lambda line: os.kill(os.getpid(), signal.SIGTERM))
    assert keeper.keep([*run, "train"], [*run, "resume"]) == 143
    assert made.lives.read_text().split() == ["train"]
