"""Layers: linear maps as ensembles, perceptrons of them, linear and noisy heads, activations, initialisation."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from ganglion.nn.kernels import cpu_mlp, gpu_mlp, untouched

CHUNK = 1_024  # rows of one product
MANY = 8 * CHUNK  # rows from which on they are learned from in chunks
FEW = 4  # columns of a product that are better summed one by one on a GPU
SOME = 8  # the same on a CPU, where a compiler joins the sums to what is around
THIN, LOW = 64, 32  # inputs and rows of what acting multiplies: a library's call would cost more than the product
Activation = Literal["relu", "tanh", "elu", "silu"]
Init = Literal["uniform", "orthogonal"]
Norm = Literal["none", "layer"]
# Of products and activations; parameters and what comes out are float32. tf32: float32 whose products a GPU rounds.
Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "elu": nn.functional.elu, "silu": nn.functional.silu}


class Linears(nn.Module):
    """`count` independent linear maps as one batched product: [count, N, inputs] -> [count, N, outputs].

    Computed in the precision of what comes in.
    """

    def __init__(self, count: int, inputs: int, outputs: int, init: Init = "uniform", gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(count, 1, outputs))
        bound = inputs**-0.5
        with torch.no_grad():
            if init == "uniform":
                self.weight.uniform_(-bound, bound)
                self.bias.uniform_(-bound, bound)
            else:
                for member in self.weight:
                    nn.init.orthogonal_(member, gain)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, rows = typed(self.weight, x.dtype), typed(self.bias, x.dtype), x.shape[1]
        if rows < MANY or rows % CHUNK:
            return product(x, weight, bias)
        # the weights' gradient is a product along all rows: as one it would keep a GPU's few units busy for long
        chunks = x.reshape(-1, CHUNK, x.shape[-1])
        weight, bias = (p.unsqueeze(1).expand(-1, rows // CHUNK, -1, -1).flatten(0, 1) for p in (weight, bias))
        return product(chunks, weight, bias).view(len(self.weight), rows, -1)

    def first(self, x: Tensor) -> Tensor:
        """The first of the maps alone: [..., inputs] -> [..., outputs]."""
        return x @ self.weight[0].to(x.dtype) + self.bias[0].to(x.dtype)


class LayerNorms(nn.Module):
    """`count` layer norms (Ba et al. 2016) side by side, each with weights of its own: [count, N, size], the same."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(count, 1, size)), nn.Parameter(torch.zeros(count, 1, size))

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.layer_norm(x, x.shape[-1:])
        return y * typed(self.weight, x.dtype) + typed(self.bias, x.dtype)


class Body(Protocol):
    """What a network's `body` is, an nn.Module: `count` independent members, [T, B, inputs] -> [count, T, B, out]."""

    count: int
    out: int
    dtype: torch.dtype  # of its products

    def __call__(self, x: Tensor) -> Tensor: ...


class MLP(nn.Module):
    """`count` independent multi-layer perceptrons side by side: [T, B, inputs] -> [count, T, B, out]."""

    def __init__(
        self, count: int, inputs: int, hidden: tuple[int, ...], activation: Activation, init: Init,
        precision: Precision = "float32", norm: Norm = "none",
    ) -> None:  # fmt: skip
        super().__init__()
        self.norms = nn.ModuleList(LayerNorms(count, size) for size in hidden if norm == "layer")
        self.dtype, self.tf32, self.kind = PRECISIONS[precision], precision == "tf32", activation
        self.sizes = sizes = (inputs, *hidden)
        self.layers = nn.ModuleList(Linears(count, a, b, init, gain=2**0.5) for a, b in pairwise(sizes))
        self.count, self.out, self.activation = count, sizes[-1], ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[:2]
        if self.fuses(x):
            return cpu_mlp.mlp(x, None, *self.weights(), activation=self.kind).unflatten(1, rows)
        if self.dtype == torch.float32 and gpu_mlp.fits(x, self.sizes, self.kind) and self.usual():
            given = x.reshape(1, -1, x.shape[-1]), *self.weights()
            return gpu_mlp.mlp(*given, self.kind, self.tf32).unflatten(1, rows)
        y = lowered(x, self.dtype).reshape(1, -1, x.shape[-1]).expand(self.count, -1, -1)
        for layer, norm in zip_longest(self.layers, self.norms):
            y = self.activation(layer(y) if norm is None else norm(layer(y)))
        return typed(y.unflatten(1, rows), x.dtype)

    def first(self, x: Tensor) -> Tensor:
        """The first of the perceptrons alone: [T, B, inputs] -> [T, B, out]."""
        y = lowered(x, self.dtype)
        for layer in self.layers:
            y = self.activation(layer.first(y))  # type: ignore[operator]
        return y.to(x.dtype)

    def fuses(self, x: Tensor) -> bool:
        """Whether these rows pass through it as one operation on a CPU, which may take a last layer with it."""
        return self.dtype == torch.float32 and cpu_mlp.fits(x, self.sizes, self.kind) and self.usual()

    def usual(self) -> bool:
        """Whether its layers and their activation are those it was made with, and all that kernels know."""
        made = not self.norms and self.activation is ACTIVATIONS[self.kind] and len(self.layers) == len(self.sizes) - 1
        return made and all(untouched(layer, Linears) for layer in self.layers)

    def weights(self) -> list[Tensor]:
        """Weight and bias of each layer, [count, ...]."""
        return [p for layer in self.layers if isinstance(layer, Linears) for p in (layer.weight, layer.bias)]


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Batches of products, and a bias. As one operation it would copy the bias to every row first: worth it only where
    no compiler joins the addition to what follows."""
    joins = x.dtype == torch.float32 and torch.compiler.is_compiling()  # bfloat16 would be rounded once more
    if joins and not x.is_cuda and x.shape[2] <= THIN and x.shape[1] <= LOW:
        return (x[..., None] * weight[:, None]).sum(-2) + bias
    if joins or x.is_cuda:
        return torch.bmm(x, weight) + bias
    return torch.baddbmm(bias, x, weight)


def lowered(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In a lower precision, where one is asked for."""
    return x if dtype == torch.float32 else x.to(dtype)


def typed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x.to(dtype)`; asking first costs less than a conversion that changes nothing."""
    return x if x.dtype == dtype else x.to(dtype)


class LinearHead(nn.Linear):
    """A last layer over a body: [..., out] -> [..., outputs]. Few outputs are sums on a GPU, and where a compiler joins
    them to what is around; there not over bfloat16, since the other last bit of a gradient would round to another
    number. Orthogonal ones start with a zero bias and the given gain."""

    def __init__(self, body: Body, outputs: int, init: Init = "uniform", gain: float = 1.0) -> None:
        super().__init__(body.out, outputs)
        self.joins = body.dtype == torch.float32
        if init == "orthogonal":
            nn.init.orthogonal_(self.weight, gain)
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        joins = self.joins and torch.compiler.is_compiling()
        if self.out_features <= (FEW if x.is_cuda else SOME if joins else 0):
            return (x[..., None, :] * self.weight).sum(-1) + self.bias
        if joins and not x.is_cuda:
            return product(x.flatten(0, -2)[None], self.weight.t()[None], self.bias)[0].unflatten(0, x.shape[:-1])
        return super().forward(x)


class NoisyLinear(nn.Module):
    """A linear layer whose weights are shaken by factorised noise (Fortunato et al. 2018), with f(e) = sign(e) sqrt|e|:

    y = W x + b + f(e_out) (S (f(e_in) x) + s).  The `draws` normal numbers e come with the call, [..., draws] of each
    row or one set for all of them; without any, y = W x + b.
    """

    def __init__(self, inputs: int, outputs: int, sigma: float) -> None:
        super().__init__()
        self.sizes, self.draws = [inputs, outputs], inputs + outputs
        self.mean, self.spread = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)
        for start in self.spread.parameters():
            nn.init.constant_(start, sigma * inputs**-0.5)

    def forward(self, x: Tensor, normal: Tensor | None = None) -> Tensor:
        y: Tensor = self.mean(x)
        if normal is None:
            return y
        into, out = (normal.sign() * normal.abs().sqrt()).split(self.sizes, -1)
        return y + out * self.spread(into * x)
