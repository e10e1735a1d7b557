"""Algorithms whose networks are computed by another library: arrays in, arrays out, state as named arrays.

Everything around them is as for any algorithm: they get tensors and give tensors. In between, tensors become arrays of
the library by dlpack, which copies nothing on a CPU, and what its functions return becomes tensors the same way.
docs/backends.md says what a library has to provide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ganglion import nn, ops
from ganglion.core import Algorithm, EnvSpec, Model, Obs, State
from ganglion.errors import UserError
from ganglion.nn.inputs import Reading

Arrays = Mapping[str, Any]  # named arrays of the library
Item = TypeVar("Item")
Mini = TypeVar("Mini")
NARROW = {
    torch.float64: torch.float32,
    torch.int64: torch.int32,
    torch.uint8: torch.float32,
}  # what every library takes


class Library(Protocol):
    """How arrays of a library and tensors become each other."""

    def array(self, tensor: Tensor) -> Any:
        """A contiguous tensor on the CPU as an array."""
        ...

    def tensor(self, array: Any) -> Tensor:
        """An array, once it is computed, as a tensor."""
        ...


class NamedArrays(Model):
    """A part of an algorithm: arrays that functions read, and that an update replaces."""

    def __init__(self, library: Library, arrays: Arrays) -> None:
        super().__init__()
        self.library, self.arrays = library, dict(arrays)

    def state(self) -> State:
        return State({name: self.library.tensor(array).clone() for name, array in self.arrays.items()})

    def restore(self, state: State) -> None:
        """Takes over arrays of the same names and shapes."""
        for name, own in self.arrays.items():
            new, old = state.tensors[name].detach().cpu(), self.library.tensor(own)
            if new.shape != old.shape:
                raise ValueError(f"{name} has the shape {list(new.shape)}, and {list(old.shape)} was expected")
            self.arrays[name] = self.library.array(new.to(old.dtype).clone().contiguous())


class ArrayAlgorithm(Algorithm[Item, Mini], Generic[Item, Mini]):
    """An algorithm whose model and update are functions of another library's arrays."""

    library: ClassVar[Library]
    spec: EnvSpec

    def run(self, fn: Any, part: NamedArrays, tensor: Tensor) -> Any:
        """A function of a part's arrays and of a tensor."""
        return self.left(fn(part.arrays, self.enter(tensor)), tensor)

    def entered(self, tree: Any) -> Any:
        """A tree of tensors as one of arrays."""
        return ops.map_tree(self.enter, tree)

    def enter(self, tensor: Tensor) -> Any:
        """A tensor as an array of 32 bits."""
        tensor = tensor.detach().cpu()
        return self.library.array(tensor.to(NARROW.get(tensor.dtype, tensor.dtype)).contiguous())

    def left(self, tree: Any, like: Tensor) -> Any:
        """A tree of arrays as one of tensors, on the device of another."""
        return ops.map_tree(lambda array: self.library.tensor(array).to(like.device), tree)

    def seen(self, obs: Obs) -> Tensor:
        """An observation as one vector of numbers, [T, B, n]: bytes as parts of 255."""
        flat = nn.flatten(obs, self.spec.obs, WHOLE)
        return flat / 255 if type(obs) is Tensor and obs.dtype == torch.uint8 else flat


WHOLE = Reading(least=1 << 30)  # images are numbers side by side, too


def check_plain(kind: str, spec: EnvSpec) -> None:
    """Refuses observations without numbers to read."""
    if not nn.flat_size(spec.obs, WHOLE):
        raise UserError(f"algo.kind: {kind} reads numbers, and {spec.name} shows {spec.obs}.")
