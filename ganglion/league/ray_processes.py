"""The processes of a league on Ray as the league sees them: who is where, and what each has been asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ganglion.core import LogData, Progress, State, Weights, under
from ganglion.fleet.wire import unpack_weights
from ganglion.league.ray_actors import EXPLORE, LEARN
from ganglion.runtime.agent import Agent

AHEAD = 2  # items that a learner may have before it; then its explorers wait


class PendingCall(NamedTuple):
    """Something asked of a process: what it will tell, and the bytes that come with it."""

    what: str
    told: Any
    body: Any


class ProcessHandle:
    """An actor with a process below it, and the calls under way, in order."""

    role = ""

    def __init__(self, player: str) -> None:
        self.player = player
        self.actor: Any = None
        self.calls: list[PendingCall] = []
        self.pid = self.deaths = self.futile = 0  # deaths: of processes of this place; futile: in a row

    def ask(self, what: str, order: Mapping[str, Any], body: Any = None) -> PendingCall:
        told, more = self.actor.call.options(num_returns=2).remote({"do": what, **order}, body)
        self.calls.append(PendingCall(what, told, more))
        return self.calls[-1]


class RemotePlayerExplorer(ProcessHandle):
    """The place of an explorer of a player."""

    role = EXPLORE

    def __init__(self, player: str, number: int, matches: int) -> None:
        super().__init__(player)
        self.number, self.incarnation, self.matches = number, -1, matches
        self.free: list[int] = []  # which of its matches are over, or have not begun
        self.published = -1  # of its player's weights, the last that it was told

    @property
    def ready(self) -> bool:
        """Whether it has begun, and waits."""
        return self.actor is not None and not self.calls


class RemotePlayerLearner(ProcessHandle):
    """The learner process of a player; in a Trainer's eyes a Learner that is never due."""

    role = LEARN

    def __init__(self, agent: Agent, slots: int, ask_state: Callable[[RemotePlayerLearner], State]) -> None:
        super().__init__(agent.player)
        self.agent, self.slots, self.ask_state, self.buffer = agent, slots, ask_state, self
        self.weights, self.published = agent.command(Progress()), 0  # its process begins with the same
        self.kept: State | None = None  # all that it was, when it was saved last
        self.rows = 0  # of its items; 0: not yet known
        self.account: Mapping[str, float] = {}

    @property
    def full(self) -> bool:
        return self.rows == 0 or sum(call.what == "take" for call in self.calls) > AHEAD

    def publish(self, weights: Weights) -> None:
        """Newer weights."""
        self.weights, self.published = weights, self.published + 1
        self.agent.obey(weights)

    def take(self, body: Any) -> None:
        self.publish(unpack_weights(body))

    # ------------------------------------------------------------ as a Learner

    def owes(self, at: Progress) -> bool:
        """It learns by itself."""
        return False

    def step(self, at: Progress) -> LogData:
        raise RuntimeError("a learner elsewhere is never due")

    def metrics(self) -> Mapping[str, float]:
        """Of its buffer, which is elsewhere."""
        return {}

    def state(self) -> State:
        self.kept = self.ask_state(self)
        return self.kept

    def restore(self, state: State) -> None:
        if state.tensors:
            self.kept, at = state, Progress.read(under(state, "counters").scalars["at"])
            self.weights = self.agent.command(at)
