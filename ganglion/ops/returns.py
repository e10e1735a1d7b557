"""Returns and advantages along time, [T, B]. `discount` is gamma, 0 where terminated; `cut`: no trace passes.

`after[t]` is the value of row t + 1's observation: with next-step autoreset the dead row after an ending holds the true
last observation, so it is always the right bootstrap. Values are used as they come: detach them, or call under
no_grad, where the result is a target.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ganglion.ops.rows import alike
from ganglion.ops.scan import scan


def _passing(cut: Tensor, factor: Tensor) -> Tensor:
    """The factor of a trace, 0 where it is cut."""
    return torch.where(cut, torch.zeros_like(factor), factor)


def discounted_sum(reward: Tensor, discount: Tensor, last: Tensor | None = None) -> Tensor:
    """G_t = r_t + discount_t G_{t+1}, with G_T = `last` [B] or 0."""
    alike("discounted_sum", reward, discount)
    if last is not None:
        reward = torch.cat([reward[:-1], (reward[-1] + discount[-1] * last).unsqueeze(0)])
    return scan(reward, discount)


def gae(reward: Tensor, value: Tensor, after: Tensor, discount: Tensor, cut: Tensor, lam: float | Tensor) -> Tensor:
    """Generalised advantages (Schulman et al. 2016), [T, B].

    A_t = delta_t + discount_t lam (not cut_t) A_{t+1},  delta_t = r_t + discount_t V'_t - V_t
    """
    alike("gae", reward, value, after, discount, cut)
    delta = torch.addcmul(reward - value, discount, after)
    return scan(delta, _passing(cut, discount * lam))


def lambda_returns(reward: Tensor, after: Tensor, discount: Tensor, cut: Tensor, lam: float | Tensor) -> Tensor:
    """G_t = r_t + discount_t ((1 - lam_t) V'_t + lam_t G_{t+1}); beyond a cut or the last row, V' alone.

    Sutton 1988; `discount` and `lam` may differ from row to row. lam = 0: one step, lam = 1: Monte Carlo.
    """
    alike("lambda_returns", reward, after, discount, cut)
    ends = cut.clone()
    ends[-1:].fill_(True)
    trace = _passing(ends, torch.zeros_like(discount) + lam)
    return scan(reward + discount * (1 - trace) * after, discount * trace)


def td_lambda_error(
    value: Tensor, reward: Tensor, after: Tensor, discount: Tensor, cut: Tensor, lam: float | Tensor
) -> Tensor:
    """V_t - G_t with the lambda return as a fixed target, per row; `penalty` makes it a loss."""
    return value - lambda_returns(reward, after, discount, cut, lam).detach()


class NStep(NamedTuple):
    """Up to n rewards folded: the target of row t is reward + discount * value[ahead]."""

    reward: Tensor  # [T, B]
    discount: Tensor  # [T, B] the product of the discounts passed, 0 where terminated
    ahead: Tensor  # [T, B] int64 row of the bootstrap, among T + 1 rows


def n_step(reward: Tensor, discount: Tensor, cut: Tensor, n: int) -> NStep:
    """Sums of up to n rewards, ending early at a cut or at the last row, each with its own exponent.

    reward_t = sum_k (prod_{j<k} discount_{t+j}) r_{t+k},  k < m_t = min(n, rows to the first cut or to T)
    """
    alike("n_step", reward, discount, cut)
    rows = reward.shape[0]
    beyond = min(n, rows) - 1
    later_reward, later_discount, ends = _padded(reward, beyond), _padded(discount, beyond), _padded(cut, beyond)
    ends[rows - 1 : rows].fill_(True)  # no window passes the last row; filled, so that it can be captured
    return windows(later_reward, later_discount, ends, beyond + 1)


def windows(reward: Tensor, discount: Tensor, cut: Tensor, n: int) -> NStep:
    """`n_step` of the rows that have n - 1 rows after them, [T + n - 1, B] -> [T, B]: what a replay gathers."""
    rows = reward.shape[0] - n + 1
    total, product, alive = reward[:rows], discount[:rows], ~cut[:rows]
    ahead = torch.arange(1, rows + 1, device=reward.device).unsqueeze(1).expand(total.shape)
    for k in range(1, n):
        total = total + torch.where(alive, product * reward[k : k + rows], 0.0)
        product = torch.where(alive, product * discount[k : k + rows], product)
        ahead = ahead + alive
        alive = alive & ~cut[k : k + rows]
    return NStep(total, product, ahead)


def _padded(x: Tensor, rows: int) -> Tensor:
    """A copy with `rows` rows of zeros after it."""
    return torch.cat([x, torch.zeros_like(x[:1]).expand(rows, *x.shape[1:])])


def _later(x: Tensor, k: int) -> Tensor:
    """x[t + k], zeros beyond the last row."""
    return torch.cat([x[k:], torch.zeros_like(x[:k])])


def importance(target: Tensor, behaviour: Tensor, clip: float | None = None) -> Tensor:
    """exp(log pi - log mu) of log-probabilities, at most `clip`."""
    ratio = torch.exp(target - behaviour)
    return ratio if clip is None else ratio.clamp(max=clip)


class VTrace(NamedTuple):
    goal: Tensor  # [T, B] what V is regressed on
    advantage: Tensor  # [T, B] for the policy gradient, clipped by its own rho


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    after: Tensor,
    discount: Tensor,
    cut: Tensor,
    lam: float = 1.0,
    clips: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> VTrace:
    """V-trace (Espeholt et al. 2018, IMPALA); `log_ratio` = log pi - log mu of the action, of any distribution.

    v_t - V_t = rho_t (r_t + g_t V'_t - V_t) + g_t lam c_t (not cut_t) (v_{t+1} - V_{t+1}),  g = discount
    A_t = rho^pg_t (r_t + g_t v_{t+1} - V_t);  `clips` bound rho, c and rho^pg.
    """
    alike("vtrace", log_ratio, reward, value, after, discount, cut)
    ratio = log_ratio.exp()
    rho, c, rho_pg = (ratio.clamp(max=clip) for clip in clips)
    delta = rho * (reward + discount * after - value)
    gap = scan(delta, _passing(cut, discount * lam * c))
    ahead = after + _passing(cut, _later(gap, 1))
    return VTrace(value + gap, rho_pg * (reward + discount * ahead - value))


def upgo_returns(reward: Tensor, value: Tensor, after: Tensor, discount: Tensor, cut: Tensor) -> Tensor:
    """G_t = r_t + discount_t (G_{t+1} where row t + 1 did better than expected, else V'_t). Vinyals et al. 2019.

    Better than expected: r_{t+1} + discount_{t+1} V'_{t+1} >= V_{t+1}. No trace passes a cut.
    """
    alike("upgo_returns", reward, value, after, discount, cut)
    better = (reward + discount * after >= value).to(discount.dtype)  # 1 or 0
    follow = _passing(cut, _later(better, 1))
    return scan(reward + discount * (1 - follow) * after, discount * follow)


def retrace(
    log_ratio: Tensor, reward: Tensor, q: Tensor, after: Tensor, discount: Tensor, cut: Tensor, lam: float = 1.0
) -> Tensor:
    """Retrace targets for Q(x_t, a_t) (Munos et al. 2016); `after` = E_pi Q(x_{t+1}, .), `q` = Q(x_t, a_t).

    R_t = r_t + g_t (V'_t + c_{t+1} (not cut_t) (R_{t+1} - q_{t+1})),  c = lam min(1, pi / mu),  g = discount
    """
    alike("retrace", log_ratio, reward, q, after, discount, cut)
    c = lam * log_ratio.exp().clamp(max=1.0)
    delta = reward + discount * after - q
    return q + scan(delta, _passing(cut, discount * _later(c, 1)))
