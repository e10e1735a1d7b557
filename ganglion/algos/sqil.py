"""SQIL (Reddy et al. 2020): soft Q-learning in which every demonstrated step is worth 1 and every own step nothing.

Another algorithm learns from these rewards; half of each of its batches is demonstrated (`data.path`, `data.share`).
The rewards are given where steps become rows, so n-step sums and priorities are right. It should be a soft one: sac,
discrete_sac.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from ganglion.bonuses.around import Imitating
from ganglion.buffers.demonstrated import DemonstratedConfig
from ganglion.config import AlgoConfig, Positive, register
from ganglion.core import EnvSpec, Recipe


@register("algo", "sqil")
class SQILConfig(AlgoConfig):
    """Imitation by constant rewards."""

    imitates: ClassVar[bool] = True
    inner: AlgoConfig = Field(default_factory=lambda: "sac")  # type: ignore[assignment]  # what learns from the rewards
    reward: Positive = 1.0  # of a demonstrated step

    def build(self, spec: EnvSpec) -> Imitating[Any]:
        return Imitating(self.inner.whole(spec))

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What is around the algorithm within, but for the rewards."""
        return replace(self.inner.recipe(spec), processor=DemonstratedConfig(reward=self.reward))
