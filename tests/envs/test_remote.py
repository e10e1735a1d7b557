"""Environments that connect by a socket: what they play, what is refused, and what is counted when they die."""

from __future__ import annotations

import importlib.util
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.remote_soak import compared, soak
from ganglion.envs.remote import RemoteConfig
from ganglion.envs.remote_server import TOKEN, EnvServer, leave, loopback, pack, server_at
from ganglion.errors import EnvError, UserError

ROOT = Path(__file__).resolve().parents[2]
SPACES = {"obs": {"shape": [2], "dtype": "float32"}, "action": {"n": 3}}
HELLO = {"hello": "ganglion-env", "version": 1, **SPACES}


def engine_client() -> Any:
    spec = importlib.util.spec_from_file_location("engine_client", ROOT / "examples" / "engine_client.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Counting:
    """Shows its seed and its step; ends after five."""

    obs, action = SPACES["obs"], SPACES["action"]

    def __init__(self, dies_at: int = 0) -> None:
        self.dies_at, self.actions = dies_at, []
        self.played = 0

    def reset(self, seed: int) -> bytes:
        self.seed, self.count = seed % 1000, 0
        return struct.pack("<2f", self.seed, 0)

    def step(self, action: int) -> tuple[bytes, float, bool, bool]:
        self.count += 1
        self.played += 1
        if self.dies_at and self.played == self.dies_at:
            raise OSError("killed")  # its thread ends, and its connection with it
        self.actions.append(action)
        return struct.pack("<2f", self.seed, self.count), float(action), self.count == 5, False


def start(server: EnvServer, game: Any) -> threading.Thread:
    def play() -> None:
        try:
            while not engine_client().serve("127.0.0.1", server.port, game):
                time.sleep(0.05)
        except OSError:
            pass

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def server() -> Iterator[EnvServer]:
    server = server_at("127.0.0.1", 0)
    yield server
    leave(server)


def talk(server: EnvServer, data: bytes) -> dict[str, Any]:
    """What the server says to some bytes."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection, connection.makefile("rb") as stream:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            (size,) = struct.unpack("<I", stream.read(4))
            return json.loads(stream.read(size))
        except OSError:  # what was not read before the end resets a connection
            return {"refused": "reset"}


def wait_for(server: EnvServer, refused: int) -> None:
    until = time.monotonic() + 5
    while server.refused < refused and time.monotonic() < until:
        time.sleep(0.01)
    assert server.refused == refused


def test_slots_are_clients(server: EnvServer) -> None:
    games = [Counting(), Counting()]
    threads = [start(server, game) for game in games]
    env = RemoteConfig(port=server.port, slots=2, wait=10).build()
    step = env.reset(seed=3)
    assert step.obs.shape == (2, 2) and step.valid.all()
    assert step.obs[0, 0] != step.obs[1, 0]  # each slot has seeds of its own
    for count in range(1, 6):
        step = env.step(torch.tensor([1, 2]))
        assert step.obs[:, 1].tolist() == [count, count] and step.reward.tolist() == [1.0, 2.0]
    assert step.terminated.all() and not step.valid.any() and not step.truncated.any()
    assert sorted((e.slot, e.total, e.length) for e in env.episodes()) == [(0, 5.0, 5), (1, 10.0, 5)]
    step = env.step(torch.tensor([0, 0]))  # ignored: the first observation of the next episode
    assert step.valid.all() and step.obs[:, 1].tolist() == [0, 0] and step.reward.tolist() == [0.0, 0.0]
    assert {tuple(game.actions) for game in games} == {(1,) * 5, (2,) * 5}
    env.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()  # the server said close


def test_a_dead_client_is_replaced_and_its_episode_cut(server: EnvServer) -> None:
    start(server, Counting(dies_at=3))
    start(server, Counting())
    env = RemoteConfig(port=server.port, slots=2, wait=10, timeout=5).build()
    env.reset(seed=0)
    env.step(torch.tensor([1, 1]))
    env.step(torch.tensor([1, 1]))
    step = env.step(torch.tensor([1, 1]))
    lost = env.faults.lost
    assert lost is not None and lost.sum() == 1
    slot = int(lost.nonzero())
    assert step.truncated[slot] and not step.terminated[slot] and not step.valid[slot]
    assert step.obs[slot, 1] == 2  # what was seen last
    assert not step.truncated[1 - slot] and step.obs[1 - slot, 1] == 3
    idle = env.step(torch.tensor([1, 1]))  # nobody is there yet: a dead row, the other plays on
    assert not idle.valid[slot] and not idle.truncated[slot] and idle.valid[1 - slot]
    start(server, Counting())
    until = time.monotonic() + 10
    while not (step := env.step(torch.tensor([1, 1]))).valid[slot] and time.monotonic() < until:
        time.sleep(0.01)
    assert step.valid[slot] and step.obs[slot, 1] == 0
    assert env.faults.count == 1 and dict(env.faults.kinds) == {"lost": 1}
    assert env.faults.rows_lost == 1 and env.faults.pool.rows_in_flight == 1 and len(env.faults.pool.replaced) == 1
    env.close()


def test_an_episode_that_repeats_is_replayed_by_another_client(server: EnvServer) -> None:
    start(server, Counting(dies_at=4))
    env = RemoteConfig(port=server.port, slots=1, wait=10, timeout=5, resume="replay").build()
    env.reset(seed=0)
    other = Counting()
    start(server, other)
    for count in range(1, 6):
        step = env.step(torch.tensor([count % 3]))
        assert step.obs[0, 1] == count and not step.truncated.any() and env.faults.lost is None
    assert other.actions == [1, 2, 0, 1, 2]
    env.step(torch.tensor([0]))
    assert env.faults.count == 1 and env.faults.rows_lost == 0
    env.step(torch.tensor([2]))
    state = env.state()
    env.restore(state)  # by replaying
    assert env.step(torch.tensor([1])).obs[0, 1] == 2
    env.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\xff" * 64,
        pack({"hello": "someone else", "version": 1}),
        pack({**HELLO, "version": 2}),
        pack({**HELLO, "obs": {"shape": [1 << 20, 1 << 20]}}),
        pack({**HELLO, "obs": {"n": 3}}),
        pack({**HELLO, "obs": {"shape": [2], "low": "x"}}),
        pack({**HELLO, "action": {"each": [0]}}),
        pack({**HELLO, "action": None}),
        pack({**HELLO, "masks": "yes"}),
        (5).to_bytes(4, "little") + b"[1,2]",
        (20000).to_bytes(4, "little") + b"[" * 20000,
        (7).to_bytes(4, "little") + b'{"a": 1',
        pack(HELLO, b"raw bytes nobody asked for"),
        b"ab",
    ],
)
def test_garbage_is_refused_and_counted(server: EnvServer, data: bytes) -> None:
    assert "refused" in talk(server, data)
    wait_for(server, 1)
    assert not server.waiting
    assert talk(server, pack(HELLO)) == {"welcome": 1}  # the server goes on


def test_other_spaces_are_refused(server: EnvServer) -> None:
    assert talk(server, pack(HELLO)) == {"welcome": 1}
    assert "spaces" in talk(server, pack({**HELLO, "action": {"n": 4}}))["refused"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"\xff" * 100, "garbage"),
        (pack({"id": 7, "reward": 1.0}, bytes(8)), "garbage"),  # of another question
        (pack({"id": 3, "reward": 1.0}, bytes(4)), "garbage"),
        (pack({"id": 3, "reward": 1.0}, bytes(9)), "garbage"),
        (pack({"id": 3, "reward": "much"}, bytes(8)), "garbage"),
        (pack({"id": 3, "terminated": 1}, bytes(8)), "garbage"),
        (pack({"id": True, "reward": 1.0}, bytes(8)), "garbage"),
        (pack({"id": 3, "reward": 1.0}, struct.pack("<2f", np.nan, 0.0)), "value"),
        (pack({"id": 3, "reward": float("inf")}, bytes(8)), "value"),
        (b"", "timeout"),
        (None, "lost"),
    ],
)
def test_bad_answers_cost_the_episode(server: EnvServer, answer: bytes | None, kind: str) -> None:
    def play() -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as connection, connection.makefile("rb") as stream:
            connection.sendall(pack(HELLO))
            for reply in (b"", pack({"id": 1}, bytes(8)), pack({"id": 2}, bytes(8)), answer):
                stream.read(struct.unpack("<I", stream.read(4))[0])
                if reply is None:
                    return
                connection.sendall(reply)
            stream.read(1)

    threading.Thread(target=play, daemon=True).start()
    env = RemoteConfig(port=server.port, slots=1, wait=10, timeout=0.3).build()
    env.reset(seed=0)
    env.step(torch.tensor([1]))
    step = env.step(torch.tensor([1]))
    assert step.truncated.all() and not step.valid.any() and step.obs.isfinite().all()
    assert dict(env.faults.kinds) == {kind: 1} and env.faults.rows_lost == 1
    env.close()


def test_beyond_loopback_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert loopback("localhost") and not loopback("0.0.0.0")
    with pytest.raises(UserError, match=f"env.host: 0.0.0.0 .* {TOKEN}"):
        RemoteConfig(host="0.0.0.0", port=0).build()
    monkeypatch.setenv(TOKEN, "secret")
    server = server_at("127.0.0.1", 0)
    try:
        assert "token" in talk(server, pack(HELLO))["refused"]
        assert "token" in talk(server, pack({**HELLO, "token": "secret!"}))["refused"]
        assert talk(server, pack({**HELLO, "token": "secret"})) == {"welcome": 1}
        assert server.refused == 2
    finally:
        leave(server)


def test_nobody_comes(server: EnvServer) -> None:
    with pytest.raises(EnvError, match=r"env\.wait: 0 of 3 clients connected"):
        RemoteConfig(port=server.port, slots=3, wait=0.2).build()
    start(server, Counting(dies_at=2))
    env = RemoteConfig(port=server.port, slots=1, wait=5, timeout=0.5).build()
    env.reset(seed=0)
    object.__setattr__(env.walk.cfg, "wait", 0.2)  # type: ignore[attr-defined]
    env.step(torch.tensor([0]))
    with pytest.raises(EnvError, match=r"env\.wait: no client came back"):
        for _ in range(3):
            env.step(torch.tensor([0]))
    env.close()


def test_a_port_that_is_taken(server: EnvServer) -> None:
    with pytest.raises(UserError, match=r"env\.port: cannot listen at"):
        EnvServer("127.0.0.1", server.port)


def test_parts_masks_and_info(server: EnvServer) -> None:
    parts = {"parts": [["view", {"shape": [2, 2], "dtype": "uint8"}], ["speed", {"shape": [1], "low": -1, "high": 1}]]}
    hello = {"hello": "ganglion-env", "version": 1, "obs": parts, "action": {"n": 3}, "masks": True}

    def play() -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as connection, connection.makefile("rb") as stream:
            connection.sendall(pack(hello))
            while True:
                asked = json.loads(stream.read(struct.unpack("<I", stream.read(4))[0]))
                if "id" in asked:
                    told = {"id": asked["id"], "mask": [1, 0, 1], "info": {"won": True, "name": "x", "_goes_on": 1}}
                    connection.sendall(pack(told, bytes([1, 2, 3, 4]) + struct.pack("<f", 0.5)))
                elif "welcome" not in asked:
                    return

    threading.Thread(target=play, daemon=True).start()
    env = RemoteConfig(port=server.port, slots=1, wait=10, time_limit=2).build()
    step = env.reset(seed=0)
    assert step.obs["obs"]["view"].tolist() == [[[1, 2], [3, 4]]] and step.obs["obs"]["view"].dtype == torch.uint8
    assert step.obs["obs"]["speed"].tolist() == [[0.5]]
    assert step.obs["action_mask"].tolist() == [[True, False, True]]
    env.step(torch.tensor([2]))
    assert env.step(torch.tensor([0])).truncated.all()
    assert env.episodes()[0].info["won"] == 1.0
    env.close()


def test_no_row_is_lost_or_doubled_by_kills() -> None:
    found = soak(seconds=3.0, every=0.6, slots=3)
    assert found["kills"] >= 3 and found["env_steps"] > 200
    assert found["doubled"] == found["gaps"] == found["unplayed"] == found["miscounted"] == 0
    assert found["unlearned"] <= found["in_flight"] + 3  # one of each client that still runs in the end


def test_the_comparison_notices() -> None:
    from collections import Counter

    played = {(1, 1): 3}
    assert compared(Counter([(1, 1, 0), (1, 1, 1), (1, 1, 2)]), played, 3) == dict.fromkeys(
        ("doubled", "gaps", "unplayed", "unlearned", "miscounted"), 0
    )
    assert compared(Counter([(1, 1, 0), (1, 1, 2), (1, 1, 2)]), played, 3)["doubled"] == 1
    assert compared(Counter([(1, 1, 0), (1, 1, 2)]), played, 2)["gaps"] == 1
    assert compared(Counter([(1, 1, 0), (1, 1, 1)]), played, 2)["unlearned"] == 1
    assert compared(Counter([(1, 1, i) for i in range(4)]), played, 4)["unplayed"] == 1


def test_the_client_is_short() -> None:
    text = (ROOT / "examples" / "engine_client.py").read_text()
    loop = text[text.index("def send(") : text.index("if __name__")]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 50
    assert "numpy" not in text and "torch" not in text.replace("no torch", "")
