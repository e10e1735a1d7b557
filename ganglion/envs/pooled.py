"""Gymnasium environments walked by worker processes: the same rows as in this process, for any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ganglion.core import Action, Promise, Step
from ganglion.envs.gym import GymEnv
from ganglion.envs.pool import Pool
from ganglion.envs.slots import part


class PoolEnv(GymEnv):
    """A pool under the contract of an environment. Slots can be stepped half by half, too (`send_half`, `recv_half`);
    `pool.send` and `pool.recv` are there for loops of one's own."""

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

    # ------------------------------------------------------------ half by half

    @property
    def device(self) -> torch.device:
        return self._device

    def workers_of(self, half: int) -> range:
        """The workers of the first or the second half of the slots."""
        count = len(self.pool.shares)
        return range(count // 2) if half == 0 else range(count // 2, count)

    def rows_of(self, half: int) -> slice:
        middle = self.spec.slots // 2
        return slice(0, middle) if half == 0 else slice(middle, None)

    def send_half(self, half: int, action: Action) -> None:
        """Begins a step of one half."""
        columns = self._actions.columns(action)
        whole = [np.zeros((self.spec.slots, *column.shape[1:]), column.dtype) for column in columns]
        for all_slots, column in zip(whole, columns, strict=True):
            all_slots[self.rows_of(half)] = column
        self.pool.send(whole, self.workers_of(half))

    def recv_half(self, half: int) -> tuple[Step, Tensor | None]:
        """Ends it: what these slots see, and which of their actions were lost (None: none)."""
        pool = self.pool
        pool.recv(workers=self.workers_of(half))
        failures, pool.failures = pool.failures, []
        self._tell(failures, len(pool.reward[self.rows_of(half)]))
        if self.log_every and pool.finished:
            self._keep()
        seen = part(pool, self.rows_of(half))
        return self._step(seen), torch.from_numpy(seen.lost.copy()).to(self._device) if pool.hurt else None
