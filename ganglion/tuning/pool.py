"""Workers: processes of this machine, or Ray's anywhere, that train jobs beside each other."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol

from ganglion.errors import UserError
from ganglion.processes import findable, python, with_parent
from ganglion.tuning.jobs import Job, JobOutcome

GRACE = 30.0  # seconds for a worker to save and end
LIVES = 3  # a worker that dies so often without an ended job between is not started again
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # several trainings share the cores


class TrainingWorker(Protocol):
    """Lines to and from a process that trains."""

    def send(self, what: dict[str, Any]) -> None: ...

    def line(self) -> str | None:
        """Waits for the next; None when it has ended."""

    def leave(self) -> None:
        """It is to end, once what it trains is saved."""

    def end(self) -> None:
        """Waits until it has."""


class TrainingProcess:
    """A process below this one, in a session of its own: Ctrl-C reaches it through here."""

    def __init__(self, log: str, tied: bool = True) -> None:
        """`tied`: it is told to stop when the thread that made it ends, not only when its input does."""
        self.errors = open(log, "ab")  # noqa: SIM115, closed with the worker
        self.process = subprocess.Popen(
            python("ganglion.tuning.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            bufsize=1,
            start_new_session=True,
            preexec_fn=with_parent if tied else None,
            env=findable({**os.environ, **THREADS}),
        )

    def send(self, what: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # dead: its line ends, too
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def line(self) -> str | None:
        assert self.process.stdout is not None
        return self.process.stdout.readline() or None

    def leave(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def end(self) -> None:
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


class WorkerMessage(NamedTuple):
    """What a worker said."""

    worker: int
    what: dict[str, Any]  # event: ready, began, score, ended; lost when it died


class TrainingPool:
    """Several workers. A job of one that dies has failed; another takes its place."""

    def __init__(self, count: int, make: Callable[[int], TrainingWorker]) -> None:
        self.make, self.heard = make, SimpleQueue[WorkerMessage]()
        self.workers: list[TrainingWorker] = []
        self.busy: dict[int, int] = {}  # worker -> number of its job
        self.lives = [LIVES] * count
        for k in range(count):
            self.workers.append(self.begin(k))

    def begin(self, k: int) -> TrainingWorker:
        worker = self.make(k)
        Thread(target=self.listen, args=(k, worker), daemon=True).start()
        return worker

    def listen(self, k: int, worker: TrainingWorker) -> None:
        while (line := worker.line()) is not None:
            self.heard.put(WorkerMessage(k, json.loads(line)))
        self.heard.put(WorkerMessage(k, {"event": "lost"}))

    @property
    def free(self) -> list[int]:
        return [k for k in range(len(self.workers)) if k not in self.busy and self.lives[k]]

    def start(self, job: Job) -> None:
        """Gives a job to a worker that is free."""
        k = self.free[0]
        self.busy[k] = job.number
        self.workers[k].send(job.plain())

    def stop(self, number: int) -> None:
        """Has a job end early, saved."""
        for k, busy in self.busy.items():
            if busy == number:
                self.workers[k].send({"stop": True})

    def stop_all(self) -> None:
        for number in list(self.busy.values()):
            self.stop(number)

    def wait(self, seconds: float = 0.5) -> dict[str, Any] | None:
        """What happened next: a score or an outcome; None where nothing did for so long."""
        try:
            worker, what = self.heard.get(timeout=seconds)
        except Empty:
            return None
        if what["event"] == "lost":
            return self.lost(worker)
        if what["event"] == "ended":
            self.busy.pop(worker, None)
            self.lives[worker] = LIVES
            return {**what, "outcome": JobOutcome(**what["outcome"])}
        return what if what["event"] in ("began", "score") else None

    def lost(self, worker: int) -> dict[str, Any] | None:
        """A worker died: out of memory, or by a fault in native code."""
        number = self.busy.pop(worker, None)
        self.lives[worker] -= 1
        if self.lives[worker]:
            self.workers[worker] = self.begin(worker)
        elif not any(self.lives):
            raise UserError("all workers have died; what they said last is in their worker-*.log.")
        if number is None:
            return None
        return {"number": number, "event": "ended", "outcome": JobOutcome("failed", why="its process died")}

    def close(self) -> None:
        """Ends all workers; what they train is saved first."""
        self.lives = [0] * len(self.lives)
        for worker in self.workers:
            worker.leave()
        for worker in self.workers:
            worker.end()


def local(count: int, folder: Path) -> TrainingPool:
    """Processes of this machine; what they say beside their lines is in `worker-N.log`."""
    folder.mkdir(parents=True, exist_ok=True)
    return TrainingPool(count, lambda k: TrainingProcess(str(folder / f"worker-{k}.log")))


def run_all(
    pool: TrainingPool, jobs: Sequence[Job], on: Callable[[dict[str, Any]], None], asked: Callable[[], bool]
) -> None:
    """All jobs, as many at a time as there are workers. `on` hears everything; `asked`: whether all are to stop."""
    waiting, stopped = list(jobs), False
    while (waiting and not stopped) or pool.busy:
        while waiting and not stopped and pool.free:
            pool.start(waiting.pop(0))
        told = pool.wait()
        if told is not None:
            on(told)
        if asked() and not stopped:
            stopped = True
            pool.stop_all()
