"""What went wrong in the environments of a run, how it is told, and how much was lost by it; needs no torch."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ganglion.errors import EnvError, UserError

log = logging.getLogger(__name__)

TOLD = 10  # failures that are warned about one by one
KEPT = 100  # reports held for whoever writes them down
LONGEST = 300  # characters of a message
OWN = (
    "ganglion.envs.slots",
    "ganglion.envs.gym_arrays",
    "ganglion.envs.legal_actions",
)  # what looks at values of environments
TRACE = 20_000  # characters of a traceback


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
        look = f" Look it over: ganglion check {self.name}." if self.name else ""
        return f"env.max_failures: {self.name} failed {times}, and {self.most} were allowed.{look}"


# ------------------------------------------------------------ in words


def told(error: BaseException) -> str:
    """What was raised, in a line of characters that can be shown, however long and strange its message is."""
    try:
        text = " ".join(str(error)[: 10 * LONGEST].split())
    except Exception:
        text = "its message cannot be shown"
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    text = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
    kind = type(error).__name__
    return text if isinstance(error, UserError) else f"{kind}: {text}" if text else kind


def place(error: BaseException) -> str:
    """The line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def misfit(error: BaseException) -> bool:
    """Whether an environment returned what nobody can take, or cannot be called as gymnasium says: it was noticed here,
    not raised by the environment."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    beyond = next((name for name in names if name not in OWN), "numpy")
    return str(beyond).split(".")[0] == "numpy"


def broken(name: str, error: BaseException, when: str) -> EnvError:
    """Why an environment cannot be used at all."""
    if misfit(error):
        return unusable(name, f"{when} does not do what gymnasium says: {told(error)}")
    return unusable(name, f"{when} raised {told(error)} ({place(error)})")


def unusable(name: str, why: str) -> EnvError:
    """One line that says which environment, why, and what to do."""
    return EnvError(f"env: {name or 'the environment'}: {why}. Look it over: ganglion check {name or 'ENV'}")


def name_of(env: Any) -> str:
    """What `ganglion check` knows an environment by: its registered id, or its class."""
    spec, kind = getattr(env, "spec", None), type(getattr(env, "unwrapped", env))
    return str(spec.id) if spec is not None else f"{kind.__module__}:{kind.__qualname__}"


def close_all(envs: Iterable[Any]) -> None:
    """Closes environments. One that cannot be closed is a line in the log: nothing depends on it any more."""
    failed: Counter[str] = Counter()
    for env in envs:
        try:
            env.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            failed[told(error)] += 1
    for text, count in failed.items():
        log.warning("env: close() failed%s: %s", f" {count} times" if count > 1 else "", text)
