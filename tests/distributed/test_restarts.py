"""A run with Ray that is killed again and again, by one command; and what is left of it afterwards."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep

import pytest

from ganglion.fleet.temporary_folders import place
from ganglion.record.lock import alive


def marked(mark: str) -> dict[int, str]:
    """Processes of this machine that have a mark in their environment, and their commands."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended meanwhile
    return found


def learner(mark: str) -> int | None:
    """The process that trains."""
    names = ("-m ganglion train", "-m ganglion resume")
    return next((pid for pid, line in marked(mark).items() if any(name in line for name in names)), None)


@pytest.mark.soak
@pytest.mark.parametrize("learners", [1, 2])
def test_killed_again_and_again(tmp_path: Path, learners: int) -> None:
    """It goes on from its checkpoints to the end, and leaves no process and no folder behind."""
    if find_spec("ray") is None:
        pytest.skip("needs the package ray: pip install 'ganglion[ray]'")
    mark, before = f"GANGLION_TEST_MARK={secrets.token_hex(8)}", set(place().glob("ganglion-*"))
    name, value = mark.split("=")
    given = ["train.budget=40k steps", "save.every=2k steps", f"run.dir={tmp_path}/run", "eval=never", "log=[jsonl]"]
    words = ["launch", "local", "cartpole/ppo", "--mode", "ray", "--learners", str(learners), "--restarts", "50"]
    command = [sys.executable, "-m", "ganglion", *words, *given]
    environ = {**os.environ, name: value}
    launcher = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    kills, ends, seen = 0, monotonic() + 300, 0
    checkpoints = tmp_path / "run" / "checkpoints"
    while launcher.poll() is None and monotonic() < ends:
        sleep(0.2)
        saved = max((int(path.name.split("-")[0]) for path in checkpoints.glob("[0-9]*")), default=0)
        if kills < 3 and saved > seen and (pid := learner(mark)) is not None:
            seen = saved
            os.kill(pid, signal.SIGKILL)
            kills += 1
            sleep(3)
    out = launcher.communicate(timeout=60)[0]
    assert launcher.returncode == 0, out[-2_000:]
    assert kills == 3 and out.count("resumed from its newest checkpoint") == 3
    steps = [json.loads(line)["env_steps"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] >= 40_000
    ends = monotonic() + 20
    while (left := marked(mark)) and monotonic() < ends:
        sleep(0.2)
    assert not left
    new = [folder for folder in place().glob("ganglion-[0-9]*-*") if folder not in before]
    assert not [folder for folder in new if not alive(int(folder.name.split("-")[1]))]  # other runs may have theirs
