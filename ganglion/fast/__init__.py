"""Speed, outside the algorithms: what wraps `act` and `learn`."""

from ganglion.fast.compile import wrapper

__all__ = ["wrapper"]
