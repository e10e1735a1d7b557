"""Several learners as one: each learns from rows of its own, and all make the same update (torch.distributed).

Each of them, in a process of its own, is a Trainer with explorers of its own that takes its turns with the others:

    with Group(rank, size, folder / "meet") as group:
        for log in GroupTrainer(build(config), group)(): ...

Settings are of each learner: two of them learn from twice the rows per update. `run.seed` should differ (`seed_of`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Protocol, Self, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from ganglion import ops
from ganglion.core import Command, LogData, Progress, SetKnob, Stop
from ganglion.errors import UserError
from ganglion.ops.across import Learners, across
from ganglion.runtime.agent import Agent
from ganglion.runtime.learner import Learner
from ganglion.runtime.randomness import derive
from ganglion.runtime.trainer import Trainer, spent
from ganglion.torch_private import all_reduce_in_a_graph

Grads = Sequence[Tensor]
CPU = torch.device("cpu")
SILENCE = 0.5  # seconds


@runtime_checkable
class SharedGradients(Protocol):
    """What hands its gradients on before it applies them."""

    reduce: Callable[[Grads], Grads]


class Group:
    """The learners of a run, seen by one of them. If one is lost, the others hear of it by an error (RuntimeError)."""

    def __init__(
        self, rank: int, size: int, meet: Path | Store, device: torch.device = CPU, patience: float = 600.0,
        over: str = "lo",
    ) -> None:  # fmt: skip
        """`meet` is a file that all can reach and that is not there yet, or a store of torch's; `patience`: seconds to
        wait for another.

        They talk `over` a network interface; by default nothing listens beyond this machine.
        """
        if not 0 <= rank < size:
            raise UserError(f"learner {rank} of {size}: should be between 0 and {size - 1}.")
        self.rank, self.size, self.device = rank, size, device
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = over
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        wait = timedelta(seconds=patience)
        store = FileStore(str(meet), size) if isinstance(meet, Path) else meet
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
        self.learners, self.everyone = Learners(size, rank, self.add), list(range(size))
        self.known: dict[int, ops.Moments] = {}  # statistics as all had them when they last met

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    # ------------------------------------------------------------ what is exchanged

    def add(self, x: Tensor) -> Tensor:
        """The sum of what each learner says; its gradient is nobody's."""
        if torch.compiler.is_compiling():  # a graph holds only collectives that return what they make
            return all_reduce_in_a_graph(x, self.everyone)
        total = x.clone()
        dist.all_reduce(total)
        return total

    def average(self, grads: Grads) -> Grads:
        """The average of all learners' gradients, in one message."""
        flat = self.add(torch.cat([grad.reshape(-1) for grad in grads])) / self.size
        parts = flat.split([grad.numel() for grad in grads])
        return [part.view_as(grad) for part, grad in zip(parts, grads, strict=True)]

    # ------------------------------------------------------------ together

    @torch.no_grad()
    def align(self, agent: Agent) -> None:
        """Everybody takes over what the first learner has: at the start, and after a resume."""
        tensors = list(agent.state().tensors.values())
        mine = float(sum(tensor.numel() for tensor in tensors))
        if self.total(mine)[0] != mine * self.size:
            raise UserError("several learners: algo and env.slots should be the same for all of them.")
        for tensor in tensors:
            dist.broadcast(tensor, src=0)
        for part in agent.algo.parts().values():
            if isinstance(part, SharedGradients):
                part.reduce = self.average
        self.known = {id(own.mean): ops.map_tree(torch.clone, own) for own in statistics(agent)}

    def total(self, *numbers: float) -> list[float]:
        """Each number added up over all learners."""
        said = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        return [float(x) for x in self.add(said).tolist()]

    def step(self, learner: Learner, at: Progress) -> LogData:
        """One update of all learners, who have the same counters."""
        if learner.mini is None and not learner.buffer.fresh:
            self.share(learner.agent)
        with across(self.learners):
            log = learner.step(at)
        if learner.mini is None and learner.buffer.fresh:  # these are seen once the phase is over
            self.share(learner.agent)
        return log

    @torch.no_grad()
    def share(self, agent: Agent) -> None:
        """Statistics of normalisers become those of all rows that any learner has seen."""
        for own in statistics(agent):
            mean, var, rows = self.known[id(own.mean)]
            off = own.mean - mean
            new = torch.stack([own.rows * off, own.rows * (own.var + off.square()) - rows * var])
            grown = (own.rows - rows).expand_as(new[:1])
            sums, squares, more = self.add(torch.cat([new, grown]))
            whole = (rows + more).clamp(min=1)
            off = sums / whole
            spread = (rows * var + squares) / whole - off.square()
            own.mean.copy_(mean + off)
            own.var.copy_(torch.where(rows + more > 0, spread, var))
            own.rows.copy_(rows + more.flatten()[0])
            self.known[id(own.mean)] = ops.map_tree(torch.clone, own)

    @torch.no_grad()
    def alike(self, agent: Agent) -> bool:
        """Whether the sums of all parameters agree: a cheap look for learners that have drifted apart."""
        tensors = agent.algo.model.state().tensors
        here = torch.stack([tensor.double().sum() for tensor in tensors.values()]).to(self.device)
        low, high = here.clone(), here.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        return bool((low == high).all())


def statistics(agent: Agent) -> Iterator[ops.Moments]:
    """The running moments of an agent's normalisers, each once: a lagged copy of a model has the same ones."""
    seen: set[int] = set()
    for part in agent.algo.parts().values():
        for module in part.modules() if isinstance(part, torch.nn.Module) else ():
            own = dict(module.named_buffers(recurse=False))
            if own.keys() == {"mean", "var", "count"} and id(own["mean"]) not in seen:
                seen.add(id(own["mean"]))
                yield ops.Moments(own["mean"], own["var"], own["count"])


def seed_of(seed: int, rank: int) -> int:
    """`run.seed` of each learner: their worlds should differ. The first keeps the run's own."""
    return seed if rank == 0 else derive(seed, f"learner/{rank}") % 2**31


class GroupTrainer(Trainer):
    """A Trainer that takes its turns with others: an update when all of them are ready for one, else they collect.

    Counters are those of all learners together; the first one's clock is everybody's. All end together, when the budget
    is spent or any of them is told to stop. What the first one saves is enough to go on from, since all start with its
    parameters, optimisers and counters; buffers and worlds of the others are not saved. When the first one leaves its
    stream early, those of the others end; called again, all go on.
    """

    def __init__(self, trainer: Trainer, group: Group | None, counts: bool = True) -> None:
        """`counts`: whether its rows are steps of the run; not where all learners are given the same ones."""
        super().__init__(trainer.source, trainer.learner, trainer.evaluator, trainer.budget, trainer.scored)
        self.met, self.counts, self.at = group, counts, trainer.at
        self.gained = (0, 0)  # steps and episodes of its own that the others do not know of
        self.spoke = 0.0  # when it last said that it waits

    @property
    def group(self) -> Group:
        assert self.met is not None, "the learners have not met yet"
        return self.met

    def __call__(self) -> Generator[LogData, Command | None, Stop]:
        self.align()
        stop: Stop | None = None
        while True:
            owes = self.learner.owes(self.at)
            ready, stopped = self.agree(owes, stop is not None)
            over = self.at.fraction >= 1 and not (ready and self.budget.unit == "steps")
            if stopped or over:
                self.group.share(self.learner.agent)  # rows that came after the last update
                return Stop("budget", finished=True) if not stopped else stop or Stop("another learner was stopped")
            if owes and not ready and not self.idle():
                continue
            try:
                command = yield self.turn(owes, ready)
            except GeneratorExit:
                with suppress(RuntimeError):  # others may be gone
                    self.agree(False, stop=True)
                    self.group.share(self.learner.agent)
                raise
            if isinstance(command, Stop):
                stop = command
            if isinstance(command, SetKnob):
                raise UserError("several learners: a knob cannot be set by hand, the others would not know of it.")

    def turn(self, owes: bool, ready: bool) -> LogData:
        if ready:
            return self.run_train()
        return LogData("collect", self.at, {}) if owes else self.run_collect()

    def idle(self) -> bool:
        """Its own rows are there, those of others are not. Now and then it says so, that it may hear of commands."""
        if perf_counter() - self.spoke < SILENCE:
            return False
        self.spoke = perf_counter()
        return True

    def align(self) -> None:
        """All start as the first one is, between two learning phases: what is left of one that had begun is dropped."""
        if self.learner.mini is not None:
            self.learner.finish()
        self.group.align(self.learner.agent)
        first = self.group.rank == 0
        at = self.group.total(*(float(x) * first for x in self.at))
        self.at = Progress(int(at[0]), int(at[1]), int(at[2]), at[3], at[4])
        self.gained = (0, 0)

    def agree(self, ready: bool, stop: bool) -> tuple[bool, bool]:
        """Whether all are ready for an update, and whether any wants to stop; counters become those of all."""
        steps, episodes = self.gained
        seconds = self.at.seconds * (self.group.rank == 0)
        said = (ready, stop, steps, episodes, seconds, self.at.opt_steps)
        readies, stops, all_steps, all_episodes, seconds, opt_steps = self.group.total(*map(float, said))
        if opt_steps != self.at.opt_steps * self.group.size:
            raise RuntimeError("learners have made different numbers of updates: restart them from one checkpoint")
        steps, episodes = self.at.env_steps + int(all_steps) - steps, self.at.episodes + int(all_episodes) - episodes
        at = self.at._replace(env_steps=steps, episodes=episodes, seconds=seconds)
        self.at, self.gained = at._replace(fraction=spent(self.budget, at)), (0, 0)
        return readies == self.group.size, stops > 0

    def run_collect(self) -> LogData:
        before = self.at
        log = super().run_collect()
        if not self.counts:
            self.at = self.at._replace(env_steps=before.env_steps, episodes=before.episodes)
            return log
        self.gained = log.at.env_steps - before.env_steps, log.at.episodes - before.episodes
        return log

    def run_train(self) -> LogData:
        began = perf_counter()
        return self.tick(self.group.step(self.learner, self.at), began)
