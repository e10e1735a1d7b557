"""How strong players are, from single games: Elo, and TrueSkill for two (Herbrich et al. 2006)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import erf, exp, pi, sqrt
from typing import NamedTuple

from ganglion.core import State, read_number

ELO = 1_200.0  # of a player without games


def elo_expected(first: float, second: float) -> float:
    """The score that the first is expected to make."""
    return 1.0 / (1.0 + 10.0 ** ((second - first) / 400.0))


def elo(first: float, second: float, score: float, k: float = 16.0) -> tuple[float, float]:
    """Both ratings after a game: 1 where the first has won, 0.5 drawn, 0 lost."""
    change = k * (score - elo_expected(first, second))
    return first + change, second - change


class Skill(NamedTuple):
    """What is believed of a player's skill: a normal distribution."""

    mean: float = 25.0
    deviation: float = 25.0 / 3.0

    @property
    def safe(self) -> float:
        """What it exceeds almost surely: three deviations below the mean."""
        return self.mean - 3.0 * self.deviation


BETA = 25.0 / 6.0  # the deviation of a performance from the skill
TAU = 25.0 / 300.0  # by which skill may change between games
DRAW = 0.1  # the share of draws among equals


def trueskill(first: Skill, second: Skill, score: float) -> tuple[Skill, Skill]:
    """Both after a game: 1 where the first has won, 0.5 drawn, 0 lost."""
    if score == 0.0:
        loser, winner = trueskill(second, first, 1.0)
        return winner, loser
    spread = [each.deviation**2 + TAU**2 for each in (first, second)]
    c = sqrt(2.0 * BETA**2 + sum(spread))
    t, margin = (first.mean - second.mean) / c, quantile((DRAW + 1.0) / 2.0) * sqrt(2.0) * BETA / c
    v, w = drawn(t, margin) if score == 0.5 else won(t, margin)
    signs = (1.0, -1.0)
    moved = [x.mean + sign * s / c * v for x, s, sign in zip((first, second), spread, signs, strict=True)]
    narrowed = [sqrt(s * max(1.0 - s / c**2 * w, 1e-9)) for s in spread]
    return Skill(moved[0], narrowed[0]), Skill(moved[1], narrowed[1])


def density(x: float) -> float:
    return exp(-0.5 * x * x) / sqrt(2.0 * pi)


def below(x: float) -> float:
    return 0.5 * (1.0 + erf(x / sqrt(2.0)))


@cache
def quantile(share: float) -> float:
    """Where so much of a standard normal lies below, by bisection."""
    low, high = -10.0, 10.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if below(middle) < share else (low, middle)
    return 0.5 * (low + high)


def won(t: float, margin: float) -> tuple[float, float]:
    """The corrections of mean and variance after a win."""
    mass = below(t - margin)
    v = density(t - margin) / mass if mass > 1e-12 else margin - t
    return v, v * (v + t - margin)


def drawn(t: float, margin: float) -> tuple[float, float]:
    """The same after a draw."""
    mass = below(margin - t) - below(-margin - t)
    if mass < 1e-12:
        return (-margin - t if t < 0 else margin - t), 1.0
    v = (density(-margin - t) - density(margin - t)) / mass
    w = v * v + ((margin - t) * density(margin - t) + (margin + t) * density(-margin - t)) / mass
    return v, w


class Ratings:
    """Elo and TrueSkill of all players of a league, from their games."""

    def __init__(self) -> None:
        self.elo: dict[str, float] = {}
        self.skill: dict[str, Skill] = {}

    def add(self, name: str, parent: str = "") -> None:
        """A player as strong as its parent; one that begins, or begins anew, without one."""
        self.elo[name] = self.elo[parent] if parent else ELO
        self.skill[name] = self.skill[parent] if parent else Skill()

    def report(self, first: str, second: str, scores: Sequence[float]) -> None:
        """Games in their order; those of a player against itself say nothing."""
        if first == second:
            return
        ratings, skills = (self.elo[first], self.elo[second]), (self.skill[first], self.skill[second])
        for score in scores:
            ratings, skills = elo(*ratings, score), trueskill(*skills, score)
        self.elo[first], self.elo[second] = ratings
        self.skill[first], self.skill[second] = skills

    def numbers(self, name: str) -> dict[str, float]:
        return {f"elo/{name}": self.elo[name], f"trueskill/{name}": self.skill[name].mean}

    def state(self) -> State:
        return State({}, {"elo": dict(self.elo), "skill": {name: list(skill) for name, skill in self.skill.items()}})

    def restore(self, state: State) -> None:
        self.elo = {str(name): read_number(value) for name, value in state.scalars["elo"].items()}
        skills = state.scalars["skill"].items()
        self.skill = {str(name): Skill(*(read_number(x) for x in pair)) for name, pair in skills}
        if self.elo.keys() != self.skill.keys():
            raise ValueError("the ratings are of different players")
