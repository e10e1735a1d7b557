"""MuZero (Schrittwieser et al. 2020): a tree search in a learned model, which is right where the search looks.

With `search: gumbel` it is Gumbel MuZero (Danihelka et al. 2022), with `consistency` its latent states follow what is
seen, with `value_prefix` it predicts sums of rewards (both Ye et al. 2021), with `reanalyse` some of its targets are
searched anew (Schrittwieser et al. 2021). Sequences are [T, B, ...]: the model is unrolled from their first row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

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
from ganglion.nn.latent_model import LatentModel, LatentState, goals, unrolled, wrong
from ganglion.nn.support import Support


@register("algo", "muzero")
class MuZeroConfig(AlgoConfig):
    """MuZero."""

    actions = "discrete"
    lacks = {"n_step": "its returns look ahead to the end of a sequence"}
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
    value_prefix: bool = False  # the model predicts sums of up to `unroll` rewards, not each
    reanalyse: float = Field(0.0, ge=0, le=1)  # share of a batch whose policies and values are searched anew
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


class MuZero(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Search in a model of the world that is learned from what the search will ask it."""

    model: LatentModel

    def __init__(self, cfg: MuZeroConfig, spec: EnvSpec) -> None:
        if cfg.net.recurrent:
            raise UserError("algo.net.memory: muzero has none. Accepted: none.")
        self.cfg, self.sign = cfg, 1.0 if cfg.players == 1 else -1.0
        self.actions, self.support = nn.discrete_actions(cfg, spec), Support(cfg.support, 2 * cfg.support + 1)
        sizes, prefix = (self.actions, self.actions), cfg.unroll * cfg.value_prefix
        self.model = LatentModel(cfg.net, spec, *sizes, self.support, prefix, cfg.consistency > 0)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)
        puct, gumbel = search.PuctRule(cfg.simulations, cfg.c_init), search.GumbelRule(cfg.simulations, cfg.considered)
        rule = gumbel if cfg.search == "gumbel" else puct
        self.planner = search.Planner(rule, self.actions, cfg.noise, cfg.alpha)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr.at(at), "temperature": self.cfg.temperature.at(at)}

    def draws(self) -> Draws:
        return Draws(self.planner.draws, Draw(uniform=1))

    def neutral(self, rows: Tensor) -> Noise:
        return search.calm(super().neutral(rows))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        state = self.model.see(obs, past)
        logits, value = self.model.judge(state)
        root = search.Root(*ops.map_tree(lambda x: x.flatten(0, 1), (state, logits, self.support.number(value))))
        legal = ops.mask(obs)
        legal = torch.ones_like(root.logits, dtype=torch.bool) if legal is None else legal.flatten(0, 1).bool()
        found = self.planner.plan(root, self.dynamics, legal, ops.map_tree(lambda x: x.flatten(0, 1), noise))
        weights, action, value = (x.unflatten(0, past.start.shape) for x in found[:3])
        return Prediction(search.Planned(weights, action), value, ())

    def dynamics(self, state: LatentState, action: Tensor) -> search.Outcome:
        rows = ops.map_tree(lambda x: x[None], state)
        after, _, reward = self.model.imagine(rows, self.one_hot(action)[None])
        logits, value = self.model.judge(after)
        discount = torch.full_like(reward[0], self.sign * self.cfg.gamma)
        now = ops.map_tree(lambda x: x[0], after)
        return search.Outcome(now, reward[0], discount, logits[0], self.support.number(value)[0])

    def one_hot(self, action: Tensor) -> Tensor:
        return (torch.arange(self.actions, device=action.device) == action.unsqueeze(-1)).to(torch.float32)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = self.planner.choose(prediction.dist, knobs["temperature"], noise)
        return Acted(action, {"weights": prediction.dist.weights, "value": prediction.value}, ())

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, count = self.renewed(mini.data), self.cfg.unroll
        goal = goals(self.model, r, self.sign, self.cfg.lam)
        seen = unrolled(self.model, r.obs, r.past, self.one_hot(r.action[:count]))
        rows, weight = slice(0, count + 1), mini.weight[:1]
        policy = -(r.extras["weights"][rows] * ops.Categorical(seen.policy).log_probs()).sum(-1)
        terms = wrong(self.model, seen, r, goal, weight)
        terms["policy"] = ops.weighted_mean(policy, weight * goal.alive[rows])
        loss = terms["policy"] + self.cfg.value_weight * terms["value"] + terms["reward"]
        if self.cfg.consistency:
            loss = loss + self.cfg.consistency * terms["consistency"]
        norm = self.optim.step(loss, lr=knobs["lr"])
        error = (self.support.number(seen.value[:1]) - goal.value[:1]).detach()
        return Update(
            {k: v.detach() for k, v in (terms | {"grad_norm": norm}).items()},
            ops.sequence_priority(error, mini.weight[:1]),
        )

    @torch.no_grad()
    def renewed(self, r: Rollout) -> Rollout:
        """With what a search says now of the rows that are unrolled, in every so manyth sequence."""
        slots = r.reward.shape[1]
        if not (count := round(self.cfg.reanalyse * slots)):
            return r
        which = torch.arange(count, device=r.reward.device) * slots // count
        obs, start = ops.map_tree(lambda x: x[: self.cfg.unroll + 1].index_select(1, which), (r.obs, r.past.start))
        found = self.predict(obs, Past((), start), self.neutral(start))
        extras, fresh = dict(r.extras), {"weights": found.dist.weights, "value": found.value}
        for name, x in fresh.items():
            first, rest = extras[name].split([len(x), len(r.reward) - len(x)])
            extras[name] = torch.cat([first.index_copy(1, which, x), rest])
        return r._replace(extras=extras)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}
