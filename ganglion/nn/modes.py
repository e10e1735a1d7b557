"""Dropout, batch norm and their like: a model acts in eval mode and learns in train mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

# What shipped networks are made of computes the same in both modes, and is not asked at every update.
SAME = {
    nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.LayerNorm, nn.ReLU, nn.Sequential, nn.ModuleList, nn.LSTMCell, nn.GRUCell,
    nn.ParameterDict,
}  # fmt: skip


class Modes:
    """Puts a model into eval mode, and for as long as it learns into train mode."""

    def __init__(self, model: nn.Module) -> None:
        others = (m for m in model.modules() if type(m) not in SAME)
        self.modules = [m for m in others if not type(m).__module__.startswith("ganglion.")]
        self.put(False)

    @contextmanager
    def learning(self) -> Iterator[None]:
        self.put(True)
        try:
            yield
        finally:
            self.put(False)

    def put(self, learns: bool) -> None:
        for module in self.modules:
            module.training = learns
