"""Records episodes as a dataset: of a saved agent as it explores or as it is evaluated, or of random actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ganglion import ops, registry
from ganglion.config import RunConfig
from ganglion.core import Action, Box, Discrete, Env, Json, Noise, Obs, Past, Progress, Row, Space, Step
from ganglion.data.dataset import Dataset, episode, joined
from ganglion.errors import UserError
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_env
from ganglion.runtime.randomness import SlotNoise, Stream, derive
from ganglion.runtime.run import load_agents

TRAINED = Progress(env_steps=1 << 40, opt_steps=1 << 40, fraction=1.0)  # knobs as they are at the end of training
Behaviour = Callable[[Step], tuple[Action, Mapping[str, Tensor]]]  # actions [B, ...], and their log-probabilities


class Explores:
    """An agent's training actions, with its knobs at the end of training."""

    def __init__(self, agent: Agent, slots: int, seed: int) -> None:
        self.agent, self.past = agent, agent.start(slots)
        self.noise = SlotNoise(Stream(seed, "record", agent.device), agent.draws, slots)

    def __call__(self, step: Step) -> tuple[Action, Mapping[str, Tensor]]:
        past = self.agent.paid(self.past, step.reward)
        acted = self.agent.act(step.obs, past, self.agent.knobs(TRAINED), self.noise.next())
        self.past = Past(acted.memory, ~step.valid.to(self.agent.device)[None], acted.carried)
        return acted.action, {"logp": acted.extras["logp"]} if "logp" in acted.extras else {}


class Exploits:
    """An agent's evaluation actions."""

    def __init__(self, agent: Agent, slots: int) -> None:
        self.agent, self.past = agent, agent.start(slots)

    def __call__(self, step: Step) -> tuple[Action, Mapping[str, Tensor]]:
        acted = self.agent.predict(step.obs, self.agent.paid(self.past, step.reward))
        self.past = Past(acted.memory, ~step.valid.to(self.agent.device)[None], acted.carried)
        return acted.action, {}


class Random:
    """Any legal action, and instead of another's with probability `share`, by each slot's own coin."""

    def __init__(self, space: Space, slots: int, seed: int, share: float = 1.0, inner: Behaviour | None = None) -> None:
        self.space, self.slots, self.share, self.inner = space, slots, share, inner
        self.stream = Stream(seed, "random", torch.device("cpu"))

    def __call__(self, step: Step) -> tuple[Action, Mapping[str, Tensor]]:
        action = self.anything(step.obs)
        if self.inner is None:
            return action, {"logp": self.logp(step.obs, action)}
        coin = self.stream.uniform(self.slots) < self.share
        chosen, said = self.inner(step)
        mixed = ops.map_tree(lambda x, y: torch.where(along(coin, x), x, y.to(x)), action, chosen)
        return mixed, self.mixture(step.obs, mixed, chosen, said)

    def mixture(self, obs: Obs, mixed: Action, chosen: Action, said: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Of a choice that is the other's or any: known where the other is sure of its own."""
        if said or type(self.space) is not Discrete:
            return {}
        random = self.share * self.logp(obs, mixed).exp()
        return {"logp": (random + (1 - self.share) * (mixed == chosen.to(mixed)).float()).log()}

    def logp(self, obs: Obs, action: Action) -> Tensor:
        """The log-probability of any action, [B]."""
        match self.space:
            case Box() if self.space.bounded:
                low, high = ops.bounds(self.space, action)
                return -(high - low).log().sum().expand(self.slots)
        even = ops.dist(torch.zeros(self.slots, ops.dist_size(self.space)), self.space, ops.mask(obs))
        return even.log_prob(action)

    def anything(self, obs: Obs) -> Action:
        match self.space:
            case Box() if self.space.bounded:
                return ops.anywhere(self.space, self.stream.uniform(self.slots, self.space.size))
        draw = ops.dist_draws(self.space)
        noise = Noise(*(x(self.slots, n) for x, n in zip((self.stream.uniform, self.stream.normal), draw, strict=True)))
        return ops.dist(torch.zeros(self.slots, ops.dist_size(self.space)), self.space, ops.mask(obs)).sample(noise)


def along(coin: Tensor, x: Tensor) -> Tensor:
    return coin.reshape(-1, *(1,) * (x.dim() - 1))


def record_run(
    folder: str, episodes: int, seed: int, which: str = "best", deterministic: bool = False, epsilon: float = 0.0
) -> Dataset:
    """Episodes of a run's saved agent."""
    cfg, made, path = load_agents(folder, which)
    if len(made) > 1:
        raise UserError("RUN: a dataset is of one player; this run has several.")
    agent = made[0][1]

    def behaviour(env: Env) -> Behaviour:
        slots = env.spec.slots
        own: Behaviour = Exploits(agent, slots) if deterministic else Explores(agent, slots, seed)
        return Random(env.spec.action, slots, seed, epsilon, own) if epsilon else own

    acting = {"actions": "deterministic" if deterministic else "exploring", "epsilon": epsilon}
    return collect(cfg, behaviour, episodes, seed, {"run": folder, "checkpoint": path, **acting})


def record_random(cfg: RunConfig, episodes: int, seed: int) -> Dataset:
    """Episodes of random actions."""
    return collect(
        cfg, lambda env: Random(env.spec.action, env.spec.slots, seed), episodes, seed, {"actions": "random"}
    )


def collect(
    cfg: RunConfig, behaviour: Callable[[Env], Behaviour], episodes: int, seed: int, about: Mapping[str, Json]
) -> Dataset:
    """As many whole episodes, an equal number of each slot: short ones are not over-counted."""
    slots = min(episodes, cfg.env.slots)
    env = build_env(cfg, slots)
    if env.spec.turns or len(env.spec.agents) > 1:
        raise UserError(f"env: a dataset is of one agent, and {env.spec.name} has {len(env.spec.agents)}.")
    try:
        rows = played(env, behaviour(env), -(-episodes // slots), seed, cfg.eval.max_steps)
    finally:
        env.close()
    in_turn = [own[k] for k in range(-(-episodes // slots)) for own in rows if k < len(own)][:episodes]
    told = {**about, "env": cfg.env.plain(), "seed": seed, "episodes": len(in_turn), "ganglion": registry.version()}
    parts = [Dataset(env.spec, each) for each in in_turn]
    return joined(parts)._replace(about=(told,))


@torch.no_grad()
def played(env: Env, behaviour: Behaviour, quota: int, seed: int, most: int) -> list[list[Row]]:
    """The first `quota` episodes of each slot; one of more than `most` steps is cut there."""
    step, slots = env.reset(derive(seed, "record")), env.spec.slots
    open_: list[list[tuple[Any, Any, Any, float]]] = [[] for _ in range(slots)]  # obs, action, extras, reward
    rows: list[list[Row]] = [[] for _ in range(slots)]
    while any(len(own) < quota for own in rows):
        action, extras = behaviour(step)
        after = env.step(action)
        ended, here = after.terminated | after.truncated, ops.to_device((step.obs, action, extras, after.obs), "cpu")
        for b in range(slots):
            if not step.valid[b]:
                continue
            obs, act, said, last = (ops.map_tree(lambda x, b=b: x[b].clone(), part) for part in here)
            open_[b].append((obs, act, said, float(after.reward[b])))
            if ended[b] or len(open_[b]) >= most:
                if len(rows[b]) < quota:
                    rows[b].append(closed(open_[b], last, bool(after.terminated[b])))
                open_[b] = []
        lost = env.faults.lost
        for b in range(slots):  # an episode that was lost with its environment is no episode
            open_[b] = [] if lost is not None and bool(lost[b]) else open_[b]
        env.episodes()
        step = after
    return rows


def closed(moments: list[tuple[Any, Any, Any, float]], last: Obs, terminated: bool) -> Row:
    """An episode's moments as rows."""
    seen, did, said, got = zip(*moments, strict=True)
    reward = torch.tensor(got, dtype=torch.float32)
    return episode(ops.stack([*seen, last]), ops.stack(did), reward, terminated, ops.stack(said))
