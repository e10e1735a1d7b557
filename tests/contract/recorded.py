"""A Source of one's own: rows that were collected before, read from a file, as `run.mode=recorded`. Written against
`core.Source` and `core.Sink` alone. Used as `--import tests.contract.recorded`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ganglion import ops
from ganglion.buffers.storage import row_of
from ganglion.config import RunConfig, register
from ganglion.core import EnvSpec, Episode, Faults, LogData, Past, Progress, Row, Sink, State, read_count
from ganglion.runtime.build import build_agents, build_env, build_evaluator, build_learner
from ganglion.runtime.engine import Engine
from ganglion.runtime.trainer import Trainer

FILE: list[Path] = []  # where the rows are


def record(rows: Row, file: Path) -> None:
    """Writes rows [T, B, ...]."""
    np.savez(file, **{name: x.numpy() for name, x in ops.flatten_names(rows).items()})
    FILE[:] = [file]


class Recorded:
    """Hands on the rows of a file, one after the other and from the start again at its end."""

    def __init__(self, file: Path, spec: EnvSpec, sink: Sink) -> None:
        self.spec, self.sink, self.place = spec, sink, 0
        with np.load(file, allow_pickle=False) as arrays:
            self.rows: Row = row_of({name: torch.from_numpy(arrays[name]) for name in arrays.files})

    @property
    def faults(self) -> Faults:
        return Faults("", 0)

    def step(self, at: Progress) -> LogData:
        row, after = (ops.map_tree(lambda x, t=t: x[t : t + 1], self.rows) for t in (self.place, self.place + 1))
        self.sink.push(row, (ops.select(after.obs, 0), Past((), after.start)), at)
        self.place = (self.place + 1) % (len(self.rows.reward) - 1)
        ended = int((row.terminated | row.truncated).sum())
        played = (Episode(-1, 0.0, 0.0, {}, ended),) if ended else ()
        now = at._replace(env_steps=at.env_steps + int(row.valid.sum()), episodes=at.episodes + ended)
        return LogData("collect", now, {}, played)

    def numbers(self) -> Mapping[str, float]:
        return {"recorded/place": float(self.place)}

    def summary(self) -> Mapping[str, str]:
        return {"Rows": str(len(self.rows.reward))}

    def close(self) -> None:
        """Nothing is open."""

    def state(self) -> State:
        return State({}, {"place": self.place})

    def restore(self, state: State) -> None:
        self.place = read_count(state.scalars["place"], len(self.rows.reward))


@register("mode", "recorded")
class RecordedMode:
    """No environment but to be scored in."""

    together: ClassVar[bool] = True

    @staticmethod
    def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        env = build_env(cfg)
        made = build_agents(cfg, env.spec, engine)
        learner = build_learner(cfg, made[0][1], env.spec)
        env.close()
        evaluator = build_evaluator(cfg, made, cfg.eval.episodes, cfg.run.seed)
        return Trainer(Recorded(FILE[0], env.spec, learner), learner, evaluator, cfg.train.budget)
