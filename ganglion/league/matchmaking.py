"""Who plays whom: shares of opponents, [n] each, that sum to 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Prioritised fictitious self-play (Vinyals et al. 2019): the weight of an opponent by the rate of wins against it.
WEIGHTS: Mapping[str, Callable[[Array], Array]] = {
    "squared": lambda won: (1.0 - won) ** 2,  # those that are hard
    "variance": lambda won: won * (1.0 - won),  # those of one's own strength
    "linear": lambda won: 1.0 - won,
    "capped": lambda won: np.minimum(0.5, 1.0 - won),  # hard, and none too hard to learn from
}


def uniform(count: int) -> Array:
    """Fictitious self-play, where the opponents are all earlier selves: each equally often."""
    return np.full(count, 1.0 / count) if count else np.zeros(0)


def pfsp(win_rates: Array, weight: str = "squared") -> Array:
    """Shares by weight. Where no opponent has any (all games won), each equally often."""
    mass = WEIGHTS[weight](np.asarray(win_rates, dtype=np.float64))
    total = mass.sum()
    return mass / total if total > 1e-12 else uniform(len(mass))


def pick(shares: Array, dice: float) -> int:
    """The opponent that a number in [0, 1) falls on; never one without a share."""
    edges = np.cumsum(shares)
    chosen = int(np.searchsorted(edges, dice * edges[-1], side="right"))
    return min(chosen, int(np.flatnonzero(shares)[-1]))


def solve(payoff: Array, rounds: int = 20_000) -> tuple[Array, Array]:
    """An equilibrium of a zero-sum game whose table is what the first gets: regret matching+ in alternating turns,
    averaged with growing weights (Tammelin 2014; Farina et al. 2021). PSRO's opponents are drawn by it."""
    payoff = np.asarray(payoff, dtype=np.float64)
    scale = np.ptp(payoff) or 1.0
    table = payoff / scale
    regret = [np.zeros(n) for n in table.shape]
    total = [np.zeros(n) for n in table.shape]
    second = uniform(table.shape[1])
    for turn in range(1, rounds + 1):
        first = advance(table @ second, regret, 0)
        second = advance(-(first @ table), regret, 1)
        total[0] += turn * first
        total[1] += turn * second
        if turn % 500 == 0 and gap(table, total[0] / total[0].sum(), total[1] / total[1].sum()) < 1e-6:
            break
    return total[0] / total[0].sum(), total[1] / total[1].sum()


def advance(value: Array, regret: list[Array], who: int) -> Array:
    """The strategy of one side after it has seen what its choices are worth."""
    now = matched(regret[who])
    regret[who] = np.maximum(regret[who] + value - now @ value, 0.0)
    return matched(regret[who])


def matched(regret: Array) -> Array:
    total = regret.sum()
    return regret / total if total > 0 else uniform(len(regret))


def gap(payoff: Array, first: Array, second: Array) -> float:
    """How much both sides together could gain by best responses: 0 at an equilibrium."""
    return float((payoff @ second).max() - (first @ payoff).min())
