"""A whole `act` or `learn` as one CUDA graph: recorded once, then replayed with a single launch."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

Fn = Callable[..., Any]
log = logging.getLogger(__name__)
WARM = 2  # calls run eagerly first: libraries and allocators settle outside the recording


class Recording:
    """A graph of one call: the tensors it reads, and what it gave."""

    def __init__(self, fn: Fn, leaves: list[Tensor], tree: Any) -> None:
        self.read = [x if x.dim() == 0 else x.clone() for x in leaves]  # scalars are knobs, which change in place
        self.graph = torch.cuda.CUDAGraph()
        with no_garbage(), torch.cuda.graph(self.graph):
            self.gave = fn(*tree_unflatten(self.read, tree))

    def __call__(self, leaves: list[Tensor]) -> Any:
        new = [(kept, x) for kept, x in zip(self.read, leaves, strict=True) if kept.data_ptr() != x.data_ptr()]
        if new:
            torch._foreach_copy_([kept for kept, _ in new], [x for _, x in new])
        self.graph.replay()
        return kept(self.gave)


class Captured:
    """A function as CUDA graphs, one for each set of shapes it is called with.

    What it changes, it changes in place: the graph holds the tensors of the model, its targets and optimisers.
    """

    def __init__(self, fn: Fn) -> None:
        self.fn = fn
        self.recordings: dict[Any, Recording | None] = {}  # None: cannot be recorded
        self.calls: dict[Any, int] = {}

    def __call__(self, *args: Any) -> Any:
        leaves, tree = tree_flatten(args)
        key = (torch.is_grad_enabled(), *((x.shape, x.dtype) for x in leaves))
        if key not in self.recordings:
            self.calls[key] = calls = self.calls.get(key, 0) + 1
            if calls <= WARM:
                return aside(self.fn, args)
            self.recordings[key] = self.record(leaves, tree)
        recording = self.recordings[key]
        return self.fn(*args) if recording is None else recording(leaves)

    def record(self, leaves: list[Tensor], tree: Any) -> Recording | None:
        """A graph, or None where one cannot be recorded: recording runs nothing, so nothing has been changed."""
        try:
            return Recording(self.fn, leaves, tree)
        except RuntimeError as error:
            why = str(error).strip().split("\n")[0][:200]
            log.warning("cannot capture (%s: %s): running eagerly", type(error).__name__, why)
            return None


@contextmanager
def no_garbage() -> Iterator[None]:
    """Nothing is collected here: an older graph that is freed during a recording would spoil it."""
    before = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def aside(fn: Fn, args: tuple[Any, ...]) -> Any:
    """An eager call on another stream, as what is recorded later will run."""
    here, there = torch.cuda.current_stream(), torch.cuda.Stream()
    there.wait_stream(here)
    with torch.cuda.stream(there):
        gave = fn(*args)
    here.wait_stream(there)
    return gave


def kept(gave: Any) -> Any:
    """Outputs that the next replay will not overwrite; the many scalars of an update in one operation."""
    leaves, tree = tree_flatten(gave)
    scalars = [x for x in leaves if x.dim() == 0 and x.dtype == torch.float32]
    fresh = iter(torch.stack(scalars).unbind() if scalars else ())
    return tree_unflatten(
        [next(fresh) if x.dim() == 0 and x.dtype == torch.float32 else x.clone() for x in leaves], tree
    )
