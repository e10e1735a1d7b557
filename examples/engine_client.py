"""A game engine's side of an environment server: one environment in a process of its own, in plain Python.

ganglion train --algo ppo --env remote env.slots=2 eval.slots=1 train.budget=20k   # listens at 127.0.0.1:5757
python examples/engine_client.py 127.0.0.1:5757 &                                  # three times: one per slot
"""

import json
import os
import random
import socket
import struct
import sys
import time
from contextlib import suppress


class Walk:
    """The game: a walker on a line, pushed about, is to come near a goal."""

    obs = {"shape": [2], "dtype": "float32", "low": -1, "high": 1}
    action = {"n": 3}  # left, stay, right

    def reset(self, seed: int) -> bytes:
        self.random, self.steps = random.Random(seed), 0
        self.place, self.goal = self.random.uniform(-1, 1), self.random.uniform(-1, 1)
        return struct.pack("<2f", self.place, self.goal)

    def step(self, action: int) -> tuple[bytes, float, bool, bool]:
        moved = self.place + 0.1 * (action - 1) + self.random.uniform(-0.02, 0.02)
        self.place, self.steps = min(1.0, max(-1.0, moved)), self.steps + 1
        far = abs(self.place - self.goal)
        return struct.pack("<2f", self.place, self.goal), -far, far < 0.05, self.steps >= 50


def send(connection: socket.socket, message: dict, payload: bytes = b"") -> None:
    text = json.dumps({**message, "bytes": len(payload)}).encode()
    connection.sendall(struct.pack("<I", len(text)) + text + payload)


def receive(stream) -> dict:
    head = stream.read(4)
    return json.loads(stream.read(struct.unpack("<I", head)[0])) if len(head) == 4 else {"refused": "no answer"}


def serve(host: str, port: int, game: Walk) -> bool:
    """Plays until the server says close (true), or the connection ends."""
    with socket.create_connection((host, port)) as connection, connection.makefile("rb") as stream:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = {"hello": "ganglion-env", "version": 1, "token": os.environ.get("GANGLION_ENV_TOKEN", "")}
        send(connection, {**hello, "obs": game.obs, "action": game.action})
        while "refused" not in (asked := receive(stream)):
            if asked.get("do") == "reset":
                send(connection, {"id": asked["id"]}, game.reset(asked["seed"]))
            elif asked.get("do") == "step":
                obs, reward, terminated, truncated = game.step(asked["action"])
                flags = {"terminated": terminated, "truncated": truncated}
                send(connection, {"id": asked["id"], "reward": reward, **flags}, obs)
            elif asked.get("do") == "close":
                return True
        print(f"server: {asked['refused']}", file=sys.stderr)
        return False


if __name__ == "__main__":
    host, port = sys.argv[1].split(":")
    over = False
    while not over:
        with suppress(OSError):  # the server is not there yet, or went away
            over = serve(host, int(port), Walk())
        time.sleep(0 if over else 0.5)
