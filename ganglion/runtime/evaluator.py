"""The Evaluator: a deterministic score on a world of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import count, zip_longest
from math import sqrt
from statistics import fmean, median

import torch

from ganglion.config.run import MAX_STEPS
from ganglion.core import Env, EnvSpec, Episode
from ganglion.errors import EvaluationStoppedError
from ganglion.runtime.agent import Agent
from ganglion.runtime.players import Table

log = logging.getLogger(__name__)
Seats = Callable[[EnvSpec], Sequence[tuple[Agent, slice | None]]]


def never() -> bool:
    """Nobody asks to stop."""
    return False


class Evaluator:
    """Runs the same seeded episodes each time, an equal quota per slot, so short episodes are not over-counted. A slot
    whose episode has not ended after `max_steps` is scored as it stands, and plays no more."""

    def __init__(
        self, agent: Agent, make_env: Callable[[], Env], episodes: int, seed: int, max_steps: int = MAX_STEPS,
        seats: Seats | None = None,
    ) -> None:  # fmt: skip
        """`seats`: who sits where; without it the agent plays all slots. The first one's episodes are the score."""
        self.make_env, self.wanted, self.seed = make_env, episodes, seed
        self.max_steps, self.seats = max_steps, seats or (lambda spec: [(agent, None)])
        self.env: Env | None = None
        self.told = False  # that episodes were cut

    def begin(self) -> tuple[Env, Sequence[tuple[Agent, slice | None]]]:
        """Its environment, which is made when it is first needed, and who sits where."""
        if self.env is None:
            self.env = self.make_env()
        return self.env, self.seats(self.env.spec)

    def run(self, asked: Callable[[], bool] = never) -> tuple[list[Episode], Mapping[str, float]]:
        """The episodes, and their statistics. `asked` is looked at between two steps: where it is true, it stops."""
        env, seats = self.begin()
        slots = env.spec.slots
        first = range(slots)[seats[0][1] or slice(None)]
        quota = -(-self.wanted // len(first))
        step, table = env.reset(self.seed), Table(seats, slots)
        env.episodes()  # forget what an earlier evaluation left unfinished
        finished: list[list[Episode]] = [[] for _ in range(slots)]
        playing, began, late = set(range(slots)), [0] * slots, self.max_steps
        totals = torch.zeros(slots, dtype=torch.float64, device=step.reward.device)  # of running episodes, [B]
        for now in count(1):
            if asked():
                raise EvaluationStoppedError
            step = env.step(table.act(step))
            totals += step.reward
            for episode in env.episodes():
                slot = episode.slot
                began[slot], totals[slot] = now + 1, 0.0  # the step between brings the first observation
                if slot in playing:
                    finished[slot].append(episode)
                    playing -= {slot} if len(finished[slot]) == quota else set()
            if playing and now >= late:
                for slot in [slot for slot in playing if now - began[slot] >= self.max_steps]:
                    finished[slot].append(Episode(slot, float(totals[slot]), now - began[slot], {}))
                    playing.discard(slot)
                    self.tell()
                late = min((began[slot] for slot in playing), default=0) + self.max_steps
            if not playing:
                break
        played = [in_turn(finished[place or slice(None)])[: self.wanted] for _, place in seats]
        episodes, numbers = named(played, seats)
        return episodes, {**numbers, **of_teams(finished[seats[0][1] or slice(None)], env.spec.copies)}

    def tell(self) -> None:
        """Says once that an episode did not end: nothing else would."""
        if not self.told:
            text = "eval.max_steps: an episode had not ended after %d steps, and is scored as it stands. "
            log.warning(text + "An environment that never ends needs env.time_limit.", self.max_steps)
        self.told = True

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


def in_turn(finished: Sequence[list[Episode]]) -> list[Episode]:
    """The first episode of each slot, then the second of each, ..."""
    return [episode for some in zip_longest(*finished) for episode in some if episode is not None]


def named(
    played: Sequence[list[Episode]], seats: Sequence[tuple[Agent, slice | None]]
) -> tuple[list[Episode], Mapping[str, float]]:
    """The episodes and scores of all players: the first one's is the score, each has its own beside."""
    if len(seats) == 1:
        return played[0], score(played[0])
    names = [agent.player for agent, _ in seats]
    told = [e._replace(player=name) for name, own in zip(names, played, strict=True) for e in own]
    means = {f"eval/{name}/return_mean": fmean(e.total for e in own) for name, own in zip(names, played, strict=True)}
    return told, {**score(played[0]), **means}


def of_teams(own: Sequence[list[Episode]], copies: int) -> Mapping[str, float]:
    """What the agents of one player get together in a copy of the game, on average; nothing where it has one."""
    each = [own[copy::copies] for copy in range(copies)]  # the episodes of each copy's agents
    totals = [sum(e.total for e in game) for agents in each for game in zip(*agents, strict=False)]
    return {"eval/team_return_mean": fmean(totals)} if len(own) > copies else {}


def deviation(values: list[float], lost: int = 0) -> float:
    """The standard deviation with `lost` degrees of freedom lost; NaN where a value is, which `statistics` refuses."""
    mean = fmean(values)
    return sqrt(fmean((x - mean) * (x - mean) for x in values) * len(values) / (len(values) - lost))


def score(episodes: list[Episode]) -> dict[str, float]:
    totals = [e.total for e in episodes]
    spread = {"eval/return_std": deviation(totals), "eval/return_min": min(totals), "eval/return_max": max(totals)}
    middle = {"eval/return_mean": fmean(totals), "eval/return_median": median(totals)}
    return {
        **middle,
        **spread,
        "eval/length_mean": fmean(e.length for e in episodes),
        "eval/episodes": float(len(totals)),
    }
