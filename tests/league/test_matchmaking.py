"""Shares of opponents against their formulas, at their edges; equilibria against those that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from ganglion.league.matchmaking import WEIGHTS, gap, pfsp, pick, solve, uniform


@pytest.mark.parametrize(
    ("weight", "wanted"),
    [("squared", [1.0, 0.25, 0.0]), ("variance", [0.0, 0.25, 0.0]), ("linear", [1, 0.5, 0]), ("capped", [0.5, 0.5, 0])],
)
def test_pfsp_is_its_formula(weight: str, wanted: list[float]) -> None:
    assert np.allclose(pfsp(np.array([0.0, 0.5, 1.0]), weight), np.array(wanted) / sum(wanted))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_where_nothing_has_weight_all_have_the_same(weight: str) -> None:
    assert pfsp(np.ones(3), weight).tolist() == [1 / 3] * 3
    assert pfsp(np.ones(1), weight).tolist() == [1.0]
    assert pfsp(np.zeros(0), weight).tolist() == []


def test_picks_by_shares() -> None:
    shares = np.array([0.0, 0.25, 0.75, 0.0])
    assert [pick(shares, dice) for dice in (0.0, 0.2, 0.25, 0.9, 0.9999999)] == [1, 1, 2, 2, 2]
    assert pick(uniform(1), 0.99) == 0


def test_known_equilibria() -> None:
    first, second = solve(np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]))
    assert np.allclose(first, 1 / 3, atol=1e-3) and np.allclose(second, 1 / 3, atol=1e-3)
    first, second = solve(np.array([[3, -2], [-2, 1]]))
    assert np.allclose(first, [3 / 8, 5 / 8], atol=1e-3) and np.allclose(second, [3 / 8, 5 / 8], atol=1e-3)
    assert solve(np.zeros((1, 1)))[0].tolist() == [1.0]


@pytest.mark.parametrize("seed", range(5))
def test_against_a_linear_program(seed: int) -> None:
    table = np.random.default_rng(seed).normal(size=(5, 4))
    solved = linprog([0, 0, 0, 0, 0, -1], np.c_[-table.T, np.ones(4)], np.zeros(4), [[1] * 5 + [0]], [1],
                     bounds=[(0, None)] * 5 + [(None, None)])  # fmt: skip
    first, second = solve(table)
    assert gap(table, first, second) < 1e-3
    assert first @ table @ second == pytest.approx(-solved.fun, abs=1e-3)
