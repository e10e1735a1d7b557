"""Ratings against published examples and plain integration."""

from __future__ import annotations

import numpy as np
import pytest

from ganglion.league.ratings import BETA, ELO, TAU, Skill, elo, elo_expected, quantile, trueskill


def test_elo() -> None:
    assert elo_expected(1613, 1609) == pytest.approx(0.506, abs=1e-3)
    assert elo(ELO, ELO, 1.0) == (1208.0, 1192.0) and elo(ELO, ELO, 0.5) == (ELO, ELO)
    first, second = 2400.0, 2000.0
    after = elo(first, second, 0.0, k=32)
    assert after[0] == pytest.approx(2400 - 32 * 10 / 11) and sum(after) == pytest.approx(4400)


@pytest.mark.parametrize("score", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("pair", [(Skill(), Skill()), (Skill(30, 2), Skill(22, 5)), (Skill(15, 6), Skill(28, 1.5))])
def test_trueskill_is_the_posterior(pair: tuple[Skill, Skill], score: float) -> None:
    """Mean and deviation of both skills given the result, by summing over a grid of skills."""
    margin = quantile(0.55) * np.sqrt(2) * BETA
    spread = [np.sqrt(s.deviation**2 + TAU**2) for s in pair]
    x, y = (np.linspace(s.mean - 7 * d, s.mean + 7 * d, 801) for s, d in zip(pair, spread, strict=True))
    prior = np.exp(-0.5 * ((x - pair[0].mean) / spread[0]) ** 2)[:, None]
    prior = prior * np.exp(-0.5 * ((y - pair[1].mean) / spread[1]) ** 2)
    grid = np.linspace(-12, 12, 4001)
    normal = np.cumsum(np.exp(-0.5 * grid**2))
    below = lambda z: np.interp(z, grid, normal / normal[-1])  # noqa: E731
    t, m = (x[:, None] - y) / (np.sqrt(2) * BETA), margin / (np.sqrt(2) * BETA)
    chance = {1.0: below(t - m), 0.0: below(-t - m), 0.5: below(m - t) - below(-m - t)}[score]
    mass = prior * chance / (prior * chance).sum()
    after = trueskill(*pair, score)
    for axis, values, own in ((1, x, after[0]), (0, y, after[1])):
        share = mass.sum(axis)
        mean = share @ values
        assert own.mean == pytest.approx(mean, abs=0.02)
        assert own.deviation == pytest.approx(np.sqrt(share @ (values - mean) ** 2), abs=0.02)


def test_a_win_raises_and_narrows() -> None:
    winner, loser = trueskill(Skill(), Skill(), 1.0)
    assert winner.mean == pytest.approx(29.396, abs=5e-3) and winner.deviation == pytest.approx(7.171, abs=5e-3)
    assert loser.mean == pytest.approx(20.604, abs=5e-3) and winner.safe > Skill().safe
    sure = trueskill(Skill(1e4, 1e-3), Skill(0, 1e-3), 0.0)  # what could not happen stays finite
    assert all(np.isfinite(x) for each in sure for x in each)
