"""The Ray actor of a league's explorers and learners, and the calls that the process below it answers. Without torch,
as all that a Ray worker imports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ganglion.fleet.ray_actor import ActorProcess

EXPLORE = "ganglion.league.player_explorer:explore"
LEARN = "ganglion.league.player_learner:learn"


class LeagueActor(ActorProcess):
    """Does what it is asked, one call after the other: plain values and bytes in, plain values and bytes out."""

    def __init__(self, brief: Sequence[Any], role: str) -> None:
        self.role = role
        super().__init__(brief)

    def call(self, what: Mapping[str, Any], body: Any = None) -> tuple[dict[str, Any], Any]:
        self.wake()
        told = self.ask({**what, "body": body is not None}, body)
        return told, np.frombuffer(self.hear_bytes(), np.uint8) if told["body"] else None


Do = Callable[[Mapping[str, Any], Any], tuple[dict[str, Any], Any]]


def serve_calls(line: Connection, do: Do) -> None:
    """Does what a process is asked, for as long as somebody is there."""
    while True:
        asked = json.loads(line.recv_bytes())
        told, body = do(asked, line.recv_bytes() if asked["body"] else b"")
        line.send_bytes(json.dumps({**told, "body": body is not None}).encode())
        if body is not None:
            line.send_bytes(memoryview(body))
