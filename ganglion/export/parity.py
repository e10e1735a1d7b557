"""Whether an exported agent acts as the agent does: on observations of its own episodes, beside it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Past
from ganglion.envs.gym_arrays import MASK, Leaf
from ganglion.export.files import Array, Runner
from ganglion.export.policy import PolicyModule, part
from ganglion.runtime.build import build_env
from ganglion.runtime.randomness import derive
from ganglion.runtime.saved_agent import SavedAgent

TIMED = 500  # calls


class Parity(NamedTuple):
    """Over all observations that were compared."""

    observations: int
    difference: float  # the largest of real numbers: actions, what they are chosen by, memories
    choices: int  # whole numbers that were compared
    unequal: int  # of these
    latency_us: float  # of a call, median


def compare(agent: SavedAgent, policy: PolicyModule, runner: Runner, rows: int, count: int) -> Parity:
    """The agent plays `rows` slots; the exported one is shown the same, and remembers for itself."""
    env = build_env(agent.config, rows)
    step, past = env.reset(derive(agent.config.run.seed, "export")), agent.agent.start(rows)
    memory = [port.zeros(rows).numpy() for port in policy.memory]
    largest, choices, unequal, seen = 0.0, 0, 0, 0
    given: list[Array] = []
    try:
        while seen < count:
            shown = as_given(policy, agent.masked, step.obs)
            given = [*shown, *memory, past.start[0].numpy()] if policy.memory else shown
            acted = agent.agent.predict(step.obs, past)
            mine = runner(given)
            theirs = expected(agent, policy, acted.action, given)
            for port, one, other in zip(policy.outputs, mine, theirs, strict=True):
                if port.dtype == "float32":
                    largest = max(largest, float(np.abs(one - other).max(initial=0.0)))
                else:
                    choices, unequal = choices + one.size, unequal + int((one != other).sum())
            memory = [np.ascontiguousarray(x) for x in mine[len(mine) - len(memory) :]] if memory else []
            past = Past(acted.memory, ~env_valid(step := env.step(acted.action))[None], acted.carried)
            seen += rows
    finally:
        env.close()
    return Parity(seen, largest, choices, unequal, latency(runner, given))


def env_valid(step: Any) -> Tensor:
    valid: Tensor = step.valid
    return valid


def expected(agent: SavedAgent, policy: PolicyModule, action: Any, given: Sequence[Array]) -> list[Array]:
    """The agent's own action, and what it is chosen by as the network says it."""
    columns = agent._actions.outward(agent._actions.columns(action))
    with torch.no_grad():
        said = policy(*(torch.from_numpy(x) for x in given))
    return [*(np.asarray(x) for x in columns), *(x.numpy() for x in said[len(columns) :])]


def as_given(policy: PolicyModule, masked: bool, obs: Any) -> list[Array]:
    """An observation of the environment's slots as an exported policy takes it."""
    tree = obs["obs"] if masked else obs
    shown = [restored(leaf, part(tree, leaf.path)) for leaf in policy.seen]
    return [*shown, ops.map_tree(lambda x: x.numpy(), obs[MASK])] if masked else shown


def restored(leaf: Leaf, x: Tensor) -> Array:
    """As gymnasium gives it."""
    array = x.numpy().reshape(len(x), *(leaf.space.shape or ()))
    return array if leaf.start is None else array + leaf.start.reshape(leaf.space.shape or ())


def latency(runner: Runner, given: Sequence[Array]) -> float:
    """Microseconds of a call, the median of many."""
    times = []
    for _ in range(TIMED):
        began = perf_counter()
        runner(given)
        times.append(perf_counter() - began)
    return 1e6 * median(times)
