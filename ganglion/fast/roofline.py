"""Physical limits, measured on the machine at hand: arithmetic alone, and memory alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

aten: Any = torch.ops.aten
PRODUCTS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten.convolution_backward.default,
        aten._addmm_activation.default,
    }
)
PATIENCE = 0.15  # seconds for one measurement


class Arithmetic(NamedTuple):
    """The products of one call: their floating-point operations, and the time they take alone."""

    flops: int
    seconds: float

    @property
    def rate(self) -> float:
        """Floating-point operations per second at these sizes."""
        return self.flops / self.seconds if self.seconds else 0.0


class Shape(NamedTuple):
    """A tensor without its numbers."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Products(TorchDispatchMode):
    """Notes every matrix product and convolution, with the shapes of what it is given."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            self.seen[func, frozen(args), frozen(tuple(sorted((kwargs or {}).items())))] += 1
        return func(*args, **(kwargs or {}))


def frozen(value: Any) -> Any:
    """Arguments as something that can be counted."""
    if isinstance(value, Tensor):
        return Shape(tuple(value.shape), tuple(value.stride()), value.dtype, value.device)
    return tuple(frozen(item) for item in value) if isinstance(value, list | tuple) else value


def thawed(value: Any) -> Any:
    """Arguments of the same shapes, filled with random numbers."""
    if isinstance(value, Shape):
        needed = 1 + sum((n - 1) * step for n, step in zip(value.size, value.stride))  # less than numel where expanded
        return torch.randn(needed, device=value.device).to(value.dtype).as_strided(value.size, value.stride)
    return [thawed(item) for item in value] if isinstance(value, tuple) else value


def arithmetic(call: Callable[[], Any]) -> Arithmetic:
    """What the products of a call cost when nothing else is done: each one repeated alone, at its own size."""
    noted, counted = Products(), FlopCounterMode(display=False)
    with counted, noted:
        call()
    seconds = 0.0
    with torch.no_grad():
        for (func, args, named), count in noted.seen.items():
            given, extra = thawed(args), dict(thawed(named))
            seconds += count * duration(lambda: func(*given, **extra), device_of(given))  # noqa: B023
    return Arithmetic(int(counted.get_total_flops()), seconds)


def device_of(values: Sequence[Any]) -> torch.device:
    return next((value.device for value in values if isinstance(value, Tensor)), torch.device("cpu"))


def duration(call: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call: the median of several rounds, each long enough for the clock."""
    wait = torch.cuda.synchronize if device.type == "cuda" else int
    for _ in range(3):
        call()
    rounds: list[float] = []
    repeats, ends = 1, perf_counter() + PATIENCE
    while perf_counter() < ends or len(rounds) < 3:
        wait()
        began = perf_counter()
        for _ in range(repeats):
            call()
        wait()
        took = perf_counter() - began
        if took < 1e-4 and repeats < 10_000:
            repeats *= 4  # too short for the clock
        else:
            rounds.append(took / repeats)
    return median(rounds)


def bandwidth(size: int, device: torch.device) -> float:
    """Bytes per second, read and written, of copying so many bytes over and over: of a cache where they fit one."""
    count = max(size // 8, 1_024)  # as float32, a half to read and a half to write
    source, target = torch.ones(count, device=device), torch.zeros(count, device=device)
    return 8 * count / duration(lambda: target.copy_(source), device)
