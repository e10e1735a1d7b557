"""Speed, outside the algorithms: what wraps `act` and `learn`, and when."""

from ganglion.fast.background import Compiler
from ganglion.fast.compile import Compiled, Fused, Wrap, can_compile, one_graph

__all__ = ["Compiled", "Compiler", "Fused", "Wrap", "can_compile", "one_graph"]
