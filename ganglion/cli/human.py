"""A person against a saved agent at a board game: in the terminal, or on a page that this machine alone can open."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion.cli.text import harmless, say
from ganglion.errors import UserError

HOST = "127.0.0.1"
PAGE = Path(__file__).with_name("human.html")
LARGEST = 10_000  # bytes of a request
SIGNS = "xo"  # of whoever begins, and of the other


class SavedOpponent(NamedTuple):
    """A saved agent, and the rules of the game it plays."""

    agent: Any
    rules: Any

    def action(self, board: Tensor) -> int:
        """What it does, [cells] as it sees them."""
        obs = self.rules.show(board[None])
        return int(self.agent.predict(obs, self.agent.start(1)).action[0])

    def prediction(self, board: Tensor) -> Any:
        """All that it says of a board."""
        obs = {name: x[None] for name, x in self.rules.show(board[None]).items()}
        past = self.agent.start(1)
        with torch.no_grad():
            return self.agent.algo.predict(obs, past, self.agent.algo.neutral(past.start))


def opponent(folder: Any, which: str) -> SavedOpponent:
    """The agent of a run, checked: it should play a board game both sides of which it can take."""
    from ganglion.runtime.run import load_agents

    cfg, made, _ = load_agents(folder, which)
    if len(made) != 1:
        raise UserError("--human: plays against runs of one player.")
    game = cfg.env.whole(slots=1, device="cpu")
    rules = game.spec.rules
    if rules is None:
        raise UserError(
            f"--human: {game.spec.name} is no board game whose two sides one agent plays. Accepted: env.kind board."
        )
    return SavedOpponent(made[0][1], rules)


class HumanMatch:
    """One game: the board as whoever moves sees it, and whose turn it is."""

    def __init__(self, against: SavedOpponent, human: int) -> None:
        """`human`: 0 begins, 1 comes second."""
        self.against, self.rules, self.human = against, against.rules, human
        self.board, self.turn, self.last = self.rules.start(), 0, -1
        self.over, self.winner = False, -1  # 0 or 1; -1: nobody
        self.moves: list[int] = []
        self.reply()

    def legal(self) -> list[int]:
        return [] if self.over else self.rules.legal(self.board[None])[0].nonzero()[:, 0].tolist()

    def play(self, action: int) -> None:
        """A move of whoever's turn it is."""
        board, reward, ended = self.rules.play(self.board[None], torch.tensor([action]))
        if bool(ended):
            self.over = True
            self.winner = -1 if not float(reward) else self.turn if float(reward) > 0 else 1 - self.turn
        self.board, self.turn, self.last = board[0], 1 - self.turn, action
        self.moves.append(action)

    def reply(self) -> None:
        """Moves of the agent, until it is the person's turn."""
        while not self.over and self.turn != self.human:
            self.play(self.against.action(self.board))

    def answer(self, action: int) -> None:
        """A move of the person, and what follows."""
        if action not in self.legal():
            raise UserError(f"{action} is no legal move here.")
        self.play(action)
        self.reply()

    def cells(self) -> list[int]:
        """1 for pieces of whoever began, 2 for the other's, 0 for none."""
        own = self.board if self.turn == 0 else -self.board
        return torch.where(own > 0, 1, torch.where(own < 0, 2, 0)).tolist()

    def result(self) -> str:
        if not self.over:
            return ""
        return "A draw." if self.winner < 0 else "You win." if self.winner == self.human else "The agent wins."

    def told(self) -> dict[str, Any]:
        """All that a page shows."""
        rows, columns = self.rules.shape
        return {
            "game": self.rules.name, "rows": rows, "columns": columns, "cells": self.cells(), "legal": self.legal(),
            "human": self.human, "last": self.last, "over": self.over, "result": self.result(),
            "drops": self.rules.actions == columns < rows * columns, "passes": self.rules.actions > rows * columns,
        }  # fmt: skip


# ------------------------------------------------------------ terminal


def in_terminal(match: HumanMatch, ask: Callable[[str], str] = input) -> None:
    """Asks for moves until the game is over."""
    rules = match.rules
    drops = match.told()["drops"]
    what = f"a column from 0 to {rules.actions - 1}" if drops else "row and column, as 1 2"
    say(f"{rules.name}: you are {SIGNS[match.human]}. A move is {what}; q ends the game.")
    while not match.over:
        say(*drawn(match))
        try:
            typed = ask("> ").strip()
        except EOFError:
            return
        if typed in ("q", "quit"):
            return
        action = action_of(typed, match)
        if action is None:
            say(f"{harmless(typed)[:40]!r} is no move. Accepted: {what}{', pass' if match.told()['passes'] else ''}.")
        elif action not in match.legal():
            say(f"{typed} is not allowed now.")
        else:
            match.answer(action)
    say(*drawn(match), match.result())


def drawn(match: HumanMatch) -> list[str]:
    """The board as lines, its columns and rows numbered; the last move in brackets."""
    (rows, columns), cells, last = match.rules.shape, match.cells(), match.last
    if match.told()["drops"] and last >= 0:  # the top piece of the column
        last = next(r for r in range(rows) if cells[r * columns + last]) * columns + last
    lines = ["   " + "".join(f"{c:^3}" for c in range(columns))]
    for r in range(rows):
        signs = ["." if not (x := cells[r * columns + c]) else SIGNS[x - 1] for c in range(columns)]
        shown = [f"({s})" if r * columns + c == last else f" {s} " for c, s in enumerate(signs)]
        lines.append(f"{r:>2} " + "".join(shown))
    return lines


def action_of(typed: str, match: HumanMatch) -> int | None:
    """The number of a move that was typed, or None where it is none."""
    rows, columns = match.rules.shape
    told = match.told()
    if told["passes"] and typed == "pass":
        return rows * columns
    parts = typed.replace(",", " ").split()
    if not all(part.isdecimal() and len(part) < 4 for part in parts):
        return None
    numbers = [int(part) for part in parts]
    if len(numbers) == 1 and told["drops"] and numbers[0] < columns:
        return numbers[0]
    if len(numbers) == 2 and not told["drops"] and numbers[0] < rows and numbers[1] < columns:
        return numbers[0] * columns + numbers[1]
    return None


# ------------------------------------------------------------ browser


class SharedMatch:
    """The game that a page shows; requests come one after the other."""

    def __init__(self, against: SavedOpponent, human: int) -> None:
        self.against, self.lock = against, Lock()
        self.match = HumanMatch(against, human)

    def asked(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            if path == "/new":
                human = given.get("human")
                if type(human) is not int or human not in (0, 1):
                    raise UserError("human should be 0 (begins) or 1.")
                self.match = HumanMatch(self.against, human)
            elif path == "/move":
                action = given.get("action")
                if type(action) is not int:
                    raise UserError("action should be a whole number.")
                self.match.answer(action)
            return self.match.told()

    def answered(self, path: str, body: bytes) -> tuple[int, bytes]:
        """The same as bytes, with a code."""
        try:
            given = json.loads(body)
            if path not in ("/new", "/move") or type(given) is not dict:
                raise UserError("no such request.")
            return 200, json.dumps(self.asked(path, given)).encode()
        except (ValueError, UserError) as error:
            return 400, json.dumps({"error": str(error)[:200]}).encode()


def server(shared: SharedMatch, port: int) -> ThreadingHTTPServer:
    """On this machine alone; a page of elsewhere that asks in the reader's name is refused."""

    hosts: list[str] = []

    class MatchRequest(BaseHTTPRequestHandler):
        def reply(self, code: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def own(self) -> bool:
            return self.headers.get("Host") in hosts

        def do_GET(self) -> None:
            if not self.own():
                self.reply(403, b"{}")
            elif self.path == "/":
                self.reply(200, PAGE.read_bytes(), "text/html")
            elif self.path == "/state":
                self.reply(200, json.dumps(shared.asked("/state", {})).encode())
            else:
                self.reply(404, b"{}")

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "0")
            json_alone = self.headers.get("Content-Type", "").startswith("application/json")
            if not self.own() or not json_alone or not length.isdecimal() or int(length) > LARGEST:
                self.reply(403, b"{}")
                return
            self.reply(*shared.answered(self.path, self.rfile.read(int(length))))

        def log_message(self, *_: object) -> None:
            """Nothing."""

    try:
        served = ThreadingHTTPServer((HOST, port), MatchRequest)
    except OSError as error:
        raise UserError(f"--port: {port} cannot be opened: {error.strerror}.") from None
    hosts += [f"{name}:{served.server_port}" for name in (HOST, "localhost")]
    return served


def in_browser(against: SavedOpponent, human: int, port: int) -> None:
    """Serves the page until Ctrl-C."""
    with server(SharedMatch(against, human), port) as http:
        say(f"Open http://{HOST}:{http.server_port}/ in a browser on this machine. Ctrl-C ends.")
        try:
            http.serve_forever()
        except KeyboardInterrupt:
            return
