"""What went wrong in the environments of a run, and how much was lost by it; needs no torch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ganglion.errors import EnvError

log = logging.getLogger(__name__)

TOLD = 10  # failures that are warned about one by one
KEPT = 100  # reports held for whoever writes them down
TEXT = 2_000  # characters of an error's text, and ten times as many of its traceback


class Faults:
    """Counts failures and holds their reports. `lost`: the rows of the last step whose action was lost, else None."""

    def __init__(self, name: str, most: int) -> None:
        self.name, self.most = name, most
        self.lost: Any = None  # a bool tensor [B]
        self.kinds: Counter[str] = Counter()
        self.count = 0
        self.rows_lost = 0  # whose action was lost with its episode
        self.pool: Any = None  # which knows more, where there is one
        self.before = (0, 0)  # rows in flight and workers replaced before the run was resumed
        self.fresh: list[dict[str, Any]] = []  # not yet written down
        self.logged: list[dict[str, Any]] = []  # episodes that ended well and are to be written down, too

    def add(self, failures: list[dict[str, Any]]) -> None:
        """Takes reports, each a dict of plain values."""
        for failure in failures:
            self.kinds[failure["kind"]] += 1
            self.count += 1
            where = f"slot {failure['slot']}, episode {failure['episode']}, step {failure['step']}; its episode is cut"
            if failure["slot"] is None:
                where = f"worker {failure['worker']}, between two steps"
            if self.count <= TOLD:
                last = "; further failures are only written down" if self.count == TOLD else ""
                log.warning("%s: %s (%s)%s", self.name or "env", failure["error"], where, last)
        self.fresh = (self.fresh + failures)[-KEPT:]

    def seen(self, lost: Any, rows: int) -> None:
        """Which rows of a step were lost, None for none."""
        self.lost = lost
        self.rows_lost += rows

    def of_pool(self) -> tuple[int, int]:
        """Rows in flight when a worker was lost, and workers replaced, in the whole run."""
        now = (self.pool.rows_in_flight, len(self.pool.replaced)) if self.pool else (0, 0)
        return self.before[0] + now[0], self.before[1] + now[1]

    def numbers(self) -> dict[str, float]:
        """What is recorded beside a run's averages, once something has gone wrong."""
        if not self.count:
            return {}
        pool = dict(zip(("rows_in_flight", "replaced"), self.of_pool())) if self.pool or any(self.before) else {}
        return {f"env/{k}": float(v) for k, v in {"failures": self.count, "rows_lost": self.rows_lost, **pool}.items()}

    def summary(self) -> str:
        """All that went wrong, in a line."""
        text = f"{self.count} ({self.kinds_text()}), {self.rows_lost} rows lost"
        flight, replaced = self.of_pool()
        if replaced:
            text += f" of {flight} in flight; {replaced} workers replaced"
        if self.pool is not None and self.pool.replaced:
            text += f", {max(self.pool.replaced):.2f} s at most"
        return text

    def kinds_text(self) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in self.kinds.items())

    def check(self) -> None:
        """Refuses to go on once there were too many."""
        if self.count > self.most:
            raise EnvError(self.verdict())

    def verdict(self) -> str:
        times = f"{self.count} times ({self.kinds_text()})"
        return f"env.max_failures: {self.name} failed {times}, and {self.most} were allowed."


def described(error: BaseException) -> str:
    """An error's name and text, which an environment may have made unreadable or endless."""
    try:
        return f"{type(error).__name__}: {str(error)[:TEXT]}"
    except Exception:
        return f"{type(error).__name__}, whose text cannot be read"


def close_all(envs: Iterable[Any]) -> None:
    """Closes environments. One that cannot be closed is a line in the log: nothing depends on it any more."""
    told: Counter[str] = Counter()
    for env in envs:
        try:
            env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            told[described(error)] += 1
    for text, count in told.items():
        log.warning("env: close() failed%s: %s", f" {count} times" if count > 1 else "", text)


def faults_of(env: Any) -> Faults:
    """What went wrong in an environment, through its wrappers; nothing ever does in those that do not say."""
    while not hasattr(env, "faults") and hasattr(env, "env"):
        env = env.env
    found: Faults = getattr(env, "faults", None) or Faults("", 0)
    return found
