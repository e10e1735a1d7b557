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
Init = Literal["uniform", "orthogonal", "xavier", "he"]
Norm = Literal["none", "layer", "rms"]
# Of products and activations; parameters and what comes out are float32. tf32: float32 whose products a GPU rounds.
Precision = Literal["float32", "tf32", "bfloat16"]
PRECISIONS = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "elu": nn.functional.elu, "silu": nn.functional.silu}


class Linears(nn.Module):
    """`count` independent linear maps as one batched product: [count, N, inputs] -> [count, N, outputs]; a single one
    maps rows [N, inputs] as well, by a plain product.

    Computed in the precision of what comes in.
    """

    def __init__(self, count: int, inputs: int, outputs: int, init: Init = "uniform", gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(count, 1, outputs))
        for member in self.weight if init == "orthogonal" else (self.weight,):
            initialise(member, self.bias, inputs, outputs, init, gain)

    def matrix(self) -> Tensor:
        """What rows are multiplied by, [count, inputs, outputs]."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return torch.addmm(self.bias.view(-1), x, self.matrix().squeeze(0))
        weight, bias, rows = typed(self.matrix(), x.dtype), typed(self.bias, x.dtype), x.shape[1]
        if rows < MANY or rows % CHUNK:
            return product(x, weight, bias)
        # the weights' gradient is a product along all rows: as one it would keep a GPU's few units busy for long
        chunks = x.reshape(-1, CHUNK, x.shape[-1])
        weight, bias = (p.unsqueeze(1).expand(-1, rows // CHUNK, -1, -1).flatten(0, 1) for p in (weight, bias))
        return product(chunks, weight, bias).view(len(self.weight), rows, -1)

    def first(self, x: Tensor) -> Tensor:
        """The first of the maps alone: [..., inputs] -> [..., outputs]."""
        return x @ self.weight[0].to(x.dtype) + self.bias[0].to(x.dtype)


class SpectralLinears(Linears):
    """The same, with each weight divided by its largest singular value (Miyato et al. 2018).

    That is read from W'W to the power 2^SQUARINGS, whose part of the largest one outgrows all others: a function of the
    weight alone, where the published iteration keeps vectors from update to update.
    """

    SQUARINGS = 6

    def matrix(self) -> Tensor:
        weight = self.weight if self.weight.shape[1] >= self.weight.shape[2] else self.weight.transpose(1, 2)
        gram = weight.transpose(1, 2) @ weight
        with torch.no_grad():
            power = gram.detach()
            for _ in range(self.SQUARINGS):
                power = power / traces(power)
                power = power @ power
            power = power / traces(power)
        return self.weight * (gram * power).sum((1, 2), keepdim=True).clamp(min=1e-12).rsqrt()


def traces(x: Tensor) -> Tensor:
    """Of square matrices [count, N, N]: [count, 1, 1]."""
    return x.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None].clamp(min=1e-30)


class RMSNorm(nn.Module):
    """Rows divided by the root of their mean square (Zhang and Sennrich 2019), [count, N, size]."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(count, 1, size))

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * typed(self.gain, x.dtype)


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
        precision: Precision = "float32", norm: Norm = "none", spectral: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        kind, maps = RMSNorm if norm == "rms" else LayerNorms, SpectralLinears if spectral else Linears
        self.norms = nn.ModuleList(kind(count, size) for size in hidden if norm != "none")
        self.dtype, self.tf32, self.kind = PRECISIONS[precision], precision == "tf32", activation
        self.sizes = sizes = (inputs, *hidden)
        self.layers = nn.ModuleList(maps(count, a, b, init, gain=2**0.5) for a, b in pairwise(sizes))
        self.count, self.out, self.activation = count, sizes[-1], ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[:2]
        if self.single(x):
            y = x.flatten(0, 1)
            for layer in self.layers:
                y = self.activation(layer(y))
            return y.view(1, *rows, self.out)
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

    def single(self, x: Tensor) -> bool:
        """Whether rows pass through it by plain products: those of one member, on a CPU without a compiler. Of few
        rows, as one acts on, the views that these take would cost more."""
        if self.count > 1 or x.shape[0] * x.shape[1] <= LOW or self.dtype != x.dtype or x.is_cuda:
            return False
        if torch.compiler.is_compiling():
            return False
        return self.usual()

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


@torch.no_grad()
def initialise(weight: Tensor, bias: Tensor, fan_in: int, fan_out: int, init: Init, gain: float) -> None:
    """Draws a weight, in place; all but `uniform` set the bias to zero. With a gain of sqrt 2, `he` has the deviation
    of He et al. (2015), `xavier` with 1 that of Glorot and Bengio (2010)."""
    if init == "orthogonal":
        nn.init.orthogonal_(weight, gain)
    else:
        bound = {"uniform": fan_in**-0.5, "he": gain * (3 / fan_in) ** 0.5}.get(
            init, gain * (6 / (fan_in + fan_out)) ** 0.5
        )
        weight.uniform_(-bound, bound)
        bias.uniform_(-bound, bound)
    if init != "uniform":
        bias.zero_()


class LinearHead(nn.Linear):
    """A last layer over a body: [..., out] -> [..., outputs]. Few outputs are sums on a GPU, and where a compiler joins
    them to what is around; there not over bfloat16, since the other last bit of a gradient would round to another
    number. Orthogonal ones start with a zero bias and the given gain."""

    def __init__(self, body: Body, outputs: int, init: Init = "uniform", gain: float = 1.0) -> None:
        super().__init__(body.out, outputs)
        self.joins = body.dtype == torch.float32
        if init != "uniform":  # which is how torch's own begin
            initialise(self.weight, self.bias, body.out, outputs, init, gain)

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
        if normal is None:
            y: Tensor = self.mean(x)
            return y
        into, out = (normal.sign() * normal.abs().sqrt()).split(self.sizes, -1)
        if normal.dim() > 1:
            return self.mean(x) + out * self.spread(into * x)
        shaken = torch.addcmul(self.mean.weight, self.spread.weight, out[:, None] * into)  # one product instead of two
        return nn.functional.linear(x, shaken, torch.addcmul(self.mean.bias, self.spread.bias, out))
