"""What an item must be before anything is done with it: the one place where bytes that others made become items.

All of it is known beforehand, from the environment's spaces and the algorithm: names, types and shapes of the tensors,
and so their size before anything is decompressed; which numbers they may hold; what is told beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, Strict
from torch import Tensor

from ganglion import ops
from ganglion.buffers.frames import FrameStacking, find_stacks
from ganglion.core import (
    Composite,
    Discrete,
    EnvSpec,
    MultiBinary,
    MultiDiscrete,
    Packet,
    Processor,
    Progress,
    Row,
    Space,
    Step,
)
from ganglion.envs.gym_arrays import MASK
from ganglion.envs.transforms import zeros
from ganglion.fleet.remote_explorer import Item, ItemSize, item_of
from ganglion.fleet.wire import WireForm, unpack
from ganglion.runtime.agent import Agent, enter
from ganglion.runtime.explorer import in_time
from ganglion.runtime.randomness import SlotNoise, Stream

MANY = 10_000  # reports, or names of numbers, in one item at most

# ------------------------------------------------------------ what is told beside tensors

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Text = Annotated[str, Field(max_length=1 << 20)]
Word = Annotated[str, Field(pattern=r"^[a-z_]{1,32}$")]
Info = Annotated[dict[Annotated[str, Field(max_length=200)], float], Field(max_length=MANY)]
Slot = Annotated[int, Field(ge=-1, lt=1 << 31)]


class Plain(BaseModel):
    """Entries of JSON: nothing is converted, and what is not known is left out."""

    model_config = ConfigDict(strict=True, extra="ignore")


class FailureReport(Plain):
    """A failure, or an episode that is to be written down. Slot and episode name a file."""

    kind: Word
    error: Text
    traceback: Text = ""
    slot: Count | None
    episode: Count | None
    step: Count | None
    seed: Count | None = None
    run_seed: Count | None = None
    acting: bool = False
    actions: list[Any] | None = None
    worker: Count | None = None
    total: float | None = None


class About(Plain):
    """All that an item tells."""

    origin: Annotated[tuple[str, Count, Count, Count, int], Strict(False)]
    episodes: list[Annotated[tuple[Slot, float, float, Info, Count], Strict(False)]]
    failures: Annotated[list[FailureReport], Field(max_length=MANY)] = []
    logged: Annotated[list[FailureReport], Field(max_length=MANY)] = []
    rows_lost: Count = 0
    seconds: float = 0.0


# ------------------------------------------------------------ items


class Expected:
    """What the items of a run look like."""

    def __init__(self, form: WireForm, spec: EnvSpec) -> None:
        self.form, self.slots = form, spec.slots
        self.ends = {**ends(spec.obs, "rows/obs"), **ends(spec.obs, "ahead/obs"), **ends(spec.action, "rows/action")}
        stacks = {} if spec.frame is None else find_stacks(spec.obs, spec.frame)
        self.stacks = {f"rows/obs/{name}".rstrip("/"): stack for name, stack in stacks.items()}

    def read(self, packet: Packet) -> Item:
        """The item that these bytes are; an exception where they are none of this run."""
        about, tensors = unpack(packet.body, self.form)
        told = About.model_validate(about)
        for report in (*told.failures, *told.logged):
            if report.slot is not None and report.slot >= self.slots:
                raise ValueError(f"there is no slot {report.slot}")
        if told.origin != packet.origin or any(episode[0] >= self.slots for episode in told.episodes):
            raise ValueError(f"it says that it is {told.origin}, with episodes of other slots")
        for name, tensor in tensors.items():
            check_numbers(name, tensor, self.ends.get(name))
        item = item_of(told.model_dump(exclude_unset=True), tensors)
        for name, stack in self.stacks.items():
            check_stack(name, tensors[name], stack, item.rows)
        return item


def expect(agent: Agent, processor: Processor, spec: EnvSpec, lot: ItemSize) -> Expected:
    """What explorers will send: seen from a step that is taken here with an observation of zeros, all actions legal."""
    obs = zeros(spec.obs, spec.slots)
    if isinstance(obs, dict) and MASK in obs:
        obs[MASK] = ops.map_tree(lambda x: torch.ones_like(x, dtype=torch.bool), obs[MASK])
    off = torch.zeros(spec.slots, dtype=torch.bool)
    step = Step(obs, torch.zeros(spec.slots), off, off, ~off)
    past = agent.start(spec.slots)
    noise = SlotNoise(Stream(0, "", agent.device), agent.draws, spec.slots).next()
    acted = agent.explore(agent.here(obs), past, agent.knobs(Progress()), noise)
    whole = in_time([acted])
    if spec.turns:
        whole = whole._replace(extras={**whole.extras, "acts": ~off[None]})
    one: Row = processor(enter(step), past, whole, enter(step))
    rows = ops.map_tree(lambda x: x.new_empty((lot.rows, *x.shape[1:]), device="meta"), one)
    ahead = {"obs": obs, "start": past.start, "memory": acted.memory}
    return Expected(WireForm(ops.flatten_names({"rows": rows, "ahead": ahead}), lot.codec.name), spec)


def ends(space: Space, name: str) -> Mapping[str, Tensor]:
    """Of each leaf that counts something: one more than the highest number."""
    match space:
        case Composite(items):
            return {k: v for key, part in items.items() for k, v in ends(part, f"{name}/{key}").items()}
        case Discrete(n):
            return {name: torch.tensor(n)}
        case MultiDiscrete(nvec):
            return {name: torch.tensor(nvec)}
        case MultiBinary():
            return {name: torch.tensor(2)}
    return {}


def check_numbers(name: str, tensor: Tensor, end: Tensor | None) -> None:
    """Refuses numbers that are not finite, bits that are not 0 or 1, and choices that there are not."""
    if tensor.is_floating_point():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} is not finite")
    elif tensor.dtype == torch.bool:
        if (tensor.view(torch.uint8) > 1).any():
            raise ValueError(f"{name} is neither true nor false")
    elif end is not None and ((tensor < 0) | (tensor >= end)).any():
        raise ValueError(f"{name} should be from 0 to {(end - 1).tolist()}")


def check_stack(name: str, x: Tensor, stack: FrameStacking, rows: Row) -> None:
    """Refuses stacks of frames [T, B, ...] of which one does not go on where the one before it ended: a replay keeps
    each frame once."""
    size, whole = stack.size, x.shape[2 + stack.axis]
    older, newer = (x.narrow(2 + stack.axis, start, whole - size) for start in (0, size))
    same = (older[1:] == newer[:-1]).flatten(2).all(2)
    known = rows.valid[1:] & rows.valid[:-1] & ~rows.start[1:]
    if (known & ~same).any():
        raise ValueError(f"{name} is no stack of the last frames, as EnvSpec.frame says")
