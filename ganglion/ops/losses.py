"""Losses per row, to be minimised; reduce them with `masked_mean` or `weighted_mean`."""

from __future__ import annotations

import torch
from torch import Tensor

from ganglion.ops.rows import alike, pick, within


def huber(error: Tensor, delta: float = 1.0) -> Tensor:
    """e^2 / 2 within delta, delta (|e| - delta / 2) beyond."""
    return torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)


def penalty(error: Tensor, kind: str) -> Tensor:
    """What an error costs: "mse" is e^2, "huber" is e^2 / 2 up to |e| = 1 and |e| - 1/2 beyond."""
    if kind == "mse":
        return error.square()
    if kind == "huber":
        return huber(error)
    raise ValueError(f"penalty: kind is 'mse' or 'huber', not {kind!r}")


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float | Tensor, dual: float | None = None) -> Tensor:
    """-min(rho A, clip(rho, 1 - clip, 1 + clip) A); with `dual` c > 1 never above -c A where A < 0.

    Schulman et al. 2017 (PPO); Ye et al. 2020 (dual clip, for negative advantages only).
    """
    ratio = log_ratio.exp()
    near = within(ratio, 1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantage, near * advantage)
    if dual is None:
        return loss
    return torch.where(advantage < 0, torch.minimum(loss, -dual * advantage), loss)


def value_loss(value: Tensor, old: Tensor, goal: Tensor, clip: float | Tensor | None = None) -> Tensor:
    """(V - G)^2 / 2; with `clip`, the larger of that and the loss of a value moved no further than clip from `old`."""
    loss = (value - goal).square()
    if clip is not None:
        near = old + within(value - old, -clip, clip)
        loss = torch.maximum(loss, (near - goal).square())
    return 0.5 * loss


def kl_k1(log_ratio: Tensor) -> Tensor:
    """-log rho: KL(old || new) from samples of old; unbiased, may be negative."""
    return -log_ratio


def kl_k2(log_ratio: Tensor) -> Tensor:
    """(log rho)^2 / 2: biased, never negative."""
    return 0.5 * log_ratio.square()


def kl_k3(log_ratio: Tensor) -> Tensor:
    """rho - 1 - log rho: unbiased and never negative."""
    return torch.expm1(log_ratio) - log_ratio


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """-A log pi(a), A fixed: REINFORCE, A2C (Mnih et al. 2016), IMPALA, COMA."""
    alike("policy_gradient", log_prob, advantage)
    return -advantage.detach() * log_prob


def upgo_loss(log_prob: Tensor, log_ratio: Tensor, goal: Tensor, value: Tensor) -> Tensor:
    """-min(1, rho) (G - V) log pi(a), with G from `upgo_returns`. Vinyals et al. 2019."""
    return policy_gradient(log_prob, log_ratio.exp().clamp(max=1.0) * (goal - value))


def ppg_joint(kl: Tensor, aux: Tensor, value: Tensor, goal: Tensor, beta: float = 1.0) -> Tensor:
    """(V_aux - G)^2 / 2 + beta KL(old || new) + (V - G)^2 / 2: the auxiliary phase of PPG (Cobbe et al. 2021).

    `kl` is old.kl(new) of two distributions, old detached; `aux` is the value head on the policy's trunk.
    """
    alike("ppg_joint", kl, aux, value, goal)
    return 0.5 * (aux - goal).square() + beta * kl + 0.5 * (value - goal).square()


def counterfactual(q: Tensor, action: Tensor, probs: Tensor) -> Tensor:
    """q[a] - sum_a' pi(a') q[a'], fixed: COMA's advantage of one agent's action (Foerster et al. 2018).

    The critic's own goal is `lambda_returns` on the target network's q of the next actions taken.
    """
    return (pick(q, action) - (probs * q).sum(-1)).detach()


# ------------------------------------------------------------ ACER (Wang et al. 2017)


def acer_policy(log_probs: Tensor, behaviour: Tensor, q: Tensor, goal: Tensor, action: Tensor, clip: float) -> Tensor:
    """Truncated importance sampling with bias correction; all log-probabilities and q are [T, B, A], goal [T, B].

    -min(c, rho_a) (R - V) log pi(a) - sum_b max(0, 1 - c / rho_b) pi(b) (q_b - V) log pi(b),  V = sum_b pi(b) q_b
    with R from `retrace`, c = `clip`, and rho = pi / mu, all fixed but log pi.
    """
    return -(acer_weights(log_probs, behaviour, q, goal, action, clip) * log_probs).sum(-1)


def acer_weights(log_probs: Tensor, behaviour: Tensor, q: Tensor, goal: Tensor, action: Tensor, clip: float) -> Tensor:
    """What `acer_policy` weighs each log pi(b) with, fixed, [T, B, A]: over pi(b) it is the gradient at pi."""
    probs, ratio = log_probs.detach().exp(), (log_probs.detach() - behaviour).exp()
    value = (probs * q).sum(-1, keepdim=True)
    main = ratio.clamp(max=clip) * (goal.unsqueeze(-1) - value)
    taken = action.unsqueeze(-1) == torch.arange(q.shape[-1], device=q.device)
    rest = (1 - clip / ratio.clamp(min=1e-12)).clamp(min=0) * probs * (q - value)
    return (torch.where(taken, main, 0.0) + rest).detach()


def trust_region(gradient: Tensor, kl_gradient: Tensor, limit: float) -> Tensor:
    """g - max(0, (k . g - limit) / |k|^2) k over the last axis: ACER's step that raises KL by no more than `limit`."""
    size = kl_gradient.square().sum(-1, keepdim=True)
    excess = (kl_gradient * gradient).sum(-1, keepdim=True) - limit
    return gradient - (excess / size.clamp(min=1e-12)).clamp(min=0) * kl_gradient


# ------------------------------------------------------------ supervised


def label_smoothed(logits: Tensor, label: Tensor, ratio: float) -> Tensor:
    """Cross entropy against 1 - ratio on the label and ratio / (n - 1) on each other class. Szegedy et al. 2016."""
    log_probs = logits.log_softmax(-1)
    share = ratio / max(logits.shape[-1] - 1, 1)  # a single class leaves nothing to share
    return -(1 - ratio - share) * pick(log_probs, label) - share * log_probs.sum(-1)


def soft_focal(logits: Tensor, label: Tensor, gamma: float = 2.0) -> Tensor:
    """-(1 - p)^gamma log p of the label: easy rows count less. Lin et al. 2017."""
    log_prob = pick(logits.log_softmax(-1), label)
    return -((1 - log_prob.exp()).clamp(min=torch.finfo(logits.dtype).tiny) ** gamma) * log_prob


def info_nce(x: Tensor, y: Tensor, temperature: float = 1.0) -> Tensor:
    """Cross entropy of finding y_i among all y from x_i: [n, d], [n, d] -> [n]. van den Oord et al. 2018."""
    alike("info_nce", x, y)
    return -torch.diagonal((x @ y.transpose(-1, -2) / temperature).log_softmax(-1), dim1=-2, dim2=-1)


def multi_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of m predictions with m labels in any order, matched most cheaply: [..., m, n], [..., m] -> [...].

    Exact, by dynamic programming over the 2^m sets of labels already matched (m <= 12): batched, without leaving the
    device, and the gradient reaches the matched pairs alone.
    """
    m = labels.shape[-1]
    if m > 12:
        raise ValueError(f"multi_logits: at most 12 labels, got {m}")
    index = labels.unsqueeze(-2).expand(*labels.shape[:-1], m, m)
    cost = -logits.log_softmax(-1).gather(-1, index)  # [..., prediction, label]
    sets = torch.arange(2**m, device=labels.device).unsqueeze(-1)  # [2^m, 1]
    bits = 2 ** torch.arange(m, device=labels.device)
    holds = (sets & bits) > 0  # [2^m, m]
    least = torch.where(sets.squeeze(-1) > 0, torch.inf, 0.0).to(cost.dtype).expand(*cost.shape[:-2], 2**m)
    for i in range(m):
        before = least[..., sets ^ bits] + cost[..., i, :].unsqueeze(-2)
        least = torch.where(holds, before, torch.inf).min(-1).values
    return least[..., -1]


def levenshtein(
    a: Tensor, b: Tensor, a_length: Tensor | None = None, b_length: Tensor | None = None, cost: Tensor | None = None
) -> Tensor:
    """Fewest insertions, deletions and replacements that turn a into b: [B, N], [B, M] -> [B]. Levenshtein 1966.

    Rows are as long as their lengths say (all of it where None); `cost` [B, N, M] replaces the 0 / 1 price of pairing.
    d[i, j] = min(d[i-1, j] + 1, d[i, j-1] + 1, d[i-1, j-1] + cost[i, j]),  d[i, 0] = i, d[0, j] = j
    """
    batch, n, m = a.shape[0], a.shape[1], b.shape[1]
    price = (a.unsqueeze(2) != b.unsqueeze(1)).to(torch.float32) if cost is None else cost
    steps = torch.arange(m + 1, dtype=price.dtype, device=a.device)
    table = [steps.expand(batch, m + 1)]
    for i in range(n):
        above = table[-1]
        best = torch.cat([above[:, :1] + 1, torch.minimum(above[:, 1:] + 1, above[:, :-1] + price[:, i])], 1)
        table.append((best - steps).cummin(1).values + steps)  # insertions: min over k <= j of best[k] + (j - k)
    whole = torch.stack(table)  # [N + 1, B, M + 1]
    slots = torch.arange(batch, device=a.device)
    return whole[n if a_length is None else a_length, slots, m if b_length is None else b_length]


def hamming(a: Tensor, b: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """Weighted number of places that differ: [..., n], [..., n] -> [...]. Hamming 1950."""
    return ((a != b) * weight).sum(-1)
