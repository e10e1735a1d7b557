"""Weights & Biases. Offline unless WANDB_API_KEY is in the environment; the key never comes from a config."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ganglion.config import WriterConfig, register
from ganglion.core import LogData
from ganglion.record.writers import RunInfo

ID_FILE = "wandb-id.txt"


@register("writer", "wandb")
class WandbConfig(WriterConfig):
    """Weights & Biases; offline (`wandb sync` uploads later) unless WANDB_API_KEY is set."""

    package: ClassVar[str | None] = "wandb"
    project: str = Field(default="ganglion", min_length=1, max_length=128)
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()

    def build(self, run: RunInfo) -> Wandb:
        return Wandb(self, run)


class Wandb:
    """Scalars by env steps, in a run whose id is kept in the run's folder so that resuming continues it."""

    def __init__(self, config: WandbConfig, run: RunInfo) -> None:
        import wandb  # seconds of imports, for those who ask

        run.folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=config.project,
            entity=config.entity,
            group=config.group,
            tags=list(config.tags),
            name=run.name,
            id=run_id(run.folder),
            resume="allow",
            mode=mode(),
            dir=str(run.folder),
            config=dict(run.config),
            settings=wandb.Settings(console="off", silent=True),  # the terminal belongs to the console writer
        )
        self.run.define_metric("*", step_metric="env_steps")

    def write(self, log: LogData) -> None:
        numbers = {name: value for name, value in log.metrics.items() if isinstance(value, int | float)}
        if numbers:
            counters = {"env_steps": log.at.env_steps, "opt_steps": log.at.opt_steps, "seconds": log.at.seconds}
            self.run.log({**numbers, **counters})

    def close(self) -> None:
        self.run.finish()


def mode() -> Literal["offline", "disabled"] | None:
    """What wandb is asked for: its own choice (WANDB_MODE) where there is a key, else never online."""
    if os.environ.get("WANDB_API_KEY"):
        return None
    return "disabled" if os.environ.get("WANDB_MODE") == "disabled" else "offline"


def run_id(folder: Path) -> str:
    """The id under which wandb knows the run in this folder; made once."""
    path = folder / ID_FILE
    if not path.exists():
        path.write_text(secrets.token_hex(4) + "\n")
    return path.read_text().strip()
