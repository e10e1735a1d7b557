"""A logged episode run again, step by step, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ganglion.config import Count
from ganglion.config.files import explain
from ganglion.envs.configs import GymConfig
from ganglion.envs.gym_arrays import leaves
from ganglion.envs.gym_make import find_spec
from ganglion.envs.slots import Slots
from ganglion.errors import UserError
from ganglion.record.stores import Where, located
from ganglion.runtime.run import load_config


class SavedFailure(BaseModel):
    """What became of an episode, and what it was given; `slot` is None where none was running."""

    model_config = ConfigDict(frozen=True, strict=True)
    name: str
    kind: str
    slot: int | None = Field(ge=0, le=10**9)
    episode: Count | None = Field(ge=0)
    seed: int | None = Field(ge=0, lt=2**64)
    run_seed: int | None = Field(ge=0, lt=2**64)
    step: Count | None = Field(ge=0)
    acting: bool
    error: str | None = None  # None: it ended well
    total: float = 0.0
    actions: list[list[Any]] | None = None  # per part of an action: one after the other


def read_report(path: Where) -> SavedFailure:
    """A report, or a word on why the file is none."""
    try:
        if isinstance(path, Path) and not path.is_file():
            raise UserError(f"{path} is damaged: it is no file.")
        return SavedFailure.model_validate(json.loads(path.read_text("utf-8")))
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {explain(error, 'the report')}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}.") from None


class Replayed(NamedTuple):
    """What became of it: the return and length until it ended, failed or ran out of actions."""

    total: float
    length: int
    ended: bool
    traceback: str | None


def replay(folder: Where | str, told: SavedFailure) -> Replayed:
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
