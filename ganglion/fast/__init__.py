"""Speed, outside the algorithms: what wraps `act` and `learn`, and when."""

from ganglion.fast.compile import Wrap, can_compile, wrapper
from ganglion.fast.swap import Compiler, Swap

__all__ = ["Compiler", "Swap", "Wrap", "can_compile", "wrapper"]
