"""What a process of the pair does: `python -m tests.learners.pair half|run|saved|lost RANK SIZE MEET OUT [compile]`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import Tensor

from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import Noise, Progress, Stop
from ganglion.fleet.learner_group import Group, GroupTrainer, seed_of
from ganglion.nn import nets
from ganglion.nn.inputs import flatten
from ganglion.ops.across import across
from ganglion.runtime.build import build
from ganglion.runtime.run import Run
from tests.contract.worlds import ACER, ARM, DQN, IMPALA, MASKED, PPO, ROLLOUT, SAC, THREE, Bench, Case, one_graph, over

UPDATES, COLUMNS, FIRST = 6, 24, 9  # columns of a batch, and how many of them the first learner has
OWN = {"normalise": True}
MEMORY = {"memory": "gru", "memory_size": 8}
RATED = {"kind": "prioritised", "batch": COLUMNS}
CASES = {
    "ppo": Case("ppo", "ppo", ARM, settings=over(PPO, clip_value=0.2, max_norm=0.05)),
    "ppo-memory": Case("ppo-memory", "ppo", THREE, MASKED, over(PPO, minibatches=1, net=MEMORY), slots=COLUMNS),
    "dqn": Case("dqn", "dqn", THREE, MASKED, over(DQN, n_step=3, replay=RATED, max_norm=0.05, net=MEMORY)),
    "sac": Case("sac", "sac", ARM, settings=over(SAC, replay=RATED, max_norm=0.05)),
    "td3": Case("td3", "td3", ARM, settings=over(SAC, replay=RATED)),
    "impala": Case("impala", "impala", THREE, MASKED, over(IMPALA, normalise_advantage=True), slots=COLUMNS),
    "a2c": Case("a2c", "a2c", THREE, MASKED, over(ROLLOUT, normalise_advantage=True), slots=COLUMNS),
    "reinforce": Case("reinforce", "reinforce", ARM, settings=over(ROLLOUT, normalise=True), slots=COLUMNS),
    "acer": Case("acer", "acer", THREE, MASKED, over(ACER, replay={"batch": COLUMNS})),
    "impala-memory": Case("impala-memory", "impala", ARM, settings=over(IMPALA, net=MEMORY), slots=COLUMNS),
}


class Batch(NamedTuple):
    mini: Any
    noise: Noise


def batches(bench: Bench) -> list[Batch]:
    """Wide minibatches of a made-up world, unevenly valid: most rows of the first columns count for nothing."""
    at, made = Progress(), []
    g = torch.Generator().manual_seed(3)
    for _ in range(UPDATES):
        while not bench.learner.owes(at):
            at = bench.explorer.step(at).at
        learner = bench.learner
        learner.begin(at)
        mini = ops.map_tree(lambda x: x.double() if x.is_floating_point() else x.clone(), learner.mini)
        mini = columns_of(mini, torch.arange(COLUMNS))
        field = "valid" if "valid" in mini._fields else "weight"
        rows = getattr(mini, field)
        keep = torch.rand(rows.shape, generator=g) > torch.where(torch.arange(COLUMNS) < FIRST, 0.7, 0.1)
        weight = torch.rand(rows.shape, generator=g).to(rows.dtype) if field == "weight" else True
        mini = mini._replace(**{field: rows * keep * weight})
        noise = ops.map_tree(torch.Tensor.double, learner.stream.noise(bench.agent.draws.learn, *rows.shape))
        made.append(Batch(mini, noise))
        learner.mini = learner.table = None
        if learner.buffer.fresh:
            learner.buffer.release()
        at = at._replace(opt_steps=at.opt_steps + 1)
    return made


def columns_of(tree: Any, columns: Tensor) -> Any:
    """Some columns of a minibatch: rows are [T, B, ...], positions in a replay [B]."""
    return ops.map_tree(lambda x: x.index_select(min(x.dim() - 1, 1), columns), tree)


def flat(*args: Any) -> Tensor:
    """Networks read observations as float32; here they compute with twice the digits."""
    return flatten(*args).to(torch.get_default_dtype())


@patch.object(nets, "flatten", flat)
def learned(name: str, group: Group | None, mode: str = "eager") -> dict[str, Tensor]:
    """Parameters, optimisers and metrics after a few updates: from whole batches alone, from a part in a group."""
    torch.set_default_dtype(torch.float32)
    data = batches(Bench(CASES[name]))
    torch.set_default_dtype(torch.float64 if mode == "eager" else torch.float32)  # compilers are for the latter
    bench = Bench(CASES[name], wrap=one_graph if mode == "compile" else None)
    columns = torch.arange(COLUMNS)
    if group is not None:
        columns = columns[:FIRST] if group.rank == 0 else columns[FIRST:]
        group.align(bench.agent)
    metrics = {}
    for k, batch in enumerate(data):
        part = ops.to_dtype(Batch(*(columns_of(x, columns) for x in batch)), torch.get_default_dtype())
        at = Progress(opt_steps=k, fraction=0.1)
        if group is None:
            update = bench.agent.learn(part.mini, part.noise, at)
        else:
            with across(group.learners):
                update = bench.agent.learn(part.mini, part.noise, at)
        metrics |= {f"metric {k} {n}": v.clone() for n, v in update.metrics.items()}
    return bench.parameters() | metrics


RUNS = {
    "ppo": {
        "algo": {
            "kind": "ppo",
            "net": {"hidden": [16], **OWN},
            "normalise_reward": True,
            "max_kl": 0.01,
            "horizon": 16,
        },
        "env": {"kind": "gym", "id": "Pendulum-v1"},
    },
    "dqn": {
        "algo": {"kind": "dqn", "net": {"hidden": [16], **OWN}, "replay": RATED, "limiter": {"warmup": 100}},
        "env": {"kind": "gym", "id": "CartPole-v1"},
    },
}


def run(group: Group) -> dict[str, Tensor]:
    """Learners with worlds of their own, taking turns; the first one had begun alone."""
    left = {}
    for name, given in RUNS.items():
        settings = {
            **given,
            "env": {**given["env"], "slots": 3 + group.rank * (name == "dqn")},
            "train": {"budget": "1500 steps"},
        }
        settings["run"] = {"seed": seed_of(0, group.rank), "device": "cpu"}
        trainer = build(RunConfig.model_validate(settings))
        for _ in zip(range(60 * (group.rank == 0)), trainer()):
            pass
        begun, rows = trainer.at.env_steps, 0
        trainer = GroupTrainer(trainer, group)
        for log in trainer():
            rows += log.kind == "collect"
        assert trainer.at.fraction == 1.0 and group.alike(trainer.learner.agent)
        left |= {f"{name}/{k}": v.clone() for k, v in trainer.learner.agent.state().tensors.items()}
        left[f"{name}/at"] = torch.tensor([begun, trainer.at.env_steps, trainer.at.opt_steps, rows])
    return left


def resumed(group: Group, folder: Path) -> dict[str, Tensor]:
    """The first learner has the run's folder, its stages and checkpoints; stopped, all go on from what it saved."""
    given: dict[str, Any] = {
        **RUNS["ppo"],
        "train": {"budget": "1200 steps"},
        "log": {"every": "200 steps", "writers": []},
    }
    given["save"], given["eval"] = {"every": "300 steps"}, {"every": "400 steps", "episodes": 2}
    steps = []
    for life in range(2):
        if group.rank:
            cfg = RunConfig.model_validate({**given, "run": {"seed": seed_of(life, group.rank)}})
            trainer = GroupTrainer(build(cfg), group)
            for _ in trainer():
                pass
        else:
            cfg = RunConfig.model_validate({**given, "run": {"dir": str(folder), "fast": "eager"}})
            whole = Run.open(folder) if life else Run.create(cfg)
            whole.trainer = trainer = GroupTrainer(whole.trainer, group)
            steps.append(trainer.at.env_steps)
            stream = whole.stream()
            with suppress(StopIteration):
                while life or trainer.at.env_steps < 500:
                    next(stream)
                stream.send(Stop())
                while True:
                    next(stream)
        steps.append(trainer.at.env_steps)
    left = {k: v.clone() for k, v in trainer.learner.agent.algo.model.state().tensors.items()}
    return left | {"steps": torch.tensor(steps)}


def stopped(group: Group) -> dict[str, Tensor]:
    """One is told to stop, and all do; then one is lost, and the other hears of it."""
    given = {**RUNS["dqn"], "run": {"seed": seed_of(0, group.rank)}, "train": {"budget": "100k steps"}}
    trainer = GroupTrainer(build(RunConfig.model_validate(given)), group)
    stream = trainer()
    with suppress(StopIteration):
        for _ in range(50):
            next(stream)
        stream.send(Stop("told to") if group.rank == 1 else None)
        for _ in range(1_000):
            next(stream)
        raise AssertionError("it should have stopped")
    at = trainer.at.env_steps
    for _ in trainer():
        if trainer.at.env_steps > at + 200 and group.rank == 1:
            os._exit(0)
        assert trainer.at.env_steps < at + 10_000
    return {}


def listening() -> list[str]:
    """The addresses that this process waits for connections at, in hexadecimal."""
    own = {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists() or fd.is_symlink()}
    known = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for line in known.splitlines()]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]


def main(what: str, rank: str, size: str, meet: str, out: str, *more: str) -> None:
    torch.set_num_threads(1)
    with Group(int(rank), int(size), Path(meet), patience=60) as group:
        if what == "run":
            found = run(group)
        elif what == "saved":
            found = resumed(group, Path(out).parent / "run")
        elif what == "lost":
            try:
                found = stopped(group)
            except RuntimeError as error:
                found = {"heard": torch.ones(1)}
                sys.stderr.write(f"{error}\n")
        else:
            names = ["ppo"] if more else list(CASES)
            found = {f"{name}/{k}": v for name in names for k, v in learned(name, group, *more).items()}
        Path(out).with_suffix(".net").write_text("\n".join(listening()))
    save_file({k: v.contiguous().clone() for k, v in found.items()}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
