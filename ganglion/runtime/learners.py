"""Several learners as one: each learns from rows of its own, and all make the same update (torch.distributed).

One of them, in a process of its own:

    with Group(rank, size, folder / "meet") as group:
        group.align(learner.agent)                      # all start as the first one is
        while at.fraction < 1:
            ready, at = group.turn(learner.owes(mine), mine)
            if ready:
                log = group.step(learner, at)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from ganglion.core import LogData, Progress
from ganglion.errors import UserError
from ganglion.ops.together import Learners, together
from ganglion.runtime.agent import Agent
from ganglion.runtime.learner import Learner

Grads = Sequence[Tensor]
CPU = torch.device("cpu")


@runtime_checkable
class Optimiser(Protocol):
    """What hands its gradients on before it applies them."""

    reduce: Callable[[Grads], Grads]


@runtime_checkable
class Statistics(Protocol):
    """Running moments: those of normalisers."""

    mean: Tensor
    var: Tensor
    count: Tensor


class Group:
    """The learners of a run, seen by one of them. They take their turns and their updates together."""

    def __init__(
        self, rank: int, size: int, meet: Path, device: torch.device = CPU, patience: float = 600.0, over: str = "lo"
    ) -> None:
        """`meet` is a file that all can reach and that is not there yet; `patience`: seconds to wait for another.

        They talk `over` a network interface; by default nothing listens beyond this machine.
        """
        if not 0 <= rank < size:
            raise UserError(f"learner {rank} of {size}: should be between 0 and {size - 1}.")
        self.rank, self.size, self.device = rank, size, device
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = over
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        wait = timedelta(seconds=patience)
        store = dist.FileStore(str(meet), size)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
        self.learners, self.everyone = Learners(size, self.add), list(range(size))
        self.known: dict[int, tuple[Tensor, ...]] = {}  # statistics as all had them when they last met

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
            from torch.distributed._functional_collectives import all_reduce, wait_tensor

            return wait_tensor(all_reduce(x, "sum", self.everyone))
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
        for tensor in agent.state().tensors.values():
            dist.broadcast(tensor, src=0)
        for part in agent.algo.parts().values():
            if isinstance(part, Optimiser):
                part.reduce = self.average
        self.known = {id(s): self.moments(s) for s in statistics(agent)}

    def turn(self, ready: bool, mine: Progress) -> tuple[bool, Progress]:
        """Whether every learner has something to learn from, and the counters of all together.

        Updates are counted alike by all; steps and episodes add up; time is the average. Knobs follow from these.
        """
        said = [float(ready), mine.env_steps, mine.episodes, mine.seconds, mine.opt_steps]
        total = self.add(torch.tensor(said, dtype=torch.float64, device=self.device)).tolist()
        if total[4] != mine.opt_steps * self.size:
            raise RuntimeError("learners have made different numbers of updates: restart them from one checkpoint")
        at = mine._replace(env_steps=int(total[1]), episodes=int(total[2]), seconds=total[3] / self.size)
        return total[0] == self.size, at

    def step(self, learner: Learner, at: Progress) -> LogData:
        """One update of all learners; `at` is what `turn` said."""
        if learner.mini is None and not learner.buffer.fresh:
            self.share(learner.agent)
        with together(self.learners):
            log = learner.step(at)
        if learner.mini is None and learner.buffer.fresh:  # these are seen once the phase is over
            self.share(learner.agent)
        return log

    @torch.no_grad()
    def share(self, agent: Agent) -> None:
        """Statistics of normalisers become those of all rows that any learner has seen."""
        for own in statistics(agent):
            mean, var, count = self.known[id(own)]
            off = own.mean - mean
            new = torch.stack([own.count * off, own.count * (own.var + off.square()) - count * var])
            grown = (own.count - count).expand_as(new[:1])
            sums, squares, rows = self.add(torch.cat([new, grown]))
            whole = (count + rows).clamp(min=1)
            off = sums / whole
            spread = (count * var + squares) / whole - off.square()
            own.mean.copy_(mean + off)
            own.var.copy_(torch.where(count + rows > 0, spread, var))
            own.count.copy_(count + rows.flatten()[0])
            self.known[id(own)] = self.moments(own)

    def moments(self, own: Statistics) -> tuple[Tensor, ...]:
        return own.mean.clone(), own.var.clone(), own.count.clone()

    @torch.no_grad()
    def alike(self, agent: Agent) -> bool:
        """Whether all learners have the same parameters, to the bit."""
        tensors = agent.algo.model.state().tensors
        here = torch.stack([tensor.double().sum() for tensor in tensors.values()]).to(self.device)
        low, high = here.clone(), here.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        return bool((low == high).all())


def statistics(agent: Agent) -> Iterator[Statistics]:
    """The running moments of an agent, each once: a lagged copy of a model has the same ones."""
    seen: set[int] = set()
    for part in agent.algo.parts().values():
        for module in part.modules() if isinstance(part, torch.nn.Module) else ():
            if isinstance(module, Statistics) and id(module.mean) not in seen:
                seen.add(id(module.mean))
                yield module
