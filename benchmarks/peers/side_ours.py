"""Ganglion as `ganglion train` runs it: `python -m benchmarks.peers.side_ours <workload> [path=value ...]`."""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

from benchmarks.peers.workloads import WORKLOADS, Workload
from benchmarks.versus import Desk
from ganglion import ops
from ganglion.config.files import load
from ganglion.nn import Adam
from ganglion.runtime.run import Run


def settings(work: Workload) -> list[str]:
    """The workload as overrides; no evaluation and no checkpoint, as the peers have none."""
    hidden = f"[{', '.join(map(str, work.hidden))}]"
    given = [f"algo={work.algo}", f"env={{kind: gym, id: {work.env}, slots: {work.slots}}}", "train.budget=100M steps"]
    given += ["eval=never", "save=never", "log.writers=[jsonl]", "log.every=10k steps", f"run.threads={work.threads}"]
    given += [f"algo.net.hidden={hidden}", "run.device=cpu", "run.fast=eager"]  # one mode for all of a comparison
    if work.env.startswith("Pong"):  # one body on Nature's convolutions, as the peers have
        given[1] = f"env={{kind: atari, id: pong, slots: {work.slots}}}"
        given += ["algo.shared=true", "algo.net.activation=relu", "algo.processor.reward=sign"]
    if work.algo == "ppo":
        return [
            *given,
            f"algo.horizon={work.horizon}",
            f"algo.epochs={work.epochs}",
            f"algo.minibatches={work.minibatches}",
        ]
    given += (
        ["algo.epsilon=0.05", "algo.double=false", "algo.n_step=1"] if work.algo == "dqn" else []
    )  # as CleanRL and SB3
    limiter = f"algo.limiter={{opt_interval: {work.every}, warmup: {work.start}}}"
    return [*given, limiter, f"algo.replay={{capacity: {work.capacity}, batch: {work.batch}}}"]


class Side:
    """A run that is advanced by so many updates and the steps before each."""

    def __init__(self, work: Workload, more: list[str]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        own = [x for x in more if x.startswith("env=")]  # a whole environment replaces the workload's
        given = [x for x in settings(work) if not (own and x.startswith("env="))]
        self.run = Run.create(load(None, [*given, f"run.dir={self.folder.name}/run", *more]))
        self.trainer, self.stream = self.run.trainer, self.run.stream()
        self.rows = 0

    def advance(self, updates: int) -> None:
        goal = self.trainer.at.opt_steps + updates
        while self.trainer.at.opt_steps < goal:
            next(self.stream)

    def warm(self, updates: int) -> None:
        """The first updates, looking at how many rows each learns from."""
        agent = self.trainer.learner.agent
        learn = agent.learn

        def looked(mini: Any, noise: Any, at: Any, rows: Any = ()) -> Any:
            deep, wide = ops.leaves(mini)[0].shape[:2]
            self.rows = deep * (len(rows) or wide)
            return learn(mini, noise, at, rows)

        agent.learn = looked  # type: ignore[method-assign]
        self.advance(updates)
        agent.learn = learn  # type: ignore[method-assign]

    def parameters(self) -> int:
        optims = [p for p in self.trainer.learner.agent.algo.parts().values() if isinstance(p, Adam)]
        return sum(p.numel() for optim in optims for p in optim.params)


def main(name: str, *more: str) -> None:
    desk, work = Desk(), WORKLOADS[name]
    side = Side(work, [x for x in more if not x.startswith("warm=")])
    side.warm(next((int(x.removeprefix("warm=")) for x in more if x.startswith("warm=")), work.warm))
    moved = side.parameters()
    desk.ready()
    while (n := desk.request()) is not None:
        before, began = side.trainer.at, time.perf_counter()
        side.advance(n)
        seconds, at = time.perf_counter() - began, side.trainer.at
        updates = at.opt_steps - before.opt_steps
        counts = {"env_steps": at.env_steps - before.env_steps, "updates": updates}
        desk.answer(seconds, counts | {"samples": updates * side.rows, "parameters": updates * moved})


if __name__ == "__main__":
    main(*sys.argv[1:])
