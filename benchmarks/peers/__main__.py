"""Measures Ganglion against other systems on equal work, in turns.

    python -m benchmarks.peers.install                         once: each peer in an environment of its own
    python -m benchmarks.peers                                 every workload against every peer
    python -m benchmarks.peers ppo-cartpole --against sb3      one of each
    python -m benchmarks.peers ppo-cartpole --against itself   the control: a ratio of 1, or the machine is too busy
    python -m benchmarks.peers ppo-cartpole --ours run.fast=compile --label compiled
    python -m benchmarks.peers ppo-cartpole --ours "env={kind: torch, id: cartpole, slots: 8}" --label torch-native

Steady state, training included: both sides warm up, then take turns A B B A of so many updates with the env steps
between them. Env steps, updates, rows learned from and parameters moved are counted on both sides and must agree. A
ratio above 1 says that Ganglion is faster; its interval is a bootstrap over pairs. Results are kept in a JSON file, one
entry per workload, peer and label; `--page` writes them as docs/results/peers.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.install import DEFAULT, PACKAGES, ROOT
from benchmarks.peers.workloads import WORKLOADS, Workload
from benchmarks.versus import Outcome, Worker, compare, machine, number, table

RESULTS = ROOT / "docs" / "results"
PREFACE = """# Speed against other systems

Env steps per second in steady state, training included, on equal work: the same network, rows per update, updates
per env step; env steps, updates, rows learned from and parameters moved are counted on both sides and must agree
(within 2 %, 6 % for rollouts, where a side may spend a row on each reset). The sides take turns A B B A. A ratio
above 1 says that Ganglion is faster; it is the geometric mean over pairs with a bootstrap 95 % interval. The rates
are medians on a machine shared with other work and mean little alone; that work disturbs the ratio per processor
second less.

```bash
python -m benchmarks.peers.install          # each peer in an environment of its own, under .peers/
python -m benchmarks.peers                  # all of it; --help names the options
python -m benchmarks.peers --page           # this page
```

Peers: Stable-Baselines3 2.9.2, CleanRL (its scripts at commit fe8d8a0, run as they are), Tianshou 2.0.1, DI-engine
0.5.3. CleanRL's DQN takes one environment only; its row with 8 slots compares Ganglion's 8 with that one. Its
HalfCheetah is v4.

The intervals are narrower than the truth where the machine is crowded: a load that changes over seconds meets
neighbouring turns differently, and a bootstrap over six pairs cannot know. The control is a program against itself,
which should give 1. At a load of 9, CleanRL's DQN against itself gave, in four tries, 0.89 [0.85, 0.94], 1.33 [0.82,
2.03], 0.89 [0.52, 1.49] and 1.47 [1.25, 1.71] by the wall clock and 0.95, 1.10, 0.98 and 1.05 by processor time. So
by processor time a ratio within a tenth of 1 says nothing here, and by the wall clock one within a half; where the two
columns disagree, the reason was not found. The rows `itself` are such controls of Ganglion. Rows with a load below 2
were made with nothing else running on this machine; others on the same hardware could be felt that day, and where it
mattered more pairs were made. On a quieter day before, six pairs of `compile` gave 5.15 [5.06, 5.23], 4.83 [4.78, 4.87]
(vector) and 9.33 [9.27, 9.39] (torch-native) times SB3 for PPO, 2.42 [2.32, 2.53] and 4.37 [4.23, 4.53] times CleanRL
for DQN, and in bfloat16 2.96 [2.88, 3.04] for SAC and 2.19 [2.10, 2.28] for TD3. Ratios follow the state of a
shared machine: TD3 in float32 against CleanRL was measured four times, 2.16 [2.05, 2.27] with 30 pairs, 2.09 [2.03,
2.14] and 2.12 [2.07, 2.17] with 60 each, 2.09 [2.03, 2.14] with 30 (below). PPO with the vector environment gave 4.21
[3.99, 4.46] to 4.79 [4.59, 5.01] in five sets of one afternoon, when every part of a step took up to a quarter longer
than in the morning; since its steps are taken as one, in turns a sixth faster, three sets gave 5.62 [5.50, 5.75] (24
pairs), 4.95 [4.75, 5.12] (48) and 5.30 [5.24, 5.37] (48, below). Pong in bfloat16 gave 2.04 [1.92, 2.20] with 6 pairs,
2.16 [2.09, 2.24] with 14 and 2.26 [2.17, 2.34] with 8 (below). Where the time of PPO on CartPole goes, part by part:
[where.txt](where.txt), made by `python -m benchmarks.peers.where --results docs/results/where.txt`.
`python -m benchmarks.peers.solved` measures process start to solved.

"""
SIDES = {"sb3": "side_sb3", "cleanrl": "side_cleanrl", "tianshou": "side_tianshou", "di-engine": "side_ding"}


def surroundings(work: Workload, threads: int | None) -> dict[str, str]:
    """Environment variables of both sides: as many threads, the repository to import from, no GPU."""
    count = str(threads or work.threads)
    return {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "CUDA_VISIBLE_DEVICES": "",
    }


def theirs(peer: str, name: str, given: argparse.Namespace) -> Worker:
    python = given.peers / peer / "bin" / "python"
    more = [str(given.peers / "cleanrl-src")] if peer == "cleanrl" else []
    command = [str(python), "-m", f"benchmarks.peers.{SIDES[peer]}", name, *more]
    return Worker(peer, command, surroundings(WORKLOADS[name], given.threads))


def ours(name: str, given: argparse.Namespace) -> Worker:
    threads = [f"run.threads={given.threads}"] if given.threads else []
    command = [sys.executable, "-m", "benchmarks.peers.side_ours", name, *threads, *given.ours]
    return Worker("ganglion", command, surroundings(WORKLOADS[name], given.threads))


def measure(name: str, peer: str, given: argparse.Namespace) -> Outcome:
    work = WORKLOADS[name]
    with ours(name, given) as a, ours(name, given) if peer == "itself" else theirs(peer, name, given) as b:
        turn = given.turn or work.turn
        return compare(a, b, turn, pairs=given.pairs, within=work.within)


# ------------------------------------------------------------ what is kept


def keep(path: Path, name: str, peer: str, given: argparse.Namespace, outcome: Outcome) -> None:
    """Adds or replaces one entry."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    kept[f"{name} {peer} {given.label}"] = {
        "workload": name,
        "peer": peer,
        "label": given.label,
        "ours": list(given.ours),
        "threads": given.threads or WORKLOADS[name].threads,
        "rates": [outcome.a, outcome.b],
        "ratio": list(outcome.ratio),
        "ratios": list(outcome.ratios),
        "cpu": list(outcome.cpu),
        "machine": machine("torch", "gymnasium"),
        "when": time.strftime("%Y-%m-%d"),
    }
    path.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")


def page(path: Path) -> str:
    """The page of everything that was kept."""
    rows = []
    kept: dict[str, Any] = json.loads(path.read_text())
    for entry in kept.values():
        mean, low, high, pairs = entry["ratio"]
        ours, peer = (number(x) for x in entry["rates"])
        ratio = f"**{mean:.2f}** [{low:.2f}, {high:.2f}]"
        cpu = "{:.2f} [{:.2f}, {:.2f}]".format(*entry["cpu"])
        last = [pairs, entry["threads"], re.findall("load ([0-9.]+)", entry["machine"])[0]]
        rows.append([entry["workload"], entry["label"], entry["peer"], ours, peer, ratio, cpu, *last])
    rates = ["Ganglion, env steps/s", "peer, env steps/s"]
    head = ["workload", "Ganglion as", "peer", *rates, "ratio", "ratio per processor second", "pairs", "threads"]
    made = " ".join(sorted({re.sub(", load [0-9.]+ before", "", entry["machine"]) + "." for entry in kept.values()}))
    return PREFACE + table([*head, "load"], rows) + f"\n\n{made}\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; all unless named")
    parser.add_argument("--against", nargs="*", default=list(PACKAGES), choices=[*PACKAGES, "itself"], metavar="PEER")
    parser.add_argument("--ours", nargs="*", default=[], metavar="PATH=VALUE", help="settings of Ganglion's side")
    parser.add_argument("--label", default="eager", help="what these settings are called in the table")
    parser.add_argument("--peers", type=Path, default=DEFAULT, help="where the peers are installed (.peers)")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--turn", type=int, help="updates per turn (the workload's own)")
    parser.add_argument("--threads", type=int, help="threads of both sides (the workload's own)")
    parser.add_argument("--results", type=Path, default=RESULTS / "peers.json")
    parser.add_argument("--page", action="store_true", help="no measuring: writes the page of what was kept")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if given.page:
        given.results.with_suffix(".md").write_text(page(given.results))
        return 0
    print(machine("torch", "gymnasium"))
    folder = Path(tempfile.mkdtemp())
    given.peers, given.results, failures = given.peers.resolve(), given.results.resolve(), 0
    os.chdir(folder)  # some write where they stand
    for name in given.workloads or WORKLOADS:
        for peer in given.against:
            try:
                outcome = measure(name, peer, given)
            except (RuntimeError, AssertionError) as problem:
                failures += 1
                print(f"{name} {given.label} against {peer}: {problem}", flush=True)
                continue
            keep(given.results, name, peer, given, outcome)
            rates = f"{number(outcome.a)} against {number(outcome.b)} env steps/s"
            print(f"{name} {given.label} against {peer}: {outcome.ratio}, cpu {outcome.cpu} ({rates})", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
