"""Matrix games: rewards, what is seen, and that the agents of a slot's copy are of the same copy at the same time."""

from __future__ import annotations

import pytest
import torch

import ganglion
from ganglion.core import CENTRAL, Discrete
from ganglion.envs.matrix_games import CLIMBING, MatrixConfig
from ganglion.errors import UserError

TABLES = {
    "climbing": (CLIMBING, CLIMBING),
    "penalty": (((10, 0, -7), (0, 2, 0), (-7, 0, 10)),) * 2,
    "prisoners_dilemma": (((-1, -20), (0, -10)), ((-1, 0), (-20, -10))),
    "zero_sum": (((3, -2), (-2, 1)), ((-3, 2), (2, -1))),
}


@pytest.mark.parametrize("game", TABLES)
def test_rewards_are_those_of_the_table(game: str) -> None:
    """Random actions of both agents in many copies, rewards by hand; permuting the copies permutes what they get."""
    k = {"k": -7} if game == "penalty" else {}
    env = MatrixConfig(id=game, slots=14, rounds=3, **k).build()
    assert env.spec.agents == ("first", "second") and env.spec.copies == 7
    first = env.reset(3)
    assert first.obs["obs"].tolist() == [[1.0, 0.0]] * 7 + [[0.0, 1.0]] * 7 and first.obs[CENTRAL].shape == (14, 1)
    assert isinstance(env.spec.action, Discrete)
    generator, count = torch.Generator().manual_seed(0), env.spec.action.n
    for turn in range(1, 9):
        action = torch.randint(count, (14,), generator=generator)
        step = env.step(action)
        both = zip(action[:7].tolist(), action[7:].tolist(), strict=True)
        wanted = [[table[a][b] for table in TABLES[game]] for a, b in both]
        if turn % 4:  # every fourth begins an episode
            assert step.reward.view(2, 7).T.tolist() == wanted
        assert bool(step.truncated.all()) == (turn % 4 == 3) and not step.terminated.any()


def test_k_is_of_penalty_alone() -> None:
    with pytest.raises(UserError, match=r"env.k: climbing has no such setting; penalty has."):
        MatrixConfig(id="climbing", k=-1.0).build()
    with pytest.raises(UserError, match=r"Accepted|climbing"):
        ganglion.load_config(None, ["algo=ppo", "env={kind: matrix, id: climing}"])
