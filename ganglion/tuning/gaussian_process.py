"""The model of PB2 (Parker-Holder et al. 2020): a Gaussian process over time and settings, and its upper bound.

What settings brought loses weight with age: the kernel is a squared exponential of the settings times
(1 - forget) ^ (generations between / 2) (Bogunovic et al. 2016).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Seen = tuple[int, Sequence[float], float]  # generation, settings between 0 and 1, what they brought

LENGTHS = (0.1, 0.2, 0.4, 0.8)  # of which the likeliest is taken
FORGET = 0.1
NOISE = 0.1  # variance of what is seen, whose own is 1
CANDIDATES = 1_000
REACH = 0.1  # of candidates about the parent, beside those from everywhere


def kernel(a: Array, ages: Array, b: Array, others: Array, length: float) -> Array:
    """Covariances [A, B] of settings [A, D] and [B, D] in generations [A] and [B]."""
    apart = ((a[:, None] - b[None]) ** 2).sum(-1)
    faded = (1.0 - FORGET) ** (np.abs(ages[:, None] - others[None]) / 2.0)
    found: Array = np.exp(-apart / (2.0 * length**2)) * faded
    return found


def likelihood(covariance: Array, values: Array) -> float:
    """The logarithm of it, but for a constant."""
    lower = np.linalg.cholesky(covariance)
    solved = np.linalg.solve(lower, values)
    return float(-0.5 * solved @ solved - np.log(np.diag(lower)).sum())


def posterior(
    places: Array, ages: Array, values: Array, asked: Array, age: float, length: float
) -> tuple[Array, Array]:
    """Mean and deviation at the places asked for, in a generation."""
    covariance = kernel(places, ages, places, ages, length) + NOISE * np.eye(len(places))
    across = kernel(asked, np.full(len(asked), age), places, ages, length)
    mean: Array = across @ np.linalg.solve(covariance, values)
    left = 1.0 - (across * np.linalg.solve(covariance, across.T).T).sum(-1)
    return mean, np.sqrt(np.maximum(left, 0.0))


def best_candidate(
    seen: Sequence[Seen],
    generation: int,
    parent: Sequence[float],
    pending: Sequence[Sequence[float]],
    dice: np.random.Generator,
) -> Array:
    """The settings with the highest upper bound for a generation. Those that others were given in the same one count as
    seen, with what was expected of them: not all get the same."""
    places, ages = np.array([one[1] for one in seen]), np.array([one[0] for one in seen], np.float64)
    gains = np.array([one[2] for one in seen])
    values = (gains - gains.mean()) / (gains.std() or 1.0)
    eye = NOISE * np.eye(len(places))
    length = max(LENGTHS, key=lambda one: likelihood(kernel(places, ages, places, ages, one) + eye, values))
    for other in pending:
        at = np.array([other])
        told, _ = posterior(places, ages, values, at, generation, length)
        places, ages = np.concatenate([places, at]), np.append(ages, generation)
        values = np.append(values, told)
    wide = dice.random((CANDIDATES, places.shape[1]))
    near = np.clip(np.array(parent) + REACH * dice.standard_normal(wide.shape), 0.0, 1.0)
    asked = np.concatenate([wide, near])
    mean, deviation = posterior(places, ages, values, asked, generation, length)
    width = np.sqrt(2.0 * np.log(len(places) + 1.0))  # rises slowly, as the theory asks
    best: Array = asked[int(np.argmax(mean + width * deviation))]
    return best
