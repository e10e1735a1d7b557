"""Step processors: the one place where steps become rows."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ganglion.config import Positive, ProcessorConfig, register
from ganglion.core import Acted, EnvSpec, Past, Processor, Row, State, Step


@register("processor", "rows")
class RowsConfig(ProcessorConfig):
    """Steps as they are, with the reward scaled and clipped on request."""

    reward_scale: Positive = 1.0
    reward_clip: Positive | None = None  # to [-clip, clip], after scaling
    reward: Literal["raw", "sign"] = "raw"

    def build(self, spec: EnvSpec, device: torch.device) -> Processor:
        return Rows(self)


class Rows:
    """Row t is what slots saw, did and got; the observation that followed is row t + 1's."""

    def __init__(self, cfg: RowsConfig) -> None:
        self.cfg = cfg

    def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
        flags = (after.terminated, after.truncated, before.valid, past.start)
        return Row(before.obs, acted.action, self.worth(after.reward), *flags, acted.extras, past.memory)

    def worth(self, reward: Tensor) -> Tensor:
        """What a reward counts."""
        if self.cfg.reward == "sign":
            reward = reward.sign()
        if self.cfg.reward_scale != 1.0:
            reward = reward * self.cfg.reward_scale
        if self.cfg.reward_clip is not None:
            reward = reward.clamp(-self.cfg.reward_clip, self.cfg.reward_clip)
        return reward

    def close(self) -> None:
        """It keeps nothing back."""

    def state(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        """It remembers nothing."""
