"""Replay buffers against those of others: batches of 256 per second, interleaved, and the memory of a million frames.

    python benchmarks/replay.py                      every task and peer that is there
    python benchmarks/replay.py small prioritised    some tasks
    python benchmarks/replay.py --make               makes the peers' virtual environments first (about 4 GB)
    python benchmarks/replay.py --peers DIR          where those are (.peers); --pairs N of runs each (10)
    python benchmarks/replay.py memory               fills a replay of a million Atari frames (7.1 GB, some minutes)
    python benchmarks/replay.py --write              writes docs/results/replay.txt

Each side is a process of its own (benchmarks/replay_sides.py, which says what a batch holds and how it is filled); they
take turns A B B A (benchmarks/versus.py). Every side has one thread, as a run has by default, and two for Atari.
`limit` is numpy's gather of the same rows, and nothing else, into memory that is used again; it is measured in the same
way.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import versus

HERE = Path(__file__).resolve().parent
PEERS = {  # name of the virtual environment -> what to install, step by step: torch first, pinned
    "cpprb": [["cpprb", "numpy"]],
    "sb3": [["torch==2.13.0"], ["stable-baselines3"]],
    "tianshou": [["torch==2.13.0"], ["tianshou"]],
    "torchrl": [["torch==2.13.0"], ["torchrl"]],
}
PACKAGES = {"cpprb": "cpprb", "sb3": "stable-baselines3", "tianshou": "tianshou", "torchrl": "torchrl"}


class Task(NamedTuple):
    """What is sampled, what the ratio to the fastest peer has to reach, and batches per turn: ours, theirs."""

    what: str
    aim: float
    turns: tuple[int, int]
    peers: tuple[str, ...]


TASKS = {
    "small": Task("256 rows of 17 floats and 6 actions, of 1M", 2.0, (2_000, 1_000), tuple(PEERS)),
    "atari": Task("256 rows of four 84 x 84 frames, of 64k", 3.0, (80, 30), tuple(PEERS)),
    "prioritised": Task(
        "256 small rows by priority and new priorities, of 1M", 3.0, (1_000, 500), ("cpprb", "tianshou")
    ),
}
HEAD = ["task", "peer", "ours, batches/s", "theirs", "ratio [95 %]", "ratio of processor time", "aim"]


def make(folder: Path) -> None:
    """The peers' virtual environments, where they are not there yet."""
    for name, steps in PEERS.items():
        if not (folder / name).exists():
            print(f"making {folder / name}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
            for packages in steps:
                subprocess.run([python(folder, name), "-m", "pip", "install", "-q", *packages], check=True)


def python(folder: Path, side: str) -> str:
    return sys.executable if side in ("ganglion", "limit") else str(folder / side / "bin" / "python")


def start(folder: Path, side: str, task: str) -> versus.Worker:
    command = [python(folder, side), str(HERE / "replay_sides.py"), side, task]
    return versus.Worker(side, command, {"OMP_NUM_THREADS": "2" if task == "atari" else "1"})


def measured(task: str, folder: Path, pairs: int) -> Iterator[list[str]]:
    """One row of the table per peer that is there, then the limit."""
    (_, aim, (ours, theirs), peers) = TASKS[task]
    with start(folder, "ganglion", task) as us:
        for peer in (*(p for p in peers if Path(python(folder, p)).exists()), "limit"):
            with start(folder, peer, task) as them:
                turns = (ours, ours if peer == "limit" else theirs)
                got = versus.compare(us, them, turns, pairs, "samples")
            rates = [versus.number(got.a), versus.number(got.b)]
            wanted = {"limit": "0.80" if task == "atari" else "-"}.get(peer, f"{aim:.1f}")
            yield [task, peer, *rates, str(got.ratio), str(got.cpu), wanted]


def memory() -> str:
    """Resident memory of a replay of a million Atari frames, filled."""
    said = subprocess.run(
        [sys.executable, str(HERE / "replay_sides.py"), "memory", "atari"], check=True, capture_output=True, text=True
    )
    return said.stdout.strip()


def report(rows: list[list[str]], filled: str, folder: Path, command: str) -> str:
    versions = [f"{name} {peer_version(folder, name)}" for name in PEERS if Path(python(folder, name)).exists()]
    lines = [
        f"Made by `{command}`.",
        versus.machine("torch", "numpy"),
        "Peers: " + ", ".join(versions),
        "Tasks: " + "; ".join(f"{name}: {TASKS[name].what}" for name in TASKS),
        "",
        versus.table(HEAD, rows),
    ]
    return "\n".join([*lines, *(["", filled] if filled else [])]) + "\n"


def peer_version(folder: Path, name: str) -> str:
    code = f"from importlib.metadata import version; print(version({PACKAGES[name]!r}))"
    said = subprocess.run([python(folder, name), "-c", code], check=True, capture_output=True, text=True)
    return said.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}, memory; all but memory by default")
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".peers")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if asked.make:
        make(asked.peers)
    tasks, rows = asked.tasks or list(TASKS), []
    print("\n".join(versus.table(HEAD, []).splitlines()), flush=True)
    for task in tasks:
        for row in measured(task, asked.peers, asked.pairs) if task != "memory" else ():
            rows.append(row)
            print("| " + " | ".join(row) + " |", flush=True)
    filled = memory() if "memory" in tasks else ""
    command = " ".join(["python benchmarks/replay.py", *asked.tasks, f"--pairs {asked.pairs}"])
    text = report(rows, filled, asked.peers, command)
    print("\n" + text)
    if asked.write:
        (HERE.parent / "docs" / "results" / "replay.txt").write_text(text)


if __name__ == "__main__":
    main()
