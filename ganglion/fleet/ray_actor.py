"""Ray actors: an explorer's or evaluator's place, on this machine or another. A process below each does the work: what
kills it (a simulator's fault, want of memory) leaves the actor alive, which has another in a moment.

Without torch: an actor starts in the time of a Ray worker, and only the fork server imports more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ganglion.errors import UserError
from ganglion.fleet.fork_server import ForkServer, connect

WEIGHTS = "weights"


class Brief(NamedTuple):
    """All that an explorer actor needs to know, in plain values."""

    config: str  # YAML
    modules: Sequence[str]  # the user's own, that register names
    paths: Sequence[str]  # where they are found
    rows: int  # of an item
    codec: tuple[str, int]
    folder: str  # of shared memory
    cookie: str  # in it, where it is the same machine's
    slots: int  # items that may be under way at a time
    fork_server: str  # its socket, on the learner's machine


class ProcessDiedError(Exception):
    """The process below a place has ended. The place itself is well: it may begin again."""


class ActorProcess:
    """A place with a process of its own below it, forked from a fork server, and the line between them."""

    role = ""  # the loop of the process, module:function

    def __init__(self, brief: Sequence[Any]) -> None:
        self.brief = Brief(*brief)
        self.own: ForkServer | None = None  # where there is none to share
        self.line: Connection | None = None
        self.ready = False
        self.hatch()  # it prepares itself while nobody waits for it

    def hatch(self) -> None:
        """A new process, which has yet to say that it is ready."""
        try:
            self.line = connect(Path(self.brief.fork_server))
        except OSError:  # another machine's, or dead
            self.own = self.own or ForkServer()
            try:
                self.line = connect(self.own.path)
            except OSError:
                self.own = ForkServer()
                self.line = connect(self.own.path)
        self.ready = False
        self.line.send_bytes(json.dumps([self.role, self.brief]).encode())

    def wake(self) -> None:
        """Waits until there is one that is ready."""
        if self.line is None:
            self.hatch()
        if not self.ready:
            self.hear()
            self.ready = True

    def ask(self, what: dict[str, Any] | None, more: Any = None) -> Any:
        if self.line is None:
            raise ProcessDiedError("it has ended")
        try:
            if what is not None:
                self.line.send_bytes(json.dumps(what).encode())
            if more is not None:
                self.line.send_bytes(memoryview(more))
        except OSError as error:
            raise self.fall(error) from None
        return self.hear()

    def hear(self) -> Any:
        told = json.loads(self.hear_bytes())
        if "error" in told:
            self.line = None
            raise UserError(told["error"]) if told["user"] else RuntimeError(told["error"])
        return told

    def hear_bytes(self) -> bytes:
        if self.line is None:
            raise ProcessDiedError("it has ended")
        try:
            return self.line.recv_bytes()
        except (EOFError, OSError) as error:
            raise self.fall(error) from None

    def fall(self, error: Exception) -> ProcessDiedError:
        self.line = None
        return ProcessDiedError(f"it ended without a word ({type(error).__name__})")


class ExplorerActor(ActorProcess):
    """Collects when it is asked to; several calls wait in line, so it never stands idle while the queue has room."""

    role = "ganglion.fleet.explorer_process:explore"

    def __init__(self, brief: Sequence[Any], inference_server: Any = None) -> None:
        super().__init__(brief)
        self.inference_server = inference_server

    def begin(self, explorer: int, incarnation: int) -> tuple[bool, int, int]:
        """Takes a place; says whether it shares the learner's machine, its explorer process's process and its own."""
        self.wake()
        near, pid = self.ask({"begin": [explorer, incarnation]})["told"]
        return near, pid, os.getpid()

    def collect(self, weights: Any = None) -> tuple[list[Any], Any]:
        """An item's origin, and where it lies in shared memory, or the item itself."""
        told = self.ask({"collect": weights is not None}, weights)
        while "ask" in told:  # of the predictor
            told = self.answer(self.hear_bytes())
        return told["told"], told["slip"] or np.frombuffer(self.hear_bytes(), np.uint8)

    def answer(self, question: bytes) -> Any:
        import ray

        return self.ask(None, ray.get(self.inference_server.ask.remote(np.frombuffer(question, np.uint8))))


class EvaluatorActor(ActorProcess):
    """The place of an evaluator."""

    role = "ganglion.fleet.explorer_process:judge"

    def score(self, weights: Any) -> tuple[list[list[Any]], dict[str, float]]:
        self.wake()
        told = self.ask({}, weights)
        return told["episodes"], told["metrics"]
