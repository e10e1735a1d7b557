"""The RayFleet without Ray: what is asked of explorers and when, and what becomes of one that is gone."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ganglion.core import Origin
from ganglion.fleet import ray_fleet
from ganglion.fleet.ray_fleet import RayFleet
from ganglion.fleet.receiver import Account
from ganglion.fleet.remote_evaluator import EvaluatedRemotely
from ganglion.fleet.shared_memory import ItemMemory, Reader

KINDS = ("RayActorError", "OutOfMemoryError", "NodeDiedError", "ObjectLostError", "RayTaskError")


class Call:
    """What was asked, and what comes of it."""

    def __init__(self, told: Any, fails: Exception | None = None) -> None:
        self.told, self.fails = told, fails


class Place:
    """An explorer's actor that does at once what it is asked, in memory of its own."""

    def __init__(self, folder: Path, slots: int) -> None:
        self.folder, self.count, self.sequence = folder, slots, 0

    @property
    def begin(self) -> Any:
        return SimpleNamespace(remote=self.began)

    @property
    def collect(self) -> Any:
        return SimpleNamespace(remote=self.collected)

    def began(self, explorer: int, incarnation: int) -> Call:
        self.name, self.slots = (
            (explorer, incarnation),
            ItemMemory(self.folder, f"{explorer}-{incarnation}", self.count),
        )
        return Call((True, 1, 2))

    def collected(self) -> Call:
        origin = Origin("main", *self.name, self.sequence, 0)
        self.slots.room(8)[:] = self.sequence
        self.sequence += 1
        return Call((list(origin), list(self.slots.slip)))


class Talk:
    """Stands in for the thread that talks to Ray."""

    def __call__(self, ask: Any, limit: float = 0.0) -> Any:
        return ask()

    def look(self) -> None: ...

    def close(self, leave: Any, limit: float) -> None:
        leave()


class Team(RayFleet):
    """Two explorers, each asked for `ahead` items."""

    def __init__(self, folder: Path, ahead: int) -> None:
        self.ray: Any = SimpleNamespace(exceptions=SimpleNamespace(**{k: type(k, (Exception,), {}) for k in KINDS}))
        self.ray.wait = lambda calls, num_returns, timeout: (calls[:1], calls[1:])
        self.ray.get = self.get
        self.account, self.reader, self.folder, self.ahead = Account(), Reader(folder), folder, ahead
        self.wanted, self.spares, self.turn, self.taken, self.inference_server = 2, 0, 0, None, None
        self.members, self.lives, self.waiting, self.recoveries = {}, [], [], deque()
        self.alone, self.talk = 0.0, Talk()  # type: ignore[assignment]

    def get(self, call: Call) -> Any:
        if call.fails is not None:
            raise call.fails
        return call.told

    def explorer_actor(self) -> Place:
        return Place(self.folder, self.ahead + 1)


@pytest.mark.parametrize("ahead", [1, 3])
def test_an_explorer_walks_on_while_its_item_is_stored(tmp_path: Path, ahead: int) -> None:
    """And never writes over it."""
    team = Team(tmp_path, ahead)
    for _ in range(20):
        packet = team.pull(1.0)
        assert packet is not None
        member = team.members[packet.origin.explorer]
        assert len(member.asked) == ahead and member.held == 1
        assert (packet.body == packet.origin.sequence).all()
    assert team.account.restarts == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "RayTaskError"])
def test_one_that_is_gone_is_replaced_however_it_went(tmp_path: Path, kind: str) -> None:
    team = Team(tmp_path, 1)
    for _ in range(4):
        team.pull(1.0)
    (call,) = team.members[1].asked
    call.fails = getattr(team.ray.exceptions, kind)("gone")
    seen = {team.pull(1.0).origin[1:3] for _ in range(6)}  # type: ignore[union-attr]
    assert (1, 1) in seen and (0, 0) in seen
    assert team.account.restarts == team.account.in_flight == 1 and team.members[1].incarnation == 1


def test_it_says_that_nobody_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A cluster without a free processor keeps them waiting, and says nothing."""
    monkeypatch.setattr(ray_fleet, "ALONE", 0.0)
    team = Team(tmp_path, 1)
    team.ray.wait = lambda calls, num_returns, timeout: ([], calls)
    assert team.pull(0.1) is None and "no explorer has begun" in caplog.text
    caplog.clear()
    for member in team.members.values():
        member.starting = None
        team.ask(member)
    assert team.pull(0.1) is None and not caplog.text


def test_where_ray_is_gone_the_rest_is_still_cleared(tmp_path: Path) -> None:
    def kill(actor: Any) -> None:
        raise RuntimeError("no Ray")

    team = Team(tmp_path / "memory", 1)
    team.folder.mkdir()
    team.pull(1.0)
    team.ray.kill, team.fork_server, team.own = kill, None, False
    team.close()
    assert not team.folder.exists() and not team.members
    beside = EvaluatedRemotely.__new__(EvaluatedRemotely)
    beside.ray, beside.talk, beside.actor = team.ray, team.talk, object()
    beside.close()
