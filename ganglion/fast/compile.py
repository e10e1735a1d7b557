"""A whole `act` or `learn` as one compiled graph."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

Fn = Callable[..., Any]
log = logging.getLogger(__name__)


def wrapper(mode: str, backend: str = "inductor") -> Callable[[Fn], Fn]:
    """What an Agent puts around its algorithm: nothing when eager, one full graph when compiled."""
    if mode == "eager":
        return lambda fn: fn
    import torch._dynamo.config as dynamo

    if not hasattr(dynamo, "trace_autograd_ops"):  # gradients inside a graph came with torch 2.13
        log.warning("torch %s cannot compile an update with its gradients: running eagerly", torch.__version__)
        return lambda fn: fn
    dynamo.trace_autograd_ops = True
    return lambda fn: torch.compile(fn, fullgraph=True, backend=backend)
