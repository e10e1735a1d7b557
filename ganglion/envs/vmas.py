"""VMAS's worlds of several agents (Bettini et al. 2022) as slots: all copies in one batch of tensors, on any device.

Agents that differ are padded: observations with zeros, actions by numbers that are ignored. Promise: restart, since
physics and random numbers of a scenario cannot be saved; running episodes are cut as truncated. Each step reads once
from the device which copies have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from ganglion.config import Count, EnvConfig, register
from ganglion.core import Action, Box, Env, EnvSpec, Episode, Promise, State, Step
from ganglion.envs.seeds import episode_seed
from ganglion.errors import UserError, nearest

log = logging.getLogger(__name__)
OWN = {"num_envs": "env.slots", "device": "run.device", "seed": "run.seed", "max_steps": "env.time_limit"}


@register("env", "vmas")
class VmasConfig(EnvConfig):
    """A scenario of VMAS by its name, with real actions: balance, transport, navigation."""

    id: str = Field(min_length=1, max_length=200)
    options: Mapping[str, Any] = Field(default_factory=dict)  # of the scenario: n_agents
    time_limit: Count = Field(100, ge=1)  # steps until all are truncated

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> VmasGames:
        for name in self.options:
            if name in OWN:
                raise UserError(f"env.options: {name} is set by {OWN[name]}.")
        try:
            import vmas
        except ImportError as error:
            raise UserError('env.kind: vmas needs a package. Try pip install "ganglion[vmas]"') from error
        known = [*vmas.scenarios, *vmas.mpe_scenarios]
        if self.id not in known:
            raise UserError(f"env.id: vmas has no {self.id!r}.{nearest(self.id, known)}")
        return VmasGames(vmas, self, slots or self.slots, device)


class VmasGames(Env):
    """C copies of a scenario of A agents, all copies of the first agent first."""

    promise: Promise = "restart"

    def __init__(self, vmas: Any, cfg: VmasConfig, slots: int, device: str) -> None:
        self.cfg, self.device, self.vmas = cfg, torch.device(device), vmas
        agents = tuple(agent.name for agent in self.made(1).agents)
        if slots % len(agents):
            raise UserError(f"env.slots: {slots} are no whole copies of a game of {len(agents)} agents.")
        self.agents, self.copies = len(agents), slots // len(agents)
        self.env = self.made(self.copies)
        self.seen = [space.shape[0] for space in self.env.observation_space.spaces]
        self.sizes = [space.shape[0] for space in self.env.action_space.spaces]  # numbers of each agent's action
        widest = max(self.env.action_space.spaces, key=lambda space: space.shape[0])
        low, high = (tuple(bound.tolist()) for bound in (widest.low, widest.high))
        self.low, self.high = (torch.tensor(bound, device=self.device) for bound in (low, high))
        self.spec = EnvSpec(Box((max(self.seen),)), Box((max(self.sizes),), low=low, high=high), slots, cfg.id, agents)
        self.begin(0)

    def made(self, copies: int) -> Any:
        try:
            return self.vmas.make_env(
                self.cfg.id, num_envs=copies, device=self.device, seed=0, terminated_truncated=True, **self.cfg.options
            )
        except (TypeError, ValueError, AssertionError) as error:
            raise UserError(f"env.options: vmas did not make {self.cfg.id}: {error}") from error

    def begin(self, seed: int) -> None:
        self.seed, self.starts, self.finished = seed, 0, list[Episode]()
        self.ended, self.cut = (torch.zeros(self.copies, dtype=torch.bool, device=self.device) for _ in range(2))
        self.length = torch.zeros(self.copies, dtype=torch.int64, device=self.device)
        self.total = torch.zeros(self.agents, self.copies, dtype=torch.float64, device=self.device)

    def start(self) -> list[Tensor]:
        self.env.seed(episode_seed(self.seed, 0, self.starts) % (1 << 31))
        return list(self.env.reset())

    # ------------------------------------------------------------ the contract

    def reset(self, seed: int) -> Step:
        self.begin(seed)
        self.obs = self.flat(self.start())
        no = torch.zeros(self.agents, self.copies, device=self.device)
        return self.step_of(no, no[0].bool(), no[0].bool())

    def step(self, action: Action) -> Step:
        before, lost = self.ended, self.cut
        chosen = action.to(self.device).float().clamp(self.low, self.high).unflatten(0, (self.agents, self.copies))
        each = [own[:, :size].contiguous() for own, size in zip(chosen, self.sizes, strict=True)]
        obs, reward, over, _, _ = self.env.step(each)
        rewards = torch.stack([x.reshape(self.copies) for x in reward]).masked_fill(before | lost, 0.0)
        if bool(before.any()):
            obs = self.restarted(before)
        shown = self.flat(obs)
        if bool(lost.any()):  # of these nobody knows what would have followed
            shown = torch.where(lost.repeat(self.agents)[:, None], self.obs, shown)
        self.obs = shown
        self.length = (self.length + 1).masked_fill(before, 0)
        self.total = self.total.masked_fill(before, 0.0) + rewards
        over = over & ~before & ~lost
        cut = ((self.length >= self.cfg.time_limit) & ~over & ~before) | lost
        self.ended, self.cut = over | cut, torch.zeros_like(lost)
        self.report(self.ended & ~lost)
        return self.step_of(rewards, over, cut)

    def restarted(self, which: Tensor) -> list[Tensor]:
        """Begins the next episodes of some copies; observations of all."""
        if bool(which.all()):
            self.starts += 1
            return self.start()
        for copy in which.nonzero()[:, 0].tolist():
            self.env.reset_at(copy, return_observations=False)
        said = self.env.get_from_scenario(True, False, False, False)
        return list(said[0])

    def flat(self, obs: list[Tensor]) -> Tensor:
        """[C, n] of each agent as [slots, widest]."""
        wide = max(self.seen)
        return torch.cat([torch.nn.functional.pad(x.float(), (0, wide - x.shape[1])) for x in obs])

    def step_of(self, rewards: Tensor, over: Tensor, cut: Tensor) -> Step:
        ends = over.repeat(self.agents), cut.repeat(self.agents)
        return Step(self.obs.clone(), rewards.flatten().float(), *ends, ~(over | cut).repeat(self.agents))

    def report(self, ended: Tensor) -> None:
        for copy in ended.nonzero()[:, 0].tolist():
            for agent in range(self.agents):
                total, length = float(self.total[agent, copy]), int(self.length[copy])
                self.finished.append(Episode(agent * self.copies + copy, total, length, {}))

    def episodes(self) -> list[Episode]:
        finished, self.finished = self.finished, []
        return finished

    def close(self) -> None:
        pass

    # ------------------------------------------------------------ resuming

    def state(self) -> State:
        tensors = {"obs": self.obs, "ended": self.ended, "length": self.length, "total": self.total}
        finished = [list(episode) for episode in self.finished]
        scalars = {"seed": self.seed, "starts": self.starts, "finished": finished}
        return State({name: x.cpu().clone() for name, x in tensors.items()}, scalars)

    def restore(self, state: State) -> None:
        """Running episodes are cut: the next step says they were truncated."""
        if len(state.tensors["ended"]) != self.copies:
            raise UserError(f"env.slots: the state has {len(state.tensors['ended'])} copies, not {self.copies}")
        self.begin(int(state.scalars["seed"]))
        self.starts = int(state.scalars["starts"]) + 1
        self.start()
        own = {name: x.to(self.device) for name, x in state.tensors.items()}
        self.obs, self.ended, self.length, self.total = (own[name] for name in ("obs", "ended", "length", "total"))
        self.finished = [Episode.read(episode) for episode in state.scalars["finished"]]
        self.cut = ~self.ended
        log.warning("%s: %d running episodes cannot be resumed and are cut", self.cfg.id, int(self.cut.sum()))
