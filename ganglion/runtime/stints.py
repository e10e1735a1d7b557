"""Several steps of ordinary environments as one event: what they cost beside environment and network is paid once."""

from __future__ import annotations

import torch

from ganglion.core import Acted, Env, LogData, Past, Processor, Progress, Row, Step
from ganglion.runtime.agent import Agent
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.learner import Learner


class Stints(Explorer):
    """An Explorer that takes `stint` steps at once and hands their rows on together, into a rollout.

    Rows are the same as one by one; an algorithm's knobs stay as they are for the length of a stint.
    """

    sink: Learner

    def __init__(
        self, agent: Agent, env: Env, processor: Processor, sink: Learner, seed: int, stint: int
    ) -> None:  # fmt: skip
        super().__init__(agent, env, processor, sink, seed)
        self.stint = stint

    def step(self, at: Progress) -> LogData:
        """`stint` actions of every slot; one where the fast form is not on, or would not end with the rollout."""
        if self.stint == 1 or not self.agent.swap.on or self.sink.buffer.ring.pushed % self.stint:
            return super().step(at)
        rows, alive = self.walk(at), 0
        after, ahead = self.begin()
        self.sink.buffer.push_each(rows, (after.obs, ahead))
        for row in rows:
            alive += row.valid.tolist().count(True)
        episodes = tuple(self.env.episodes())
        now = at._replace(env_steps=at.env_steps + alive, episodes=at.episodes + len(episodes))
        return LogData("collect", now, {}, episodes)

    @torch.no_grad()
    def walk(self, at: Progress) -> list[Row]:
        act, knobs, env, faults, rows = self.agent.fast_explore, self.agent.knobs(at), self.env, self.faults, []
        before, past = self.begin()
        for _ in range(self.stint):
            acted = Acted(*act(before.obs, past, knobs, self.noise.next()))
            after, seen = env.step(acted.action), before
            if faults.lost is not None:  # actions that came to nothing, for their episode was lost
                seen = before._replace(valid=before.valid & ~faults.lost)
            rows.append(self.processor(seen, past, acted, after))
            before, past = after, Past(acted.memory, self.starts(before))
        self.now: tuple[Step, Past] | None = before, past
        return rows
