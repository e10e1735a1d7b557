"""Trains the zoo's presets over several seeds and writes what they reached: the table, the scores and the curves.

    python benchmarks/learning.py                           every preset that has no result yet
    python benchmarks/learning.py cartpole/dqn --seeds 3    one preset, three seeds
    python benchmarks/learning.py cartpole/dqn --first 0    seeds from 0 on, those that presets are tuned with
    python benchmarks/learning.py "--algo dqn --env Acrobot-v1"       without a preset: a cell of the defaults' table
    python benchmarks/learning.py --list JOBS --records FILE --limit 500    elsewhere, in a limited time
    python benchmarks/learning.py --merge FILE              what was recorded elsewhere into docs/results

One run is one process with one thread. Two scores each, over 100 deterministic episodes: the model that was best
in the evaluations during training, and the model at the end of the budget. Presets are tuned with training seeds below
100 and the test episodes that `ganglion eval` takes by itself; the table is made with other ones.

Results are written after every run, so a sweep that was cut short leaves a table of the seeds that ended, and started
again trains only those that are missing. A result belongs to the exact settings it was made with: where a preset has
changed since, its seeds are trained again.

A line of a list of jobs is a number of seeds and what to train, settings included; a number with a + in front trains
these seeds together, as one batched model. Jobs start in the order of the list, so the longest come first.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import shlex
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import yaml

from ganglion.cli import main as ganglion
from ganglion.cli.arguments import asked_cases
from ganglion.cli.parser import parse
from ganglion.config import RunConfig
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
    **{f"cartpole/{name}": Aim(475, 5, 5) for name in ("c51", "qrdqn", "iqn", "rainbow", "discrete_sac")},
    **{f"cartpole/{name}": Aim(475, 5, 5) for name in ("a2c", "pqn", "acer", "ppg")},
    "acrobot/ppo": Aim(-90, 5, 5),
    "acrobot/dqn": Aim(-90, 5, 5),
    "pendulum/ppo": Aim(-190, 5, 5),
    "pendulum/sac": Aim(-170, 5, 5),
    "pendulum/td3": Aim(-170, 5, 5),
    **{f"pendulum/{name}": Aim(-170, 5, 5) for name in ("ddpg", "tqc", "crossq", "flashsac")},
    "cartpole-novelocity/ppo": Aim(450, 5, 5),
    "cartpole-novelocity/r2d2": Aim(475, 5, 5),
    "pendulum-novelocity/sac": Aim(-170, 5, 5),
    "mountaincar/dqn": Aim(-115, 5, 4),
    "lunarlander/ppo": Aim(200, 5, 5),
    "lunarlander/qrdqn": Aim(200, 5, 5),
    "minigrid-doorkey/ppo": Aim(0.95, 5, 5),
    "minatar-breakout/dqn": Aim(8, 3, 3),
    "bipedalwalker/sac": Aim(250, 2, 2),
    "halfcheetah/sac": Aim(3_500, 3, 3),
    "pong/ppo": Aim(-5, 1, 1),
    "halfcheetah/flashsac": Aim(8_820, 3, 3),  # 0.9 of what is published
    "hopper/flashsac": Aim(1_890, 3, 3),
    "walker2d/flashsac": Aim(2_970, 3, 3),
    "ant/flashsac": Aim(2_880, 3, 3),
    "humanoid/flashsac": Aim(5_490, 3, 3),
}


# ------------------------------------------------------------ one run


class Job(NamedTuple):
    """What to train, in the words of `ganglion train`, with which seed, and with how many seeds as one model."""

    what: str
    seed: int
    together: int = 1

    def folder(self, runs: Path) -> Path:
        return (runs / f"{slug(self.what)[:60]}-{settings(self.what)}-{self.seed}").absolute()


def slug(what: str) -> str:
    """As a part of a file's name."""
    return "".join(
        c if c.isalnum() or c in ".=-_" else "-" for c in what.replace("--algo ", "").replace(" --env ", "-")
    )


def beside(folder: Path, kind: str) -> Path:
    return folder.parent / f"{folder.name}.{kind}"


@cache
def config(what: str) -> RunConfig:
    asked = parse(["train", *shlex.split(what)])
    assert asked is not None
    return asked_cases(asked)[0]


@cache
def settings(what: str) -> str:
    """A short name of what a preset says, comments and logging aside, or of all that follows from other words: results
    are kept by it."""
    file = presets().get(what)
    said = yaml.safe_load(file.read_text()) if file else config(what).plain()
    for section in ("log",) if file else ("log", "run", "save", "fleet"):
        said.pop(section, None)
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def work(job: Job, folder: Path, device: str, more: list[str]) -> None:
    """Trains one job in this process and scores it; the folder is kept, its replay is not."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(beside(folder, "log"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(log, 1), os.dup2(log, 2)
    given = [f"run.seed={job.seed}", f"run.dir={folder}", f"run.device={device}", "log.writers=[jsonl]", *more]
    seeds = [] if job.together == 1 else ["--seeds", str(job.together)]
    began = time.monotonic()
    try:
        code = ganglion(["train", *shlex.split(job.what), *given, *seeds])
        if code:
            sys.exit(code)
        seconds = round((time.monotonic() - began) / job.together, 1)
        found = []
        for k in range(job.together):
            inside = folder / f"seed={job.seed + k}" if seeds else folder
            scores = {which: score(inside, which) for which in ("best", "last")}
            shutil.rmtree(inside / "checkpoints" / "chunks", ignore_errors=True)
            about = {"preset": job.what, "settings": settings(job.what), "seed": job.seed + k}
            found.append({**about, **scores, "seconds": seconds, **curves(inside)})
        beside(folder, "json").write_text(json.dumps(found))
    except BaseException:
        traceback.print_exc()
        raise


def score(folder: Path, which: str) -> dict[str, Any]:
    from ganglion.runtime.run import evaluate

    found = evaluate(folder, EPISODES, TEST, which)
    manifest = json.loads((Path(found["checkpoint"]) / "manifest.json").read_text())
    return {"mean": found["mean"], "interval": found["interval"], "env_steps": manifest["step"]}


def curves(folder: Path) -> dict[str, Any]:
    """Training returns, thinned to a hundred points that are each a mean, and evaluations, over env steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [(x["env_steps"], x["episode/return"]) for x in lines if x["kind"] == "record" and "episode/return" in x]
    judged = [(x["env_steps"], round(x["eval/return_mean"], 3)) for x in lines if x["kind"] == "evaluate"]
    group = -(-len(trained) // 100) or 1
    parts = [trained[i : i + group] for i in range(0, len(trained), group)]
    return {"trained": [(part[-1][0], round(fmean(v for _, v in part), 3)) for part in parts], "judged": judged}


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
        return self.folder / "curves" / f"{slug(preset)}.csv"

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
    """The curves of a run as rows."""
    rows = [("eval", at, value) for at, value in run["judged"]]
    rows += [("train", at, value) for at, value in run["trained"]]
    return [{"seed": str(run["seed"]), "curve": c, "env_steps": at, "return": round(v, 3)} for c, at, v in rows]


# ------------------------------------------------------------ the table

HEAD = """# Learning: what the zoo's presets reach

Mean return over {episodes} episodes of the deterministic agent, on seeds that neither trained it nor chose the model,
for **best** (the model of the best evaluation during training) and **last** (the model at the end of the budget).
Intervals are 95 % over the training seeds (Student's t). **Reached** counts the seeds whose best model reaches the aim,
then those whose last model does. **Training** is the mean return of the exploring agent over the last tenth of the
budget. Time is one run on one core beside others: a rough guide, nothing more.

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
    titles = ["preset", "env steps", "aim", "reached: best, last", "best", "last", "training", "minutes"]
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
    budget = f"{config(preset).train.budget.count:,.0f}"
    promise = f"{aim.reach:g} by {aim.needed} of {aim.seeds}"
    counts = [sum(run[which]["mean"] >= aim.reach for run in runs) for which in ("best", "last")]
    reached = f"{counts[0]}, {counts[1]} of {len(runs)}"
    if len(runs) < aim.seeds:
        reached += " run so far"
    best, last = (spread([run[which]["mean"] for run in runs], fine(preset, 1)) for which in ("best", "last"))
    minutes = f"{fmean(run['seconds'] for run in runs) / 60:.1f}"
    return [preset, budget, promise, reached, best, last, training(preset, results), minutes]


def training(preset: str, results: Results) -> str:
    """The exploring agent's return over the last tenth of the budget."""
    start = 0.9 * config(preset).train.budget.count
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


# ------------------------------------------------------------ without a preset

DEFAULTS = """# Defaults: what algorithms reach without a preset

`ganglion train --algo X --env Y` with the default budget of 50k steps: mean return over {episodes} deterministic
episodes of the last model, and in brackets of the best; one run each, unless more returns are given. An empty cell was
not run. Beside them what random actions reach. Raw, with the evaluations during training:
[defaults.json](defaults.json).

"""
RANDOM = {  # mean returns of random actions, over 5 episodes (HalfCheetah) to 1,000 (FrozenLake)
    "CartPole-v1": 21, "Acrobot-v1": -500, "FrozenLake-v1": 0.02, "Pendulum-v1": -1_174,
    "MountainCarContinuous-v0": -34, "LunarLander-v3": -186, "HalfCheetah-v5": -193,
}  # fmt: skip


def keep_default(folder: Path, run: dict[str, Any]) -> None:
    """Takes up a run without a preset, and writes the table of all such runs again."""
    file = folder / "defaults.json"
    runs = json.loads(file.read_text()) if file.exists() else []
    same = ("preset", "seed")
    runs = [r for r in runs if [r[k] for k in same] != [run[k] for k in same]]
    runs = sorted([*runs, {k: v for k, v in run.items() if k != "trained"}], key=lambda r: (r["preset"], r["seed"]))
    lines = ",\n".join(json.dumps(run) for run in runs)
    file.write_text(f"[\n{lines}\n]\n")
    cells: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        cfg = config(run["preset"])
        cell = cells.setdefault(cfg.algo.kind, {}).setdefault(str(cfg.env.plain()["id"]), [])
        digits = 2 if abs(run["best"]["mean"]) < 2 else 0
        cell.append(f"{run['last']['mean']:.{digits}f} ({run['best']['mean']:.{digits}f})")
    envs = [env for env in RANDOM if any(env in row for row in cells.values())]
    rows = [["random actions", *(f"{RANDOM[env]:g}" for env in envs)]]
    rows += [[name, *(", ".join(cells[name].get(env, [])) for env in envs)] for name in sorted(cells)]
    table = "\n".join(grid(["algorithm", *envs], rows))
    (folder / "defaults.md").write_text(DEFAULTS.format(episodes=EPISODES) + table + "\n")


# ------------------------------------------------------------ the sweep


class Sweep:
    """Runs jobs side by side, each in a process of its own, and keeps what comes of each as soon as it ends."""

    def __init__(self, args: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> None:
        self.args, self.keep, self.lock = args, keep, threading.Lock()
        self.ends = time.monotonic() + args.limit
        self.context = multiprocessing.get_context("forkserver")  # torch is imported once
        self.context.set_forkserver_preload(
            ["ganglion.runtime.build", "ganglion.cli.train", "ganglion.cli.train_seeds"]
        )

    def __call__(self, jobs: Sequence[Job]) -> int:
        """How many failed, or were cut off."""
        with ThreadPoolExecutor(self.args.jobs) as pool:
            return list(pool.map(self.one, jobs)).count(False)

    def one(self, job: Job) -> bool:
        args, folder, began = self.args, job.folder(self.args.runs), time.monotonic()
        if self.ends - began < args.least:
            return self.failed(job, folder, "not started")
        process = self.context.Process(target=work, args=(job, folder, args.device, args.set))
        process.start()
        process.join(self.ends - began)
        if process.is_alive():
            process.kill()
            process.join()
            return self.failed(job, folder, "cut off")
        if process.exitcode:
            return self.failed(job, folder, beside(folder, "log").read_text().strip()[-2_000:])
        with self.lock:
            for run in json.loads(beside(folder, "json").read_text()):
                self.keep(run)
                best, last = run["best"]["mean"], run["last"]["mean"]
                print(
                    f"{job.what} seed {run['seed']}: best {best:.1f}, last {last:.1f}, {run['seconds']:.0f} s",
                    flush=True,
                )
        return True

    def failed(self, job: Job, folder: Path, why: str) -> bool:
        """Says so, with what was reached so far; a recording keeps the curves."""
        found = [curves(file.parent) for file in sorted(folder.glob("**/metrics.jsonl"))]
        print(f"{job.what} seed {job.seed}: {why}; so far {[curve['judged'][-2:] for curve in found]}", flush=True)
        if self.args.records:
            with self.lock:
                for curve in found:
                    self.keep({"preset": job.what, "settings": "cut off", "seed": job.seed, **curve})
        return False


def asked_jobs(args: argparse.Namespace) -> list[Job]:
    """From a list, or each preset with the seeds of its aim."""
    if args.list:
        lines = [line.split(maxsplit=1) for line in args.list.read_text().splitlines() if line.strip()]
        return [job for count, what in lines for job in listed(count, what.strip(), args.first)]
    names = args.presets or [name for name in AIMS if name in presets()]
    counts = [args.seeds or (AIMS[name].seeds if name in AIMS else 1) for name in names]
    return [Job(name, args.first + i) for name, count in zip(names, counts) for i in range(count)]


def listed(count: str, what: str, first: int) -> list[Job]:
    number, plus, other = count.partition("@")
    start = int(other) if plus else first
    if number.startswith("+"):
        return [Job(what, start, int(number))]
    return [Job(what, start + i) for i in range(int(number))]


def main() -> int:
    assert __doc__ is not None
    os.environ["OMP_NUM_THREADS"] = "1"  # so that two runs side by side do not take turns on the same cores
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", metavar="PRESET", help="all that have an aim by default")
    parser.add_argument("--seeds", type=int, metavar="N", help="so many instead of what the aim asks for")
    parser.add_argument("--first", type=int, default=FIRST, metavar="SEED", help=f"the first seed ({FIRST})")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side (1)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="where to train (cpu)")
    parser.add_argument("--set", nargs="*", default=[], metavar="PATH=VALUE", help="settings beside the preset's")
    parser.add_argument("--list", type=Path, metavar="FILE", help="jobs to run instead, one a line")
    parser.add_argument("--limit", type=float, default=1e6, metavar="SECONDS", help="after which what runs is ended")
    parser.add_argument("--least", type=float, default=5, metavar="SECONDS", help="left to start another one (5)")
    parser.add_argument("--runs", type=Path, default=Path("runs/learning"), metavar="DIR", help="where runs are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where results go (docs/results)")
    parser.add_argument("--records", type=Path, metavar="FILE", help="where they go instead: one run a line")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="only take up such lines")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    args = parser.parse_args()
    results = Results(args.out)

    def keep(run: dict[str, Any]) -> None:
        if args.records:
            with args.records.open("a") as file:
                file.write(json.dumps(run) + "\n")
        elif run["preset"].startswith("--algo "):
            keep_default(args.out, run)
        else:
            results.add(run)
            (args.out / "learning.md").write_text(table(results, args.set))

    for file in args.merge or ():
        for line in file.read_text().splitlines():
            run = json.loads(line)
            fresh = run["seed"] >= FIRST  # those below are for tuning
            if run["preset"].startswith("--algo ") and "last" in run and run["settings"] == settings(run["preset"]):
                keep_default(args.out, run)
            if fresh and run["preset"] in AIMS and run["settings"] == settings(run["preset"]):
                results.add(run)
    failed = 0
    if not (args.table or args.merge):
        jobs = asked_jobs(args)
        have = {(run["preset"], run["settings"], run["seed"]) for run in results.runs}
        failed = Sweep(args, keep)([j for j in jobs if (j.what, settings(j.what), j.seed) not in have])
    if not args.records:
        (args.out / "learning.md").write_text(table(results, args.set))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
