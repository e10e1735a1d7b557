"""Episodic bonuses beside the papers' formulas, row by row in float64; what slots carry of them."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch

from ganglion import registry
from ganglion.core import Progress
from tests.contract.worlds import DQN, PPO, RND, THREE, TWO, Bench, Case, over

ROWS, SLOTS, SIZE = 9, 3, 5


def walk(kind: str, **settings: Any) -> tuple[Any, Any]:
    """Features of an episode, some of them twice, and the bonus of each, [T, B, n] and [T, B]."""
    cfg = registry.lookup("bonus", kind).model_validate({"features": SIZE, "net": {"hidden": [8]}, **settings})
    bonus = cfg.bonus(Case("", "ppo", TWO).spec())
    features = torch.randn(ROWS, SLOTS, SIZE, generator=torch.Generator().manual_seed(3))
    features[4], features[6, 0] = features[1], features[3, 0] + 1e-3
    known, news = bonus.begin(SLOTS), []
    for row in features:
        new, known = bonus.novelty(row[None], known)
        news.append(new[0])
    return features.double().numpy(), torch.stack(news).double().numpy()


@pytest.mark.parametrize("capacity", [16, 4])
def test_ngu(capacity: int) -> None:
    """Badia et al. 2020, algorithm 1, over the last `capacity` observations of the episode."""
    k, width, same, floor, most = 3, 0.01, 0.008, 1e-3, 1.4
    features, news = walk("ngu", capacity=capacity, neighbours=k, width=width, same=same, floor=floor, most=most)
    for b in range(SLOTS):
        distances: list[float] = []
        for t in range(ROWS):
            before = features[max(0, t - capacity) : t, b]
            near = sorted(float(((features[t, b] - x) ** 2).sum()) for x in before)[:k]
            distances += near
            expected = 0.0
            if near:
                usual = sum(distances) / len(distances)
                alike = sqrt(sum(width / (max(d / usual - same, 0.0) + width) for d in near)) + floor
                expected = 0.0 if alike > most else 1 / alike
            assert news[t, b] == pytest.approx(expected, rel=1e-3), (t, b)


def test_ngu_pays_nothing_for_what_is_known_too_well() -> None:
    _, news = walk("ngu", neighbours=3, most=1e-2)
    assert (news == 0).all()


def test_e3b() -> None:
    """Henaff et al. 2022: f C^-1 f, the matrix inverted anew for each observation."""
    ridge = 0.3
    features, news = walk("e3b", ridge=ridge)
    for b in range(SLOTS):
        matrix = ridge * np.eye(SIZE)
        for t in range(ROWS):
            f = features[t, b]
            assert news[t, b] == pytest.approx(f @ np.linalg.inv(matrix) @ f, rel=1e-3)
            matrix += np.outer(f, f)


@pytest.mark.parametrize("kind", ["ngu", "e3b"])
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_rows_keep_the_bonus_of_an_episode_of_their_own(kind: str, algo: str) -> None:
    """Each slot's episode begins with nothing known: rewards stay the environment's, the bonus is among the extras."""
    settings = over(PPO if algo == "ppo" else DQN, bonus=over(RND, kind=kind, features=4, episodic=True))
    bench = Bench(Case(algo, algo, THREE, settings=settings))
    fresh, at, starts = bench.algo.bonus.begin(bench.seat.count), Progress(), 0
    for _ in range(40):
        begins = bench.seat.past.start[0].clone()
        begun = bench.agent.begun(bench.seat.past).carried
        for own, first in zip(begun, fresh, strict=True):
            assert torch.equal(own[:, begins], first[:, begins])
        starts += int(begins.sum())
        at = bench.explorer.step(at).at
        while bench.learner.owes(at):
            at = bench.learner.step(at).at
    assert starts > bench.seat.count and at.opt_steps > 0
