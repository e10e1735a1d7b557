"""The Trainer: a generator of log data whose turn follows from counters."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from ganglion.config import Every
from ganglion.core import (
    Command, Episode, LogData, Progress, SetKnob, Source, State, Stop, join, read_count, under,
)  # fmt: skip
from ganglion.errors import UserError
from ganglion.faults import close_all
from ganglion.runtime.agent import PLAYER, Agent
from ganglion.runtime.evaluator import Evaluator, never
from ganglion.runtime.learner import Learner

Scored = Callable[[Callable[[], Progress], Callable[[], bool]], Any]  # of the counters, and whether weights are finite


class Trainer:
    """Source and Learner in turn until the budget is spent. Stopping and calling again continues."""

    def __init__(
        self, source: Source, learner: Learner, evaluator: Evaluator, budget: Every, scored: Scored | None = None,
        others: Sequence[Learner] = (), frozen: Sequence[Agent] = (),
    ) -> None:  # fmt: skip
        """`scored` makes the stage that evaluates, where that is not done in this process. `others`: the learners of
        further players, and `frozen` the agents of those that do not learn."""
        self.source, self.learner, self.evaluator, self.budget = source, learner, evaluator, budget
        self.scored, self.learners = scored, (learner, *others)
        self.agents = [each.agent for each in self.learners] + list(frozen)
        self.made = dict.fromkeys([each.agent.player for each in self.learners], 0)  # updates of each
        self.clock = learner.agent.engine.clock
        self.at = Progress()

    def __call__(self) -> Generator[LogData, Command | None, Stop]:
        """Each `next` is one block of steps of every slot, or one update. `send` takes commands."""
        while not self.finished():
            command = yield self.run_train() if self.owes() else self.run_collect()
            if isinstance(command, Stop):
                return command
            if isinstance(command, SetKnob):
                self.pin(command)
        return Stop("budget", finished=True)

    def pin(self, command: SetKnob) -> None:
        """Sets a knob; of several players `player/knob`."""
        player, _, name = command.name.rpartition("/")
        for learner in self.learners:
            if len(self.learners) == 1 or learner.agent.player == player:
                learner.agent.pin(command._replace(name=name) if player else command)
                return
        players = ", ".join(self.made)
        raise UserError(f"knob {command.name!r}: no player {player!r}. Accepted: PLAYER/KNOB with {players}.")

    def owes(self) -> bool:
        """Whether it is a learner's turn."""
        if len(self.learners) == 1:  # asked before every event
            return self.learners[0].owes(self.at)
        return any(learner.owes(self.seen(learner)) for learner in self.learners)

    def seen(self, learner: Learner) -> Progress:
        """The counters as one learner sees them: its own updates, and the steps of its own slots."""
        if len(self.learners) == 1:
            return self.at
        return self.at._replace(
            env_steps=self.at.env_steps * learner.slots // self.source.spec.slots,
            opt_steps=self.made[learner.agent.player],
        )

    def finished(self) -> bool:
        """Whether the budget is spent; updates that the last steps allow are still made."""
        return self.at.fraction >= 1 and not (self.budget.unit == "steps" and self.owes())

    def run_collect(self) -> LogData:
        """A block of actions of every slot."""
        began = self.clock()
        return self.tick(self.source.step(self.at), began)

    def run_train(self) -> LogData:
        """One update, or a learning phase where that is one function."""
        began = self.clock()
        learner = next(each for each in self.learners if len(self.learners) == 1 or each.owes(self.seen(each)))
        return self.tick(self.taught(learner), began)

    def taught(self, learner: Learner) -> LogData:
        """One update of a learner; its metrics bear its player's name where there are several."""
        if len(self.learners) == 1:
            return learner.step(self.at)
        player, before = learner.agent.player, self.made[learner.agent.player]
        log = learner.step(self.seen(learner))
        self.made[player] = log.at.opt_steps
        now = self.at._replace(opt_steps=self.at.opt_steps + log.at.opt_steps - before)
        return LogData("learn", now, {f"{player}/{name}": value for name, value in log.metrics.items()})

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
        counters = State({}, {"at": list(self.at), "made": dict(self.made)})
        learners = {named("learner", learner.agent): learner.state() for learner in self.learners}
        return join({"counters": counters, **self.agents_state(), "source": self.source.state(), **learners})

    def agents_state(self) -> dict[str, State]:
        """Of the players: all that acting takes."""
        return {named("agent", agent): agent.state() for agent in self.agents}

    def restore(self, state: State) -> None:
        self.at = Progress.read(under(state, "counters").scalars["at"])
        self.at = self.at._replace(fraction=spent(self.budget, self.at))  # the budget may have been changed
        made = under(state, "counters").scalars["made"]
        self.made = {player: read_count(made[player]) for player in self.made}
        for agent in self.agents:
            agent.restore(under(state, named("agent", agent)))
        self.source.restore(under(state, "source"))
        for learner in self.learners:
            learner.restore(under(state, named("learner", learner.agent)))


def named(part: str, agent: Agent) -> str:
    """The name of a player's part in a state."""
    return part if agent.player == PLAYER else f"{part}s/{agent.player}"


def spent(budget: Every, at: Progress) -> float:
    """The fraction of the budget that is gone."""
    return min(budget.measure(at) / budget.count, 1.0)
