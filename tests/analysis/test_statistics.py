"""Statistics over runs, beside slow references and the figures of rliable 1.2."""

from __future__ import annotations

from itertools import product
from statistics import fmean

import numpy as np
import pytest

from ganglion.analysis import statistics as st

# Scores of two algorithms on three tasks, and what rliable 1.2.0 (arch 7.2.0) says of them.
A = np.array([
    [0.6, 0.69, 0.518], [0.333, 0.464, 0.303], [0.618, 1.002, 0.452], [0.414, 0.747, 0.707], [0.632, 0.321, 0.591],
    [0.809, 0.197, 0.463], [0.03, 0.213, 0.047],
])  # fmt: skip
B = np.array([
    [0.6, 0.12, 0.581], [0.547, 0.747, -0.255], [0.338, 0.485, 0.534], [0.041, 0.357, 0.206], [0.257, 0.818, 0.258],
])  # fmt: skip
RLIABLE = {"mean": 0.4833809523809524, "median": 0.4908571428571428, "iqm": 0.4914545454545454}
PROFILE = [1.0, 0.8095238095238095, 0.47619047619047616, 0.09523809523809523, 0.047619047619047616]


@pytest.mark.parametrize("name", RLIABLE)
def test_aggregates_are_those_of_rliable(name: str) -> None:
    assert getattr(st, name)(A) == pytest.approx(RLIABLE[name], abs=1e-12)


def test_the_rest_is_that_of_rliable() -> None:
    assert st.optimality_gap(A) == pytest.approx(0.5167142857142857, abs=1e-12)
    assert st.probability_of_improvement(A, B) == pytest.approx(0.6095238095238095, abs=1e-12)
    assert st.performance_profile(A, np.linspace(0, 1, 5)) == pytest.approx(PROFILE, abs=1e-12)


def test_the_band_of_a_profile_holds_it() -> None:
    levels = np.linspace(0, 1, 9)
    low, high = st.profile_band(A, levels)
    share = st.performance_profile(A, levels)
    assert (low <= share).all() and (share <= high).all() and (high - low).max() > 0.1
    assert np.isnan(st.profile_band(A[:1], levels)).all()


def test_intervals_are_close_to_those_of_rliable() -> None:
    """Drawn with other numbers: 20,000 repeats there."""
    assert st.interval(st.iqm, A, repeats=4_000) == pytest.approx((0.36927, 0.60109), abs=0.012)
    assert st.interval(st.mean, A, repeats=4_000) == pytest.approx((0.37828, 0.58362), abs=0.012)
    assert st.interval(st.probability_of_improvement, A, B) == pytest.approx((0.40476, 0.79048), abs=0.03)


def test_probability_of_improvement_pair_by_pair() -> None:
    tasks = []
    for k in range(3):
        wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in product(A[:, k], B[:, k])]
        tasks.append(fmean(wins))
    assert st.probability_of_improvement(A, B) == pytest.approx(fmean(tasks), abs=1e-15)
    assert st.probability_of_improvement(A, A) == pytest.approx(0.5)


def test_an_interval_covers_the_mean_as_often_as_it_says() -> None:
    dice, covered = np.random.default_rng(1), 0
    for k in range(200):
        low, high = st.interval(st.mean, dice.normal(3.0, 1.0, (20, 1)), repeats=300, seed=k)
        covered += low <= 3.0 <= high
    assert 0.88 <= covered / 200 <= 0.99


def test_one_run_has_no_interval() -> None:
    assert all(np.isnan(x) for x in st.interval(st.mean, A[:1]))


def test_curves_meet_at_the_same_places() -> None:
    places, values = st.grid([([0, 10, 20], [0, 1, 2]), ([5, 15], [1, 3])], points=3)
    assert places.tolist() == [5, 10, 15]
    assert values.tolist() == [[0.5, 1, 1.5], [1, 2, 3]]
    middle, low, high = st.band(values)
    assert middle.tolist() == [0.75, 1.5, 2.25] and (low <= middle).all() and (middle <= high).all()
