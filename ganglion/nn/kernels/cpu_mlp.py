"""Wide perceptrons on a CPU: all layers of many nets as one operation forward and one backward (cpu_mlp.cpp).

A library multiplies matrices one by one; here a core takes a net through its layers while all of it is in its cache,
and adds the bias, and what the activation makes of it, to the sum before that leaves the registers. Only inside
compiled graphs, whose numbers differ in last bits anyway; compiled when first needed, and where that fails graphs are
made of a library's products.
"""

from __future__ import annotations

import functools
import logging
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ganglion import cpp_extension

log = logging.getLogger(__name__)

SOURCE, TORCH = Path(__file__).with_name("cpu_mlp.cpp"), Path(torch.__file__).parent
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-trapping-math", "-fno-signed-zeros", "-fopenmp")
FOUND = (f"-DTORCH={torch.__version__}", f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}")  # one library for each torch
LINKED = ("-fPIC", "-shared", *FOUND, "-Wl,--no-as-needed", "-ltorch_cpu")
INSTRUCTIONS = {  # of a processor, as torch calls them
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"),
}
LEAST, NARROW = 64, 64  # rows and units; with fewer there is too little to share out, or a library is as quick
LIBRARY = torch.library.Library("ganglion", "FRAGMENT")
GIVEN = "Tensor w1, Tensor b1, Tensor w2, Tensor b2, Tensor w3, Tensor b3, bool tanh"
SCHEMAS = {
    "cpu_mlp_only": f"(Tensor x, {GIVEN}) -> Tensor",
    "cpu_mlp": f"(Tensor x, {GIVEN}) -> (Tensor, Tensor, Tensor)",
    "cpu_mlp_grad_inputs": "(Tensor g, Tensor h1, Tensor h2, Tensor w1, Tensor w2, Tensor w3, int skip, bool tanh)"
    " -> Tensor",
    "cpu_mlp_grad_weights": "(Tensor x, Tensor g, Tensor h1, Tensor h2, Tensor w1, Tensor w2, Tensor w3, bool tanh)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
}


def fits(x: Tensor, sizes: tuple[int, ...], activation: str) -> bool:
    """Whether nets of these sizes are to be computed here."""
    if not torch.compiler.is_compiling() or x.is_cuda or x.dtype != torch.float32:
        return False
    rows, known = x.shape[0] * x.shape[1], activation in ("relu", "tanh")
    return len(sizes) == 3 and min(sizes[1:]) >= NARROW and known and rows >= LEAST and ready()


@functools.cache
def loaded() -> bool:
    """Whether cpu_mlp.cpp is compiled and at hand."""
    try:
        flags = (*FLAGS, *INSTRUCTIONS[torch.backends.cpu.get_cpu_capability()], *LINKED)
        torch.ops.load_library(cpp_extension.built(SOURCE, flags, cpp_extension.folder()))
    except (OSError, RuntimeError, KeyError, subprocess.SubprocessError) as error:
        log.info("compiled graphs go without compiled perceptrons: %r", error)
        return False
    return True


def ready() -> bool:
    """The same for a graph, which is made for one answer."""
    return loaded()


# What torch.compiler.assume_constant_result does; calling it would import the compiler, a second of every start.
ready._dynamo_marked_constant = True  # type: ignore[attr-defined]


def mlp(x: Tensor, beside: Tensor | None, *layers: Tensor, activation: str) -> Tensor:
    """Rows [T, B, D] through nets [C, ...] -> [C, T * B, O]. `layers`: weight and bias of each of two, and of a last,
    [C, O, W] and [C, 1, O]; without it what the second gives. Inputs may come in two parts; where a gradient is wanted
    of the second alone, it costs a product of that width."""
    w2 = layers[2]
    last = layers[4:] or (w2.new_empty(len(w2), 0, w2.shape[2]), w2.new_empty(len(w2), 1, 0))
    whole, alone = joined(x, beside), None
    if beside is not None and beside.requires_grad and not x.requires_grad:
        alone, whole = beside.reshape(1, x.shape[0] * x.shape[1], -1), whole.detach()
    rows = whole.reshape(1, -1, whole.shape[-1]).contiguous()
    given, tanh = (*layers[:4], *last), activation == "tanh"
    if not torch.is_grad_enabled():
        only: Tensor = torch.ops.ganglion.cpu_mlp_only(rows, *given, tanh)
        return only
    out, _, hidden = FusedMLP.apply(rows, alone, *given, tanh)  # type: ignore[no-untyped-call]
    found: Tensor = out if len(layers) > 4 else hidden
    return found


def joined(x: Tensor, beside: Tensor | None) -> Tensor:
    """All inputs as one."""
    return x if beside is None else torch.cat([x, beside.reshape(*x.shape[:2], -1)], -1)


# ------------------------------------------------------------ what the operations give, in shapes alone


def outputs(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor, tanh: bool) -> Tensor:
    return x.new_empty(len(w1), x.shape[1], w3.shape[1] or w3.shape[2])


def all_outputs(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor, tanh: bool
) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(len(w1), x.shape[1], size) for size in (w3.shape[1], w1.shape[2], w2.shape[2]))


def inward(g: Tensor, h1: Tensor, h2: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, skip: int, tanh: bool) -> Tensor:
    return h1.new_empty(*h1.shape[:2], w1.shape[1] - skip)


def outward(
    x: Tensor, g: Tensor, h1: Tensor, h2: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, tanh: bool
) -> tuple[Tensor, ...]:
    weights = (w1.shape, (1, w1.shape[2])), (w2.shape, (1, w2.shape[2])), (w3.shape, (1, w3.shape[1]))
    return tuple(x.new_empty(len(w1), *shape[-2:]) for pair in weights for shape in pair)


# ------------------------------------------------------------ gradients, and several models at once


class FusedMLP(torch.autograd.Function):
    """The operations as one that can be differentiated: what the last layer gives, and what the two before it do; only
    what comes out of the nets has a gradient. Of the two operations backward a graph leaves out the one whose gradients
    nobody wants."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, beside: Tensor | None, *layers: Any) -> tuple[Tensor, Tensor, Tensor]:
        out, one, two = torch.ops.ganglion.cpu_mlp(x, *layers)
        return out, one, two

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, beside, w1, _, w2, _, w3, _, ctx.tanh = inputs
        ctx.save_for_backward(x, w1, w2, w3, *output[1:])
        ctx.mark_non_differentiable(output[1], output[2 if w3.shape[1] else 0])
        wanted = x.shape[2] if x.requires_grad else 0 if beside is None else beside.shape[2]
        ctx.skip = x.shape[2] - wanted

    @staticmethod
    def backward(ctx: Any, last: Tensor, _: Tensor, hidden: Tensor) -> tuple[Any, ...]:
        x, w1, w2, w3, h1, h2 = ctx.saved_tensors
        grad = (last if w3.shape[1] else hidden).contiguous()
        grads = torch.ops.ganglion.cpu_mlp_grad_weights(x, grad, h1, h2, w1, w2, w3, ctx.tanh)
        if ctx.skip == x.shape[2]:
            return None, None, *grads, None
        into = torch.ops.ganglion.cpu_mlp_grad_inputs(grad, h1, h2, w1, w2, w3, ctx.skip, ctx.tanh)
        into = into.unflatten(0, (len(x), -1)).sum(1)
        return (into, None, *grads, None) if ctx.skip == 0 else (None, into, *grads, None)


def several(op: Any) -> Any:
    """Nets of several models are more nets; each model's rows are groups of their own."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        size = info.batch_size

        def whole(given: Any, dim: int | None) -> Any:
            if not isinstance(given, Tensor):
                return given
            moved = given.expand(size, *given.shape) if dim is None else given.movedim(dim, 0)
            return moved.flatten(0, 1).contiguous()

        gave = op(*(whole(given, dim) for given, dim in zip(args, in_dims, strict=True)))
        if isinstance(gave, Tensor):
            return gave.unflatten(0, (size, -1)), 0
        return tuple(part.unflatten(0, (size, -1)) for part in gave), (0,) * len(gave)

    return rule


def defined() -> None:
    """Tells torch of the operations; what computes them is loaded when a graph wants them."""
    fakes: tuple[Any, ...] = (outputs, all_outputs, inward, outward)
    for (name, schema), shapes in zip(SCHEMAS.items(), fakes, strict=True):
        LIBRARY.define(name + schema)
        LIBRARY.impl(name, torch.library.fallthrough_kernel, "AutogradCPU")  # a graph has its gradients inside
        torch.library.register_fake(f"ganglion::{name}", shapes, lib=LIBRARY)
        torch.library.register_vmap(f"ganglion::{name}", several(getattr(torch.ops.ganglion, name)), lib=LIBRARY)


defined()
