"""Environments against those of others: 8 slots, random actions, medians of interleaved runs.

    python benchmarks/envs.py                        every comparison whose peers are there
    python benchmarks/envs.py cartpole halfcheetah   those of some worlds
    python benchmarks/envs.py --make                 makes the peers' virtual environments first (about 5 GB)
    python benchmarks/envs.py --peers DIR            where those are (.peers); --pairs N of runs each (12)
    python benchmarks/envs.py --write                writes docs/results/envs.txt

Each side is a process of its own (benchmarks/envs_sides.py); they take turns A B B A (benchmarks/versus.py). Ours is
measured at the level of its contract: tensors in, tensors of their own out, episodes scored, actions logged for resume.

On a machine that others use as well the last column says more: steps per second of processor time, all processes and
threads of a side together (what a pool spends watching for the next step counts against it). By the clock on the wall a
side of many processes then gets a larger share of the cores than one of few. Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import versus

HERE = Path(__file__).resolve().parent
PEERS = {  # name of the virtual environment -> what to install, step by step: torch first, pinned
    "gymnasium": [["gymnasium==1.4.0", "numpy"]],
    "sb3": [["torch==2.13.0"], ["stable-baselines3", "gymnasium[mujoco]", "ale-py", "opencv-python-headless"]],
    "ale": [["gymnasium==1.4.0", "ale-py", "opencv-python-headless"]],
    "envpool": [["envpool"]],
}
PACKAGES = {"gymnasium": "gymnasium", "sb3": "stable-baselines3", "ale": "ale-py", "envpool": "envpool"}


class Match(NamedTuple):
    """One comparison: ours with these settings against a side of a peer, and what the ratio has to reach."""

    world: str
    ours: str
    settings: str
    peer: str
    side: str
    aim: float
    steps: tuple[int, int]  # of every slot, in one turn: ours, theirs


CARTPOLE, PONG, CHEETAH = "kind: gym, id: CartPole-v1", "kind: atari, id: pong", "kind: gym, id: HalfCheetah-v5"
MATCHES = [
    Match("cartpole", "in process", f"{{{CARTPOLE}, workers: 0}}", "gymnasium", "sync", 0.95, (4_000, 4_000)),
    Match("cartpole", "pool", f"{{{CARTPOLE}, workers: 2}}", "gymnasium", "async", 4.0, (2_000, 500)),
    Match("cartpole", "pool", f"{{{CARTPOLE}, workers: 2}}", "sb3", "subproc", 4.0, (2_000, 500)),
    Match("pong", "ALE's vector", f"{{{PONG}, vector: true}}", "ale", "ale", 0.95, (300, 300)),
    Match("pong", "pool", f"{{{PONG}, workers: 2}}", "sb3", "subproc", 1.3, (300, 200)),
    Match("halfcheetah", "EnvPool", "{kind: envpool, id: HalfCheetah-v5}", "envpool", "envpool", 0.95, (1_500, 1_500)),
    Match("halfcheetah", "pool", f"{{{CHEETAH}, workers: 2}}", "sb3", "subproc", 2.0, (800, 400)),
]
LIMITS = {  # world -> the peer and side that show what the machine can do, what it is, steps of a turn
    "cartpole": ("gymnasium", "c", "a C loop, one thread", 500_000),
    "pong": ("ale", "raw", "ALE alone, a thread per core, no pre-processing", 300),
    "halfcheetah": ("sb3", "rollout", "MuJoCo's own rollout, a thread per core", 1_500),
}


def make(folder: Path) -> None:
    """The peers' virtual environments, where they are not there yet."""
    for name, steps in PEERS.items():
        if not (folder / name).exists():
            print(f"making {folder / name}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
            for packages in steps:
                subprocess.run([python(folder, name), "-m", "pip", "install", "-q", *packages], check=True)


def python(folder: Path, peer: str) -> str:
    return str(folder / peer / "bin" / "python")


class Side(versus.Worker):
    """A side whose processor time is that of all its processes."""

    def run(self, n: int) -> versus.Answer:
        before = busy(self._child.pid)
        answer = super().run(n)
        return answer._replace(cpu=busy(self._child.pid) - before)


def busy(pid: int) -> float:
    """Seconds that a process and all below it have computed so far, by the scheduler's own count."""
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        nanoseconds += int((task / "schedstat").read_text().split()[0])
    below = Path(f"/proc/{pid}/task").glob("*/children")
    return nanoseconds * 1e-9 + sum(busy(int(child)) for file in below for child in file.read_text().split())


def start(stack: ExitStack, interpreter: str, *arguments: str) -> Side:
    command = [interpreter, str(HERE / "envs_sides.py"), *arguments]
    worker = Side(" ".join(arguments), command, {"OMP_NUM_THREADS": "1"})
    stack.enter_context(worker)
    return worker


def play(match: Match, folder: Path, pairs: int) -> list[str]:
    """One row of the table."""
    with ExitStack() as stack:
        try:
            ours = start(stack, sys.executable, "ganglion", match.world, match.settings)
        except RuntimeError as error:
            print(str(error).strip().splitlines()[-1], file=sys.stderr)
            return [match.world, match.ours, f"{match.peer} {match.side}", "not there", *4 * [""]]
        theirs = start(stack, python(folder, match.peer), match.side, match.world)
        got = versus.compare(ours, theirs, match.steps, pairs)
    verdict = "reached" if got.ratio.mean >= match.aim else "MISSED"
    figures = [versus.number(got.a), versus.number(got.b), str(got.ratio), f">= {match.aim:g} {verdict}", str(got.cpu)]
    return [match.world, match.ours, f"{match.peer} {match.side}", *figures]


def limits(worlds: list[str], folder: Path, turns: int = 5) -> Iterator[list[str]]:
    """What the machine could do at most, per world."""
    for world in worlds:
        peer, side, what, steps = LIMITS[world]
        with ExitStack() as stack:
            worker = start(stack, python(folder, peer), side, world)
            runs = [worker.run(steps) for _ in range(turns)]
        yield [world, what, versus.number(versus.median(run.counts["env_steps"] / run.seconds for run in runs))]


def versions(folder: Path) -> str:
    """What the peers are, by the word of their own environments."""
    ask = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    said = []
    for name, package in PACKAGES.items():
        told = subprocess.run([python(folder, name), "-c", ask, package], capture_output=True, text=True, check=False)
        said.append(f"{package} {told.stdout.strip() or 'absent'}")
    return ", ".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=f"of {', '.join(LIMITS)} (all)")
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".peers", metavar="DIR")
    parser.add_argument("--make", action="store_true", help="make what is missing of them first")
    parser.add_argument("--pairs", type=int, default=12, metavar="N")
    parser.add_argument("--write", action="store_true", help="write docs/results/envs.txt")
    asked = parser.parse_args()
    worlds = asked.worlds or list(LIMITS)
    if asked.make:
        make(asked.peers)
    lines = [versus.machine("ganglion", "torch", "numpy", "gymnasium"), f"Peers: {versions(asked.peers)}", ""]
    head = ["world", "ours", "peer", "ours, steps/s", "peer, steps/s", "ratio [95 %]", "aim", "by processor time"]
    rows = []
    for match in MATCHES:
        if match.world in worlds:
            rows.append(play(match, asked.peers, asked.pairs))
            print(*rows[-1], sep="  ", flush=True)
    lines += [versus.table(head, rows), "", "What the machine could do:", ""]
    lines += [versus.table(["world", "limit", "steps/s"], limits(worlds, asked.peers))]
    text = "\n".join(lines) + "\n"
    print(f"\n{text}")
    if asked.write:
        (HERE.parent / "docs" / "results" / "envs.txt").write_text(text)
    return 1 if any("MISSED" in cell for row in rows for cell in row) else 0


if __name__ == "__main__":
    sys.exit(main())
