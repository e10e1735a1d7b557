"""A person at a board game against an agent: moves that are typed, a page on this machine, the tree as a picture."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ganglion
from ganglion.analysis.pictures import TreeNode, layout
from ganglion.cli import human, main
from ganglion.envs.board_games import rules_of
from ganglion.errors import UserError

TINY = ["algo.simulations=4", "algo.net.hidden=[8]", "train.budget=200 steps", "env.slots=4", "eval=never",
        "algo.limiter={warmup: 50, opt_interval: 50}", "run.device=cpu", "run.fast=eager"]  # fmt: skip


class FirstLegal:
    """Plays the first legal action."""

    def start(self, slots: int) -> None:
        return None

    def predict(self, obs: dict[str, torch.Tensor], past: None) -> SimpleNamespace:
        return SimpleNamespace(action=obs["action_mask"].long().argmax(-1))


def against(name: str, side: int | None = None) -> human.SavedOpponent:
    return human.SavedOpponent(FirstLegal(), rules_of(name, side))


def typed(match: human.HumanMatch, lines: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    human.in_terminal(match, lambda _: lines.pop(0) if lines else "q")
    return capsys.readouterr().out


def test_a_game_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    said = typed(human.HumanMatch(against("tictactoe"), 0), ["1 1", "what", "9 9", "1,1", "1 2", "1 0"], capsys)
    assert "'what' is no move. Accepted: row and column, as 1 2." in said and "1,1 is not allowed now." in said
    assert "(o)" in said and said.rstrip().endswith("You win.")


def test_the_agent_begins_and_wins(capsys: pytest.CaptureFixture[str]) -> None:
    match = human.HumanMatch(against("tictactoe"), 1)
    assert match.moves == [0] and match.cells()[0] == 1
    assert typed(match, ["2 2", "2 1"], capsys).rstrip().endswith("The agent wins.")
    assert match.told()["over"] and match.told()["legal"] == []


def test_columns_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    said = typed(human.HumanMatch(against("connect_four"), 0), ["3", "7", "3"], capsys)
    assert "a column from 0 to 6" in said and "'7' is no move" in said and said.count("x") > 3
    match = human.HumanMatch(against("othello", 6), 0)
    assert match.told()["passes"] and human.action_of("pass", match) == 36 and 36 not in match.legal()


@pytest.fixture
def port() -> Iterator[int]:
    with human.server(human.SharedMatch(against("tictactoe"), 0), 0) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served.server_address[1]
        served.shutdown()
        thread.join()


def asked(
    port: int, path: str, given: object = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, object]]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    body = None if given is None else json.dumps(given)
    link.request(
        "POST" if body else "GET", path, body, {"Content-Type": "application/json"} if headers is None else headers
    )
    answer = link.getresponse()
    raw = answer.read()
    link.close()
    return answer.status, json.loads(raw) if raw.startswith(b"{") else {"page": raw.decode()}


def test_a_game_on_a_page(port: int) -> None:
    assert "<title>Ganglion: play</title>" in str(asked(port, "/")[1]["page"])
    code, state = asked(port, "/move", {"action": 4})
    assert code == 200 and state["cells"] == [2, 0, 0, 0, 1, 0, 0, 0, 0]
    assert asked(port, "/move", {"action": 4}) == (400, {"error": "4 is no legal move here."})
    for wrong in ({"action": "4"}, {"action": True}, {}, [4]):
        assert asked(port, "/move", wrong)[0] == 400
    assert asked(port, "/new", {"human": 1})[1]["cells"][0] == 1
    assert asked(port, "/new", {"human": 2})[0] == 400
    assert asked(port, "/nothing")[0] == 404


def test_other_pages_are_refused(port: int) -> None:
    """By name of the machine (a rebound name), and by the form that a page of elsewhere could send."""
    assert asked(port, "/state", headers={"Host": "example.org"})[0] == 403
    assert asked(port, "/move", {"action": 1}, {"Content-Type": "text/plain"})[0] == 403
    assert asked(port, "/state")[1]["cells"] == [0] * 9


def test_where_nodes_are_drawn() -> None:
    nodes = [TreeNode(-1, -1, 4, 0.0), TreeNode(0, 1, 2, 0.1), TreeNode(0, 2, 1, 0.2), TreeNode(1, 0, 1, 0.3)]
    places, height = layout(nodes)
    assert height == 2 and [x for x, _ in places] == [0, 1, 1, 2]
    assert places[0][1] == 0.5 and places[3][1] == places[1][1] != places[2][1]


def test_of_a_saved_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent searches; a picture of that is written; other runs are refused in a line."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", "tictactoe/alphazero", *TINY]) == 0
    (made,) = (str(folder) for folder in Path("runs").iterdir() if folder.is_dir())
    capsys.readouterr()
    assert len(human.HumanMatch(human.opponent(Path(made), "last"), 1).moves) == 1
    pytest.importorskip("matplotlib")
    assert main(["play", made, "--last", "--tree", "tree.svg", "--moves", "4,0"]) == 0
    assert "5 visits" in capsys.readouterr().out and (tmp_path / "tree.svg").read_text().startswith("<?xml")
    for arguments, why in {
        ("--tree", "tree.svg", "--moves", "4,4"): "--moves: 4 is no legal move",
        ("--tree", "tree.svg", "--moves", "x"): "--moves: 'x' should be numbers from 0 to 8",
        ("--tree", "tree.txt"): "should end in one of",
        ("--browser",): "--browser: goes with --human",
    }.items():
        assert main(["play", made, "--last", *arguments]) == 2
        assert why in capsys.readouterr().err


def test_runs_of_other_worlds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from ganglion.runtime import run

    cfg = ganglion.load_config("cartpole/dqn", [])
    monkeypatch.setattr(run, "load_agents", lambda *_: (cfg, [(None, None)], None))
    with pytest.raises(UserError, match="CartPole-v1 is no board game"):
        human.opponent("x", "best")
