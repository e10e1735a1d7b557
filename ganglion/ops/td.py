"""Temporal differences of values. `reward` and `discount` come n-step folded (`n_step`): one function serves all n.

Errors are prediction - target per row, [T, B], the target fixed; `penalty` and `weighted_mean` make a loss of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ganglion.ops.losses import huber
from ganglion.ops.rows import alike, best, blocked, pick
from ganglion.ops.transforms import rescale, unrescale


def td_goal(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """r + discount V', without gradient."""
    alike("td_goal", reward, discount, next_value)
    return (reward + discount * next_value).detach()


def v_td(value: Tensor, reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """V - (r + discount V'). With a mixed value (QMIX, VDN) it is their TD error; mask it with `masked_mean`."""
    alike("v_td", value, reward)
    return value - td_goal(reward, discount, next_value)


def q_td(q: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_q: Tensor, next_action: Tensor) -> Tensor:
    """q[a] - (r + discount q'[a']). Mnih et al. 2015; a' of the online network: double (van Hasselt et al. 2016)."""
    return v_td(pick(q, action), reward, discount, pick(next_q, next_action))


def q_td_rescaled(
    q: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_q: Tensor, next_action: Tensor, eps: float = 1e-2
) -> Tensor:
    """q[a] - h(r + discount h^-1(q'[a'])): values live on the scale of `rescale` h. Pohlen et al. 2018."""
    goal = td_goal(reward, discount, unrescale(pick(next_q, next_action), eps))
    return pick(q, action) - rescale(goal, eps)


def expected_value(q: Tensor, probs: Tensor) -> Tensor:
    """sum_a pi(a) q(a): the expected Sarsa bootstrap."""
    return (probs * q).sum(-1)


def soft_value(q: Tensor, temperature: float | Tensor, legal: Tensor | None = None) -> Tensor:
    """temperature * logsumexp(q / temperature) over legal actions: soft Q-learning (Haarnoja et al. 2017)."""
    return temperature * torch.logsumexp(blocked(q / temperature, legal), -1)


def munchausen_bonus(
    q: Tensor, action: Tensor, temperature: float, low: float = -1.0, legal: Tensor | None = None
) -> Tensor:
    """clip(temperature * log pi(a), low, 0) with pi = softmax(q / temperature). Vieillard et al. 2020.

    The target is r + alpha * bonus + discount * soft_value(q', temperature), q and q' from the target network.
    """
    log_probs = blocked(q / temperature, legal).log_softmax(-1)
    return (temperature * pick(log_probs, action)).clamp(low, 0.0)


def branching_td(
    q: Tensor, action: Tensor, reward: Tensor, discount: Tensor, next_q: Tensor, chooser: Tensor
) -> Tensor:
    """q_k[a_k] - (r + discount mean_k q'_k[a'_k]) per branch, [T, B, k]. Tavakoli et al. 2018.

    q, next_q and chooser are [T, B, k, A], action [T, B, k]; `chooser` picks a' (the online network's values: double).
    """
    goal = td_goal(reward, discount, pick(next_q, best(chooser)).mean(-1))
    return pick(q, action) - goal.unsqueeze(-1)


def margin(q: Tensor, action: Tensor, size: float = 0.8) -> Tensor:
    """max_a (q(a) + size [a != a_E]) - q(a_E), the large-margin loss on a demonstrated action. Hester et al. 2018."""
    raised = (q + size).scatter(-1, action.unsqueeze(-1), pick(q, action).unsqueeze(-1))
    return raised.amax(-1) - pick(q, action)


# ------------------------------------------------------------ distributions of returns


def atoms(low: float, high: float, count: int, like: Tensor) -> Tensor:
    """The support of a categorical value: `count` points from low to high, [count]."""
    return torch.linspace(low, high, count, dtype=like.dtype, device=like.device)


def project(reward: Tensor, discount: Tensor, support: Tensor, probs: Tensor) -> Tensor:
    """The distribution of r + discount Z on the support: [T, B], [n], [T, B, n] -> [T, B, n]. Bellemare et al. 2017.

    Each target atom spreads over its two neighbours in proportion to nearness, written as the hat function
    max(0, 1 - |clip(r + discount z_j) - z_i| / step): an atom hit exactly keeps its whole mass, no case is special.
    On a CPU, where additions have an order, each atom is added to the two.
    """
    alike("project", reward, discount)
    step = (support[-1] - support[0]) / (support.shape[0] - 1)
    moved = reward.unsqueeze(-1) + discount.unsqueeze(-1) * support  # [T, B, n]
    moved = torch.minimum(torch.maximum(moved, support[0]), support[-1])
    if moved.is_cpu:  # n numbers a row instead of n^2
        place = (moved - support[0]) / step
        left = place.floor().clamp(max=support.shape[0] - 2)
        share, first = (place - left) * probs, left.long()
        return torch.scatter_add(torch.zeros_like(probs).scatter_add(-1, first, probs - share), -1, first + 1, share)
    near = (1 - (moved.unsqueeze(-2) - support.unsqueeze(-1)).abs() / step).clamp(min=0)  # [T, B, i, j]
    return (near @ probs.unsqueeze(-1)).squeeze(-1)


def categorical_td(logits: Tensor, goal: Tensor) -> Tensor:
    """-sum_i goal_i log p_i: the loss of C51 per row; logits and goal [T, B, n]."""
    alike("categorical_td", logits, goal)
    return -(goal.detach() * logits.log_softmax(-1)).sum(-1)


def pick_atoms(values: Tensor, action: Tensor) -> Tensor:
    """values[..., action, :]: [T, B, A, n], [T, B] -> [T, B, n]."""
    index = action[..., None, None].expand(*action.shape, 1, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)


def midpoints(count: int, like: Tensor) -> Tensor:
    """(2 i + 1) / (2 n): the fractions of QR-DQN, [n]."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5) / count


def quantile_huber(quantiles: Tensor, tau: Tensor, goal: Tensor, kappa: float = 1.0) -> Tensor:
    """sum_i mean_j |tau_i - [goal_j < theta_i]| huber_kappa(goal_j - theta_i) / kappa: [T, B, n], [T, B, m] -> [T, B].

    QR-DQN with `midpoints` (Dabney et al. 2018a), IQN with sampled tau (2018b), FQF with proposed ones. kappa = 0 is
    the plain quantile loss.
    """
    error = goal.detach().unsqueeze(-2) - quantiles.unsqueeze(-1)  # [T, B, i, j]
    weight = (tau.detach().unsqueeze(-1) - (error.detach() < 0).to(error.dtype)).abs()
    size = huber(error, kappa) / kappa if kappa > 0 else error.abs()
    return (weight * size).mean(-1).sum(-1)


def fractions(logits: Tensor) -> tuple[Tensor, Tensor]:
    """FQF's proposed fractions: tau [..., n + 1] from 0 to 1, and their midpoints [..., n]. Yang et al. 2019."""
    inner, edge = logits.softmax(-1).cumsum(-1)[..., :-1], logits[..., :1]
    tau = torch.cat([torch.zeros_like(edge), inner, torch.ones_like(edge)], -1)
    return tau, (0.5 * (tau[..., 1:] + tau[..., :-1])).detach()


def fraction_loss(tau: Tensor, at_tau: Tensor, at_middle: Tensor) -> Tensor:
    """FQF's loss of the fractions: its gradient in tau_i is that of the Wasserstein distance, 0 < i < n.

    dW/dtau_i = 2 F(tau_i) - F(mid_i) - F(mid_{i-1});  tau [..., n + 1], at_tau [..., n - 1], at_middle [..., n].
    """
    slope = 2 * at_tau - at_middle[..., 1:] - at_middle[..., :-1]
    return (slope.detach() * tau[..., 1:-1]).sum(-1)
