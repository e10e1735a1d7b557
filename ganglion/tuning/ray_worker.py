"""Workers as Ray actors: each keeps a process that trains, on the machine where Ray has put it.

Folders are the same on all machines: a study on several needs a file system that they share.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ganglion.config import RunConfig
from ganglion.fleet.ray_cluster import ClusterSettings, join_ray, leave_ray
from ganglion.tuning.pool import TrainingPool, TrainingProcess


class RayTrainingWorker:
    """The same as a process of this machine, somewhere else."""

    def __init__(self, ray: Any, log: str) -> None:
        self.ray, actor = ray, ray.remote(TrainingProcess)
        self.actor = actor.options(max_concurrency=3, num_cpus=1).remote(
            log, tied=False
        )  # waits for a line, and takes others

    def send(self, what: dict[str, Any]) -> None:
        self.ray.get(self.actor.send.remote(what))

    def line(self) -> str | None:
        try:
            line: str | None = self.ray.get(self.actor.line.remote())
            return line
        except self.ray.exceptions.RayError:
            return None

    def leave(self) -> None:
        self.actor.leave.remote()

    def end(self) -> None:
        try:
            self.ray.get(self.actor.end.remote())
        except self.ray.exceptions.RayError:
            return  # gone with its machine
        self.ray.kill(self.actor)


class RayTrainingPool(TrainingPool):
    """Workers of a Ray that is joined, or started here and left with the pool."""

    def __init__(self, site: ClusterSettings, count: int, folder: Path) -> None:
        self.ray, self.own = join_ray(site)
        super().__init__(count, lambda k: RayTrainingWorker(self.ray, str(folder.resolve() / f"worker-{k}.log")))

    def close(self) -> None:
        super().close()
        if self.own:
            leave_ray()


def on_ray(cfg: RunConfig, count: int, folder: Path) -> TrainingPool:
    """Workers in the cluster that `fleet` names."""
    folder.mkdir(parents=True, exist_ok=True)
    return RayTrainingPool(ClusterSettings(cfg.fleet.address, cfg.fleet.host, count), count, folder)
