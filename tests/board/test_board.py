"""The board: what it shows, whom it answers, and that a browser fills the page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ganglion.board.server import BoardServer
from ganglion.board.view import Chosen, Runs, parts
from ganglion.cli import main
from tests.analysis.test_compare import make

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    for seed in range(3):
        make(folder / f"good-{seed}", "ppo", seed, [10, 100 + seed])
        make(folder / f"poor-{seed}", "ppo", seed, [10, 50 + seed], lr=0.2)
    (folder / "good-0" / "agent.gif").write_bytes(b"GIF89a")
    (tmp_path / "secret.gif").write_bytes(b"secret")
    return folder


@pytest.fixture
def board(study: Path) -> Iterator[BoardServer]:
    with BoardServer(study, 0) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def get(board: BoardServer, path: str, host: str | None = None, method: str = "GET") -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", board.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{board.server_port}")
    connection.endheaders()
    return connection.getresponse()


def view(board: BoardServer, query: str = "") -> dict[str, Any]:
    answer = get(board, f"/view?{query}")
    assert answer.status == 200
    found: dict[str, Any] = json.loads(answer.read())
    return found


def test_what_is_shown(board: BoardServer) -> None:
    told = view(board)
    shown = told["parts"]
    assert told["groups"] == ["CartPole-v1/ppo lr=0.1", "CartPole-v1/ppo lr=0.2"]
    assert "is better than" in shown["table"] and shown["curves"].count("<polygon") == 2
    assert "algo.lr" in shown["settings"] and "agent.gif" in shown["videos"] and "load" in shown["load"]
    one = view(board, "hidden=CartPole-v1/ppo+lr%3D0.1")["parts"]
    assert one["curves"].count("<polygon") == 1 and one["settings"] == "" and one["videos"] == ""
    kept = {line.split('"')[1] for line in shown["curves"].split("<i style=")[1:]}
    assert {line.split('"')[1] for line in one["curves"].split("<i style=")[1:]} < kept  # its colour stays
    assert view(board, "word=poor")["groups"] == ["CartPole-v1/ppo"]
    assert view(board, "metric=nothing")["metric"] == "eval/return_mean"


def test_runs_appear_grow_and_break(board: BoardServer, study: Path) -> None:
    view(board)
    with open(study / "good-0" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "evaluate", "env_steps": 9000, "eval/return_mean": 777}\n{"kind"')
    make(study / "new", "dqn", 0, [1])
    make(study / "bad", "dqn", 0, [1])
    (study / "bad" / "config.yaml").write_text("algo: [")
    make(study / "evil", "dqn", 0, [1, 2], env=f'"{EVIL}"')
    shown = view(board)["parts"]
    assert "777" in shown["table"] and "new" in shown["table"]
    assert "bad:" in shown["notes"]
    assert EVIL not in "".join(shown.values())


def test_nobody_else_is_answered(board: BoardServer) -> None:
    """A name that points here (DNS rebinding), other methods, files that were not listed."""
    port = board.server_port
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", f"[::1]:{port}"):
        assert get(board, "/view", host).status == 403, host
    assert get(board, "/", f"localhost:{port}").status == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        assert get(board, "/", method=method).status >= 400, method
    for path in (
        "/video/../secret.gif", "/video/%2e%2e/secret.gif", "/video//etc/passwd", "/video/good-0/config.yaml",
        "/video/good-0/../good-0/agent.gif", "/etc/passwd", "/view/../..", "/video/",
    ):  # fmt: skip
        view(board)
        assert get(board, path).status == 404, path
    assert get(board, "/view?" + "x" * 5_000).status == 414
    assert board.server_address[0] == "127.0.0.1"


def test_videos_are_sent_and_links_are_not(board: BoardServer, study: Path) -> None:
    os.symlink(study.parent / "secret.gif", study / "good-1" / "secret.gif")
    shown = view(board)["parts"]
    answer = get(board, "/video/good-0/agent.gif")
    assert (answer.status, answer.read(), answer.headers["Content-Type"]) == (200, b"GIF89a", "image/gif")
    assert "secret" not in shown["videos"]
    assert get(board, "/video/good-1/secret.gif").status == 404
    (study / "good-0" / "agent.gif").unlink()  # exchanged after it was listed
    os.symlink(study.parent / "secret.gif", study / "good-0" / "agent.gif")
    with pytest.raises(Exception):  # noqa: B017
        get(board, "/video/good-0/agent.gif").read()


def test_a_page_loads_nothing_from_elsewhere(board: BoardServer) -> None:
    answer = get(board, "/")
    policy = answer.headers["Content-Security-Policy"]
    text = answer.read().decode()
    assert "default-src 'none'" in policy and "http" not in text.replace("http-equiv", "")
    assert policy.split("'nonce-")[1].split("'")[0] in text


def test_nothing_yet(tmp_path: Path) -> None:
    told = parts(Runs(tmp_path), Chosen())
    assert "No runs below" in told["parts"]["table"] and told["groups"] == []


def test_bad_input(tmp_path: Path, board: BoardServer, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        ([str(tmp_path / "nowhere")], "is not a folder"),
        ([str(tmp_path), "--port", "70000"], "between 0 and 65535"),
        ([str(tmp_path), "--port", str(board.server_port)], "cannot be listened on"),
    ):
        assert main(["board", *words]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="needs Chromium")
def test_a_browser_fills_the_page(board: BoardServer, tmp_path: Path) -> None:
    browser = next(path for path in map(shutil.which, BROWSERS) if path)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [browser, *flags, "--virtual-time-budget=8000", "--dump-dom", board.url]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert out.count("<polyline") == 2 and "is better than" in out and "agent.gif" in out
    assert out.count('type="checkbox"') == 2 and '<option value="eval/return_mean">' in out
