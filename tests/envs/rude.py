"""Environments that break gymnasium's interface, each in its own way; a worker makes them by name."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Rude(gymnasium.Env[Any, Any]):
    """Two numbers under two keys, until it does what it is told."""

    observation_space = spaces.Dict([("left", spaces.Discrete(9)), ("right", spaces.Box(0.0, 9.0, (1,), np.float32))])
    action_space = spaces.Discrete(3)

    def __init__(self, how: str = "") -> None:
        self.how, self.t = how, 0
        if how == "make":
            raise RuntimeError("no licence")

    def seen(self) -> Any:
        return {"left": self.t % 9, "right": np.array([self.t % 9], np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        match self.how:
            case "reset raises":
                raise OSError("port 5005 is gone")
            case "reset exits":
                sys.exit(0)
            case "reset key":
                return {"left": 0}, {}
            case "one value":
                return self.seen()
            case "none":
                return None
            case "info":
                return self.seen(), None
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t == 20
        match self.how:
            case "four":
                return self.seen(), 1.0, over, {}
            case "key":
                return {"left": 1}, 1.0, over, False, {}
            case "array":
                return self.seen(), np.array([1.0, 2.0]), over, False, {}
            case "text":
                return self.seen(), "one", over, False, {}
            case "flags":
                return self.seen(), 1.0, np.array([over, over]), False, {}
            case "raises":
                raise ZeroDivisionError("division by zero")
            case "strange":
                raise StrangeError
            case "long":
                raise ValueError("\x1b[31m\ud800" + "x" * 1_000_000)
        return self.seen(), 1.0, over, False, {}


class StrangeError(Exception):
    """Has no message."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unseeded(Rude):
    """The interface of long ago."""

    def reset(self) -> Any:  # type: ignore[override]
        return self.seen(), {}


class Strict(gymnasium.Env[Any, Any]):
    """A board game that raises on an illegal move; its mask is in the observation or in info."""

    action_space = spaces.Discrete(4)

    def __init__(self, where: str = "obs") -> None:
        self.where = where
        board = spaces.Box(0, 1, (4,), np.float32)
        masked = spaces.Dict([("board", board), ("action_mask", spaces.MultiBinary(4))])
        self.observation_space = masked if where == "obs" else board

    def seen(self) -> Any:
        board, mask = self.board.astype(np.float32), (self.board == 0).astype(np.int8)
        own = {"board": board, "action_mask": mask}
        return (own, {}) if self.where == "obs" else (board, {"action_mask": mask})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.board = np.zeros(4, int)
        self.board[self.np_random.integers(4)] = 1
        return self.seen()

    def step(self, action: Any) -> Any:
        if self.board[action]:
            raise ValueError(f"illegal move {action}")
        self.board[action] = 1
        obs, info = self.seen()
        return obs, 1.0, bool(self.board.all()), False, info
