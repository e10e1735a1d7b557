"""A logged episode run again, step by step, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ganglion.envs.arrays import leaves
from ganglion.envs.configs import GymConfig
from ganglion.envs.making import find_spec
from ganglion.envs.slots import Slots
from ganglion.errors import UserError
from ganglion.record.stores import Where, located
from ganglion.runtime.run import load_config


class Replayed(NamedTuple):
    """What became of it: the return and length until it ended, failed or ran out of actions."""

    total: float
    length: int
    ended: bool
    traceback: str | None


def replay(folder: Where | str, failure: Mapping[str, Any]) -> Replayed:
    """Runs a failed episode again from what was written down of it."""
    cfg = load_config(located(folder, "the run"))
    if not isinstance(cfg.env, GymConfig):
        raise UserError(f"environments of kind {cfg.env.kind!r} are not replayed: only those that make one per slot")
    spec = find_spec(cfg.env.registered())
    slot = int(failure["slot"])
    env = cfg.env.maker(spec)(slot)
    slots = Slots([env], limit=cfg.env.limit(spec), first=slot)
    slots.seed, slots.episode, slots.ended = int(failure["run_seed"]), [int(failure["episode"]) - 1], [True]
    parts = leaves(env.action_space)
    slots.act([np.zeros((1, *leaf.shape), leaf.dtype) for leaf in parts])  # begins the episode
    columns = [np.asarray(taken, leaf.dtype) for taken, leaf in zip(failure["actions"], parts, strict=True)]
    for t in range(len(columns[0])):
        if slots.failures or slots.over(0):
            break
        slots.act([column[t : t + 1].reshape(1, *leaf.shape) for column, leaf in zip(columns, parts, strict=True)])
    slots.close()
    why = slots.failures[0]["traceback"] if slots.failures else None
    return Replayed(slots.total[0], slots.length[0], slots.over(0) and why is None, why)
