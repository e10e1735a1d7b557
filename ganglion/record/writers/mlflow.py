"""MLflow: into `mlruns` beside the runs, or where MLFLOW_TRACKING_URI says. No address comes from a config."""

from __future__ import annotations

import logging
import os
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from ganglion.config import WriterConfig, register
from ganglion.core import LogData
from ganglion.record.writers import RunInfo

ID_FILE = "mlflow-id.txt"
MOST = 500  # characters of a parameter that every server takes
logger = logging.getLogger(__name__)


@register("writer", "mlflow")
class MlflowConfig(WriterConfig):
    """MLflow; a local SQLite file unless MLFLOW_TRACKING_URI is set."""

    package: ClassVar[str | None] = "mlflow"
    experiment: str = Field(default="ganglion", min_length=1, max_length=128)

    def build(self, run: RunInfo) -> Mlflow:
        return Mlflow(self, run)


class Mlflow:
    """Numbers by env steps, settings as parameters, in a run whose id is kept in the run's folder so that resuming
    continues it. Where the server is away, training goes on."""

    def __init__(self, config: MlflowConfig, run: RunInfo) -> None:
        from mlflow import MlflowClient  # seconds of imports, for those who ask

        where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.folder.parent.resolve() / 'mlflow.db'}"
        self.client = MlflowClient(where)
        self.id = run_id(self.client, config.experiment, run)
        self.lost = False

    def write(self, log: LogData) -> None:
        from mlflow.entities import Metric

        if self.lost or log.kind == "save":
            return
        now = int(log.at.seconds * 1000)
        numbers = [
            Metric(name, float(value), now, log.at.env_steps) for name, value in log.metrics.items() if isfinite(value)
        ]
        try:
            if numbers:
                self.client.log_batch(self.id, metrics=numbers)
        except Exception as error:  # of whatever lies between: a server, a network, a disk
            self.lost = True
            logger.warning("MLflow's numbers end here (%s). Training goes on.", str(error)[:200])

    def close(self) -> None:
        if not self.lost:
            self.client.set_terminated(self.id)


def run_id(client: Any, experiment: str, run: RunInfo) -> str:
    """The id under which MLflow knows the run in this folder; made once, with its settings."""
    file: Path = run.folder / ID_FILE
    if file.exists():
        return file.read_text().strip()
    found = client.get_experiment_by_name(experiment)
    place = found.experiment_id if found else client.create_experiment(experiment)
    made: str = client.create_run(place, run_name=run.name).info.run_id
    run.folder.mkdir(parents=True, exist_ok=True)
    file.write_text(made + "\n")
    for path, value in flat(run.config).items():
        client.log_param(made, path, str(value)[:MOST])
    return made


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Settings as one level: algo.net.hidden."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        match value:
            case {**inner}:
                found |= flat(inner, f"{prefix}{key}.")
            case _:
                found[f"{prefix}{key}"] = value
    return found
