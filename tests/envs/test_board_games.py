"""Board games against open_spiel, move by move; what an opponent does; symmetries."""

from __future__ import annotations

import json
import random

import pytest
import torch

from ganglion.envs.board_games import BoardGame, InARow, best_moves, code, rules_of
from ganglion.errors import UserError
from ganglion.registry import lookup
from tests.envs import random_games

THEIRS = {"tictactoe": ("tic_tac_toe", 1_000), "connect_four": ("connect_four", 1_000), "othello": ("othello", 60)}


@pytest.mark.parametrize("name", THEIRS)
def test_every_move_is_that_of_open_spiel(name: str) -> None:
    """Random games beside each other: legal actions, endings and who won after every move."""
    pyspiel = pytest.importorskip("pyspiel", reason="open_spiel is compared with where it is installed")
    theirs, games = THEIRS[name]
    rules, spiel, dice = rules_of(name), pyspiel.load_game(theirs), random.Random(0)
    states = [spiel.new_initial_state() for _ in range(games)]
    boards, live = rules.start().expand(games, -1), list(range(games))
    while live:
        able = [row.nonzero()[:, 0].tolist() for row in rules.legal(boards)]
        assert able == [states[i].legal_actions() for i in live]
        actions = [dice.choice(legal) for legal in able]
        movers = [states[i].current_player() for i in live]
        boards, rewards, ended = rules.play(boards, torch.tensor(actions))
        for i, action in zip(live, actions, strict=True):
            states[i].apply_action(action)
        assert ended.tolist() == [states[i].is_terminal() for i in live]
        won = [states[i].returns()[mover] for i, mover in zip(live, movers, strict=True)]
        assert rewards.tolist() == won
        boards, live = boards[~ended], [i for i, over in zip(live, ended.tolist(), strict=True) if not over]


@pytest.mark.parametrize("name", random_games.GAMES)
def test_thousands_of_random_games_are_those_of_open_spiel(name: str) -> None:
    """Every action and every winner, as open_spiel has told them."""
    assert random_games.ours(name) == json.loads(random_games.FILE.read_text())[name]


@pytest.mark.parametrize("name", random_games.GAMES)
def test_what_open_spiel_has_told(name: str) -> None:
    pyspiel = pytest.importorskip("pyspiel", reason="open_spiel is asked where it is installed")
    assert random_games.theirs(name, pyspiel) == json.loads(random_games.FILE.read_text())[name]


def test_gomoku_is_won_by_five() -> None:
    rules = rules_of("gomoku", 7)
    board = rules.start()[None]
    for action in (0, 7, 1, 8, 2, 9, 3, 10):
        board, reward, ended = rules.play(board, torch.tensor([action]))
        assert not reward.any() and not ended.any()
    _, reward, ended = rules.play(board, torch.tensor([4]))
    assert reward.tolist() == [1.0] and ended.tolist() == [True]


def test_small_othello_ends_full_or_stuck() -> None:
    rules, board = rules_of("othello", 6), rules_of("othello", 6).start().expand(200, -1)
    dice = torch.Generator().manual_seed(0)
    for _ in range(80):
        legal = rules.legal(board)
        assert legal.any(-1).all()
        action = (torch.rand(legal.shape, generator=dice) * legal).argmax(-1)
        board, reward, ended = rules.play(board, action)
        assert torch.equal(reward[ended], -board[ended].sum(-1).sign())
        board = board[~ended]
    assert len(board) == 0


@pytest.mark.parametrize("name", ["tictactoe", "connect_four", "othello"])
def test_a_turned_board_is_played_alike(name: str) -> None:
    """Turning commutes with seeing, and with moving."""
    rules, dice = rules_of(name), torch.Generator().manual_seed(1)
    board = rules.start().expand(64, -1)
    for _ in range(5):
        obs = rules.show(board)
        action = (torch.rand(64, rules.actions, generator=dice) * obs["action_mask"]).argmax(-1)
        chosen = torch.nn.functional.one_hot(action, rules.actions).float()
        same = torch.rand(1, 64, generator=dice)
        turned, weights = rules.turned({k: x[None] for k, x in obs.items()}, chosen[None], same)
        seen = rules.read({k: x[0] for k, x in turned.items()})
        assert torch.equal(rules.legal(seen), turned["action_mask"][0])
        after, reward, ended = rules.play(board, action)
        other = rules.play(seen, weights[0].argmax(-1))
        again, _ = rules.turned({k: x[None] for k, x in rules.show(after).items()}, chosen[None], same)
        assert torch.equal(rules.show(other[0])["obs"], again["obs"][0])
        assert torch.equal(reward, other[1]) and torch.equal(ended, other[2])
        board = after


def test_the_perfect_opponent_of_tictactoe() -> None:
    """By itself it draws, as is known; nobody who plays at random ever beats it."""
    rules = rules_of("tictactoe")
    best = best_moves(rules)
    assert best[code(rules.start()[None])].all()  # every opening draws
    corner = rules.play(rules.start()[None], torch.tensor([0]))[0]
    assert best[code(corner)][0].nonzero()[:, 0].tolist() == [4]  # only the centre answers a corner
    env, dice = BoardGame(rules, 500, opponent="perfect"), torch.Generator().manual_seed(2)
    step, rewards = env.reset(0), []
    for _ in range(12):
        step = env.step((torch.rand(500, 9, generator=dice) * step.obs["action_mask"]).argmax(-1))
        rewards.append(step.reward[step.terminated])
    assert torch.cat(rewards).max() == 0 and torch.cat(rewards).min() == -1


def test_what_settings_refuse() -> None:
    config = lookup("env", "board")
    for settings, field in (({"id": "tictactoe", "side": 5}, "side"), ({"id": "othello", "side": 7}, "side"),
                            ({"id": "othello", "opponent": "perfect"}, "opponent")):  # fmt: skip
        with pytest.raises(UserError, match=f"env.{field}"):
            config.model_validate(settings).build()
    assert isinstance(config.model_validate({"id": "gomoku", "side": 5}).build().rules, InARow)
