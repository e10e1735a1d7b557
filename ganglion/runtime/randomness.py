"""Random streams: one per component, named, saved with the run."""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import Tensor

from ganglion.core import Draw, Draws, Noise, State, join, read_count, under

BLOCK = 64  # steps whose random numbers are drawn at once


def derive(seed: int, name: str) -> int:
    """A seed of its own for each named component of a run."""
    return int.from_bytes(sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


class Stream:
    """Random numbers for one component, drawn outside compiled functions and handed in as noise."""

    def __init__(self, seed: int, name: str, device: torch.device) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(derive(seed, name))
        self.nothing: dict[tuple[int, ...], Tensor] = {}  # by shape: for draws of no numbers

    def noise(self, draw: Draw, *shape: int) -> Noise:
        """As many numbers per row of `shape` as `draw` asks for."""
        uniform = self.uniform(*shape, draw.uniform) if draw.uniform else self.none(shape)
        return Noise(uniform, self.normal(*shape, draw.normal) if draw.normal else self.none(shape))

    def none(self, shape: tuple[int, ...]) -> Tensor:
        if shape not in self.nothing:
            self.nothing[shape] = torch.empty(*shape, 0, device=self.device)
        return self.nothing[shape]

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device, dtype=dtype)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def state(self) -> State:
        return State({"generator": self.generator.get_state()})

    def restore(self, state: State) -> None:
        self.generator.set_state(state.tensors["generator"].cpu())


class SlotNoise:
    """The noise of slots, step by step, for `predict` and then `explore`; drawn for many steps at once, since a draw
    costs more than its numbers.

    Each slot keeps its numbers for `hold` steps on average: it lets go of them with probability 1 / hold.
    """

    def __init__(self, stream: Stream, draws: Draws, slots: int) -> None:
        self.stream, self.draws, self.slots = stream, draws, slots
        self.draw = Draw(*(a + b for a, b in zip(draws.predict, draws.explore, strict=True)))
        self.began = stream.generator.get_state()  # before the block was drawn
        self.whole: Noise | None = None  # [BLOCK, 1, B, ...]
        self.block: list[Noise] = []  # the same step by step
        self.used = 0
        self.held: Noise | None = None  # what slots have kept

    def next(self) -> Noise:
        """Of one step, [1, B, ...]."""
        if self.used == len(self.block):
            self.began = self.stream.generator.get_state()
            self.fill()
        self.used += 1
        fresh = self.block[self.used - 1]
        if self.draws.hold == 1.0:
            return fresh
        keep = self.stream.uniform(1, self.slots, 1) < 1 - 1 / self.draws.hold
        held = fresh if self.held is None else self.held
        self.held = Noise(*(torch.where(keep, old, new) for old, new in zip(held[:2], fresh[:2], strict=True)))
        return self.held

    def steps(self, count: int) -> Noise:
        """Of several steps, [count, B, ...]: the numbers of so many calls of `next`."""
        if self.draws.hold == 1.0 and self.whole is not None and self.used + count <= BLOCK:
            first, self.used = self.used, self.used + count
            return Noise(*(part[first : first + count, 0] for part in self.whole[:2]))
        return Noise(*(torch.cat(parts) for parts in zip(*(self.next()[:2] for _ in range(count)), strict=True)))

    def fill(self) -> None:
        self.whole = many = self.stream.noise(self.draw, BLOCK, 1, self.slots)
        each = [part.unbind() if part.numel() else [part[0]] * BLOCK for part in many[:2]]
        self.block = [Noise(*one) for one in zip(*each, strict=True)]
        self.used = 0

    def state(self) -> State:
        held = {} if self.held is None else {"held": State({"uniform": self.held.uniform, "normal": self.held.normal})}
        block = State({"began": self.began}, {"used": self.used})
        return join({"stream": self.stream.state(), "block": block, **held})

    def restore(self, state: State) -> None:
        """Draws the block again as it was."""
        block = under(state, "block")
        self.block, self.whole, self.used = [], None, read_count(block.scalars["used"], BLOCK)
        self.began = block.tensors["began"].cpu()
        if self.used:
            used = self.used
            self.stream.generator.set_state(self.began)
            self.fill()
            self.used = used
        self.stream.restore(under(state, "stream"))
        held = under(state, "held").tensors
        self.held = Noise(*(held[name].to(self.stream.device) for name in ("uniform", "normal"))) if held else None
