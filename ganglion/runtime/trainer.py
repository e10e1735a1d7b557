"""The Trainer: a generator of log data whose turn follows from counters."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

from ganglion.config import Every
from ganglion.core import Command, Episode, LogData, Progress, SetKnob, Source, State, Stop, join, under
from ganglion.faults import close_all
from ganglion.runtime.evaluator import Evaluator, never
from ganglion.runtime.learner import Learner

Scored = Callable[[Callable[[], Progress], Callable[[], bool]], Any]  # of the counters, and whether weights are finite


class Trainer:
    """Source and Learner in turn until the budget is spent. Stopping and calling again continues."""

    def __init__(
        self, source: Source, learner: Learner, evaluator: Evaluator, budget: Every, scored: Scored | None = None
    ) -> None:
        """`scored` makes the stage that evaluates, where that is not done in this process."""
        self.source, self.learner, self.evaluator, self.budget = source, learner, evaluator, budget
        self.scored = scored
        self.clock = learner.agent.engine.clock
        self.at = Progress()

    def __call__(self) -> Generator[LogData, Command | None, Stop]:
        """Each `next` is one block of steps of every slot, or one update. `send` takes commands."""
        while not self.finished():
            command = yield self.run_train() if self.learner.owes(self.at) else self.run_collect()
            if isinstance(command, Stop):
                return command
            if isinstance(command, SetKnob):
                self.learner.agent.pin(command)
        return Stop("budget", finished=True)

    def finished(self) -> bool:
        """Whether the budget is spent; updates that the last steps allow are still made."""
        return self.at.fraction >= 1 and not (self.budget.unit == "steps" and self.learner.owes(self.at))

    def run_collect(self) -> LogData:
        """A block of actions of every slot."""
        began = self.clock()
        return self.tick(self.source.step(self.at), began)

    def run_train(self) -> LogData:
        """One update, or a learning phase where that is one function."""
        began = self.clock()
        return self.tick(self.learner.step(self.at), began)

    def run_evaluate(self, asked: Callable[[], bool] = never) -> tuple[list[Episode], Mapping[str, float]]:
        """The deterministic score of the agent as it is; training does not notice. `asked`: whether to stop."""
        return self.evaluator.run(asked)

    def tick(self, log: LogData, began: float) -> LogData:
        at = Progress(*log.at[:3], self.at.seconds + self.clock() - began)
        self.at = Progress(*at[:4], spent(self.budget, at))
        return LogData(log.kind, self.at, log.metrics, log.episodes)

    def resumed(self, checkpoint: str) -> None:
        """Called after a checkpoint was restored; parts in other processes read the same one."""

    def close(self) -> None:
        """Ends what the environments hold: worker processes, windows."""
        close_all([self.source, self.evaluator])

    def state(self) -> State:
        counters = State({}, {"at": list(self.at)})
        agent = self.learner.agent.state()
        parts = {"agent": agent, "source": self.source.state(), "learner": self.learner.state()}
        return join({"counters": counters, **parts})

    def restore(self, state: State) -> None:
        self.at = Progress.read(under(state, "counters").scalars["at"])
        self.at = self.at._replace(fraction=spent(self.budget, self.at))  # the budget may have been changed
        self.learner.agent.restore(under(state, "agent"))
        self.source.restore(under(state, "source"))
        self.learner.restore(under(state, "learner"))


def spent(budget: Every, at: Progress) -> float:
    """The fraction of the budget that is gone."""
    return min(budget.measure(at) / budget.count, 1.0)
