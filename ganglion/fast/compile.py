"""A whole `act` or `learn` as one compiled graph."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ganglion import cpp_extension
from ganglion.fast.direct import Direct, Fn
from ganglion.processes import others_safe

Wrap = Callable[[Fn], Fn]
log = logging.getLogger(__name__)

OPTIONS: dict[str, Any] = {
    "cpp_wrapper": True,  # halves what a call of a small graph costs; it asserts the shapes it was compiled for
    # Sums over few numbers are written out, which is not vectorised: right for four logits, not for the logarithms and
    # exponentials of an action of six parts, where it took a fiftieth of a SAC update.
    "unroll_reductions_threshold": 5,
    "cpp.use_decompose_tanh": True,  # by exp, which is vectorised: a sixth of tanh's time, 1e-7 beside it
}
KEPT = "TORCHINDUCTOR_CACHE_DIR"
TOO_OLD = "torch %s cannot compile an update with its gradients: running eagerly"


def can_compile() -> bool:
    """Whether this torch can put a gradient inside a graph. Asking torch itself would import its compiler."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)


def keep_private() -> None:
    """Has torch keep what it compiles where nobody else can put anything: by itself it takes a folder of a known name
    in the temporary one, whoever made it. A folder that the user has named is used as it is."""
    named = Path(os.environ.get(KEPT, ""))
    if KEPT not in os.environ or (named.parent == Path(tempfile.gettempdir()) and "torchinductor_" in named.name):
        os.environ[KEPT] = str(cpp_extension.folder() / "torchinductor")


class Compiled:
    """A function as one graph, made at its first call and for the shapes of that call; eager where that fails.

    The graph is called without dynamo's guards, which cost more than a small graph: our functions see the same shapes
    and types from the first call to the last, and the graph itself refuses other shapes.
    """

    def __init__(self, fn: Fn) -> None:
        self.fn = fn
        self.graph: Fn | None = None

    def __call__(self, *args: Any) -> Any:
        if self.graph is not None:
            return self.graph(*args)
        try:
            keep_private()
            with others_safe():  # torch tries in a Python of its own what the processor can do
                graph = self.build(args)
                gave = graph(*args)
        except Exception as error:  # a compiler that is missing, too old or wrong must not end a run
            why = str(error).strip().split("\n")[0][:200]
            log.warning("cannot compile (%s: %s): running eagerly", type(error).__name__, why)
            self.graph = self.fn
            return self.fn(*args)
        self.graph = graph
        return gave

    def build(self, args: tuple[Any, ...]) -> Fn:
        import torch._dynamo.config as dynamo
        import torch._dynamo.guards as guards

        dynamo.trace_autograd_ops = True
        whole: Any = torch.compile(lambda *x: self.fn(*x), fullgraph=True, dynamic=False, options=OPTIONS)
        # The guards would be written down with all that the function's owner refers to, and much cannot be.
        write, guards.pickle_guards_state = guards.pickle_guards_state, lambda *_: b""
        try:
            compiled = whole.aot_compile((args, {}))
        finally:
            guards.pickle_guards_state = write
        compiled.disable_guard_check()
        return Direct(compiled.fn)


class Fused(Compiled):
    """A function whose operations are compiled into few kernels, to be captured afterwards: in several graphs where
    this torch cannot put a gradient inside one."""

    def build(self, args: tuple[Any, ...]) -> Fn:
        fused: Fn = torch.compile(lambda *x: self.fn(*x), dynamic=False)
        return fused


def one_graph(fn: Fn) -> Fn:
    """A function as one graph that is traced as inductor would, and run by torch's own operations."""
    import torch._dynamo.config as dynamo

    dynamo.trace_autograd_ops = True
    traced: Fn = torch.compile(fn, fullgraph=True, backend="aot_eager")
    return traced


TRIM, MMAP = -1, -3  # glibc's names for them are M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
KEEP = 1 << 30  # bytes


def keep_pages() -> bool:
    """Asks the C library to keep memory that is freed, up to a gigabyte, instead of handing it back to the system.

    Tensors of a megabyte and more, made anew in each call, otherwise lie in fresh pages each time, and those cost more
    than the arithmetic in them. Says whether there is such a library here.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return all(mallopt(name, KEEP) == 1 for name in (TRIM, MMAP))
