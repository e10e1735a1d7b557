"""Kernels for what the shipped networks compute: perceptrons on a CPU (C++) and on a GPU (Triton), convolutions.

Each has a `fits` that says for which devices, types and sizes it is made. A kernel reads parameters and calls no
module, so it stands in for one only where that is `untouched`; everything else is called as the module it is.
"""

from __future__ import annotations

from typing import TypeGuard, TypeVar

from torch import nn

Kind = TypeVar("Kind", bound=nn.Module)


def untouched(module: object, kind: type[Kind]) -> TypeGuard[Kind]:
    """Whether a module computes what its class says: it is no subclass (nor parametrised, which makes it one), and has
    no hooks and no `forward` of its own."""
    if type(module) is not kind:
        return False
    before, after = module._forward_pre_hooks, module._forward_hooks
    hooked = len(before) or len(after) or len(module._backward_hooks) or len(module._backward_pre_hooks)
    return not hooked and "forward" not in module.__dict__
