"""A logged episode run again, step by step, in this process."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ganglion.envs.arrays import leaves
from ganglion.envs.configs import GymConfig
from ganglion.envs.making import find_spec
from ganglion.envs.slots import Slots
from ganglion.errors import UserError
from ganglion.record.reports import Report
from ganglion.record.stores import Where, located
from ganglion.runtime.run import load_config


class Replayed(NamedTuple):
    """What became of it: the return and length until it ended, failed or ran out of actions."""

    total: float
    length: int
    ended: bool
    traceback: str | None


def replay(folder: Where | str, told: Report) -> Replayed:
    """Runs a failed episode again from what was written down of it."""
    cfg = load_config(located(folder, "the run"))
    if not isinstance(cfg.env, GymConfig):
        raise UserError(f"environments of kind {cfg.env.kind!r} are not replayed: only those that make one per slot")
    spec = find_spec(cfg.env.registered())
    slot, episode, seed = told.slot, told.episode, told.run_seed
    if slot is None or episode is None or seed is None or told.actions is None:
        raise UserError(f"{told.name} cannot be replayed: its actions were not kept.")
    env = cfg.env.maker(spec)(slot)
    slots = Slots([env], limit=cfg.env.limit(spec), first=slot)
    slots.seed, slots.episode, slots.ended = seed, [episode - 1], [True]
    parts = leaves(env.action_space)
    slots.act([np.zeros((1, *leaf.shape), leaf.dtype) for leaf in parts])  # begins the episode
    try:
        columns = [
            np.asarray(taken, leaf.dtype).reshape(-1, 1, *leaf.shape)
            for taken, leaf in zip(told.actions, parts, strict=True)
        ]
        moments = list(zip(*columns, strict=True))
    except (ValueError, TypeError, OverflowError) as error:
        slots.close()
        raise UserError(f"{told.name} is damaged: its actions do not fit {cfg.env.id} ({error}).") from None
    for actions in moments:
        if slots.failures or slots.over(0):
            break
        slots.act(list(actions))
    slots.close()
    why = slots.failures[0]["traceback"] if slots.failures else None
    return Replayed(slots.total[0], slots.length[0], slots.over(0) and why is None, why)
