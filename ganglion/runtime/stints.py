"""Several steps of ordinary environments as one event: what they cost beside environment and network is paid once."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Acted, Env, LogData, Past, Processor, Progress, Row, Step
from ganglion.runtime.agent import Agent
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.learner import Learner

Moment = tuple[Step, Past, Acted, Step, Tensor | None]  # before, remembered, done, after; which slots it was lost for


class Stints(Explorer):
    """An Explorer that takes up to `most` steps at once, as many as pass before the learner's next turn, and hands
    their rows on together.

    Rows are the same as one by one; an algorithm's knobs stay as they are for the length of a stint.
    """

    sink: Learner

    def __init__(
        self, agent: Agent, env: Env, processor: Processor, sink: Learner, seed: int, most: int
    ) -> None:  # fmt: skip
        super().__init__(agent, env, processor, sink, seed)
        self.stretches = sink.buffer.fresh and getattr(env, "stretches", False)  # steps need not be told one by one
        self.most = 1 if sink.watches and not sink.buffer.fresh else most  # what is seen there changes the next action

    def step(self, at: Progress) -> LogData:
        """Some actions of every slot; one where the fast form is not on."""
        count = self.count(at) if self.agent.swap.on else 1
        if count == 1:
            return super().step(at)
        if self.stretches and not self.begin()[1].memory:
            alive = self.stretch(at, count)
        else:
            rows = self.rows(self.walk(at, count))
            after, ahead = self.begin()
            self.sink.buffer.push(rows, (after.obs, ahead), at)
            alive = int(rows.valid.sum())
        episodes = tuple(self.env.episodes())
        now = at._replace(env_steps=at.env_steps + alive, episodes=at.episodes + len(episodes))
        return LogData("collect", now, {}, episodes)

    def count(self, at: Progress) -> int:
        """How many steps can be taken before an update may be owed."""
        buffer, owes, slots = self.sink.buffer, self.sink.limiter.owes, self.env.spec.slots
        if buffer.fresh:
            return min(self.most, buffer.room())
        for count in range(1, self.most):
            if owes(at._replace(env_steps=at.env_steps + count * slots), ready=True):
                return count
        return self.most

    @torch.no_grad()
    def stretch(self, at: Progress, count: int) -> int:
        """So many steps of an environment that gives them as one, [T, B, ...]; how many rows of them count."""
        act, knobs, noise, env = self.agent.fast_explore, self.agent.knobs(at), self.noise, cast(Any, self.env)
        before, past = self.begin()
        obs, acts = before.obs, []
        for ahead in env.stretch(count):
            acted = act(obs, past, knobs, noise.next())
            env.pace(acted.action)
            acts.append((acted.action, acted.extras))
            obs = ahead
        after: Step = env.stretched()
        seen: Step = ops.map_tree(lambda x, rest: torch.cat([x[None], rest[:-1]]), before, after)
        start = torch.cat([past.start, ~seen.valid])  # [T + 1, B]
        action, extras = ops.stack(acts)
        rows = self.processor(seen, Past((), start[:-1]), Acted(action, extras, ()), after)
        last, past = self.now = ops.select(after, -1), Past((), start[-1:])
        self.sink.buffer.push(rows, (last.obs, past), at)
        return int(rows.valid.sum())

    @torch.no_grad()
    def walk(self, at: Progress, count: int) -> list[Moment]:
        act, knobs, noise, env = self.agent.fast_explore, self.agent.knobs(at), self.noise, self.env
        before, past = self.begin()
        moments: list[Moment] = []
        for _ in range(count):
            acted = act(before.obs, past, knobs, noise.next())
            after = env.step(acted.action)
            moments.append((before, past, acted, after, self.faults.lost))
            if past.memory:  # else nobody reads where episodes start until rows are made
                past = Past(acted.memory, self.starts(before))
            before = after
        return moments

    def rows(self, moments: list[Moment]) -> Row:
        """What the moments come to, [T, B, ...]; where the slots are now is kept."""
        first, steps = moments[0][1].start, []
        for before, had, acted, after, lost in moments:
            if lost is not None:  # actions that came to nothing, for their episode was lost
                before = before._replace(valid=before.valid & ~lost)
            told = acted._replace(memory=tuple(m[0] for m in acted.memory))
            steps.append((before, tuple(m[0] for m in had.memory), told, after))
        seen, memory, told, afterwards = ops.stack(steps)
        start = torch.cat([first, ~torch.stack([before.valid for before, *_ in moments])])  # [T + 1, B]
        self.now = after, Past(acted.memory, start[-1:])
        return self.processor(seen, Past(memory, start[:-1]), told, afterwards)
