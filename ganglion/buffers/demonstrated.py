"""Rewards of imitation, where steps become rows: by whether they were demonstrated."""

from __future__ import annotations

import torch

from ganglion.buffers.processors import Rows, RowsConfig
from ganglion.config import Positive, ProcessorConfig, register
from ganglion.core import Acted, EnvSpec, Past, Processor, Row, Step
from ganglion.errors import UserError

# Among the extras of a row:
DEMO = "demo"  # 1 in rows of a dataset, 0 in those of an algorithm that imitates it
LABEL = "label"  # what an expert would have done, a name for each part of an action
TO_GO = "to_go"  # the rewards from a row of a dataset to the end of its episode


@register("processor", "demonstrated")
class DemonstratedConfig(ProcessorConfig):
    """Rewards of imitation: the same for everything that was demonstrated, and none for what was not."""

    reward: Positive = 1.0

    def build(self, spec: EnvSpec, device: torch.device) -> Processor:
        return Demonstrated(self.reward)


class Demonstrated(Rows):
    """Rows whose reward says that they were demonstrated."""

    def __init__(self, reward: float) -> None:
        super().__init__(RowsConfig())
        self.reward = reward

    def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
        if DEMO not in acted.extras:
            raise UserError(
                "algo.processor: demonstrated needs rows that say whether they are; an algorithm such as sqil."
            )
        rows = super().__call__(before, past, acted, after)
        return rows._replace(reward=self.reward * acted.extras[DEMO].to(rows.reward))
