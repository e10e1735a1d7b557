"""Small gymnasium environments and comparisons for the tests of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ganglion.core import Env, Space, State, Step
from ganglion.envs.gym_spaces import to_gym
from tests.envs.singles import Everything, Fresh, InfoMask, Reused

__all__ = ["Everything", "Fresh", "InfoMask", "Reused", "copied", "random_action", "same_step", "same_tree", "walk"]


def random_action(space: Space, slots: int, seed: int) -> Any:
    """A batch of random actions of a space, as tensors."""
    space_of_all = to_gym(space)
    space_of_all.seed(seed)
    rows = [space_of_all.sample() for _ in range(slots)]
    return _stack(rows)


def _stack(rows: list[Any]) -> Any:
    if isinstance(rows[0], dict):
        return {key: _stack([row[key] for row in rows]) for key in rows[0]}
    array = np.stack(rows)
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind == "i" else array)


def same_tree(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):  # what there is not
        return a == b == ()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_tree(a[k], b[k]) for k in a)
    return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b))


def same_step(a: Step, b: Step) -> bool:
    return all(same_tree(x, y) for x, y in zip(a, b, strict=True))


def copied(state: State) -> State:
    """A state as a checkpoint would give it back: tensors of their own, scalars through JSON."""
    import json

    scalars = json.loads(json.dumps(state.scalars))
    return State({name: tensor.clone() for name, tensor in state.tensors.items()}, scalars)


def walk(env: Env, steps: int, seed: int = 0) -> list[Step]:
    """Random actions, the same for the same seed and step."""
    return [env.step(random_action(env.spec.action, env.spec.slots, seed + t)) for t in range(steps)]
