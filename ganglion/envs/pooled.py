"""Gymnasium environments walked by worker processes: the same rows as in this process, for any number of workers."""

from __future__ import annotations

from typing import Any

import torch

from ganglion.core import Promise
from ganglion.envs.gym import GymEnv
from ganglion.envs.pool import Pool


class PoolEnv(GymEnv):
    """A pool under the contract of an environment; `pool.send` and `pool.recv` are there for loops of one's own."""

    def __init__(
        self,
        pool: Pool,
        name: str = "",
        device: str | torch.device = "cpu",
        max_failures: int = 100,
    ) -> None:
        self.pool = pool
        promise: Promise = "replay" if pool.replay else "restart"
        form = pool.crew.form
        self._walk(pool, form.obs, form.action, name, device, promise, max_failures)
        self.faults.pool = pool

    def render(self) -> Any:
        """Workers draw nothing: what is to be drawn is built with `render=True`, in this process."""
        return None
