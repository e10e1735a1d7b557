"""Knobs as an algorithm reads them: 0-d tensors that change in place, so that compiled functions see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ganglion.core import Knobs, SetKnob
from ganglion.errors import UserError, nearest


class Held:
    """The tensors behind the knobs, and what was set by hand."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pinned: dict[str, float] = {}
        self.values: Mapping[str, float] = {}
        self.tensors: dict[str, Tensor] = {}
        self.line: Any = None  # on a CPU: the same numbers as one array, which is quicker to write

    def at(self, values: Mapping[str, float]) -> Knobs:
        """The tensors, holding these values."""
        if values == self.values:
            return self.tensors
        if values.keys() != self.tensors.keys():
            self.make(list(values))
        self.values = values
        if self.line is not None:
            self.line[:] = list(values.values())
        else:
            for name, value in values.items():
                self.tensors[name].fill_(value)
        return self.tensors

    def pin(self, command: SetKnob, known: Mapping[str, float]) -> None:
        if command.name not in known:
            accepted = ", ".join(known) or "none"
            raise UserError(f"no knob {command.name!r}. Accepted: {accepted}.{nearest(command.name, known)}")
        if command.value is None:
            self.pinned.pop(command.name, None)
        else:
            self.pinned[command.name] = command.value

    def make(self, names: list[str]) -> None:
        if self.device.type == "cpu":
            together = torch.zeros(len(names))
            self.tensors, self.line = dict(zip(names, together.unbind(), strict=True)), together.numpy()
        else:
            self.tensors = {name: torch.zeros((), device=self.device) for name in names}
