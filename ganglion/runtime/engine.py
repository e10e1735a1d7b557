"""The Engine: how the pure functions of a run are run, and from which update on.

Eagerly, compiled (CPU) or captured as CUDA graphs; `runtime/seeds.py` has one that batches them over several runs.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

import torch

from ganglion.core import Progress, State
from ganglion.fast.background import Compiler
from ganglion.fast.compile import TOO_OLD, Wrap
from ganglion.fast.direct import Fn

log = logging.getLogger(__name__)


def as_it_is(fn: Fn) -> Fn:
    return fn


class Engine:
    """Runs pure functions, eagerly until the update `since`, then in their fast form if the run is long enough.

    Both are read from counters, so that a run repeats and a resumed one continues in the form it was in.
    """

    def __init__(
        self, device: torch.device, fast: Wrap | None = None, since: int = 0, least: int = 0, able: bool = True,
        fuse: Wrap | None = None,
    ) -> None:  # fmt: skip
        """`fast` makes the fast form of a function; None: there is none. `fuse`, where whole rollouts and learning
        phases are captured, makes that of a part which is called there many times."""
        self.device, self.fast, self.fuse = device, fast, fuse or as_it_is
        self.whole = fuse is not None
        self.since, self.least, self.able = since, least, able  # opt steps; `least`: in the whole run
        self.on = fast is not None and since == 0
        self.compiler: Compiler | None = None

    # ------------------------------------------------------------ functions

    def wrap(self, fn: Fn, name: str) -> Fn:
        """The function in the form of the moment. Its name tells it from others of the run."""
        return fn if self.fast is None else Switched(self, fn, self.fast(fn))

    def wrap_own(self, fn: Fn) -> Fn:
        """The same for a function that is never batched with those of other runs: evaluation."""
        return fn if self.fast is None else Switched(self, fn, self.fast(fn))

    @property
    def walks(self) -> bool:
        """Whether steps of a pure world are one function."""
        return self.on

    def clock(self) -> float:
        """Seconds, of which only differences count."""
        return perf_counter()

    # ------------------------------------------------------------ when

    def attach(self, compiler: Compiler) -> None:
        """Takes what compiles in the background until fast forms are due."""
        self.compiler = compiler

    def detach(self) -> None:
        if self.compiler is not None:
            self.compiler.stop()
            self.compiler = None

    def look(self, at: Progress) -> None:
        """Before the update that `at` counts up to: switches to the fast form where it is due."""
        if self.on or self.fast is None or at.opt_steps > self.since or not self.worth(at):
            return
        if not self.able:
            if at.opt_steps == self.since:
                log.warning(TOO_OLD, torch.__version__)
            return
        if at.opt_steps == self.since // 4 and self.compiler is not None:
            self.compiler.start()
        if at.opt_steps == self.since:
            if self.compiler is not None:
                self.compiler.wait()
            self.on = True

    def switch(self, on: bool) -> None:
        """Switches to the fast form, or back, where somebody else decides: an explorer follows its learner."""
        self.on = on and self.fast is not None

    @property
    def went(self) -> bool:
        """Whether it has switched in the course of the run: by now the compiled functions are on disk."""
        return self.on and self.since > 0

    def worth(self, at: Progress) -> bool:
        return at.fraction > 0 and at.opt_steps / at.fraction >= self.least

    def state(self) -> State:
        return State({}, {"on": self.on})

    def restore(self, state: State) -> None:
        on = state.scalars.get("on", False)
        if not isinstance(on, bool):
            raise ValueError(f"{str(on)[:40]!r} is neither true nor false")
        self.on = self.fast is not None and (self.since == 0 or on)


class Switched:
    """A function with two forms, of which its engine says which is used."""

    def __init__(self, engine: Engine, eager: Fn, fast: Fn) -> None:
        self.engine, self.eager, self.fast = engine, eager, fast

    def __call__(self, *args: Any) -> Any:
        return (self.fast if self.engine.on else self.eager)(*args)
