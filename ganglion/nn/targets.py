"""Lagged copies of a model."""

from __future__ import annotations

from copy import deepcopy
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ganglion.core import Action, Memory, Model, Obs, Past
from ganglion.nn.cells import inside_vmap
from ganglion.torch_private import foreach_copy_, foreach_lerp_

Followed = TypeVar("Followed", bound=Model)


class Lagged(Model, Generic[Followed]):
    """A copy of a model that follows it: at once (`copy`) or slowly (`follow`, Polyak). It has no gradient.

    Statistics (buffers) describe the world, not the network: they are shared, not copied.
    """

    def __init__(self, model: Followed) -> None:
        super().__init__()
        shared = {id(buffer): buffer for buffer in model.buffers()}
        self.net: Followed = deepcopy(model, shared).requires_grad_(False)

    watches = False

    def observe(self, obs: Obs, valid: Tensor) -> None:
        """Moves nothing: the statistics are the model's."""

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        return self.net.value(obs, past, action)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.net.action(obs, past)

    @torch.no_grad()
    def copy(self, model: Model) -> None:
        self.follow(model, 1.0)

    @torch.no_grad()
    def follow(self, model: Model, tau: float) -> None:
        """Moves the parameters by `tau` towards the model's."""
        ours: list[Tensor] = list(self.net.parameters())
        if tau == 1.0:
            foreach_copy_(ours, list(model.parameters()))
        elif inside_vmap():
            for own, theirs in zip(ours, model.parameters(), strict=True):
                own.copy_(torch.lerp(own, theirs, tau))
        else:
            foreach_lerp_(ours, list(model.parameters()), tau)
