"""Writers: where recorded numbers go. Each is a module with a config whose `build` takes a RunInfo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ganglion.config import Every
from ganglion.core import Progress


@dataclass(frozen=True)
class RunInfo:
    """What a writer may know of a run."""

    name: str
    folder: Path
    config: Mapping[str, Any]  # resolved, plain
    budget: Every
    at: Progress = Progress()  # where the run starts or resumes
    offset: int | None = None  # bytes of metrics.jsonl to keep when it resumes; None for a new run
