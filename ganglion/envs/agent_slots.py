"""The agents of games as slots: copies of a game are stepped like any Gymnasium environments, here or by workers.

A row is a moment of all agents. One that dies early, or is not there, has dead rows until its copy begins anew. In
games of turns all others wait: their action is ignored, and rewards come in the row in which they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ganglion.core import (
    CENTRAL,
    Action,
    Composite,
    Env,
    EnvSpec,
    Episode,
    Faults,
    MultiBinary,
    Promise,
    Space,
    State,
    Step,
    join,
    under,
)
from ganglion.envs.agent_games import ACTS, ALIVE, CUT, OVER, STATE, AgentSpaces, Game, GameEnv
from ganglion.envs.gym import GymEnv
from ganglion.envs.gym_arrays import MASK
from ganglion.envs.gym_spaces import from_gym
from ganglion.envs.pool import Pool, PoolEnv
from ganglion.errors import UserError


def shown_space(spaces: AgentSpaces) -> Space:
    """What one agent sees."""
    parts: dict[str, Space] = {"obs": from_gym(spaces.obs)}
    if spaces.mask:
        parts[MASK] = MultiBinary(spaces.mask)
    if spaces.central is not None:
        parts[CENTRAL] = from_gym(spaces.central)
    return Composite(parts) if len(parts) > 1 else parts["obs"]


class AgentGames(Env):
    """C copies of a game of A agents as slots, all copies of the first agent first. `pool` makes copies in workers."""

    promise: Promise = "replay"

    def __init__(
        self,
        make: Callable[[], Game],
        slots: int,
        name: str,
        device: str = "cpu",
        limit: int = 0,
        max_failures: int = 100,
        pool: Callable[[int], Pool] | None = None,
    ) -> None:
        first = GameEnv(make(), name)
        agents = len(first.names)
        if slots % agents:
            first.close()
            raise UserError(f"env.slots: {slots} are no whole copies of a game of {agents} agents.")
        self.agents, self.copies = agents, slots // agents
        own = first.agent_spaces
        if pool is not None:
            first.close()
            self.env: GymEnv = PoolEnv(pool(self.copies), name, device, max_failures)
        else:
            ready = [first]  # made already, once
            self.env = GymEnv(
                lambda _: ready.pop() if ready else GameEnv(make(), name),
                self.copies,
                name,
                device,
                masks=False,
                time_limit=limit,
                max_failures=max_failures,
            )
        self.masked, self.discrete = bool(own.mask), own.discrete
        action = from_gym(own.action)
        self.spec = EnvSpec(shown_space(own), action, slots, name, first.names, turns=first.game.turns)
        self.alive = torch.zeros(self.copies, agents, dtype=torch.bool, device=device)
        self.totals = torch.zeros(self.copies, agents, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(self.copies, agents, dtype=torch.int64, device=device)
        self.finished: list[Episode] = []

    @property
    def faults(self) -> Faults:
        return self.env.faults

    def reset(self, seed: int) -> Step:
        self.finished = []
        self.alive.fill_(False)
        return self.shown(self.env.reset(seed))

    def step(self, action: Action) -> Step:
        chosen = action.unflatten(0, (self.agents, self.copies)).transpose(0, 1)
        return self.shown(self.env.step(chosen))

    def shown(self, step: Step) -> Step:
        """A step of the copies as one of all agents."""
        flags, was = step.obs["flags"].bool(), self.alive  # [C, 4, A], [C, A]
        lost = self.faults.lost
        stale = torch.zeros_like(step.valid) if lost is None else lost  # shows what was before the action that was lost
        kept = was & ~stale.unsqueeze(-1)
        over = flags[:, OVER] & kept
        cut = was & ~over & (flags[:, CUT] | step.truncated.unsqueeze(-1) & (flags[:, ALIVE] | stale.unsqueeze(-1)))
        self.alive = flags[:, ALIVE] & step.valid.unsqueeze(-1)
        reward = step.obs["reward"] * kept
        begun = ~was.any(-1, keepdim=True)
        self.totals = torch.where(begun, 0.0, self.totals) + reward
        self.lengths = torch.where(begun, 0, self.lengths) + kept
        for ended in self.env.episodes():
            self.report(ended)
        if lost is not None:
            self.faults.seen(lost.repeat(self.agents), int(lost.sum()) * (self.agents - 1))
        acts = self.flat(flags[:, ACTS] & self.alive) if self.spec.turns else ()
        ends = self.flat(over), self.flat(cut)
        return Step(self.seen(step.obs), self.flat(reward), *ends, self.flat(self.alive), acts)

    def seen(self, obs: dict[str, Tensor]) -> Any:
        own = {"obs": self.flat(obs["obs"])}
        if self.masked:
            own[MASK] = self.flat(obs[MASK].unflatten(-1, (self.agents, -1)))
        if STATE in obs:
            own[CENTRAL] = obs[STATE].repeat(self.agents, *([1] * (obs[STATE].dim() - 1)))
        return own if len(own) > 1 else own["obs"]

    def flat(self, each: Tensor) -> Tensor:
        """[C, A, ...] as slots [A * C, ...]."""
        return each.transpose(0, 1).flatten(0, 1)

    def report(self, ended: Episode) -> None:
        totals, lengths = self.totals[ended.slot].tolist(), self.lengths[ended.slot].tolist()
        for agent, (total, length) in enumerate(zip(totals, lengths, strict=True)):
            self.finished.append(Episode(agent * self.copies + ended.slot, total, length, ended.info))

    def episodes(self) -> list[Episode]:
        finished, self.finished = self.finished, []
        return finished

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def state(self) -> State:
        tensors = {"alive": self.alive, "totals": self.totals, "lengths": self.lengths}
        own = State(tensors, {"finished": [list(e) for e in self.finished]})
        return join({"own": own, "copies": self.env.state()})

    def restore(self, state: State) -> None:
        self.env.restore(under(state, "copies"))
        own = under(state, "own")
        self.alive, self.totals, self.lengths = (
            own.tensors[name].to(now.device).reshape(now.shape)
            for name, now in (("alive", self.alive), ("totals", self.totals), ("lengths", self.lengths))
        )
        self.finished = [Episode.read(e) for e in own.scalars["finished"]]
