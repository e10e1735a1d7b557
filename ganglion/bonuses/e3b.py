"""The elliptical episodic bonus (Henaff et al. 2022): new is what lies outside the ellipse of the episode so far."""

from __future__ import annotations

import torch
from torch import Tensor

from ganglion.bonuses.episodic import Episodic, EpisodicConfig
from ganglion.config import Positive, register
from ganglion.core import Carried, EnvSpec


@register("bonus", "e3b")
class E3BConfig(EpisodicConfig):
    """Far outside the ellipse of the episode."""

    ridge: Positive = 0.1  # of the ellipse before anything is seen

    def bonus(self, spec: EnvSpec) -> E3B:
        return E3B(self, spec)


class E3B(Episodic):
    """f C^-1 f with C = ridge I + the sum of f f^T over the episode so far."""

    def __init__(self, cfg: E3BConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.net, spec, cfg.features)
        self.cfg = cfg

    def begin(self, slots: int) -> Carried:
        """C^-1."""
        return (torch.eye(self.cfg.features).div(self.cfg.ridge).expand(1, slots, -1, -1).contiguous(),)

    def novelty(self, features: Tensor, known: Carried) -> tuple[Tensor, Carried]:
        (inverse,) = known
        turned = (inverse * features.unsqueeze(-2)).sum(-1)  # C^-1 f
        new = (features * turned).sum(-1).clamp(min=0)
        # Sherman and Morrison 1950: the inverse of C + f f^T
        return new, (inverse - turned.unsqueeze(-1) * turned.unsqueeze(-2) / (1 + new)[..., None, None],)
