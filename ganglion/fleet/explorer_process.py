"""A RemoteExplorer in a process of its own, which does what an ExplorerActor asks of it over a pipe."""

from __future__ import annotations

import importlib
import json
import os
import select
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch

from ganglion.config import RunConfig
from ganglion.config.files import import_module, load
from ganglion.core import Noise, Obs, Past, Weights
from ganglion.errors import UserError
from ganglion.fleet.inference_client import Answer, pack_question, unpack_answer
from ganglion.fleet.ray_actor import WEIGHTS, Brief
from ganglion.fleet.remote_evaluator import RemoteEvaluator
from ganglion.fleet.remote_explorer import ExplorerPlace, ItemSize, RemoteExplorer
from ganglion.fleet.shared_memory import ItemMemory, SharedBoard
from ganglion.fleet.wire import Codec, unpack_weights
from ganglion.processes import search


class TakenBoard:
    """Weights that came with the last call: on another machine."""

    weights: Weights | None = None

    def latest(self, player: str, newer_than: int) -> Weights | None:
        newer = self.weights is not None and self.weights.version > newer_than
        return self.weights if newer else None


class ExplorerProcess:
    """All that takes long happens when it is made: the user's modules, the environment, the agent."""

    def __init__(self, brief: Brief, line: Connection) -> None:
        cfg = read_brief(brief)
        self.brief, self.folder, self.line = brief, Path(brief.folder), line
        self.near = (self.folder / brief.cookie).exists()
        self.taken = TakenBoard()
        self.slots: ItemMemory | None = None
        board = SharedBoard(self.folder / WEIGHTS) if self.near else self.taken
        ask = self.ask if cfg.fleet.inference == "central" else None
        self.remote_explorer = RemoteExplorer(cfg, ItemSize(brief.rows, Codec(*brief.codec)), board, ask=ask)

    def begin(self, explorer: int, incarnation: int) -> tuple[bool, int]:
        """Takes a place; says whether it shares the learner's machine, and its process."""
        if self.near:
            self.slots = ItemMemory(self.folder, f"{explorer}-{incarnation}", self.brief.slots)
        self.remote_explorer.begin(ExplorerPlace(explorer, incarnation))
        return self.near, os.getpid()

    def collect(self, weights: bytes | None) -> None:
        """Tells an item's origin and where it lies in shared memory; else the item follows."""
        if weights is not None:
            self.taken.weights = unpack_weights(weights)
        made = self.remote_explorer.item(self.slots.room if self.slots else None)
        assert made is not None
        tell(self.line, {"told": list(made[1]), "slip": list(self.slots.slip) if self.slots else None})
        if not self.slots:
            self.line.send_bytes(made[0].data)

    def ask(self, obs: Obs, past: Past, noise: Noise) -> Answer:
        """The explorer actor asks the predictor."""
        tell(self.line, {"ask": True})
        self.line.send_bytes(pack_question(obs, past, noise).data)
        return unpack_answer(self.line.recv_bytes())


def read_brief(brief: Brief) -> RunConfig:
    """The config in it, and this process made ready for it."""
    search(brief.paths)
    for module in brief.modules:
        import_module(module)
    cfg = load(brief.config)
    torch.set_num_threads(cfg.run.threads)
    return cfg


def preload() -> None:
    """Imports what most configs name: once, in a fork server, and not in each explorer process that comes from it."""
    with suppress(Exception):  # an explorer process says what is wrong
        import ganglion.envs.gym
        import ganglion.envs.gym_make
        import ganglion.envs.wrappers  # noqa: F401

        load("cartpole/ppo")


def scatter() -> None:
    """Numpy has one stream for everybody, and some environments use it: every explorer process has another."""
    np.random.seed()  # by the system


def serve(line: Connection) -> None:
    """Does what is asked until nobody is at the other end. What goes wrong is told, and is the end of it."""
    scatter()
    Thread(target=watch, args=(line.fileno(),), daemon=True).start()
    try:
        role, brief = json.loads(line.recv_bytes())
        module, _, loop = role.partition(":")
        vars(importlib.import_module(module))[loop](Brief(*brief), line)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        user = isinstance(error, UserError)
        tell(line, {"error": str(error) if user else traceback.format_exc(), "user": user})


def watch(line: int) -> None:
    """Ends this process when nobody is at the other end any more, whatever its environments are doing."""
    poll = select.poll()
    poll.register(line, select.POLLRDHUP)
    while not poll.poll():
        pass
    os._exit(0)


def explore(brief: Brief, line: Connection) -> None:
    explorer_process = ExplorerProcess(brief, line)
    tell(line, {})
    while True:
        asked = json.loads(line.recv_bytes())
        if "begin" in asked:
            tell(line, {"told": explorer_process.begin(*asked["begin"])})
        else:
            explorer_process.collect(line.recv_bytes() if asked["collect"] else None)


def judge(brief: Brief, line: Connection) -> None:
    made = RemoteEvaluator(read_brief(brief))
    tell(line, {})
    while line.recv_bytes():
        episodes, metrics = made.score(line.recv_bytes())
        tell(line, {"episodes": episodes, "metrics": metrics})


def tell(line: Connection, what: dict[str, Any]) -> None:
    line.send_bytes(json.dumps(what).encode())
