"""Holds a peer's own training loop still between turns, without touching its code.

The environment's `step` is wrapped: before the first step after the asked-for number of updates it waits for the next
request. Updates are counted by torch's own hook on optimisers; the rows of an update and the number of parameters by
looking, during the warm-up alone. So the loop that is timed is the peer's, from one env step to a later one.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.peers.workloads import Workload
from benchmarks.versus import Desk


class Gate:
    """Counts, and waits where a turn ends."""

    def __init__(self, work: Workload) -> None:
        self.desk, self.goal = Desk(), work.warm
        self.steps = self.updates = self.rows = self.parameters = 0
        self.by_optimiser: Counter[int] = Counter()
        self.began: tuple[float, int, int] | None = None
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", work.threads)))
        register_optimizer_step_post_hook(self.stepped)
        self.look = register_module_forward_pre_hook(self.passed)
        self.seen: dict[int, int] = {}

    def around(self, env: type[Any]) -> None:
        """Wraps the `step` of an environment class; every copy of it then counts here."""
        step = env.step

        def counted(this: Any, action: Any) -> Any:
            if self.updates >= self.goal:
                self.pause()
            self.steps += 1
            return step(this, action)

        env.step = counted

    def stepped(self, optimiser: torch.optim.Optimizer, *_: Any) -> None:
        self.by_optimiser[id(optimiser)] += 1
        self.updates = max(self.updates, self.by_optimiser[id(optimiser)])  # one optimiser of several steps most often
        if self.began is None:
            self.seen |= {id(p): p.numel() for group in optimiser.param_groups for p in group["params"]}

    def passed(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        """The largest batch that passes a linear layer with gradients on is what an update learns from."""
        if isinstance(module, torch.nn.Linear) and torch.is_grad_enabled():
            self.rows = max(self.rows, inputs[0].numel() // inputs[0].shape[-1])

    def pause(self) -> None:
        now = time.perf_counter()
        if self.began is None:
            self.look.remove()
            self.parameters = sum(self.seen.values())
            self.desk.ready()
        else:
            since, steps, updates = self.began
            self.desk.answer(now - since, self.counts(self.steps - steps, self.updates - updates))
        n = self.desk.request()
        if n is None:
            os._exit(0)  # the peer is in the middle of its loop
        self.goal = self.updates + n
        self.began = time.perf_counter(), self.steps, self.updates

    def counts(self, steps: int, updates: int) -> Mapping[str, float]:
        """What `versus` compares: rows learned from and parameters moved are counted per update."""
        return {
            "env_steps": steps,
            "updates": updates,
            "samples": updates * self.rows,
            "parameters": updates * self.parameters,
        }


def world(env_id: str) -> type[Any]:
    """The class behind a registered environment."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    entry = gymnasium.spec(env_id).entry_point
    made: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    return made
