"""Event files for TensorBoard: `tensorboard --logdir RUN`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ganglion.config import WriterConfig, register
from ganglion.core import LogData
from ganglion.errors import UserError
from ganglion.record.writers import RunInfo

FOLDER = "tensorboard"


@register("writer", "tensorboard")
class TensorboardConfig(WriterConfig):
    """TensorBoard event files in the run's folder, by env steps."""

    def build(self, run: RunInfo) -> Tensorboard:
        return Tensorboard(run)


class Tensorboard:
    """Scalars by env steps. A resumed run makes TensorBoard forget what its checkpoint had not seen."""

    def __init__(self, run: RunInfo) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # a second of imports, for those who ask
        except ImportError as error:
            raise UserError("the writer 'tensorboard' needs: pip install 'ganglion[tensorboard]'") from error
        resumed = run.at.env_steps + 1 if run.at.env_steps else None
        self.events = SummaryWriter(str(run.folder / FOLDER), purge_step=resumed, flush_secs=10)
        if resumed is None:
            self.events.add_text("config", _as_code(run.config))

    def write(self, log: LogData) -> None:
        for name, value in log.metrics.items():
            if isinstance(value, int | float):
                self.events.add_scalar(name, value, log.at.env_steps)
        if log.kind == "evaluate":
            self.events.flush()

    def close(self) -> None:
        self.events.close()


def _as_code(config: Mapping[str, Any]) -> str:
    """YAML in a Markdown code block."""
    return "".join(f"    {line}\n" for line in yaml.safe_dump(dict(config), sort_keys=False).splitlines())
