"""What goes wrong in the environments of a run: written down, counted over resumes, and ended when it is too much."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ganglion.core import Command, LogData, State, Stop, read_count
from ganglion.envs.slots import lost_action
from ganglion.errors import EnvError
from ganglion.faults import Faults
from ganglion.record.atomic_write import write_file
from ganglion.record.stages import Stage, diverged
from ganglion.runtime.trainer import Trainer

REASON = "failures"

logger = logging.getLogger(__name__)


class Failed(Stage):
    """Writes each failure, and episodes that are to be logged, into files that `ganglion replay` reads; stops the run,
    saved, after too many failures; unsaved, unless told otherwise, where an action that was not finite caused one."""

    def __init__(self, trainer: Trainer, folder: Path, shown: str, stops: bool = False) -> None:
        self.trainer, self.folder, self.shown = trainer, folder, shown  # the name that people know it by
        self.stops = stops
        self.faults = trainer.source.faults

    def seen(self, log: LogData) -> Command | None:
        if log.kind == "evaluate":
            env = self.trainer.evaluator.env
            if env is not None:
                self.write(env.faults, log, "eval-")
        if log.kind != "collect" or not (self.faults.fresh or self.faults.logged):
            return None
        self.write(self.faults, log)
        logged, self.faults.logged = self.faults.logged, []
        for episode in logged:
            self.file("episodes", named(episode), log, episode)
        return Stop(REASON) if self.faults.count > self.faults.most else None

    def write(self, faults: Faults, log: LogData, prefix: str = "") -> None:
        """One file per failure, named by its episode; by worker where none was running."""
        fresh, faults.fresh = faults.fresh, []
        for number, failure in enumerate(fresh, faults.count - len(fresh) + 1):
            own = named(failure) if failure["slot"] is not None else f"worker-{number}"
            self.file("failures", prefix + own, log, failure)
        lost = next((failure for failure in fresh if self.stops and lost_action(failure)), None)
        if lost is not None:
            where = f"slot {lost['slot']} after {log.at.env_steps:,} env steps and update {log.at.opt_steps:,}"
            raise diverged(f"the action of {where} is not finite")

    def file(self, sort: str, name: str, log: LogData, told: dict[str, Any]) -> None:
        path = self.folder / sort / f"{name}.json"
        text = json.dumps({"name": name, "env_steps": log.at.env_steps, **told}, indent=1).encode()
        try:
            path.parent.mkdir(exist_ok=True)  # not the run's folder itself: where that is gone, a save sees to it
            write_file(path, [text])
        except OSError as error:
            logger.warning("%s was not written: %s. Training goes on.", path, error.strerror or error)

    def check(self, stop: Stop) -> None:
        """Says why a run was stopped, once it has been saved."""
        if stop.reason == REASON:
            told = f"See {self.shown}/failures, ganglion replay {self.shown}, or allow more."
            raise EnvError(f"{self.faults.verdict()} {told}")

    def state(self) -> State:
        pool = list(self.faults.of_pool())
        return State({}, {"kinds": dict(self.faults.kinds), "rows_lost": self.faults.rows_lost, "pool": pool})

    def restore(self, state: State) -> None:
        saved: dict[str, Any] = dict(state.scalars)  # empty in the checkpoints of earlier versions
        self.faults.kinds = Counter({kind: read_count(times) for kind, times in saved.get("kinds", {}).items()})
        self.faults.count = self.faults.kinds.total()
        self.faults.rows_lost = read_count(saved.get("rows_lost", 0))
        flight, replaced = saved.get("pool", (0, 0))
        self.faults.before = read_count(flight), read_count(replaced)


def named(told: Mapping[str, Any]) -> str:
    """Slot and episode, after the explorer where they are one's own."""
    whose = f"{told['explorer']}-" if "explorer" in told else ""
    return f"{whose}{told['slot']}-{told['episode']}"
