"""Board games of two agents: the same games as those where one slot plays both sides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ganglion.envs.board_games import rules_of
from ganglion.envs.board_turns import BoardTurns, BoardTurnsConfig
from ganglion.errors import UserError


@pytest.mark.parametrize("name", ["tictactoe", "connect_four", "othello"])
def test_random_games_follow_the_rules(name: str) -> None:
    rules, copies = rules_of(name), 6
    env, dice = BoardTurns(rules, 2 * copies), torch.Generator().manual_seed(0)
    step, boards, mover = env.reset(0), rules.start().repeat(copies, 1), torch.zeros(copies, dtype=torch.long)
    ended = 0
    for _ in range(150):
        legal = rules.legal(boards)
        mask = step.obs["action_mask"].view(2, copies, -1)
        acts, seen = step.acts.view(2, copies), step.obs["obs"].view(2, copies, 2, -1)
        for k in range(copies):
            who = int(mover[k])
            assert acts[who, k] and not acts[1 - who, k]
            assert torch.equal(mask[who, k].bool(), legal[k]) and not mask[1 - who, k, 1:].any()
            mine = (seen[who, k, 0] - seen[who, k, 1]).double()
            assert torch.equal(mine, boards[k]) and torch.equal(seen[1 - who, k].flip(0), seen[who, k])
        chosen = torch.multinomial(legal.double() + ~legal.any(1, keepdim=True), 1, generator=dice)[:, 0]
        action = torch.where(acts, chosen, 0).flatten()
        alive = step.valid.view(2, copies)[0]
        after, reward, over = rules.play(boards, chosen)
        step = env.step(action)
        for k in range(copies):
            if not alive[k]:
                boards[k], mover[k] = rules.start(), 0
                continue
            who = int(mover[k])
            gained = step.reward.view(2, copies)
            assert float(gained[who, k]) == float(reward[k]) == -float(gained[1 - who, k])
            assert bool(step.terminated.view(2, copies)[who, k]) == bool(over[k])
            ended += int(over[k])
            boards[k], mover[k] = after[k], 1 - who
    assert ended >= 6


def test_it_can_be_drawn() -> None:
    env = BoardTurns(rules_of("connect_four"), 4)
    env.reset(0)
    env.step(torch.tensor([3, 3, 0, 0]))
    env.step(torch.tensor([0, 0, 3, 3]))
    drawn = env.render()
    assert drawn.shape == (6 * 48, 7 * 48, 3) and drawn.dtype == np.uint8
    middle = [drawn[row * 48 + 24, 3 * 48 + 24].tolist() for row in (5, 4, 3)]
    assert middle == [[200, 40, 40], [230, 190, 40], [245, 245, 245]], "red first, yellow on it"


def test_sides_that_do_not_fit() -> None:
    with pytest.raises(UserError, match=r"env.side: the board of tictactoe has one size"):
        BoardTurnsConfig(id="tictactoe", side=4, slots=2).build()
