"""What is shown of a league, and games of its players."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ganglion.cli import main
from ganglion.config import RunConfig
from ganglion.runtime.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("league") / "run"
    run = Run.create(
        RunConfig.model_validate({
            "algo": {"kind": "ppo", "horizon": 8, "minibatches": 1, "net": {"hidden": [8]}},
            "env": {"kind": "kuhn", "slots": 16},
            "league": {"kind": "league", "phase": 40, "measured": 16,
                       "players": {"ann": "main", "bob": "main_exploiter"}},
            "train": {"budget": "2k steps"}, "eval": "never", "log": {"every": "200 steps", "writers": ["jsonl"]},
            "run": {"dir": str(where)},
        })
    )  # fmt: skip
    for _ in run.stream():
        pass
    run.close()
    return where


@pytest.mark.parametrize("width", [80, 200])
def test_the_tables_fit_the_terminal(folder: Path, width: int, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["league", str(folder)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= width
    for title in ("Players: ", "Payoff", "Ratings over time", "Who plays whom", "Lineage"):
        assert title in said
    assert "ann -> ann-1 at " in said and "main exploiter" in said


def test_a_picture_and_json(folder: Path, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    assert main(["league", str(folder), "--out", str(tmp_path / "x.svg")]) == 0
    assert "<svg" in (tmp_path / "x.svg").read_text()[:500]
    assert main(["league", str(folder), "--out", str(tmp_path / "x.odd")]) == 2
    capsys.readouterr()
    assert main(["league", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["names"][:2] == ["ann", "bob"] and len(told["games"]) == len(told["names"])


def test_games_of_two_players(folder: Path, capsys) -> None:
    for words in (["--against", "bob-1"], ["--player", "bob-1", "--against", "ann"]):
        assert main(["eval", str(folder), *words, "--episodes", "64", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["player"] == "ann" and first["episodes"] == 64 and second["against"] == "ann"
    assert first["interval"][0] < first["win_rate"] < first["interval"][1]
    assert main(["eval", str(folder), "--against", "bbo-1"]) == 2
    assert "Did you mean 'bob-1'?" in capsys.readouterr().err


def test_a_match_is_drawn(tmp_path: Path, capsys) -> None:
    """Of the games of two players, as of a saved agent; Kuhn poker cannot be drawn."""
    imageio = pytest.importorskip("imageio.v2")
    where = tmp_path / "run"
    run = Run.create(
        RunConfig.model_validate({
            "algo": {"kind": "ppo", "horizon": 8, "minibatches": 1, "net": {"hidden": [8]}},
            "env": {"kind": "board_turns", "id": "tictactoe", "slots": 16}, "train": {"budget": "600 steps"},
            "league": {"kind": "uniform", "phase": 10, "players": {"ann": "main"}}, "eval": "never",
            "log": {"writers": ["jsonl"]}, "run": {"dir": str(where), "device": "cpu", "fast": "eager"},
        })
    )  # fmt: skip
    for _ in run.stream():
        pass
    run.save()
    run.close()
    assert main(["play", str(where), "--players", "ann", "ann-1", "--out", str(tmp_path / "match.gif")]) == 0
    frames = imageio.mimread(tmp_path / "match.gif")
    assert 6 <= len(frames) <= 10 and frames[0].shape[:2] == (144, 144)
    assert main(["play", str(where)]) == 0 and list((where / "videos").glob("*.gif"))
    for names, said in ((["ann", "bob"], "--players: there is no player 'bob'"), (["a", "b", "c"], "one or two names")):
        assert main(["play", str(where), "--players", *names]) == 2
        assert said in capsys.readouterr().err


def test_what_cannot_be_drawn_is_refused(folder: Path, capsys) -> None:
    assert main(["play", str(folder), "--players", "ann", "bob"]) == 2
    assert "cannot be drawn" in capsys.readouterr().err
