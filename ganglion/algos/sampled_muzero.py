"""Sampled MuZero (Hubert et al. 2021): MuZero for real actions, of which every node of the tree has a few, drawn from
its policy.

The search chooses among these as if they were all there are; the policy then learns to draw what was found. Sequences
are [T, B, ...]. All nodes of a row draw by the same random numbers. With `search: gumbel` it needs few simulations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from ganglion import buffers, nn, ops, search
from ganglion.config import (
    AlgoConfig, Amount, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig, RateSchedule,
    linear, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout, Sample,
    Stateful, Update,
)  # fmt: skip
from ganglion.nn.actor_critics import bounded, squashed
from ganglion.nn.latent_model import LatentModel, LatentState, goals, unrolled, wrong
from ganglion.nn.support import Support


@register("algo", "sampled_muzero")
class SampledMuZeroConfig(AlgoConfig):
    """Sampled MuZero."""

    actions = "bounded"
    lacks = {"n_step": "its returns look ahead to the end of a sequence"}
    lr: RateSchedule = linear(2e-3, 2e-4)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    samples: int = Field(12, ge=2, le=1_000)  # actions of a node
    search: Literal["puct", "gumbel"] = "gumbel"
    simulations: int = Field(16, ge=1, le=10_000)
    considered: int = Field(8, ge=1, le=1_000)  # gumbel: actions that compete at the root
    c_init: Positive = 1.25  # puct: weight of the prior
    noise: float = Field(0.25, ge=0, le=1)  # puct: share of Dirichlet noise in the root's prior
    alpha: Positive = 0.3  # puct: of that Dirichlet
    temperature: Amount = linear(1.0, 0.25)  # puct: actions are chosen by visits to the power of its inverse
    unroll: int = Field(5, ge=1, le=100)  # steps that the model is asked to foresee
    horizon: Count = Field(11, ge=2)  # rows per sequence: returns look ahead to its end, then at a searched value
    lam: float = Field(1.0, ge=0, le=1)  # of those returns
    value_weight: NonNegative = 0.25
    entropy: NonNegative = 5e-3  # weight of the policy's entropy
    consistency: NonNegative = 2.0  # weight of latent states being those of what is seen later
    value_prefix: bool = False  # the model predicts sums of up to `unroll` rewards, not each
    support: int = Field(30, ge=1, le=1_000)  # rescaled values and rewards lie between -this and this
    max_norm: Positive = 5.0
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000, batch=128)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    @model_validator(mode="after")
    def _fits(self) -> SampledMuZeroConfig:
        if self.unroll >= self.horizon:
            raise ValueError(f"unroll should be less than the {self.horizon} rows of horizon")
        return self

    def build(self, spec: EnvSpec) -> SampledMuZero:
        return SampledMuZero(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.rollouts(self.gamma, self.horizon), self.limiter)


class SampledPlan(NamedTuple):
    """What a search says of the actions that were drawn at its root."""

    plan: search.Planned
    actions: Tensor  # [T, B, K, A], from -1 to 1

    def mode(self) -> Tensor:
        return chosen(self.actions, self.plan.action)


class SampledMuZero(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Search among drawn actions, in a model that is learned."""

    model: LatentModel

    def __init__(self, cfg: SampledMuZeroConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, (space := bounded(cfg, spec, cfg.net))
        self.support = Support(cfg.support, 2 * cfg.support + 1)
        prefix, size = cfg.unroll * cfg.value_prefix, space.size
        self.model = LatentModel(cfg.net, spec, size, 2 * size, self.support, prefix, cfg.consistency > 0)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)
        puct, gumbel = search.PuctRule(cfg.simulations, cfg.c_init), search.GumbelRule(cfg.simulations, cfg.considered)
        rule = gumbel if cfg.search == "gumbel" else puct
        self.planner = search.Planner(rule, cfg.samples, cfg.noise, cfg.alpha)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr.at(at), "temperature": self.cfg.temperature.at(at)}

    def draws(self) -> Draws:
        own = self.planner.draws
        return Draws(Draw(own.uniform, own.normal + self.cfg.samples * self.space.size), Draw(uniform=1))

    def neutral(self, rows: Tensor) -> Noise:
        """Where nothing may be random the policy's mean is the first action of every node, the rest are always the
        same draws."""
        noise, first = search.spread(rows, self.draws().predict), self.planner.draws.normal
        own = torch.arange(noise.normal.shape[-1], device=rows.device) - first
        mean = (own >= 0) & (own < self.space.size)
        return search.calm(noise._replace(normal=noise.normal.masked_fill(mean, 0.0)))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        state = self.model.see(obs, past)
        raw, value = self.model.judge(state)
        rows = ops.map_tree(lambda x: x.flatten(0, 1), (state, raw, self.support.number(value), noise))
        state, raw, value, noise = rows
        own = self.planner.draws.normal
        dice = noise.normal[:, own:].unflatten(1, (self.cfg.samples, -1))

        def dynamics(at: tuple[LatentState, Tensor], which: Tensor) -> search.Outcome:
            latent, action = ops.map_tree(lambda x: x[None], (at[0], chosen(at[1], which)))
            after, _, reward = self.model.imagine(latent, action)
            raw, value = self.model.judge(after)
            now, raw, reward, worth = ops.map_tree(lambda x: x[0], (after, raw, reward, self.support.number(value)))
            actions = self.drawn(raw, dice)
            discount = torch.full_like(reward, self.cfg.gamma)
            return search.Outcome((now, actions), reward, discount, torch.zeros_like(actions[..., 0]), worth)

        actions = self.drawn(raw, dice)
        even = torch.zeros_like(actions[..., 0])  # what is drawn from a policy is as likely under it as drawn
        root = search.Root((state, actions), even, value)
        found = self.planner.plan(root, dynamics, even == 0, noise._replace(normal=noise.normal[:, :own]))
        weights, action, value, actions = (x.unflatten(0, past.start.shape) for x in (*found[:3], actions))
        return Prediction(SampledPlan(search.Planned(weights, action), actions), value, ())

    def policy(self, raw: Tensor) -> ops.TanhNormal:
        first, second = raw.chunk(2, -1)
        mean, log_std = squashed(first, second).chunk(2, -1)
        one = torch.ones_like(mean)
        return ops.TanhNormal(mean, log_std, -one, one)

    def drawn(self, raw: Tensor, dice: Tensor) -> Tensor:
        """Actions of nodes: numbers of a policy [B, 2 A], normal numbers [B, K, A] -> [B, K, A]."""
        dist = self.policy(raw)
        return torch.tanh(dist.mean[:, None] + dist.log_std.exp()[:, None] * dice)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        plan, actions = prediction.dist
        action = chosen(actions, self.planner.choose(plan, knobs["temperature"], noise))
        extras = {"weights": plan.weights, "drawn": actions, "unit": action, "value": prediction.value}
        return Acted(self.stretched(action), extras, ())

    def exploit(self, prediction: Prediction) -> Acted:
        return Acted(self.stretched(prediction.dist.mode()), {}, ())

    def stretched(self, action: Tensor) -> Tensor:
        """From -1 to 1 onto the bounds."""
        return ops.anywhere(self.space, 0.5 * (action + 1))

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, count = mini.data, self.cfg.unroll
        goal = goals(self.model, r, 1.0, self.cfg.lam)
        seen = unrolled(self.model, r.obs, r.past, r.extras["unit"][:count])
        rows, weight = slice(0, count + 1), mini.weight[:1]
        live = weight * goal.alive[rows]
        dist = self.policy(seen.policy)
        mean, log_std, low, high = (x.unsqueeze(-2) for x in dist[:4])
        each = ops.TanhNormal(mean, log_std, low, high).log_prob(r.extras["drawn"][rows])
        terms = wrong(self.model, seen, r, goal, weight)
        terms["policy"] = ops.weighted_mean(-(r.extras["weights"][rows] * each).sum(-1), live)
        terms["entropy"] = ops.weighted_mean(dist.entropy(), live)
        loss = terms["policy"] + self.cfg.value_weight * terms["value"] + terms["reward"]
        loss = loss - self.cfg.entropy * terms["entropy"]
        if self.cfg.consistency:
            loss = loss + self.cfg.consistency * terms["consistency"]
        norm = self.optim.step(loss, lr=knobs["lr"])
        error = (self.support.number(seen.value[:1]) - goal.value[:1]).detach()
        metrics = {k: v.detach() for k, v in (terms | {"grad_norm": norm}).items()}
        return Update(metrics, ops.sequence_priority(error, mini.weight[:1]))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}


def chosen(actions: Tensor, which: Tensor) -> Tensor:
    """One of the actions of each row: [..., K, A], [...] -> [..., A]."""
    where = which[..., None, None].expand(*which.shape, 1, actions.shape[-1])
    return actions.gather(-2, where).squeeze(-2)
