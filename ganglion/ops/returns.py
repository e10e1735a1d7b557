"""Returns and advantages along time, [T, B]. `discount` is gamma, 0 where terminated; `cut` says where no trace passes.

`after[t]` is the value of row t + 1's observation: with next-step autoreset the dead row after an ending holds the true
last observation, so it is always the right bootstrap (DESIGN, decision 4).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ganglion.ops.scan import scan


def gae(reward: Tensor, value: Tensor, after: Tensor, discount: Tensor, cut: Tensor, lam: float | Tensor) -> Tensor:
    """Generalised advantages (Schulman et al. 2016), [T, B].

    A_t = delta_t + discount_t lam (not cut_t) A_{t+1},  delta_t = r_t + discount_t V'_t - V_t
    """
    delta = reward + discount * after - value
    return scan(delta, torch.where(cut, 0.0, discount * lam))
