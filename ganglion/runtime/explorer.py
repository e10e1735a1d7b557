"""The Explorer: walks the slots of a world with an Agent and hands on what happens."""

from __future__ import annotations

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Acted, Env, LogData, Past, Processor, Progress, Sink, State, Step, join, under
from ganglion.envs.faults import faults_of
from ganglion.runtime.agent import Agent, enter
from ganglion.runtime.streams import Ahead, Stream, derive


class Explorer:
    """Agent + Env + Processor -> Sink. The slots' memory and random stream are its own, never the Agent's."""

    def __init__(self, agent: Agent, env: Env, processor: Processor, sink: Sink, seed: int) -> None:
        self.agent, self.env, self.processor, self.sink, self.seed = agent, env, processor, sink, seed
        self.faults = faults_of(env)
        self.stream = Stream(seed, "explore", agent.device)
        self.noise = Ahead(self.stream, agent.draws, env.spec.slots)
        self.none = torch.zeros(1, env.spec.slots, dtype=torch.bool, device=agent.device)  # no episode starts
        self.now: tuple[Step, Past] | None = None  # what the slots see, and remember

    def step(self, at: Progress) -> LogData:
        """One action of every slot."""
        before, past = self.begin()
        acted = self.agent.sample(before.obs, past, self.noise.next(), at)
        return self.hand(before, past, acted, self.env.step(acted.action), at)

    def hand(self, before: Step, past: Past, acted: Acted, after: Step, at: Progress) -> LogData:
        """Hands on what came of an action."""
        alive = before.valid.tolist().count(True)
        ahead = Past(acted.memory, self.none if alive == self.env.spec.slots else self.starts(before))
        if self.faults.lost is not None:  # actions that came to nothing, for their episode was lost
            before = before._replace(valid=before.valid & ~self.faults.lost)
            alive = before.valid.tolist().count(True)
        told = Acted(enter(acted.action), enter(acted.extras), acted.memory)
        rows = self.processor(enter(before), past, told, enter(after))
        self.now = after, ahead
        self.sink.push(rows, (after.obs, ahead), at)
        episodes = tuple(self.env.episodes())
        now = Progress(at.env_steps + alive, at.opt_steps, at.episodes + len(episodes), at.seconds, at.fraction)
        return LogData("collect", now, {}, episodes)

    def starts(self, before: Step) -> Tensor:
        """Where an episode starts next: after a dead row."""
        if self.agent.device.type == "cpu":
            return torch.from_numpy(~before.valid.numpy()[None])  # in a third of torch's time
        return ~before.valid.to(self.agent.device)[None]

    def begin(self) -> tuple[Step, Past]:
        """What the slots see and remember; their first episodes start here."""
        if self.now is None:
            self.now = self.env.reset(derive(self.seed, "env")), self.agent.start(self.env.spec.slots)
        return self.now

    def state(self) -> State:
        parts = {"noise": self.noise.state(), "processor": self.processor.state()}
        if self.now is not None:
            step, past = self.now
            seen = ops.flatten_names({**step._asdict(), "memory": past.memory, "start": past.start})
            parts |= {"now": State(seen), "env": self.env.state()}
        return join(parts)

    def restore(self, state: State) -> None:
        self.noise.restore(under(state, "noise"))
        self.processor.restore(under(state, "processor"))
        seen = {"memory": {}, **ops.nest(under(state, "now").tensors)}
        if "obs" not in seen:
            self.now = None
            return
        memory, start = seen.pop("memory"), seen.pop("start")
        device = self.agent.device
        past = Past(tuple(memory[str(i)].to(device) for i in range(len(memory))), start.to(device))
        self.now = Step(**seen), past
        self.env.restore(under(state, "env"))
