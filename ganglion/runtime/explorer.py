"""The Explorer: walks the slots of a world with an Agent and hands on what happens."""

from __future__ import annotations

import torch

from ganglion import ops
from ganglion.core import Env, LogData, Noise, Past, Processor, Progress, Sink, State, Step, join, under
from ganglion.envs.faults import faults_of
from ganglion.runtime.agent import Agent
from ganglion.runtime.streams import Stream, derive


class Explorer:
    """Agent + Env + Processor -> Sink. The slots' memory and random stream are its own, never the Agent's."""

    def __init__(self, agent: Agent, env: Env, processor: Processor, sink: Sink, seed: int) -> None:
        self.agent, self.env, self.processor, self.sink, self.seed = agent, env, processor, sink, seed
        self.faults = faults_of(env)
        self.stream = Stream(seed, "explore", agent.device)
        self.now: tuple[Step, Past] | None = None  # what the slots see, and remember
        self.held: Noise | None = None  # random numbers that are kept for several steps

    def step(self, at: Progress) -> LogData:
        """One action of every slot."""
        before, past = self.begin()
        noise = self.noise()
        acted = self.agent.sample(before.obs, past, noise, at)
        after = self.env.step(acted.action)
        ahead = Past(acted.memory, ~before.valid.to(self.agent.device)[None])  # an episode starts after a dead row
        if self.faults.lost is not None:  # actions that came to nothing, for their episode was lost
            before = before._replace(valid=before.valid & ~self.faults.lost)
        row = self.processor(before, past, acted, after)
        self.now = after, ahead
        self.sink.push(row, (after.obs, ahead), at)
        episodes = tuple(self.env.episodes())
        steps = at.env_steps + int(before.valid.sum())
        now = at._replace(env_steps=steps, episodes=at.episodes + len(episodes))
        return LogData("collect", now, {}, episodes)

    def begin(self) -> tuple[Step, Past]:
        """What the slots see and remember; their first episodes start here."""
        if self.now is None:
            self.now = self.env.reset(derive(self.seed, "env")), self.agent.start(self.env.spec.slots)
        return self.now

    def noise(self) -> Noise:
        """Fresh random numbers per slot, or those it had: each slot lets go of its own with probability 1 / hold."""
        draws, slots = self.agent.draws, self.env.spec.slots
        fresh = self.stream.noise(draws.explore, 1, slots)
        if draws.hold == 1.0:
            return fresh
        keep = self.stream.uniform(1, slots, 1) < 1 - 1 / draws.hold
        held = fresh if self.held is None else self.held
        self.held = Noise(*(torch.where(keep, old, new) for old, new in zip(held, fresh, strict=True)))
        return self.held

    def state(self) -> State:
        parts = {"stream": self.stream.state()}
        if self.held is not None:
            parts["held"] = State(dict(self.held._asdict()))
        if self.now is not None:
            step, past = self.now
            seen = ops.flatten_names({**step._asdict(), "memory": past.memory, "start": past.start})
            parts |= {"now": State(seen), "env": self.env.state()}
        return join(parts)

    def restore(self, state: State) -> None:
        self.stream.restore(under(state, "stream"))
        held = under(state, "held").tensors
        self.held = Noise(*(held[name].to(self.agent.device) for name in Noise._fields)) if held else None
        seen = {"memory": {}, **ops.nest(under(state, "now").tensors)}
        if "obs" not in seen:
            self.now = None
            return
        memory, start = seen.pop("memory"), seen.pop("start")
        device = self.agent.device
        past = Past(tuple(memory[str(i)].to(device) for i in range(len(memory))), start.to(device))
        self.now = Step(**seen), past
        self.env.restore(under(state, "env"))
