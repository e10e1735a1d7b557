"""When something is due again: once per interval passed, never `step % n == 0`."""

from __future__ import annotations

from ganglion.config import Every
from ganglion.core import Progress, State, read_count


class Due:
    """Remembers how many intervals had passed when it was last due."""

    def __init__(self, every: Every) -> None:
        self.every = every
        self.passed = 0

    def due(self, at: Progress) -> bool:
        """True once whenever at least one more interval has passed, and marks it."""
        if not self.passes(at):
            return False
        self.passed = int(self.every.measure(at) // self.every.count)
        return True

    def passes(self, at: Progress) -> bool:
        """Whether one more interval has passed, unmarked."""
        return self.every.measure(at) >= (self.passed + 1) * self.every.count

    def state(self) -> State:
        return State(scalars={"passed": self.passed})

    def restore(self, state: State, at: Progress) -> None:
        """`at`: where the run goes on. Of longer intervals than it was saved with, fewer have passed."""
        self.passed = min(read_count(state.scalars["passed"]), int(self.every.measure(at) // self.every.count))
