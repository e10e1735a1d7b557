"""However a pool ends, no process, file or memory of it is left."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ganglion.envs.pool import Pool

SOAK = os.environ.get("GANGLION_SOAK") == "1"
SCRIPT = """
import os, signal, sys, time
import numpy as np
from ganglion.envs.pool import Pool

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background shell has its children ignore

how = sys.argv[1]
told = {"how": "hang", "at": 3, "only": 1 if how == "hung" else -1, "episode": 0}
pool = Pool("tests.envs.faulty:faulty", told, 4, 2)
pool.reset(0)
everyone = [*pool.worker_processes.members, *pool.worker_processes._spares]
print(*(member.pid for member in everyone), flush=True)
for _ in range(2):
    pool.act([np.zeros(4, np.int64)])
if how == "exception":
    raise ValueError("the parent's own")
if how == "closed":
    pool.close()
if how in ("closed", "left"):
    sys.exit(0)
print("ready", flush=True)
while True:
    pool.act([np.zeros(4, np.int64)])
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(alive, pids))


def in_memory() -> set[str]:
    """What lies in shared memory, but for the folders of fleets, which other tests have while this one runs."""
    return {name for name in os.listdir("/dev/shm") if not re.match(r"ganglion-\d+-", name)}


@pytest.mark.parametrize(
    ("how", "number", "code"),
    [
        ("closed", None, 0),
        ("left", None, 0),
        ("exception", None, 1),
        ("busy", signal.SIGINT, None),
        ("busy", signal.SIGTERM, -signal.SIGTERM),
        ("busy", signal.SIGKILL, -signal.SIGKILL),
        ("hung", signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=str,
)
def test_no_process_and_no_segment_is_left(how: str, number: signal.Signals | None, code: int | None) -> None:
    shared = in_memory()
    command = [sys.executable, "-c", SCRIPT, how]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, process_group=0, **quiet) as parent:  # type: ignore[call-overload]
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3 and all(map(alive, pids[:2]))
        if number is not None:
            assert parent.stdout.readline() == "ready\n"
            time.sleep(0.3)
            os.killpg(parent.pid, number) if number == signal.SIGINT else parent.send_signal(
                number
            )  # as a terminal does
        assert parent.wait(20) == (code if code is not None else parent.returncode)
    assert gone(pids)
    assert in_memory() <= shared


def test_ctrl_c_saves_a_run_and_leaves_no_worker(tmp_path: Path) -> None:
    words = ["--algo", "ppo", "--env", "CartPole-v1", "env.workers=2", "train.budget=10M steps", "eval=never"]
    command = [sys.executable, "-m", "ganglion", "train", *words, f"run.dir={tmp_path / 'run'}"]
    with subprocess.Popen(command, process_group=0, stdout=subprocess.PIPE, text=True) as run:
        until = time.monotonic() + 60
        while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        pids = children(run.pid)
        assert len(pids) == 3
        os.killpg(run.pid, signal.SIGINT)
        out = run.communicate(timeout=30)[0]
    assert run.returncode == 130 and "Interrupted and saved" in out
    assert gone(pids)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers(pid: int) -> list[int]:
    """The worker processes of a run."""
    found = []
    for child in children(pid):
        with suppress(OSError):
            if b"ganglion.envs.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_a_run_outlives_workers_killed_while_they_start(seed: int, tmp_path: Path) -> None:
    """At the beginning, for evaluations, in place of others: each costs what a worker costs, and the run its time."""
    words = ["--algo", "ppo", "--env", "CartPole-v1", "env.workers=2", "env.slots=4", "train.budget=4k steps",
             "eval.every=1k steps", "eval.episodes=4", "env.max_failures=1000", "log.writers=[jsonl]"]  # fmt: skip
    command = [sys.executable, "-m", "ganglion", "train", *words, f"run.dir={tmp_path / 'run'}"]
    dice, known, killed, row = random.Random(seed), set[int](), set[int](), 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None and len(killed) < 40:
            for pid in set(workers(run.pid)) - known:
                known.add(pid)
                row = row + 1 if row < 2 and (not killed or dice.random() < 0.6) else 0  # some come up
                if row:
                    time.sleep(dice.uniform(0.0, 0.8))
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
            time.sleep(0.01)
        err = run.communicate(timeout=120)[1]
    assert run.returncode == 0 and "Traceback" not in err, err
    assert killed and gone(sorted(known))


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_creating_and_closing_leaves_nothing() -> None:
    count = 200 if SOAK else 6

    def once() -> None:
        pool = Pool("tests.envs.faulty:counting", {}, 4, 2, spare=not SOAK)
        pool.reset(0)
        pool.act([np.zeros(4, np.int64)])
        pool.close()
        pool.close()  # closing twice is no error

    once()
    gc.collect()
    before, held, processes = files(), 0.0, children(os.getpid())
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of other tests' processes
    for number in range(count):
        once()
        if number == count // 4:
            held = resident()
    gc.collect()
    assert files() == before
    assert children(os.getpid()) == processes
    assert resident() - held < 5.0  # megabytes
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(1e6, largest)


def resident() -> float:
    """Megabytes in use; what the C library keeps of freed memory is handed back first."""
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_a_pool_that_nobody_closes_ends_with_its_last_reference() -> None:
    pool = Pool("tests.envs.faulty:counting", {}, 2, 1)
    pids = pool.worker_processes.pids()
    assert all(map(alive, pids))
    del pool
    gc.collect()
    assert gone(pids)


def test_a_failed_start_leaves_nothing() -> None:
    before, processes = files(), children(os.getpid())
    for maker in ("tests.nowhere:faulty", "tests.envs.faulty:two_sizes"):
        with pytest.raises(Exception, match=r"nowhere|same"):
            Pool(maker, {}, 2, 2)
    gc.collect()
    assert files() == before and children(os.getpid()) == processes
