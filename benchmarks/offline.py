"""Datasets of two tasks, and what is learned from them: offline, by imitation, and about other agents.

    python -m benchmarks.offline make FOLDER                 random, medium, medium-replay, expert and mixed datasets
    python -m benchmarks.offline small FOLDER                a few episodes of each: those of tests/data/small
    python -m benchmarks.offline scores FOLDER               offline algorithms on medium-replay, 5 seeds
    python -m benchmarks.offline imitate FOLDER              SQIL and GAIL from 10 trajectories, DQfD from 5
    python -m benchmarks.offline values FOLDER               FQE and WIS beside the true values of 20 agents a task

Each job is a process of one thread; `--jobs` of them run beside each other. Results are lines of FOLDER/results.jsonl,
and a table at the end: means with 95 % intervals over seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import ganglion
from ganglion.config import RunConfig
from ganglion.data import evaluation, files
from ganglion.data.dataset import Dataset, fitted, joined
from ganglion.data.record import record_random, record_run
from ganglion.runtime.build import build
from ganglion.runtime.run import Run, load_agents

SEEDS = range(5)
ENVS = {
    "pendulum": "env={kind: torch, id: pendulum, slots: 2}",
    "cartpole": "env={kind: torch, id: cartpole, slots: 4}",
    "mountaincar": "env={kind: gym, id: MountainCar-v0, slots: 4}",
}
QUIET = ["log={every: 5k steps, writers: [jsonl]}", "run.device=cpu", "run.threads=1"]
TRAINED = {  # name: preset and settings
    "pendulum-medium": ["pendulum/sac", "train.target=-700.0"],  # stops there
    "pendulum-expert": ["pendulum/sac", "train.budget=15k steps"],
    "pendulum-judged": ["pendulum/ppo", "save={every: 10k steps, keep: 20}"],
    "cartpole-medium": ["cartpole/ppo", "train.target=200.0"],
    "cartpole-expert": ["cartpole/ppo"],
    "cartpole-judged": ["cartpole/ppo", "save={every: 5k steps, keep: 20}"],
    "mountaincar-expert": ["mountaincar/dqn"],
}
SMALL = "algo.net={hidden: [128, 128]}"
OFFLINE = {  # on medium-replay, updates and settings
    "pendulum": {
        "bc": [],
        "awac": [],
        "iql": ["algo.expectile=0.8"],
        "td3_bc": [],
        "rebrac": [],
        "cql": ["algo.looks=4"],
    },
    "cartpole": {"bc": [], "dqn": ["algo.conservative=0.5", "algo.lr=1e-3", "algo.n_step=3", "algo.target_every=50"]},
}
UPDATES = 20_000


# ------------------------------------------------------------ datasets


def train(folder: Path, name: str) -> None:
    """A run, with all of its rows where it is to be medium-replay."""
    preset, *more = TRAINED[name]
    task = name.partition("-")[0]
    kept = [f"data.record={folder / (task + '-medium-replay')}"] if name.endswith("-medium") else []
    evals = "eval={every: 1k steps, episodes: 20}" if kept else "eval={every: 5k steps, episodes: 20}"
    cfg = ganglion.load_config(preset, [*more, ENVS[task], evals, *kept, *QUIET, f"run.dir={folder / 'runs' / name}"])
    run = Run.create(cfg)
    for _ in run.stream():
        pass
    run.close()


def make(folder: Path, jobs: int) -> None:
    """Trains, and records what was trained: 100 episodes each."""
    everywhere(jobs, [(train, folder, name) for name in TRAINED])
    for task in ENVS:
        record(folder, task, "random" if task != "mountaincar" else "")
        record(folder, task, "expert")
        if task != "mountaincar":
            record(folder, task, "medium")
            parts = [files.read(folder / f"{task}-{kind}") for kind in ("random", "expert")]
            files.write(folder / f"{task}-mixed", joined(parts))


def record(folder: Path, task: str, kind: str, episodes: int = 100) -> None:
    out = folder / f"{task}-{kind}"
    if not kind or files.is_dataset(out):
        return
    if kind == "random":
        data = record_random(ganglion.load_config(None, ["algo=ppo", ENVS[task]]), episodes, 0)
    else:
        which, sure = ("last", False) if kind == "medium" else ("best", True)
        data = record_run(str(folder / "runs" / f"{task}-{kind}"), episodes, 0, which, deterministic=sure)
    files.write(out, data)
    print(f"{out.name}: {data.steps} steps, mean return {float(data.returns().mean()):.1f}", flush=True)


def small(folder: Path) -> None:
    """What tests read: of the first two tasks, with where it came from, but not on which machine."""
    for task in ("pendulum", "cartpole"):
        for kind in ("random", "medium", "expert"):
            record(folder, task, kind, episodes=10)
        kinds = ("random", "medium", "medium-replay", "expert")
        parts = {kind: files.read(folder / f"{task}-{kind}") for kind in kinds}
        parts["mixed"] = joined([first(parts["random"], 5), first(parts["expert"], 5)])
        for kind, data in parts.items():
            told = [{**about, "run": Path(str(about["run"])).name} if "run" in about else about for about in data.about]
            short = [{name: x for name, x in about.items() if name != "checkpoint"} for about in told]
            count = 30 if kind == "medium-replay" else 10
            files.write(folder / "small" / f"{task}-{kind}", first(data, count)._replace(about=tuple(short)))


def first(data: Dataset, episodes: int) -> Dataset:
    parts = [Dataset(data.spec, rows) for _, rows in zip(range(episodes), data.episodes(), strict=False)]
    return joined(parts)._replace(about=data.about)


# ------------------------------------------------------------ what is learned


def score(cfg: RunConfig) -> dict[str, float]:
    """The evaluation of what was learned last, over 100 episodes, and the CPU seconds of it."""
    began, trainer = time.process_time(), build(cfg)
    for _ in trainer():
        pass
    spent = time.process_time() - began
    found = trainer.run_evaluate()[1]["eval/return_mean"]
    trainer.close()
    return {"score": found, "cpu_s": spent}


def offline(folder: Path, task: str, algo: str, seed: int) -> dict[str, Any]:
    data = folder / f"{task}-medium-replay"
    cfg = ganglion.load_config(None, [
        f"algo={algo}", ENVS[task], SMALL, *OFFLINE[task][algo], "run.mode=offline", f"data.path={data}",
        f"train.budget={UPDATES} updates", "eval={every: never, episodes: 100}", f"run.seed={seed}",
        *QUIET])  # fmt: skip
    return {"what": f"{task} medium-replay", "algo": algo, "seed": seed, **score(cfg)}


def imitate(folder: Path, task: str, algo: str, seed: int) -> dict[str, Any]:
    """From 10 trajectories of the expert, 5 on MountainCar."""
    shown = folder / f"{task}-shown"
    more = {
        "sqil": [f"algo.inner={INNER.get(task)}"], "gail": [f"algo.inner={INNER.get(task)}"],
        "dqfd": ["algo.lr=1e-3", "algo.target_every=150", "data.share=0.25", "data.pretrain=3k", "algo.n_step=10",
                 "algo.limiter={opt_interval: 2, warmup: 1000}", "algo.replay.capacity=50k"],
        "dqn": ["algo.lr=1e-3", "algo.n_step=10", "algo.target_every=150", "algo.replay.capacity=50k",
                "algo.limiter={opt_interval: 2, warmup: 1000}"],
    }[algo]  # fmt: skip
    paths = [] if algo == "dqn" else [f"data.path={shown}"]
    net = [SMALL] if algo in ("dqn", "dqfd") else []
    cfg = ganglion.load_config(None, [
        f"algo={algo}", ENVS[task], *net, *more, *paths, "train.budget=20k steps",
        "eval={every: never, episodes: 100}", f"run.seed={seed}", *QUIET])  # fmt: skip
    return {"what": f"{task} imitation", "algo": algo, "seed": seed, **score(cfg)}


INNER = {
    "pendulum": "{kind: sac, lr: 1e-3, lr_critic: 1e-3, net: {hidden: [128, 128]}, replay: {capacity: 20k}, "
    "limiter: {opt_interval: 2, warmup: 1000}}",
    "cartpole": "{kind: discrete_sac, lr: 1e-3, lr_critic: 1e-3, temperature: 0.05, net: {hidden: [128, 128]}, "
    "replay: {capacity: 20k}, limiter: {opt_interval: 2, warmup: 1000}}",
}


# ------------------------------------------------------------ what others are worth


GAMMA = {"pendulum": 0.95, "cartpole": 0.97}


def valued(folder: Path, task: str, checkpoint: str) -> dict[str, Any]:
    """An agent's discounted value: by playing, and from rows of another one."""
    run = str(folder / "runs" / f"{task}-judged")
    agent = load_agents(run, checkpoint)[1][0][1]
    played = evaluation.behaviour(record_run(run, 200, 7, checkpoint), GAMMA[task]).value
    data = fitted(files.read(folder / f"{task}-evidence"), env_spec(task))
    s = evaluation.Settings(gamma=GAMMA[task], stochastic=True)
    steps = evaluation.steps_of(agent, data, s)
    fit, weighted = evaluation.fqe(agent, data, s, steps), evaluation.wis(agent, data, s, steps)
    found = {"fqe": list(fit), "wis": list(weighted.estimate), "effective": weighted.effective, "true": played}
    return {"what": f"{task} value", "algo": checkpoint, "seed": 0, **found}


def env_spec(task: str) -> Any:
    from ganglion.data.offline import environment

    return environment(ganglion.load_config(None, ["algo=ppo", ENVS[task]]))


def checkpoints(folder: Path, task: str) -> list[str]:
    found = (folder / "runs" / f"{task}-judged" / "checkpoints").iterdir()
    return sorted(path.name for path in found if path.is_dir() and path.name[0].isdigit())


def evidence(folder: Path, task: str) -> None:
    """300 episodes of two agents halfway, as they explore: with the log-probabilities of their actions."""
    out, names = folder / f"{task}-evidence", by_steps(checkpoints(folder, task))
    if not files.is_dataset(out):
        run = str(folder / "runs" / f"{task}-judged")
        halves = [names[len(names) // 3], names[len(names) // 2]]
        files.write(out, joined([record_run(run, 150, k, name) for k, name in enumerate(halves)]))


def by_steps(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: int(name.split("-")[0]))


# ------------------------------------------------------------ all of it


def everywhere(jobs: int, work: list[tuple[Any, ...]]) -> list[Any]:
    """Each job in a process; the results as they come."""
    found = []
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(*job): job for job in work}
        for one in as_completed(running):
            if one.exception() is not None:
                print(f"failed: {running[one][1:]}: {one.exception()}", flush=True)
                continue
            found.append(one.result())
            if found[-1] is not None:
                print(json.dumps(found[-1]), flush=True)
    return found


def summary(found: list[dict[str, Any]]) -> None:
    groups: dict[tuple[str, str], list[float]] = {}
    for one in found:
        groups.setdefault((one["what"], one["algo"]), []).append(one["score"])
    for (what, algo), scores in sorted(groups.items()):
        half = 1.96 * stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else 0.0
        print(
            f"{what:<28} {algo:<8} {fmean(scores):10.1f}  95 % {fmean(scores) - half:.1f} to {fmean(scores) + half:.1f}"
        )


def judged(found: list[dict[str, Any]]) -> None:
    """How often intervals hold the truth, and whether estimates rank agents as the truth does."""
    for task in sorted({one["what"] for one in found}):
        own = [one for one in found if one["what"] == task]
        for how in ("fqe", "wis"):
            held = [one[how][1] <= one["true"] <= one[how][2] for one in own]
            ranks = [torch.tensor(values).argsort().argsort().double()
                     for values in ([one[how][0] for one in own], [one["true"] for one in own])]  # fmt: skip
            rank = float(torch.corrcoef(torch.stack(ranks))[0, 1])
            print(f"{task:<20} {how}: {sum(held)} of {len(held)} intervals hold the truth, rank correlation {rank:.3f}")


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "small", "scores", "imitate", "values"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    folder, tell = args.folder, summary
    if args.what == "make":
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, args.jobs)
        return
    if args.what == "small":
        small(folder)
        return
    work: list[tuple[Callable[..., Any], Any, Any, Any, Any] | tuple[Any, ...]] = []
    if args.what == "scores":
        work = [(offline, folder, t, a, s) for t, algos in OFFLINE.items() for a in algos for s in SEEDS]
        for task in OFFLINE:
            data = files.read(folder / f"{task}-medium-replay")
            print(f"{task} medium-replay: whoever collected it {float(data.returns().mean()):.1f}", flush=True)
    elif args.what == "imitate":
        for task, count in (("pendulum", 10), ("cartpole", 10), ("mountaincar", 5)):
            expert = files.read(folder / f"{task}-expert")
            print(f"{task}: the expert {float(expert.returns().mean()):.1f}", flush=True)
            if not files.is_dataset(folder / f"{task}-shown"):
                files.write(folder / f"{task}-shown", first(expert, count))
        work = [(imitate, folder, t, a, s) for t in ("pendulum", "cartpole") for a in ("sqil", "gail") for s in SEEDS]
        work += [(imitate, folder, "mountaincar", a, s) for a in ("dqfd", "dqn") for s in SEEDS]
    else:
        for task in GAMMA:
            evidence(folder, task)
        work, tell = [(valued, folder, t, c) for t in GAMMA for c in checkpoints(folder, t)], judged
    found = everywhere(args.jobs, work)
    with (folder / "results.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in found)
    tell(found)


if __name__ == "__main__":
    main(sys.argv[1:])
