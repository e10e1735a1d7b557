"""Speed, outside the algorithms: what wraps `act` and `learn`, and when."""

from ganglion.fast.compile import Fused, Wrap, can_compile, wrapper
from ganglion.fast.swap import Compiler, Swap

__all__ = ["Compiler", "Fused", "Swap", "Wrap", "can_compile", "wrapper"]
