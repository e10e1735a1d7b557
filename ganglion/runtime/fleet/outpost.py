"""An Outpost: a Station as an actor, in a process of its own, on this machine or another."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ganglion.core import Weights
from ganglion.runtime.fleet.parcel import Codec, unpack_weights
from ganglion.runtime.fleet.segments import SharedBoard, Slots

WEIGHTS = "weights"


class Brief(NamedTuple):
    """All that an outpost needs to know, in plain values."""

    config: str  # YAML
    modules: Sequence[str]  # the user's own, that register names
    rows: int  # of an item
    codec: tuple[str, int]
    folder: str  # of shared memory
    cookie: str  # in it, where it is the same machine's
    slots: int  # items that may be under way at a time


class TakenBoard:
    """Weights that came with the last call: on another machine."""

    weights: Weights | None = None

    def latest(self, player: str, newer_than: int) -> Weights | None:
        newer = self.weights is not None and self.weights.version > newer_than
        return self.weights if newer else None


class Outpost:
    """Collects when it is asked to; several calls wait in line, so it never stands idle while the queue has room."""

    def __init__(self, brief: Sequence[Any]) -> None:
        self.brief = Brief(*brief)
        self.slots: Slots | None = None
        self.failure: Exception | None = None
        try:
            self.prepare(self.brief)
        except Exception as error:  # told by `begin`: an actor that fails here is dead, and only Ray says why
            self.failure = error

    def prepare(self, brief: Brief) -> None:
        """All that takes long: imports, the environment, the agent."""
        import torch

        torch.set_num_threads(1)
        from ganglion.config.files import import_module, load
        from ganglion.runtime.fleet.sender import Lot
        from ganglion.runtime.fleet.station import Station

        for module in brief.modules:
            import_module(module)
        folder = Path(brief.folder)
        self.near = (folder / brief.cookie).exists()
        self.taken = TakenBoard()
        board = SharedBoard(folder / WEIGHTS) if self.near else self.taken
        cfg = load(brief.config)
        torch.set_num_threads(cfg.run.threads)
        self.station = Station(cfg, Lot(brief.rows, Codec(*brief.codec)), board)

    def begin(self, explorer: int, incarnation: int) -> tuple[bool, int]:
        """Takes a place; says whether it shares the learner's machine, and its process."""
        from ganglion.runtime.fleet.station import Place

        if self.failure is not None:
            raise self.failure
        if self.near:
            self.slots = Slots(Path(self.brief.folder), f"{explorer}-{incarnation}", self.brief.slots)
        self.station.begin(Place(explorer, incarnation))
        return self.near, os.getpid()

    def collect(self, weights: Any = None) -> tuple[list[Any], Any]:
        """An item's origin, and where it lies in shared memory, or the item itself."""
        if weights is not None:
            self.taken.weights = unpack_weights(weights)
        made = self.station.item(self.slots.room if self.slots else None)
        assert made is not None
        parcel, origin = made
        return list(origin), list(self.slots.slip) if self.slots else parcel
