"""Speed, outside the algorithms: what wraps `act` and `learn`, and when."""

from ganglion.fast.compile import Compiled, Fused, Wrap, can_compile
from ganglion.fast.swap import Compiler

__all__ = ["Compiled", "Compiler", "Fused", "Wrap", "can_compile"]
