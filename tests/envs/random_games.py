"""Random games by number: as ours play them, as open_spiel does, and what both should come to.

`python -m tests.envs.random_games` writes random_games.json by open_spiel, for machines without it.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import torch

from ganglion.envs.board_games import rules_of

FILE = Path(__file__).with_name("random_games.json")
GAMES = {"tictactoe": ("tic_tac_toe", 3_000), "connect_four": ("connect_four", 2_000), "othello": ("othello", 1_000)}


def digest(games: list[list[int]], won: list[int]) -> str:
    """Of the actions of each game, and of whether who began has won it (1), lost it (-1) or neither (0)."""
    return hashlib.sha256(json.dumps([games, won]).encode()).hexdigest()


def ours(name: str) -> str:
    rules, count = rules_of(name), GAMES[name][1]
    dice, live = [random.Random(k) for k in range(count)], list(range(count))
    games: list[list[int]] = [[] for _ in range(count)]
    won, boards, turn = [0] * count, rules.start().expand(count, -1), 0
    while live:
        legal = [row.nonzero()[:, 0].tolist() for row in rules.legal(boards)]
        actions = [dice[k].choice(able) for k, able in zip(live, legal, strict=True)]
        for k, action in zip(live, actions, strict=True):
            games[k].append(action)
        boards, reward, ended = rules.play(boards, torch.tensor(actions))
        for k, x, over in zip(live, reward.tolist(), ended.tolist(), strict=True):
            if over:
                won[k] = int(x) * (-1) ** turn
        boards, live, turn = (
            boards[~ended],
            [k for k, over in zip(live, ended.tolist(), strict=True) if not over],
            1 - turn,
        )
    return digest(games, won)


def theirs(name: str, spiel: Any) -> str:
    kind, count = GAMES[name]
    game, games, won = spiel.load_game(kind), [], []
    for k in range(count):
        state, dice, actions = game.new_initial_state(), random.Random(k), []
        while not state.is_terminal():
            actions.append(dice.choice(state.legal_actions()))
            state.apply_action(actions[-1])
        games.append(actions)
        won.append(int(state.returns()[0]))
    return digest(games, won)


def main() -> None:
    import pyspiel

    FILE.write_text(json.dumps({name: theirs(name, pyspiel) for name in GAMES}, indent=1) + "\n")


if __name__ == "__main__":
    main()
