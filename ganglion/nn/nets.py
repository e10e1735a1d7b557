"""Networks: an encoder of observations with an optional memory, bodies, and heads over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ganglion import ops
from ganglion.config import NetConfig, register
from ganglion.core import Action, Box, EnvSpec, Memory, Model, Noise, Obs, Past, Space
from ganglion.nn.cells import CellMemory
from ganglion.nn.heads import PolicyHead, QHead, ValueHead, ValueHeads, check_mask
from ganglion.nn.inputs import (
    IMAGE,
    Reading,
    boxes,
    flat_size,
    flatten,
    init_convs,
    is_image,
    is_set,
    part_at,
    set_mask,
    view,
)  # fmt: skip
from ganglion.nn.kernels import cpu_mlp, untouched
from ganglion.nn.layers import MLP, PRECISIONS, Activation, Body, Init, LinearHead, Norm, Precision
from ganglion.nn.normalisers import ObsNormaliser

if TYPE_CHECKING:
    from ganglion.nn.attention import GTrXL

Size = Annotated[int, Field(ge=1, le=65_536)]  # units of a layer


@register("net", "mlp")
class MLPConfig(NetConfig):
    """Perceptrons over flat observations; images of 36 x 36 and more pass through convolutions, grids on request."""

    hidden: tuple[Size, ...] = (64, 64)
    activation: Activation = "relu"
    init: Init = "uniform"
    norm: Norm = "none"  # of each hidden layer, before its activation
    spectral: bool = False  # weights of hidden layers divided by their largest singular value
    memory: Literal["none", "lstm", "gru", "gtrxl"] = "none"
    memory_size: Size = 64
    memory_window: int = Field(16, ge=1, le=4_096)  # gtrxl: rows that are looked back at
    memory_layers: int = Field(1, ge=1, le=64)  # gtrxl
    heads: int = Field(4, ge=1, le=256)  # of attention: gtrxl and entities
    images: Literal["nature", "impala"] = "nature"  # from 36 x 36: three convolutions, or a residual network
    width: int = Field(1, ge=1, le=64)  # impala and tower: multiplies their channels
    blocks: int = Field(4, ge=1, le=100)  # tower
    entities: Literal["flat", "attention"] = "flat"  # Boxes [entities, features]: as flat numbers, or attended to
    entity_size: Size = 64
    normalise: bool = False  # observations, by running mean and deviation
    grid: Literal["flat", "conv", "tower"] = "flat"  # smaller images, from 5 x 5: flat, one convolution, residual ones
    precision: Precision = "float32"  # that layers compute in

    @property
    def recurrent(self) -> bool:
        return self.memory != "none"

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        sizes = {"memory_size": self.memory == "gtrxl", "entity_size": self.entities == "attention"}
        for name, size in (("memory_size", self.memory_size), ("entity_size", self.entity_size)):
            if sizes[name] and size % self.heads:
                raise ValueError(f"{name} should be a multiple of heads = {self.heads}, not {size}")
        return self

    def encoder(self, space: Space) -> Encoder:
        return ObsEncoder(self, space)

    def body(self, inputs: int, count: int = 1) -> Body:
        return MLP(count, inputs, self.hidden, self.activation, self.init, self.precision, self.norm, self.spectral)


class Encoder(Protocol):
    """What a network's `encoder` is, an nn.Module: observations [T, B, ...] -> [T, B, out], and the memory after them.

    One that watches rows to normalise them is a core.Model with an `observe`."""

    out: int

    def initial(self, slots: int) -> Memory:
        """The memory of slots that have seen nothing; () without one."""
        ...

    def __call__(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]: ...


class ObsEncoder(Model):
    """Observations [T, B, ...] -> [T, B, out]: flat inputs, normalised on request, images, sets, then the memory, if
    any."""

    def __init__(self, net: MLPConfig, space: Space) -> None:
        super().__init__()
        self.how = Reading(IMAGE if net.grid == "flat" else 5, net.entities == "attention")
        self.space, self.flat = space, flat_size(space, self.how)
        found = boxes(space, self.how)
        self.pixels = nn.ModuleList(eye(net, part) for _, part in found if is_image(part, self.how))
        self.sets = nn.ModuleList(attention(net, part) for _, part in found if is_set(part, self.how))
        self.images = [path for path, part in found if is_image(part, self.how)]
        sets = [(path, part) for path, part in found if is_set(part, self.how)]
        self.entities = [(path, set_mask(space, path, part.shape[0])) for path, part in sets]
        self.norm = ObsNormaliser(self.flat) if net.normalise and self.flat else None
        size = self.flat + sum(part.out for part in (*self.pixels, *self.sets))
        self.memory = remembering(net, size)
        self.out = size if self.memory is None else net.memory_size

    def initial(self, slots: int) -> Memory:
        return () if self.memory is None else self.memory.initial(slots)

    def forward(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        parts = [see(part_at(obs, path)) for see, path in zip(self.pixels, self.images, strict=True)]
        for see, (path, mask) in zip(self.sets, self.entities, strict=True):
            parts.append(see(part_at(obs, path), None if mask is None else part_at(obs, mask)))
        if self.flat:
            flat = flatten(obs, self.space, self.how)
            parts.append(flat if self.norm is None else self.norm(flat))
        x = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return (x, ()) if self.memory is None else self.memory(x, past)

    def observe(self, obs: Obs, valid: Tensor) -> None:
        if self.norm is not None:
            self.norm.moments.observe(flatten(obs, self.space, self.how), valid)

    @property
    def watches(self) -> bool:
        return self.norm is not None or type(self).observe is not ObsEncoder.observe


# What few networks have is imported where one has it.


def eye(net: MLPConfig, space: Box) -> nn.Module:
    """What reads an image or a grid."""
    towers = net.grid == "tower" and not is_image(space)
    if not towers and (net.images == "nature" or not is_image(space)):
        return view(space, net.init, net.precision)
    from ganglion.nn.resnet import ResNet, Tower

    dtype = PRECISIONS[net.precision]
    made = Tower(space, net.width, net.blocks, dtype) if towers else ResNet(space.shape, net.width, dtype)
    init_convs(made, net.init)
    return made


def attention(net: MLPConfig, space: Box) -> nn.Module:
    from ganglion.nn.attention import Entities

    return Entities(space.shape[1], net.entity_size, net.heads)


def remembering(net: MLPConfig, size: int) -> CellMemory | GTrXL | None:
    if net.memory == "none":
        return None
    if net.memory != "gtrxl":
        return CellMemory(net.memory, size, net.memory_size)
    from ganglion.nn.attention import GTrXL

    return GTrXL(size, net.memory_size, net.memory_layers, net.heads, net.memory_window)


class Encoded(Model):
    """A model whose networks all read one encoder."""

    def __init__(self, net: MLPConfig, space: Space, burn_in: int = 0) -> None:
        """`burn_in`: the first rows of a sequence, which only warm the memory up (`encode`)."""
        super().__init__()
        self.encoder = net.encoder(space)
        self.recurrent, self.burn_in = net.recurrent, burn_in if net.recurrent else 0

    def encode(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        """Features [T, B, out] and the memory after them; no gradient passes through rows of the burn-in."""
        first = self.burn_in
        if not first or past.start.shape[0] <= first:  # it acts, one row at a time
            return self.encoder(obs, past)
        with torch.no_grad():
            start = Past(past.memory, past.start[:first])
            warm, memory = self.encoder(ops.map_tree(lambda x: x[:first], obs), start)
        rest = Past(memory, past.start[first:])
        features, memory = self.encoder(ops.map_tree(lambda x: x[first:], obs), rest)
        return torch.cat([warm, features]), memory

    def initial(self, slots: int) -> Memory:
        return self.encoder.initial(slots)


class Net(nn.Module):
    """A body of one member and a head over it: [T, B, inputs] -> what the head makes of [T, B, out].

    In compiled graphs on a CPU a shipped body and its linear head are one operation. Any other, and any that has been
    changed since it was made, is called as it is: body, then head.
    """

    def __init__(self, body: Body, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor, normal: Tensor | None = None) -> Tensor:
        """`normal` are the numbers of a noisy head."""
        body, head = self.body, self.head
        if torch.compiler.is_compiling() and untouched(body, MLP) and untouched(head, LinearHead) and body.fuses(x):
            layers = *body.weights(), head.weight[None], head.bias[None, None]
            return cpu_mlp.mlp(x, None, *layers, activation=body.kind)[0].unflatten(0, x.shape[:2])
        said: Tensor = head(body(x)[0]) if normal is None else head(body(x)[0], normal)
        return said


class Ensemble(nn.Module):
    """A value of rows, and of actions where they are given, by each member of a body: [T, B, inputs] -> [count, T, B],
    or with several `outputs` [count, T, B, outputs]; computed as a Net is."""

    def __init__(self, body: Body, outputs: int = 1) -> None:
        super().__init__()
        self.body, self.head = body, ValueHeads(body, outputs)

    def forward(self, x: Tensor, action: Tensor | None = None) -> Tensor:
        body, head = self.body, self.head
        if torch.compiler.is_compiling() and untouched(body, MLP) and untouched(head, ValueHeads) and body.fuses(x):
            layers = *body.weights(), head.weight.transpose(1, 2).contiguous(), head.bias
            return head.said(cpu_mlp.mlp(x, action, *layers, activation=body.kind).unflatten(1, x.shape[:2]))
        said: Tensor = head(body(cpu_mlp.joined(x, action)))
        return said

    def first(self, x: Tensor, action: Tensor) -> Tensor:
        """What the first member says, computed alone where that is known how: [T, B]."""
        body, head = self.body, self.head
        if not (untouched(body, MLP) and untouched(head, ValueHeads) and body.usual()):
            return self(x, action)[0]
        if body.fuses(x):
            layers = (p[:1] for p in (*body.weights(), head.weight.transpose(1, 2).contiguous(), head.bias))
            return head.said(cpu_mlp.mlp(x, action, *layers, activation=body.kind)[0].unflatten(0, x.shape[:2]))
        return head.said(head.first(body.first(cpu_mlp.joined(x, action))))


class ActorCritic(Encoded):
    """obs -> raw action parameters and a value; bodies of their own run as one batched product."""

    def __init__(
        self, net: MLPConfig, spec: EnvSpec, shared: bool, log_std: float = 0.0, popart: float | None = None
    ) -> None:
        """`popart`: how fast the scale of values follows that of goals, where it does."""
        super().__init__(net, spec.obs)
        check_mask(spec)
        self.bodies = net.body(self.encoder.out, count=1 if shared else 2)
        self.actor = PolicyHead(self.bodies, spec.action, net.init, log_std)
        self.critic = ValueHead(self.bodies, net.init)
        if popart is not None:
            from ganglion.nn.popart import PopArtHead

            self.critic = PopArtHead(self.bodies, net.init, popart)

    def action_and_value(self, obs: Obs, past: Past) -> tuple[Tensor, Tensor, Memory]:
        features, memory = self.encoder(obs, past)
        hidden = self.bodies(features).unbind()  # one or two, [T, B, size]
        return self.actor(hidden[0]), self.critic(hidden[-1]), memory

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        raw, _, memory = self.action_and_value(obs, past)
        return raw, memory

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        _, value, memory = self.action_and_value(obs, past)
        return value, memory


class QNet(Encoded):
    """obs [T, B, ...] -> one value per action [T, B, A], or `atoms` numbers [T, B, A, atoms]; noisy ones on request."""

    def __init__(
        self,
        net: MLPConfig,
        spec: EnvSpec,
        actions: int,
        dueling: bool,
        burn_in: int,
        atoms: int = 0,
        noisy: float = 0.0,
    ) -> None:
        super().__init__(net, spec.obs, burn_in)
        body = net.body(self.encoder.out)
        head = QHead(body, actions, dueling, atoms, noisy)
        self.net, self.draws = Net(body, head), head.draws

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.value(obs, past)  # it is chosen by these

    def value(
        self, obs: Obs, past: Past, action: Action | None = None, normal: Tensor | None = None
    ) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, past)
        return self.net(features, normal), memory

    def shares(self, noise: Noise, count: int) -> Sequence[Tensor | None]:
        """An update's numbers for reading the noisy layer so many times."""
        return noise.update.normal.chunk(count, -1) if self.draws else [None] * count
