"""A trained agent as one pure function of tensors: observations in, actions out, as the environment gives and takes
them. Normalisers, scaling and clipping are inside; a memory is an input and an output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ganglion import ops
from ganglion.core import Past
from ganglion.envs.gym_arrays import MASK, Leaf, action_leaves, leaves
from ganglion.envs.gym_spaces import DTYPES, grow
from ganglion.errors import UserError
from ganglion.runtime.saved_agent import SavedAgent


class Port(NamedTuple):
    """One tensor that goes in or comes out; the first axis is the batch."""

    name: str
    shape: tuple[int, ...]  # without the batch
    dtype: str  # as numpy names it
    means: str

    def zeros(self, rows: int) -> Tensor:
        return torch.zeros(rows, *self.shape, dtype=DTYPES[self.dtype])


class PolicyModule(nn.Module):
    """(parts of the observation, mask, memory, start) -> (parts of the action, what it was chosen by, memory)."""

    def __init__(self, agent: SavedAgent) -> None:
        super().__init__()
        if agent.agent.device.type != "cpu":
            raise UserError("RUN: an agent is exported from a CPU: run.device=cpu.")
        self.algo, self.model = agent.agent.algo, agent.agent.algo.model
        self.seen: list[Leaf] = leaves(agent.observation_space)
        self.acted: list[Leaf] = action_leaves(agent.action_space)
        self.inputs = [
            Port(name("obs", leaf), leaf.space.shape or (), inner(leaf), str(leaf.space)) for leaf in self.seen
        ]
        self.masked = agent.masked
        match agent.action_space:
            case spaces.Discrete() as choice if self.masked:
                self.inputs.append(Port("mask", (int(choice.n),), "bool", "legal actions"))
            case _ if self.masked:
                raise UserError("RUN: masks beside the observation are exported for Discrete actions alone.")
        memory = agent.agent.start(1).memory
        self.memory = [
            Port(f"memory_{k}", tuple(m.shape[2:]), "float32", "zeros at first") for k, m in enumerate(memory)
        ]
        if memory:
            self.inputs += [*self.memory, Port("start", (), "bool", "whether an episode starts with this row")]
        self.outputs = [Port(name("action", x), x.space.shape or (), outer(x), str(x.space)) for x in self.acted]
        with torch.no_grad():
            more = self.chosen_by(*(port.zeros(1) for port in self.inputs))
        self.outputs += [Port(k, tuple(v.shape[2:]), kind(v), "what the action is chosen by") for k, v in more.items()]
        self.outputs += [port._replace(name=f"{port.name}_out", means="for the next row") for port in self.memory]

    def predict(self, given: Sequence[Tensor]) -> Any:
        rows = iter(given)
        obs = grow(self.seen, [inward(leaf, next(rows)) for leaf in self.seen])
        if self.masked:
            obs = {"obs": obs, MASK: next(rows)}
        memory = tuple(next(rows)[None] for _ in self.memory)
        start = next(rows)[None] if memory else torch.zeros(1, len(given[0]), dtype=torch.bool)
        past = Past(memory, start)
        return self.algo.predict(ops.map_tree(lambda x: x[None], obs), past, self.algo.neutral(start))

    def chosen_by(self, *given: Tensor) -> dict[str, Tensor]:
        return parameters(self.predict(given).dist)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        prediction = self.predict(given)
        action = self.algo.exploit(prediction).action
        acts = [outward(leaf, part(action, leaf.path)[0]) for leaf in self.acted]
        return (*acts, *(x[0] for x in parameters(prediction.dist).values()), *(m[0] for m in prediction.memory))


def parameters(dist: Any) -> dict[str, Tensor]:
    """The tensors of a distribution by name; masks, bounds and the action itself say nothing new."""
    named = ops.flatten_names(dist)
    known = ("mask", "low", "high", "action")
    said = {k: v for k, v in named.items() if torch.is_tensor(v) and k.rpartition("/")[2] not in known and v.dim() > 1}
    return {k.replace("/", "."): v for k, v in said.items()}


def name(what: str, leaf: Leaf) -> str:
    return ".".join((what, *leaf.path))


def kind(x: Tensor) -> str:
    return next(name for name, dtype in DTYPES.items() if dtype == x.dtype)


def inner(leaf: Leaf) -> str:
    return np.dtype(leaf.dtype).name


def outer(leaf: Leaf) -> str:
    """Real numbers stay real: whole ones are rounded, and converted by whoever steps the environment."""
    return "float32" if leaf.space.__class__ is spaces.Box else "int64"


def part(tree: Any, path: Sequence[str]) -> Tensor:
    for key in path:
        tree = tree[key]
    found: Tensor = tree
    return found


def inward(leaf: Leaf, x: Tensor) -> Tensor:
    """A batch of one leaf as Ganglion keeps it."""
    x = x.reshape(x.shape[0], *leaf.shape)
    return x if leaf.start is None else x - torch.from_numpy(np.asarray(leaf.start))


def outward(leaf: Leaf, x: Tensor) -> Tensor:
    """A batch of one leaf's actions as the environment takes them."""
    match leaf.space:
        case spaces.Box() as box:
            low, high = (torch.from_numpy(np.asarray(edge, np.float32)) for edge in (box.low, box.high))
            x = torch.minimum(torch.maximum(x.reshape(x.shape[0], *box.shape), low), high)
            return x.round() if box.dtype is not None and box.dtype.kind in "biu" else x
    moved = x if leaf.start is None else x + torch.from_numpy(np.asarray(leaf.start))
    return moved.reshape(x.shape[0], *(leaf.space.shape or ()))
