"""Networks: an encoder of observations with an optional memory, bodies, and heads over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from ganglion import ops
from ganglion.config import NetConfig, register
from ganglion.core import Action, EnvSpec, Memory, Model, Noise, Obs, Past, Space
from ganglion.nn import cells
from ganglion.nn.heads import PolicyHead, QHead, ValueHead, ValueHeads, check_mask
from ganglion.nn.inputs import IMAGE, flat_size, flatten, image_spaces, images, view
from ganglion.nn.kernels import cpu_mlp, untouched
from ganglion.nn.layers import MLP, Activation, Body, Init, LinearHead, Norm, Precision
from ganglion.nn.normalisers import ObsNormaliser

Size = Annotated[int, Field(ge=1, le=65_536)]  # units of a layer


@register("net", "mlp")
class MLPConfig(NetConfig):
    """Perceptrons over flat observations; images of 36 x 36 and more pass through convolutions, grids on request."""

    hidden: tuple[Size, ...] = (64, 64)
    activation: Activation = "relu"
    init: Init = "uniform"
    norm: Norm = "none"  # of each hidden layer, before its activation
    memory: Literal["none", "lstm", "gru"] = "none"
    memory_size: Size = 64
    normalise: bool = False  # observations, by running mean and deviation
    grid: Literal["flat", "conv"] = "flat"  # smaller images, from 5 x 5: as flat numbers, or through a convolution
    precision: Precision = "float32"  # that layers compute in

    @property
    def recurrent(self) -> bool:
        return self.memory != "none"

    def encoder(self, space: Space) -> Encoder:
        return ObsEncoder(self, space)

    def body(self, inputs: int, count: int = 1) -> Body:
        return MLP(count, inputs, self.hidden, self.activation, self.init, self.precision, self.norm)


class Encoder(Protocol):
    """What a network's `encoder` is, an nn.Module: observations [T, B, ...] -> [T, B, out], and the memory after them.

    One that watches rows to normalise them is a core.Model with an `observe`."""

    out: int

    def initial(self, slots: int) -> Memory:
        """The memory of slots that have seen nothing; () without one."""
        ...

    def __call__(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]: ...


class ObsEncoder(Model):
    """Observations [T, B, ...] -> [T, B, out]: flat inputs, normalised on request, images, then the memory, if any."""

    def __init__(self, net: MLPConfig, space: Space) -> None:
        super().__init__()
        self.least = 5 if net.grid == "conv" else IMAGE  # pixels a side that convolutions read
        self.space, self.flat = space, flat_size(space, self.least)
        self.pixels = nn.ModuleList(view(part, net.init, net.precision) for part in image_spaces(space, self.least))
        self.norm = ObsNormaliser(self.flat) if net.normalise and self.flat else None
        size = self.flat + sum(part.out for part in self.pixels)  # type: ignore[misc]
        self.cell: nn.LSTMCell | nn.GRUCell | None = None
        if net.memory != "none":
            kind = nn.LSTMCell if net.memory == "lstm" else nn.GRUCell
            self.cell = kind(size, net.memory_size)
        self.out = size if self.cell is None else net.memory_size

    def initial(self, slots: int) -> Memory:
        if self.cell is None:
            return ()
        count = 2 if isinstance(self.cell, nn.LSTMCell) else 1
        return tuple(self.cell.weight_hh.new_zeros(1, slots, self.out) for _ in range(count))

    def forward(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        parts = [see(image) for see, image in zip(self.pixels, images(obs, self.space, self.least), strict=True)]
        if self.flat:
            flat = flatten(obs, self.space, self.least)
            parts.append(flat if self.norm is None else self.norm(flat))
        x = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return (x, ()) if self.cell is None else self.remember(self.cell, x, past)

    def remember(self, cell: nn.LSTMCell | nn.GRUCell, x: Tensor, past: Past) -> tuple[Tensor, Memory]:
        """Runs the memory along T; it starts from nothing where an episode starts."""
        keep = (~past.start).to(x.dtype)[..., None]  # [T, B, 1]
        memory = tuple(m[0] for m in past.memory)
        out = []
        for t in range(x.shape[0]):
            kept = tuple(m * keep[t] for m in memory)
            memory = cells.step(cell, x[t], kept)
            out.append(memory[0])
        return torch.stack(out), tuple(m[None] for m in memory)

    def observe(self, obs: Obs, valid: Tensor) -> None:
        if self.norm is not None:
            self.norm.moments.observe(flatten(obs, self.space, self.least), valid)

    @property
    def watches(self) -> bool:
        return self.norm is not None or type(self).observe is not ObsEncoder.observe


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
        if untouched(body, MLP) and untouched(head, LinearHead) and body.fuses(x):
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
        if untouched(body, MLP) and untouched(head, ValueHeads) and body.fuses(x):
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

    def __init__(self, net: MLPConfig, spec: EnvSpec, shared: bool, log_std: float = 0.0) -> None:
        super().__init__(net, spec.obs)
        check_mask(spec)
        self.bodies = net.body(self.encoder.out, count=1 if shared else 2)
        self.actor = PolicyHead(self.bodies, spec.action, net.init, log_std)
        self.critic = ValueHead(self.bodies, net.init)

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
