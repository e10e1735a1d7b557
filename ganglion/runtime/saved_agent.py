"""A trained agent without a run around it: observations in, actions out.

agent = ganglion.load("runs/cartpole-dqn-20260101-120000")
agent.reset()                     # before the first observation of an episode
action = agent.act(observation)   # numpy or plain Python values: one observation, or a batch of them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import Composite, Obs, Past, Space
from ganglion.envs.gym_arrays import MASK, Array, Leaf, MisfitError, fitted, flatten, leaves
from ganglion.envs.gym_spaces import Actions, grow, to_gym
from ganglion.errors import UserError, nearest
from ganglion.record.stores import Where
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_env
from ganglion.runtime.players import players
from ganglion.runtime.randomness import SlotNoise, Stream
from ganglion.runtime.run import Run, TrainedAgents, load_trained


class SavedAgent:
    """One player of a run, as its best or newest checkpoint has it. What it remembers of an episode (the memory of a
    recurrent network) is kept from one call to the next; `reset` forgets it, `past` may be read and set."""

    run: Run | None = None  # where it was trained by this process: the run, which has ended

    def __init__(self, trained: TrainedAgents, folder: Where | str, player: str | None = None, seed: int = 0) -> None:
        self.config, self.folder, self.checkpoint, self._at = trained.cfg, folder, trained.path, trained.at
        self.agent = chosen([agent for _, agent in trained.made], player)
        outside = trained.outside or (to_gym(trained.spec.obs), to_gym(trained.spec.action))
        self.observation_space: spaces.Space[Any] = outside[0]
        self.action_space: spaces.Space[Any] = outside[1]
        self._leaves, self._actions = leaves(self.observation_space), Actions(self.action_space)
        own = any(leaf.path[:1] == (MASK,) for leaf in self._leaves)
        self.masked = masks(trained.spec.obs) and not own  # the mask comes beside the observation
        self._stream = Stream(seed, "act", self.agent.device)
        self._noise: dict[int, SlotNoise] = {}
        self.past: Past | None = None

    def __repr__(self) -> str:
        return f"<{self.config.algo.kind} of {self.checkpoint} after {self._at.env_steps:,} env steps>"

    def reset(self, where: Sequence[bool] | None = None) -> None:
        """The next observations are the first of their episodes: all, or those of a batch where `where` is true."""
        if where is None or self.past is None:
            self.past = None
        else:
            flags = torch.as_tensor(np.asarray(where, np.bool_), device=self.agent.device)
            self.past = self.past._replace(start=self.past.start | flags[None])

    @torch.no_grad()
    def act(self, obs: Any, mask: Any = None, deterministic: bool = True, reward: Any = None) -> Any:
        """The action for an observation, or the actions for a batch, as the environment takes them.

        `mask`: the legal actions, where the environment gives them in `info["action_mask"]`. Actions that are not
        deterministic are those of training: sampled, or with its exploration as it was at the end. `reward`: what the
        last action brought, for agents that are asked for a return; one number per observation.
        """
        seen, single = self._inward(obs, mask)
        slots = len(ops.first(seen))
        past = self.past if self.past is not None and self.past.start.shape[1] == slots else self.agent.start(slots)
        if reward is not None:
            past = self.agent.paid(past, torch.as_tensor(np.asarray(reward, np.float32)).reshape(slots))
        if deterministic:
            acted = self.agent.predict(seen, past)
        else:
            acted = self.agent.sample(seen, past, self._dice(slots), self._at)
        self.past = Past(acted.memory, torch.zeros_like(past.start), acted.carried)
        columns = self._actions.columns(acted.action)
        return self._actions.each(columns)[0] if single else self._actions.batched(columns)

    def _dice(self, slots: int) -> Any:
        if slots not in self._noise:
            self._noise[slots] = SlotNoise(self._stream, self.agent.draws, slots)
        return self._noise[slots].next()

    def _inward(self, obs: Any, mask: Any) -> tuple[Obs, bool]:
        """The observation as tensors [B, ...], and whether it was one alone."""
        try:
            values = [np.asarray(value) for value in flatten(self.observation_space, obs)]
        except (KeyError, TypeError, ValueError) as error:
            raise MisfitError(f"observation: {self.observation_space} was expected, got {str(obs)[:80]}") from error
        single = values[0].ndim <= len(self._leaves[0].space.shape or ())
        columns = [column(leaf, value[None] if single else value) for leaf, value in zip(self._leaves, values)]
        if len({len(one) for one in columns}) > 1:
            raise MisfitError("observation: its parts are batches of different sizes")
        tree = grow(self._leaves, [torch.from_numpy(one) for one in columns])
        if not self.masked:
            return tree, single
        if mask is None:
            raise UserError('mask: this agent was trained with masks; act(obs, mask=info["action_mask"])')
        legal = np.asarray(mask, np.bool_).reshape(len(columns[0]), -1)
        return {"obs": tree, MASK: torch.from_numpy(legal)}, single


def masks(obs: Space) -> bool:
    """Whether observations hold a mask."""
    match obs:
        case Composite(items):
            return MASK in items
    return False


def column(leaf: Leaf, values: Array) -> Array:
    """A batch of one leaf's values as it is kept inside."""
    return np.stack([fitted(leaf, value) for value in values]).astype(leaf.dtype)


def chosen(agents: Sequence[Agent], player: str | None) -> Agent:
    """The first, or the one that is named."""
    names = [agent.player for agent in agents]
    if player is not None and player not in names:
        raise UserError(f"player: there is no {player!r}. Accepted: {', '.join(names)}.{nearest(player, names)}")
    return agents[0 if player is None else names.index(player)]


def load(folder: Where | str, which: str = "best", player: str | None = None) -> SavedAgent:
    """The agent of a run's best checkpoint, its newest ("last") or a named one."""
    return SavedAgent(load_trained(folder, which), folder, player)


def train(cfg: RunConfig) -> SavedAgent:
    """Trains a run to its end; its best agent, or where nothing was saved the one it ended with."""
    run = Run.create(cfg)
    try:
        for _ in run.stream():
            pass
        agent = load(run.folder) if run.checkpoints.newest() else SavedAgent(ended(run), run.folder)
    finally:
        run.close()
    agent.run = run
    return agent


def ended(run: Run) -> TrainedAgents:
    """The agents that a run ended with."""
    trainer, cfg = run.trainer, run.cfg
    env = build_env(cfg, len(trainer.source.spec.agents))
    env.close()
    agents = {agent.player: agent for agent in trainer.agents}
    made = [(player, agents[player.name]) for player in players(cfg, trainer.source.spec)]
    made.sort(key=lambda both: not both[0].learns)
    return TrainedAgents(cfg, made, f"{run.folder} (not saved)", trainer.at, env.spec, env.outside)
