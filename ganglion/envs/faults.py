"""What went wrong in the environments of a run, and how much was lost by it; needs no torch."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from ganglion.errors import EnvError

log = logging.getLogger(__name__)

KEPT = 100  # reports held for whoever writes them down


class Faults:
    """Counts failures and holds their reports. `lost`: the rows of the last step whose action was lost, else None."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.lost: Any = None  # a bool tensor [B]
        self.kinds: Counter[str] = Counter()
        self.count = 0
        self.rows_lost = 0  # whose action was lost with its episode
        self.pool: Any = None  # which knows more, where there is one
        self.fresh: list[dict[str, Any]] = []  # not yet written down

    def add(self, failures: list[dict[str, Any]]) -> None:
        """Takes reports, each a dict of plain values."""
        for failure in failures:
            self.kinds[failure["kind"]] += 1
            self.count += 1
            where = f"slot {failure['slot']}, episode {failure['episode']}, step {failure['step']}"
            log.warning("%s: %s (%s); its episode is cut", self.name or "env", failure["error"], where)
        self.fresh = (self.fresh + failures)[-KEPT:]

    def check(self) -> None:
        """Refuses to go on once there were too many."""
        if self.count > self.most:
            raise EnvError(self.verdict())

    def verdict(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())
        return f"env.max_failures: {self.name} failed {self.count} times ({kinds}), and {self.most} were allowed."
