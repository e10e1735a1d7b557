"""The Evaluator: a deterministic score on a world of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from statistics import fmean, median

from ganglion.core import Env, Episode, Past
from ganglion.runtime.agent import Agent


class Evaluator:
    """Runs the same seeded episodes each time, an equal quota per slot, so short episodes are not over-counted."""

    def __init__(self, agent: Agent, make_env: Callable[[], Env], episodes: int, seed: int) -> None:
        self.agent, self.make_env, self.wanted, self.seed = agent, make_env, episodes, seed
        self.env: Env | None = None

    def run(self) -> tuple[list[Episode], Mapping[str, float]]:
        """The episodes, and their statistics."""
        if self.env is None:
            self.env = self.make_env()
        env, slots = self.env, self.env.spec.slots
        quota = -(-self.wanted // slots)
        step, past = env.reset(self.seed), self.agent.start(slots)
        env.episodes()  # forget what an earlier evaluation left unfinished
        finished: list[list[Episode]] = [[] for _ in range(slots)]
        while any(len(own) < quota for own in finished):
            acted = self.agent.predict(step.obs, past)
            past = Past(acted.memory, ~step.valid.to(self.agent.device)[None])
            step = env.step(acted.action)
            for episode in env.episodes():
                if len(finished[episode.slot]) < quota:
                    finished[episode.slot].append(episode)
        episodes = [finished[slot][k] for k in range(quota) for slot in range(slots)][: self.wanted]
        return episodes, score(episodes)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()


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
