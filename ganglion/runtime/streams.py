"""Random streams: one per component, named, saved with the run."""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor

from ganglion.core import Draw, Noise, State


def derive(seed: int, name: str) -> int:
    """A seed of its own for each named component of a run."""
    return int.from_bytes(sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


class Stream:
    """Random numbers for one component, drawn outside compiled functions and handed in as noise."""

    def __init__(self, seed: int, name: str, device: torch.device) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(derive(seed, name))

    def noise(self, draw: Draw, *shape: int) -> Noise:
        """As many numbers per row of `shape` as `draw` asks for."""
        return Noise(self.uniform(*shape, draw.uniform), self.normal(*shape, draw.normal))

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device, dtype=dtype)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def state(self) -> State:
        return State({"generator": self.generator.get_state()})

    def restore(self, state: State) -> None:
        self.generator.set_state(state.tensors["generator"].cpu())
