"""Who plays whom, snapshots, mutation and reset; the state is all of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from ganglion.config import MatchmakerConfig
from ganglion.core import under
from ganglion.league.players import League

PLAYERS = {"main": "main", "exploiter": "main_exploiter", "hunter": "league_exploiter"}


def begun(players: dict[str, str] = PLAYERS, **more: object) -> League:
    cfg = MatchmakerConfig.model_validate({"kind": "league", "players": players, "phase": 10, **more})
    return League(cfg)  # type: ignore[arg-type]


def grown(**more: object) -> League:
    """A main player, an exploiter of each kind, and two snapshots of the main player."""
    league = begun(**more)
    league.snapshot("main", lambda: 0.5)
    league.snapshot("main", lambda: 0.5)
    return league


def shares(league: League, name: str, count: int = 8_000) -> dict[str, float]:
    dice = random.Random(0)
    met = Counter(league.cfg.opponent(league, name, dice.random) for _ in range(count))
    return {n: met[n] / count for n in met}


def win(league: League, one: str, other: str, score: float, games: int = 40) -> None:
    league.payoff.report(one, other, [score] * games, [2 * score - 1] * games)


def test_alone_a_player_plays_itself() -> None:
    league = begun()
    assert shares(league, "main", 10) == {"main": 1.0}
    assert shares(league, "exploiter", 10) == shares(league, "hunter", 10) == {"main": 1.0}


def test_the_mix_of_a_main_player() -> None:
    league = grown()
    met = shares(league, "main")
    assert met["main"] == pytest.approx(0.35, abs=0.02) and met["main-1"] == pytest.approx(0.325, abs=0.02)
    win(league, "main", "main-2", 0.0)  # forgotten how: four times as often as the one with half of the games won
    met = shares(league, "main")
    assert met["main"] == pytest.approx(0.35, abs=0.02)
    assert met["main-2"] == pytest.approx(0.65 * 0.8, abs=0.02)
    league.snapshot("exploiter", lambda: 0.5)
    win(league, "main", "exploiter-1", 0.0)  # exploiters come first
    met = shares(league, "main")
    assert met["exploiter-1"] == pytest.approx(0.15 + 0.5 * 4 / 9, abs=0.02)


def test_all_won() -> None:
    league = grown()
    for name in ("main-1", "main-2"):
        win(league, "main", name, 1.0)
        win(league, "hunter", name, 1.0)
    assert shares(league, "main")["main-1"] == pytest.approx(0.25, abs=0.02)
    assert shares(league, "hunter")["main-1"] == pytest.approx(0.5, abs=0.02)


def test_an_exploiter_meets_earlier_selves_of_one_too_strong() -> None:
    league = grown()
    assert shares(league, "exploiter", 50) == {"main": 1.0}
    win(league, "exploiter", "main", 0.0)
    win(league, "exploiter", "main-2", 0.0)  # hopeless: no variance
    assert shares(league, "exploiter", 50) == {"main-1": 1.0}


@pytest.mark.parametrize(
    ("matchmaker", "wanted"),
    [("self", {"main": 1.0}), ("uniform", {"main-1": 0.5, "main-2": 0.5}), ("pfsp", {"main-1": 0.2, "main-2": 0.8}),
     ("psro", {"main-2": 1.0})],
)  # fmt: skip
def test_other_matchmakers(matchmaker: str, wanted: dict[str, float]) -> None:
    league = grown(kind=matchmaker)
    win(league, "main", "main-2", 0.0)
    win(league, "main-2", "main-1", 1.0)
    assert shares(league, "main", 2_000 if matchmaker != "psro" else 5) == pytest.approx(wanted, abs=0.03)


def test_snapshots_mutation_and_reset() -> None:
    league = grown(mutation=0.25)
    assert not league.due("main")
    league.report("exploiter", "main", [1.0] * 10)
    assert league.due("exploiter") and not league.due("main-1")
    assert league.snapshot("exploiter", lambda: 0.99) == ("exploiter-1", True)
    assert league.players["exploiter"].resets == 1 and league.players["exploiter"].games == 0
    assert league.payoff.win_rate("exploiter", "main") == 0.5
    assert league.players["exploiter-1"].parent == "exploiter"
    assert league.snapshot("hunter", lambda: 0.2) == ("hunter-1", True)
    assert league.snapshot("hunter", lambda: 0.3) == ("hunter-2", False)
    assert league.snapshot("main", lambda: 0.0) == ("main-3", False)


def test_trained_enough_after_two_phases_or_one_where_all_are_beaten() -> None:
    league = grown()
    league.report("main", "main-1", [0.0] * 10)
    assert not league.due("main")
    league.report("main", "main-1", [0.0] * 10)
    assert league.due("main")
    strong = grown()
    strong.report("main", "main-1", [1.0] * 10)
    strong.report("main", "main-2", [1.0] * 10)
    strong.players["main"] = replace(strong.players["main"], phases=1)
    assert strong.due("main")


def test_its_state_is_all_of_it() -> None:
    league = grown()
    win(league, "main", "main-2", 0.0)
    again = begun()
    again.restore(league.state())
    assert again.players == league.players and again.state() == league.state()
    assert shares(again, "main", 200) == shares(league, "main", 200)
    with pytest.raises(ValueError, match="is no role"):
        again.restore(league.state()._replace(scalars={**league.state().scalars, "own/players": [["a", "x", "", 0]]}))
    other = begun({"main": "main"})
    forged = {f"payoff/{name}": value for name, value in under(other.state(), "payoff").scalars.items()}
    with pytest.raises(ValueError, match="other players"):
        again.restore(league.state()._replace(scalars={**league.state().scalars, **forged}))


@pytest.mark.parametrize(
    ("players", "said"),
    [
        ({"hunter": "league_exploiter"}, "role 'main'"),
        ({"main": "mian"}, "'main', 'main_exploiter' or 'league_exploiter'"),
        ({"main-1": "main"}, "snapshot"),
    ],
)
def test_players_that_are_refused(players: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        begun(players)
