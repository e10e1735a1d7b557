"""Kuhn poker: its rules against a plain game, its exact exploitability against what is known of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ganglion.envs.kuhn import KuhnConfig
from ganglion.league.kuhn_exploitability import exploitability, value

ENDS = {"pp": (1, "show"), "bp": (1, "first"), "bb": (2, "show"), "pbp": (1, "second"), "pbb": (2, "show")}


def test_rules_against_a_plain_game() -> None:
    env = KuhnConfig(slots=64).build()
    step, generator = env.reset(5), torch.Generator().manual_seed(1)
    said, seen = [""] * 32, set()
    for _ in range(40):
        cards = step.obs["obs"][:, :3].argmax(-1).view(2, 32).T.tolist()
        assert all(a != b for a, b in cards)
        action = torch.randint(2, (64,), generator=generator)
        turn, before = step.acts.view(2, 32), step.valid.view(2, 32)[0]
        step = env.step(action)
        for copy in range(32):
            if not before[copy]:
                said[copy] = ""
                continue
            who = len(said[copy]) % 2
            assert turn[:, copy].tolist() == [who == 0, who == 1]
            said[copy] += "pb"[action.view(2, 32)[who, copy]]
            reward = step.reward.view(2, 32)[:, copy].tolist()
            over = bool(step.terminated.view(2, 32)[0, copy])
            assert over == (said[copy] in ENDS)
            amount, how = ENDS.get(said[copy], (0, "first"))
            first = (cards[copy][0] > cards[copy][1]) if how == "show" else how == "first"
            assert reward == [amount if first else -amount, -amount if first else amount]
            seen |= {said[copy]} if over else set()
    assert seen == set(ENDS)


def equilibrium(alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Kuhn's family for the first, and the one of the second."""
    first, second = np.zeros((3, 4)), np.zeros((3, 4))
    first[:, 0] = [alpha, 0, 3 * alpha]
    first[:, 3] = [0, alpha + 1 / 3, 1]
    second[:, 1] = [1 / 3, 0, 1]
    second[:, 2] = [0, 1 / 3, 1]
    return first, second


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_equilibria_cannot_be_exploited(alpha: float) -> None:
    first, second = equilibrium(alpha)
    assert value(first, second) == pytest.approx(-1 / 18)
    assert exploitability(first, second) == pytest.approx(0.0, abs=1e-12)


def test_a_uniform_strategy_can() -> None:
    half = np.full((3, 4), 0.5)
    assert exploitability(half, half) == pytest.approx(11 / 24)
    first, second = equilibrium(0.2)
    assert exploitability(half, second) > 0 and exploitability(first, half) > 0


def test_the_value_is_what_the_world_pays() -> None:
    env = KuhnConfig(slots=2_048).build()
    env.reset(0)
    generator, paid = torch.Generator().manual_seed(2), []
    for _ in range(200):
        env.step(torch.randint(2, (2_048,), generator=generator))
        paid += [e.total for e in env.episodes() if e.slot < 1_024]
    half = np.full((3, 4), 0.5)
    assert np.mean(paid) == pytest.approx(value(half, half), abs=4 * np.std(paid) / len(paid) ** 0.5)
