"""Step processors: the one place where steps become rows."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ganglion.config import Positive, ProcessorConfig, register
from ganglion.core import Acted, Past, Processor, Row, Step


@register("processor", "rows")
class RowsConfig(ProcessorConfig):
    """Steps as they are, with the reward scaled and clipped on request."""

    reward_scale: Positive = 1.0
    reward_clip: Positive | None = None  # to [-clip, clip], after scaling
    reward: Literal["raw", "sign"] = "raw"

    def build(self) -> Processor:
        return Rows(self)


class Rows:
    """Row t is what slots saw, did and got; the observation that followed is row t + 1's."""

    together = True  # takes several steps at once as well, [T, B, ...]

    def __init__(self, cfg: RowsConfig) -> None:
        self.cfg = cfg
        self.raw = cfg.reward == "raw" and cfg.reward_scale == 1.0 and cfg.reward_clip is None
        self.starts = Tensor(), Tensor()  # the last [1, B] seen and its row: mostly the same, none of them

    def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
        reward = after.reward if self.raw else self.worth(after.reward)
        memory = tuple(m[0] for m in past.memory) if past.memory else ()
        if past.start is not self.starts[0]:
            self.starts = past.start, past.start[0]
        flags = (after.terminated, after.truncated, before.valid, self.starts[1])
        return Row(before.obs, acted.action, reward, *flags, acted.extras, memory)

    def worth(self, reward: Tensor) -> Tensor:
        """What a reward counts."""
        if self.cfg.reward == "sign":
            reward = reward.sign()
        if self.cfg.reward_scale != 1.0:
            reward = reward * self.cfg.reward_scale
        if self.cfg.reward_clip is not None:
            reward = reward.clamp(-self.cfg.reward_clip, self.cfg.reward_clip)
        return reward
