"""How many operations acting and learning dispatch: on small networks each costs more than its arithmetic.

The limits are the counts of the day they were last lowered. A change that needs more should say why in its commit; one
that needs fewer should lower them here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import ganglion
from ganglion.runtime.build import build

REST = ["log=[]", "save=never", "eval=never", "run.device=cpu"]  # a GPU would be given some operations more
CASES = {
    "a2c": ["algo={kind: a2c, horizon: 16}", "env={kind: torch, id: cartpole, slots: 8}"],
    "acer": ["algo={kind: acer, limiter: {warmup: 100}}", "env={kind: torch, id: cartpole, slots: 8}"],
    "dqn": ["algo={kind: dqn, limiter: {warmup: 100}}", "env={kind: torch, id: cartpole, slots: 8}"],
    "impala": ["algo={kind: impala, horizon: 16}", "env={kind: torch, id: cartpole, slots: 8}"],
    "ppo": ["algo={kind: ppo, horizon: 16}", "env={kind: torch, id: cartpole, slots: 8}"],
    "reinforce": ["algo={kind: reinforce, horizon: 16}", "env={kind: torch, id: cartpole, slots: 8}"],
    "sac": ["algo={kind: sac, limiter: {warmup: 100}}", "env={kind: torch, id: pendulum, slots: 8}"],
    "td3": ["algo={kind: td3, limiter: {warmup: 100}}", "env={kind: torch, id: pendulum, slots: 8}"],
    "trpo": ["algo={kind: trpo, horizon: 16}", "env={kind: torch, id: cartpole, slots: 8}"],
}
LIMITS = {  # act; learn with its gathers
    "a2c": (28, 221),
    "acer": (32, 339),
    "dqn": (23, 134),
    "impala": (33, 258),
    "ppo": (34, 221),
    "reinforce": (28, 305),
    "sac": (46, 394),
    "td3": (37, 260),
    "trpo": (37, 3051),
}


class Operations(TorchDispatchMode):
    """Counts what reaches the dispatcher, views too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def counted(settings: list[str]) -> tuple[Counter[str], Counter[str]]:
    """The operations of one act and of one update, after the first of each, which may do more."""
    trainer = build(ganglion.load_config(None, [*settings, *REST]))
    agent = trainer.learner.agent
    found: dict[str, Counter[str]] = {}
    while trainer.at.opt_steps < 12:
        if trainer.at.opt_steps == 2 and not found:
            for name in ("act", "learn"):
                found[name] = Counter()
                setattr(agent, name, noting(name, getattr(agent, name), found))
        trainer.run_train() if trainer.learner.owes(trainer.at) else trainer.run_collect()
    while not found["act"]:
        trainer.run_train() if trainer.learner.owes(trainer.at) else trainer.run_collect()
    return found["act"], found["learn"]


def noting(name: str, call: Any, found: dict[str, Counter[str]]) -> Any:
    def run(*args: Any, **named: Any) -> Any:
        with Operations() as operations:
            result = call(*args, **named)
        if operations.seen.total() >= found.get(name, Counter()).total():  # the dearest: some updates do more
            found[name] = operations.seen
        return result

    return run


@pytest.mark.parametrize("name", CASES)
def test_operations_do_not_grow(name: str) -> None:
    for part, seen, limit in zip(("act", "learn"), counted(CASES[name]), LIMITS[name]):
        assert sum(seen.values()) <= limit, f"{name} {part}: {sum(seen.values())} of {limit}; {seen.most_common(12)}"


def test_the_count_is_a_count() -> None:
    import torch

    with Operations() as operations:
        torch.ones(3).add(1).view(3, 1)
    assert operations.seen.total() == 3
