"""Workers in this process: what a job does without a process around it, in the order in which jobs were given."""

from __future__ import annotations

import json
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import ganglion
from ganglion.config import RunConfig
from ganglion.tuning.jobs import Job, perform
from ganglion.tuning.pool import TrainingPool

SMALL = [
    "algo={kind: ppo, horizon: 8, epochs: 1, minibatches: 1, net: {hidden: [8]}}",
    "env={kind: toy, id: bandit, slots: 2}",
    "train.budget=64 steps",
    "eval={every: 16 steps, episodes: 2, slots: 2}",
    "log=[jsonl]",
]


def base(*more: str) -> RunConfig:
    return ganglion.load_config(None, [*SMALL, *more])


class InlineWorker:
    """Trains when it is sent a job; a stop that was sent before is heard at once."""

    def __init__(self) -> None:
        self.lines: SimpleQueue[str | None] = SimpleQueue()
        self.jobs: list[Job] = []
        self.stopped = False

    def send(self, what: dict[str, Any]) -> None:
        if "stop" in what:
            self.stopped = True
            return
        job = Job(**json.loads(json.dumps(what)))
        self.jobs.append(job)
        outcome = perform(job, lambda told: self.lines.put(json.dumps(told)), lambda: self.stopped)
        self.lines.put(json.dumps({"number": job.number, "event": "ended", "outcome": outcome.plain()}))

    def line(self) -> str | None:
        return self.lines.get()

    def leave(self) -> None:
        self.lines.put(None)

    def end(self) -> None:
        """Nothing is left."""


def pool(count: int = 1) -> tuple[TrainingPool, list[InlineWorker]]:
    made: list[InlineWorker] = []

    def make(k: int) -> InlineWorker:
        made.append(InlineWorker())
        return made[-1]

    return TrainingPool(count, make), made


def folder(path: Path, number: int) -> Path:
    return path / "runs" / f"trial-{number:03d}"
