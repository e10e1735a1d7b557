"""Layers: linear maps as ensembles, activations, initialisation."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from ganglion.nn import tiny, wide

CHUNK = 1_024  # rows of one product
MANY = 8 * CHUNK  # rows from which on they are learned from in chunks
FEW = 4  # columns of a product that are better summed one by one on a GPU
SOME = 8  # the same on a CPU, where a compiler joins the sums to what is around
THIN, LOW = 64, 32  # inputs and rows of what acting multiplies: a library's call would cost more than the product
Activation = Literal["relu", "tanh", "elu", "silu"]
Init = Literal["uniform", "orthogonal"]
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


class MLP(nn.Module):
    """`count` independent multi-layer perceptrons side by side: [T, B, inputs] -> [count, T, B, out].

    Inputs may come in two parts, the second `beside` the first.
    """

    def __init__(
        self, count: int, inputs: int, hidden: tuple[int, ...], activation: Activation, init: Init,
        precision: Precision = "float32",
    ) -> None:  # fmt: skip
        super().__init__()
        self.dtype, self.tf32, self.kind = PRECISIONS[precision], precision == "tf32", activation
        self.sizes = sizes = (inputs, *hidden)
        self.layers = nn.ModuleList(Linears(count, a, b, init, gain=2**0.5) for a, b in pairwise(sizes))
        self.count, self.out, self.activation = count, sizes[-1], ACTIVATIONS[activation]

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        rows = x.shape[:2]
        if self.wide(x):
            return wide.perceptrons(x, beside, *self.pair(slice(None)), activation=self.kind).unflatten(1, rows)
        x = wide.joined(x, beside)
        if self.dtype == torch.float32 and tiny.fits(x, self.sizes, self.kind):
            one, two = self.layers
            given = x.reshape(1, -1, x.shape[-1]), one.weight, one.bias, two.weight, two.bias
            return tiny.perceptrons(*given, self.kind, self.tf32).unflatten(1, rows)
        y = lowered(x, self.dtype).reshape(1, -1, x.shape[-1]).expand(self.count, -1, -1)
        for layer in self.layers:
            y = self.activation(layer(y))
        return typed(y.unflatten(1, rows), x.dtype)

    def first(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """The first of the perceptrons alone: [T, B, inputs] -> [T, B, out]."""
        x = wide.joined(x, beside)
        y = lowered(x, self.dtype)
        for layer in self.layers:
            y = self.activation(layer.first(y))  # type: ignore[operator]
        return y.to(x.dtype)

    def wide(self, x: Tensor) -> bool:
        """Whether it is computed as one operation, with a last layer over it."""
        return self.dtype == torch.float32 and wide.fits(x, self.sizes, self.kind)

    def pair(self, which: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The parameters of two layers, of these members."""
        one, two = (layer for layer in self.layers if isinstance(layer, Linears))
        return one.weight[which], one.bias[which], two.weight[which], two.bias[which]


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


class Last(nn.Linear):
    """A last layer over a body: [..., out] -> [..., outputs]. Few outputs are sums on a GPU, and where a compiler joins
    them to what is around; there not over bfloat16, since the other last bit of a gradient would round to another
    number."""

    def __init__(self, body: MLP, outputs: int) -> None:
        super().__init__(body.out, outputs)
        self.joins = body.dtype == torch.float32

    def forward(self, x: Tensor) -> Tensor:
        joins = self.joins and torch.compiler.is_compiling()
        if self.out_features <= (FEW if x.is_cuda else SOME if joins else 0):
            return (x[..., None, :] * self.weight).sum(-1) + self.bias
        if joins and not x.is_cuda:
            return product(x.flatten(0, -2)[None], self.weight.t()[None], self.bias)[0].unflatten(0, x.shape[:-1])
        return super().forward(x)

    def over(self, body: MLP, x: Tensor) -> Tensor:
        """`self(body(x)[0])`, as one where that is quicker: [T, B, inputs] -> [T, B, outputs]."""
        if not body.wide(x):
            return self(body(x)[0])
        layers = *body.pair(slice(None)), self.weight[None], self.bias[None, None]
        return wide.perceptrons(x, None, *layers, activation=body.kind)[0].unflatten(0, x.shape[:2])


def head(body: MLP, outputs: int, init: Init, gain: float) -> Last:
    """A last layer; orthogonal ones start with a zero bias and the given gain."""
    layer = Last(body, outputs)
    if init == "orthogonal":
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return layer
