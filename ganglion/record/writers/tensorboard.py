"""Event files for TensorBoard: `tensorboard --logdir RUN`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

import yaml

from ganglion.config import WriterConfig, register
from ganglion.core import LogData
from ganglion.record.writers import RunInfo

FOLDER = "tensorboard"
logger = logging.getLogger(__name__)


@register("writer", "tensorboard")
class TensorboardConfig(WriterConfig):
    """TensorBoard event files in the run's folder, by env steps."""

    package: ClassVar[str | None] = "tensorboard"

    def build(self, run: RunInfo) -> Tensorboard:
        return Tensorboard(run)


class Tensorboard:
    """Scalars by env steps. A resumed run makes TensorBoard forget what its checkpoint had not seen. On a full disk
    events end, until the run is resumed."""

    def __init__(self, run: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second of imports, for those who ask

        resumed = run.at.env_steps + 1 if run.offset is not None else None
        self.events = SummaryWriter(str(run.folder / FOLDER), purge_step=resumed, flush_secs=10)
        self.lost = False  # its own thread has found the disk full, and is dead
        if resumed is None:
            self.events.add_text("config", _as_code(run.config))

    def write(self, log: LogData) -> None:
        if self.lost:
            return
        try:
            for name, value in log.metrics.items():
                if isinstance(value, int | float):
                    self.events.add_scalar(name, value, log.at.env_steps)
            if log.kind == "evaluate":
                self.events.flush()
        except OSError as error:
            self.lost = True
            logger.warning("TensorBoard's events end here (%s). Training goes on.", error.strerror or error)

    def close(self) -> None:
        with suppress(OSError):
            self.events.close()


def _as_code(config: Mapping[str, Any]) -> str:
    """YAML in a Markdown code block."""
    return "".join(f"    {line}\n" for line in yaml.safe_dump(dict(config), sort_keys=False).splitlines())
