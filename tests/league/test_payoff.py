"""The payoff against a plain count, and at its edges."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ganglion.league.payoff import Payoff


def plain(games: list[tuple[str, str, float]], one: str, other: str) -> float:
    """The win rate by its definition: results of the pair, the newest counting 1, each older one 0.99 of the next."""
    own = [s if (a, b) == (one, other) else 1 - s for a, b, s in games if {a, b} == {one, other}]
    weights = [0.99 ** (len(own) - 1 - k) for k in range(len(own))]
    if sum(weights) < 8:
        return 0.5
    return sum(w * s for w, s in zip(weights, own, strict=True)) / sum(weights)


def test_against_a_plain_count() -> None:
    dice, payoff, games = random.Random(0), Payoff(), []
    for name in "abcd":
        payoff.add(name)
    for _ in range(600):
        one, other = dice.sample("abcd", 2)
        games.append((one, other, dice.choice([0.0, 0.5, 1.0, 1.0])))
        payoff.report(one, other, [games[-1][2]])
        for a in "abcd":
            for b in "abcd":
                assert payoff.win_rate(a, b) == pytest.approx(0.5 if a == b else plain(games, a, b))
    assert np.allclose(payoff.table() + payoff.table().T, 1.0)
    again = Payoff()
    again.restore(payoff.state())
    assert (again.table() == payoff.table()).all() and again.names == payoff.names
    again.report("a", "b", [1.0])
    payoff.report("a", "b", [1.0])
    assert (again.games == payoff.games).all()


def test_several_games_are_games_one_after_the_other() -> None:
    dice, one, many = random.Random(1), Payoff(), Payoff()
    for payoff in (one, many):
        payoff.add("a")
        payoff.add("b")
    for count in (1, 5, 40):
        scores = [dice.choice([0.0, 0.5, 1.0]) for _ in range(count)]
        many.report("a", "b", scores, [2 * s - 1 for s in scores])
        for score in scores:
            one.report("a", "b", [score], [2 * score - 1])
    for left, right in zip(one.tables(), many.tables(), strict=True):
        assert np.allclose(left, right, atol=1e-12)
    assert one.met[0, 1] == 46 and np.allclose(one.margins(["b", "a"]), -one.margins(["a", "b"]))


def test_edges() -> None:
    payoff = Payoff()
    assert payoff.table().shape == (0, 0)
    payoff.add("a")
    assert payoff.win_rate("a", "a") == 0.5
    payoff.report("a", "a", [1.0])
    assert payoff.games.sum() == 0
    payoff.add("b")
    for k in range(12):
        assert payoff.win_rate("a", "b") == (0.5 if payoff.games[0, 1] < 8 else 1.0), k
        payoff.report("a", "b", [1.0])
    assert payoff.win_rate("a", "b") == 1.0 and payoff.win_rate("b", "a") == 0.0
    payoff.forget("a")
    assert payoff.win_rate("a", "b") == 0.5
    with pytest.raises(ValueError, match="already"):
        payoff.add("a")
    with pytest.raises(ValueError, match=r"0, 0\.5 or 1"):
        payoff.report("a", "b", [0.7])
    with pytest.raises(ValueError, match="table of 2 x 2"):
        payoff.restore(payoff.state()._replace(scalars={**payoff.state().scalars, "won": [[0.0]]}))
