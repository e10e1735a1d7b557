"""Trains the zoo's presets over several seeds and writes what they reached: the table, the scores and the curves.

    python benchmarks/learning.py                           every preset that has no result yet
    python benchmarks/learning.py cartpole/dqn --seeds 3    one preset, three seeds
    python benchmarks/learning.py cartpole/dqn --first 0    seeds from 0 on, those that presets are tuned with
    python benchmarks/learning.py --table                   no training: the table from the scores that are there
    python benchmarks/learning.py --set run.fast=compile --out docs/results/compiled
                                                            the presets with other settings, their results elsewhere

A run is scored twice on 100 episodes whose seeds no training, tuning or model selection used: the model that was best
in the evaluations during training, and the model at the end of the budget. Presets are tuned with training seeds below
100 and the test episodes that `ganglion eval` takes by itself; the table is made with other ones.

Results are written after every run, so a sweep that was cut short leaves a table of the seeds that ended, and started
again trains only those that are missing. A result belongs to the exact settings it was made with: where a preset has
changed since, its seeds are trained again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import yaml

from ganglion.config.files import load
from ganglion.registry import presets

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results"
EPISODES = 100
FIRST = 100  # training seeds: those below are for tuning
TEST = 5_000_000  # seed of the first test episode; tuning looks at the default of `ganglion eval`
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}  # by sample size


class Aim(NamedTuple):
    """What a preset promises: so many seeds of so many reach the return."""

    reach: float
    seeds: int
    needed: int


AIMS = {
    "cartpole/ppo": Aim(475, 10, 9),
    "cartpole/dqn": Aim(475, 10, 9),
    "cartpole/impala": Aim(475, 5, 4),
    "cartpole/apex": Aim(475, 5, 4),
    "acrobot/ppo": Aim(-90, 5, 5),
    "pendulum/ppo": Aim(-190, 5, 5),
    "pendulum/sac": Aim(-170, 5, 5),
    "pendulum/td3": Aim(-170, 5, 5),
    "cartpole-novelocity/ppo": Aim(450, 5, 5),
    "mountaincar/dqn": Aim(-115, 5, 4),
    "lunarlander/ppo": Aim(200, 5, 5),
    "minigrid-doorkey/ppo": Aim(0.95, 5, 5),
    "minatar-breakout/dqn": Aim(8, 3, 3),
    "bipedalwalker/sac": Aim(250, 2, 2),
    "halfcheetah/sac": Aim(3_500, 3, 3),
    "pong/ppo": Aim(-5, 1, 1),
}


# ------------------------------------------------------------ one run


def settings(preset: str) -> str:
    """A short name of what a preset says, comments and logging aside: results are kept by it."""
    said = yaml.safe_load(presets()[preset].read_text())
    said.pop("log", None)
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def ganglion(*arguments: str) -> str:
    """Runs the command in a process of its own, with one thread; its output."""
    command = [sys.executable, "-m", "ganglion", *arguments]
    threads = {"OMP_NUM_THREADS": "1"}  # so that two runs side by side do not take turns on the same cores
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **threads}).stdout


def train(preset: str, seed: int, runs: Path, device: str, more: list[str]) -> dict[str, Any]:
    """Trains one seed and scores it; the folder is kept, its replay is not."""
    made = settings(preset)
    folder = runs / f"{preset.replace('/', '-')}-{made}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    given = [f"run.seed={seed}", f"run.dir={folder}", f"run.device={device}", "log.writers=[jsonl]", *more]
    ganglion("train", preset, *given)
    seconds = time.monotonic() - began
    scores = {which: score(folder, which) for which in ("best", "last")}
    shutil.rmtree(folder / "checkpoints" / "chunks", ignore_errors=True)
    return {"preset": preset, "settings": made, "seed": seed, **scores, "seconds": round(seconds, 1), **curves(folder)}


def score(folder: Path, which: str) -> dict[str, Any]:
    found = json.loads(
        ganglion("eval", str(folder), "--episodes", str(EPISODES), "--seed", str(TEST), "--json", f"--{which}")
    )
    manifest = json.loads((Path(found["checkpoint"]) / "manifest.json").read_text())
    return {"mean": found["mean"], "interval": found["interval"], "env_steps": manifest["step"]}


def curves(folder: Path) -> dict[str, Any]:
    """Training returns and evaluations over env steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [(x["env_steps"], x["episode/return"]) for x in lines if x["kind"] == "record" and "episode/return" in x]
    judged = [(x["env_steps"], x["eval/return_mean"]) for x in lines if x["kind"] == "evaluate"]
    return {"trained": trained, "judged": judged}


# ------------------------------------------------------------ results


class Results:
    """The scores of all runs and the curves of each preset, on disk after every run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock = folder, threading.Lock()
        self.file = folder / "learning.json"
        self.runs: list[dict[str, Any]] = json.loads(self.file.read_text()) if self.file.exists() else []

    def of(self, preset: str) -> list[dict[str, Any]]:
        made = settings(preset)
        return [run for run in self.runs if run["preset"] == preset and run["settings"] == made]

    def add(self, run: dict[str, Any]) -> None:
        with self.lock:
            self.runs = json.loads(self.file.read_text()) if self.file.exists() else []
            same = {"preset": run["preset"], "settings": run["settings"]}
            stale = [r for r in self.runs if r["preset"] == run["preset"] and r["settings"] != run["settings"]]
            lines = [] if stale else self.lines(run["preset"])
            lines = [line for line in lines if line["seed"] != str(run["seed"])] + points(run)
            self.runs = [r for r in self.runs if r not in stale and {**r, **same, "seed": run["seed"]} != r]
            self.runs.append({k: v for k, v in run.items() if k not in ("trained", "judged")})
            self.runs.sort(key=lambda r: (list(AIMS).index(r["preset"]), r["seed"]))
            self.write(run["preset"], lines)

    def path(self, preset: str) -> Path:
        return self.folder / "curves" / f"{preset.replace('/', '-')}.csv"

    def lines(self, preset: str) -> list[dict[str, Any]]:
        """The points of a preset's curves."""
        path = self.path(preset)
        if not path.exists():
            return []
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    def write(self, preset: str, lines: list[dict[str, Any]]) -> None:
        path = self.path(preset)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines.sort(key=lambda line: (int(line["seed"]), line["curve"], int(line["env_steps"])))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["seed", "curve", "env_steps", "return"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
        runs = ",\n".join(json.dumps(run) for run in self.runs)  # one run per line, so that a change shows as one
        self.file.write_text(f"[\n{runs}\n]\n")


def points(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The curves of a run as rows; training returns thinned to a hundred points, each a mean."""
    rows = [("eval", at, value) for at, value in run["judged"]]
    group = -(-len(run["trained"]) // 100) or 1
    for i in range(0, len(run["trained"]), group):
        part = run["trained"][i : i + group]
        rows.append(("train", part[-1][0], fmean(value for _, value in part)))
    return [{"seed": str(run["seed"]), "curve": c, "env_steps": at, "return": round(v, 3)} for c, at, v in rows]


# ------------------------------------------------------------ the table

HEAD = """# Learning: what the zoo's presets reach

Mean return over {episodes} episodes of the deterministic agent, on seeds that neither trained it nor chose the model,
for **best** (the model of the best evaluation during training) and **last** (the model at the end of the budget).
Intervals are 95 % over the training seeds (Student's t). **Reached** counts the seeds whose best model reaches the aim.
**Training** is the mean return of the exploring agent over the last tenth of the budget. Time is one run on one core
beside others: a rough guide, nothing more.

Presets were tuned with training seeds below {first} and other test episodes; these seeds were run once, with the
presets as they are.

Made by `{command}` on {machine}; one seed of it by hand:

```bash
ganglion train cartpole/dqn run.seed={first} run.dir=runs/cartpole-dqn{more}
ganglion eval runs/cartpole-dqn --episodes {episodes} --seed {test} --best
ganglion eval runs/cartpole-dqn --episodes {episodes} --seed {test} --last
```

"""


def table(results: Results, given: list[str]) -> str:
    """Everything that was measured with the presets as they are now, and settings that were given beside them."""
    about = results.folder / "machine.txt"  # written by hand
    machine = about.read_text().strip() if about.exists() else "a machine that nobody described"
    more = "".join(f" {word}" for word in given)
    command = f"python benchmarks/learning.py{' --set' if more else ''}{more}"
    head = HEAD.format(episodes=EPISODES, first=FIRST, test=TEST, command=command, machine=machine, more=more)
    titles = ["preset", "env steps", "aim", "reached", "best", "last", "training", "minutes"]
    there = [preset for preset in AIMS if results.of(preset)]
    rows = [row(preset, AIMS[preset], results) for preset in there]
    each = ["", "## Every seed", "", "Best / last. Bold: the best model is below the aim.", ""]
    most = sorted({run["seed"] for run in results.runs})
    seeds = [[preset, *(cell(preset, seed, results) for seed in most)] for preset in there]
    missing = ", ".join(f"`{preset}`" for preset in AIMS if preset not in there)
    curves = f"\nNot in this table: {missing}.\n" if missing else ""
    curves += "\nRaw scores: [learning.json](learning.json). Curves of every run: [curves/](curves).\n"
    lines = [*grid(titles, rows), *each, *grid(["preset", *(f"seed {seed}" for seed in most)], seeds)]
    return head + "\n".join(lines) + "\n" + curves


def grid(titles: list[str], rows: list[list[str]]) -> list[str]:
    line = lambda cells: "| " + " | ".join(cells) + " |"  # noqa: E731
    return [line(titles), "|" + "---|" * len(titles), *(line(row) for row in rows)]


def row(preset: str, aim: Aim, results: Results) -> list[str]:
    runs = results.of(preset)
    budget = f"{load(preset).train.budget.count:,.0f}"
    promise = f"{aim.reach:g} by {aim.needed} of {aim.seeds}"
    reached = f"{sum(run['best']['mean'] >= aim.reach for run in runs)} of {len(runs)}"
    if len(runs) < aim.seeds:
        reached += " run so far"
    best, last = (spread([run[which]["mean"] for run in runs], fine(preset, 1)) for which in ("best", "last"))
    minutes = f"{fmean(run['seconds'] for run in runs) / 60:.1f}"
    return [preset, budget, promise, reached, best, last, training(preset, results), minutes]


def training(preset: str, results: Results) -> str:
    """The exploring agent's return over the last tenth of the budget."""
    start = 0.9 * load(preset).train.budget.count
    late: dict[str, list[float]] = {}
    for line in results.lines(preset):
        if line["curve"] == "train" and float(line["env_steps"]) > start:
            late.setdefault(line["seed"], []).append(float(line["return"]))
    return spread([fmean(values) for values in late.values()], fine(preset, 1))


def fine(preset: str, digits: int) -> int:
    """How many digits after the point a return is shown with: more where returns are small."""
    return digits + 2 if abs(AIMS[preset].reach) < 2 else digits


def spread(values: list[float], digits: int) -> str:
    """A mean with its 95 % interval over seeds."""
    if not values:
        return ""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    half = STUDENT.get(len(values), 2.0) * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):.{digits}f} ± {half:.{digits}f}"


def cell(preset: str, seed: int, results: Results) -> str:
    run = next((run for run in results.of(preset) if run["seed"] == seed), None)
    if run is None:
        return ""
    digits = fine(preset, 0)
    best = f"{run['best']['mean']:.{digits}f}"
    return f"{best if run['best']['mean'] >= AIMS[preset].reach else f'**{best}**'} / {run['last']['mean']:.{digits}f}"


# ------------------------------------------------------------ the sweep


def sweep(args: argparse.Namespace, results: Results) -> int:
    """Trains what is missing; how many runs failed."""
    names, first, seeds = args.presets or list(AIMS), args.first, args.seeds
    asked = [(preset, first + i) for preset in names for i in range(seeds or AIMS[preset].seeds)]
    have = {(preset, run["seed"]) for preset in names for run in results.of(preset)}
    wanted = [pair for pair in asked if pair not in have]

    def one(pair: tuple[str, int]) -> bool:
        try:
            run = train(*pair, args.runs, args.device, args.set)
        except subprocess.CalledProcessError as error:
            print(f"{pair[0]} seed {pair[1]} failed: {error.stderr.strip()[-500:]}", flush=True)
            return False
        results.add(run)
        (results.folder / "learning.md").write_text(table(results, args.set))
        best, last = run["best"]["mean"], run["last"]["mean"]
        print(f"{pair[0]} seed {pair[1]}: best {best:.1f}, last {last:.1f}, {run['seconds']:.0f} s", flush=True)
        return True

    with ThreadPoolExecutor(args.jobs) as pool:
        return list(pool.map(one, wanted)).count(False)


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", choices=[*AIMS, []], metavar="PRESET", help="all by default")
    parser.add_argument("--seeds", type=int, metavar="N", help="so many instead of what the aim asks for")
    parser.add_argument("--first", type=int, default=FIRST, metavar="SEED", help=f"the first seed ({FIRST})")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side (1)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where to train (cpu)")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=VALUE", help="settings beside the preset's")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), metavar="DIR", help="where runs are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go (docs/results)")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    args = parser.parse_args()
    results = Results(args.out)
    failed = 0 if args.table else sweep(args, results)
    (args.out / "learning.md").write_text(table(results, args.set))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
