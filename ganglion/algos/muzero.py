"""MuZero (Schrittwieser et al. 2020): a tree search in a learned model, which is right where the search looks.

With `search: gumbel` it is Gumbel MuZero (Danihelka et al. 2022), with `consistency` its latent states follow what is
seen (Ye et al. 2021). Sequences are [T, B, ...]: the model is unrolled from their first row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from ganglion import buffers, nn, ops, search
from ganglion.config import (
    AlgoConfig,
    Amount,
    BufferConfig,
    Count,
    LimiterConfig,
    NonNegative,
    Positive,
    ProcessorConfig,
    RateSchedule,
    linear,
    register,
)
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout, Sample,
    Stateful, Update,
)  # fmt: skip
from ganglion.errors import UserError


@register("algo", "muzero")
class MuZeroConfig(AlgoConfig):
    """MuZero."""

    actions = "discrete"
    lr: RateSchedule = linear(2e-3, 2e-4)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.997, ge=0, le=1)
    search: Literal["puct", "gumbel"] = "puct"
    simulations: int = Field(25, ge=1, le=10_000)
    considered: int = Field(16, ge=1, le=10_000)  # gumbel: actions that compete at the root
    c_init: Positive = 1.25  # puct: weight of the prior
    noise: float = Field(0.25, ge=0, le=1)  # puct: share of Dirichlet noise in the root's prior
    alpha: Positive = 0.3  # puct: of that Dirichlet
    temperature: Amount = linear(1.0, 0.25)  # puct: actions are chosen by visits to the power of its inverse
    players: Literal[1, 2] = 1  # 2: they take turns, and one's reward is the other's loss
    unroll: int = Field(5, ge=1, le=100)  # steps that the model is asked to foresee
    horizon: Count = Field(11, ge=2)  # rows per sequence: returns look ahead to its end, then at a searched value
    lam: float = Field(1.0, ge=0, le=1)  # of those returns
    value_weight: NonNegative = 0.25
    consistency: NonNegative = 0.0  # weight of latent states being those of what is seen later (2 in the paper)
    support: int = Field(20, ge=1, le=1_000)  # rescaled values and rewards lie between -this and this
    max_norm: Positive = 5.0
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000, batch=128)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=8, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    @model_validator(mode="after")
    def _fits(self) -> MuZeroConfig:
        if self.unroll >= self.horizon:
            raise ValueError(f"unroll should be less than the {self.horizon} rows of horizon")
        return self

    def build(self, spec: EnvSpec) -> MuZero:
        return MuZero(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.rollouts(self.gamma, self.horizon), self.limiter)


class Foreseen(NamedTuple):
    """What the model says of a latent state, and of the action that led to it; values as logits of a support."""

    latent: Tensor  # [T, B, size]
    reward: Tensor  # [T, B, bins]
    logits: Tensor  # [T, B, A]
    value: Tensor  # [T, B, bins]


class WorldModel(nn.Encoded):
    """obs -> latent state; latent state and action -> the next one and a reward; latent state -> logits and a value."""

    def __init__(self, cfg: MuZeroConfig, spec: EnvSpec, actions: int) -> None:
        super().__init__(cfg.net, spec.obs)
        nn.check_mask(spec)
        self.actions, bins = actions, 2 * cfg.support + 1
        self.represent = cfg.net.body(self.encoder.out)
        size = self.represent.out
        self.step, self.read = cfg.net.body(size + actions), cfg.net.body(size)
        self.reward, self.critic = nn.LinearHead(self.step, bins), nn.LinearHead(self.read, bins)
        self.actor = nn.PolicyHead(self.read, spec.action, cfg.net.init)
        if cfg.consistency:
            self.project, self.foretell = cfg.net.body(size), cfg.net.body(size)

    def see(self, obs: Obs, past: Past) -> Tensor:
        """The latent state of what is seen, [T, B, size]."""
        return scaled(self.represent(self.encoder(obs, past)[0])[0])

    def imagine(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The latent state after an action, and the logits of its reward."""
        one_hot = (torch.arange(self.actions, device=action.device) == action.unsqueeze(-1)).to(latent.dtype)
        hidden = self.step(torch.cat([latent, one_hot], -1))[0]
        return scaled(hidden + latent), self.reward(hidden)

    def judge(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of actions and of a value."""
        hidden = self.read(latent)[0]
        return self.actor(hidden), self.critic(hidden)


def scaled(latent: Tensor) -> Tensor:
    """From 0 to 1 in every row."""
    low, high = latent.amin(-1, keepdim=True), latent.amax(-1, keepdim=True)
    return (latent - low) / (high - low).clamp(min=1e-5)


class MuZero(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Search in a model of the world that is learned from what the search will ask it."""

    model: WorldModel

    def __init__(self, cfg: MuZeroConfig, spec: EnvSpec) -> None:
        if cfg.net.recurrent:
            raise UserError("algo.net.memory: muzero has none. Accepted: none.")
        self.cfg, self.sign = cfg, 1.0 if cfg.players == 1 else -1.0
        actions = nn.discrete_actions(cfg, spec)
        self.model = WorldModel(cfg, spec, actions)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)
        puct, gumbel = search.PuctRule(cfg.simulations, cfg.c_init), search.GumbelRule(cfg.simulations, cfg.considered)
        self.planner = search.Planner(gumbel if cfg.search == "gumbel" else puct, actions, cfg.noise, cfg.alpha)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr.at(at), "temperature": self.cfg.temperature.at(at)}

    def draws(self) -> Draws:
        return Draws(self.planner.draws, Draw(uniform=1))

    def neutral(self, rows: Tensor) -> Noise:
        return search.calm(super().neutral(rows))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        latent = self.model.see(obs, past)
        logits, value = self.model.judge(latent)
        root = search.Root(*(x.flatten(0, 1) for x in (latent, logits, self.number(value))))
        legal = ops.mask(obs)
        legal = torch.ones_like(root.logits, dtype=torch.bool) if legal is None else legal.flatten(0, 1).bool()
        found = self.planner.plan(root, self.dynamics, legal, ops.map_tree(lambda x: x.flatten(0, 1), noise))
        weights, action, value = (x.unflatten(0, past.start.shape) for x in found[:3])
        return Prediction(search.Planned(weights, action), value, ())

    def dynamics(self, latent: Tensor, action: Tensor) -> search.Outcome:
        after, reward = self.model.imagine(latent[None], action[None])
        logits, value = self.model.judge(after)
        pays, worth = self.number(reward)[0], self.number(value)[0]
        return search.Outcome(after[0], pays, torch.full_like(pays, self.sign * self.cfg.gamma), logits[0], worth)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = self.planner.choose(prediction.dist, knobs["temperature"], noise)
        return Acted(action, {"weights": prediction.dist.weights, "value": prediction.value}, ())

    # ------------------------------------------------------------ numbers as distributions

    def support(self, like: Tensor) -> Tensor:
        return torch.arange(-self.cfg.support, self.cfg.support + 1, device=like.device, dtype=like.dtype)

    def number(self, logits: Tensor) -> Tensor:
        """What logits of the support stand for: [..., bins] -> [...]."""
        return ops.unrescale(ops.from_two_hot(logits.softmax(-1), self.support(logits)))

    def entropy_of(self, logits: Tensor, number: Tensor) -> Tensor:
        """The cross-entropy of logits with the two-hot of rescaled numbers."""
        goal = ops.two_hot(ops.rescale(number), self.support(logits))
        return -(goal * logits.log_softmax(-1)).sum(-1)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, count = mini.data, self.cfg.unroll
        goal, alive, over = self.goals(r)
        seen = self.unrolled(r)
        rows, weight = slice(0, count + 1), mini.weight[:1]
        log_probs = ops.Categorical(seen.logits).log_probs()
        policy = -(r.extras["weights"][rows] * log_probs).sum(-1)
        value = self.entropy_of(seen.value, torch.where(alive, goal, 0.0)[rows])
        reward = self.entropy_of(seen.reward[1:], torch.where(alive, r.reward, 0.0)[:count])
        known = (alive | over)[rows]  # after an ending the model should foresee nothing, for ever
        terms = {
            "policy": ops.weighted_mean(policy, weight * alive[rows]),
            "value": ops.weighted_mean(value, weight * known),
            "reward": ops.weighted_mean(reward, weight * known[:-1]),
        }
        loss = terms["policy"] + self.cfg.value_weight * terms["value"] + terms["reward"]
        if self.cfg.consistency:
            terms["consistency"] = ops.weighted_mean(self.apart(r, seen.latent), weight * alive[1 : count + 1])
            loss = loss + self.cfg.consistency * terms["consistency"]
        norm = self.optim.step(loss, lr=knobs["lr"])
        error = (self.number(seen.value[:1]) - goal[:1]).detach()
        return Update(
            {k: v.detach() for k, v in (terms | {"grad_norm": norm}).items()},
            ops.sequence_priority(error, mini.weight[:1]),
        )

    @torch.no_grad()
    def goals(self, r: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Returns [T, B], over what search said of later rows; which rows come before an ending; which after one that
        was no truncation."""
        last = self.number(self.model.judge(self.model.see(*r.last))[1])
        after = torch.cat([r.extras["value"][1:], last])
        goal = ops.lambda_returns(r.reward, after, self.sign * r.discount, r.cut, self.cfg.lam)
        ended = r.cut.long().cumsum(0) - r.cut.long()
        finished = (r.cut & (r.discount == 0) & (ended == 0)).long()
        return goal, ended == 0, finished.cumsum(0) - finished > 0

    def unrolled(self, r: Rollout) -> Foreseen:
        """What the model foresees from the first row under the actions that were taken, [unroll + 1, B, ...]."""
        latent = self.model.see(ops.map_tree(lambda x: x[:1], r.obs), Past((), r.past.start[:1]))
        latents, rewards = [latent], [latent.new_zeros(*latent.shape[:2], 2 * self.cfg.support + 1)]
        for k in range(self.cfg.unroll):
            latent = 0.5 * latent + 0.5 * latent.detach()  # as the paper halves the gradient of each step
            latent, reward = self.model.imagine(latent, r.action[k : k + 1])
            latents.append(latent)
            rewards.append(reward)
        whole = torch.cat(latents)
        return Foreseen(whole, torch.cat(rewards), *self.model.judge(whole))

    def apart(self, r: Rollout, latent: Tensor) -> Tensor:
        """Minus the cosine between foreseen latent states and those of what was then seen, [unroll, B]."""
        rows = slice(1, self.cfg.unroll + 1)
        with torch.no_grad():
            later = self.model.see(ops.map_tree(lambda x: x[rows], r.obs), Past((), r.past.start[rows]))
            goal = self.model.project(later)[0]
        told = self.model.foretell(self.model.project(latent[1:])[0])[0]
        return -torch.nn.functional.cosine_similarity(told, goal, -1)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}
