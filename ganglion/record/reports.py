"""Reports of episodes that failed, or were to be logged, as files hold them: read back, and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ganglion.config import Count
from ganglion.config.files import explain
from ganglion.errors import UserError
from ganglion.record.stores import Where


class Report(BaseModel):
    """What became of an episode, and what it was given; `slot` is None where none was running."""

    model_config = ConfigDict(frozen=True, strict=True)
    name: str
    kind: str
    slot: int | None = Field(ge=0, le=10**9)
    episode: Count | None = Field(ge=0)
    seed: int | None = Field(ge=0, lt=2**64)
    run_seed: int | None = Field(ge=0, lt=2**64)
    step: Count | None = Field(ge=0)
    acting: bool
    error: str | None = None  # None: it ended well
    total: float = 0.0
    actions: list[list[Any]] | None = None  # per part of an action: one after the other


def read_report(path: Where) -> Report:
    """A report, or a word on why the file is none."""
    try:
        if isinstance(path, Path) and not path.is_file():
            raise UserError(f"{path} is damaged: it is no file.")
        return Report.model_validate(json.loads(path.read_text("utf-8")))
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {explain(error, 'the report')}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}.") from None
