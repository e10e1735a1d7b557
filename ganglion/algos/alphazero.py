"""AlphaZero (Silver et al. 2018): a tree search over the rules of a game, and a network that learns what it finds.

With `search: gumbel` it is Gumbel AlphaZero (Danihelka et al. 2022). All tensors are [T, B, ...]; a slot plays both
sides, and a value is that of whoever moves, so what follows counts -1 times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
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
    constant,
    linear,
    register,
)
from ganglion.core import (
    Acted, Action, Algorithm, Draw, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Progress, Recipe,
    Rollout, Sample, Stateful, Update,
)  # fmt: skip
from ganglion.errors import UserError


@register("algo", "alphazero")
class AlphaZeroConfig(AlgoConfig):
    """AlphaZero."""

    actions = "discrete"
    lacks = {"n_step": "its returns look ahead to the end of a sequence"}
    lr: RateSchedule = linear(2e-3, 2e-4)
    optim: nn.OptimConfig = nn.OptimConfig()
    search: Literal["puct", "gumbel"] = "puct"
    simulations: int = Field(32, ge=1, le=10_000)
    considered: int = Field(16, ge=1, le=10_000)  # gumbel: actions that compete at the root
    c_init: Positive = 1.25  # puct: weight of the prior
    noise: float = Field(0.25, ge=0, le=1)  # puct: share of Dirichlet noise in the root's prior
    alpha: Positive = 0.3  # puct: of that Dirichlet; about 10 over the number of legal actions
    temperature: Amount = constant(1.0)  # puct: actions are chosen by visits to the power of its inverse
    lam: float = Field(1.0, ge=0, le=1)  # of the returns that values learn: 1 is how the game went, 0 what search said
    horizon: Count = Field(16, ge=1)  # rows per sequence; beyond the last, its value stands for the game's end
    value_weight: NonNegative = 1.0
    symmetries: bool = True  # learn from boards turned and mirrored at random
    max_norm: Positive = 5.0
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000, batch=32)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=64, warmup=2_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> AlphaZero:
        return AlphaZero(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.rollouts(1.0, self.horizon), self.limiter)


class PolicyAndValue(nn.Encoded):
    """obs -> logits of actions [T, B, A] and a value from -1 to 1, [T, B]."""

    def __init__(self, cfg: AlphaZeroConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.net, spec.obs)
        self.body = cfg.net.body(self.encoder.out)
        self.actor = nn.PolicyHead(self.body, spec.action, cfg.net.init)
        self.critic = nn.ValueHead(self.body, cfg.net.init)

    def both(self, obs: Obs, past: Past) -> tuple[Tensor, Tensor]:
        hidden = self.body(self.encoder(obs, past)[0])[0]
        return self.actor(hidden), torch.tanh(self.critic(hidden))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.both(obs, past)[0], ()

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        return self.both(obs, past)[1], ()


class AlphaZero(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Search with a network, then teach it what was found."""

    model: PolicyAndValue

    def __init__(self, cfg: AlphaZeroConfig, spec: EnvSpec) -> None:
        if spec.rules is None:
            raise UserError(
                f"algo.kind: alphazero searches with rules; {spec.name} has none. Try env board, or muzero."
            )
        if cfg.net.recurrent:
            raise UserError("algo.net.memory: alphazero has none, since a board says all. Accepted: none.")
        self.cfg, self.rules = cfg, spec.rules
        self.model = PolicyAndValue(cfg, spec)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm)
        puct, gumbel = search.PuctRule(cfg.simulations, cfg.c_init), search.GumbelRule(cfg.simulations, cfg.considered)
        rule = gumbel if cfg.search == "gumbel" else puct
        self.planner = search.Planner(rule, nn.discrete_actions(cfg, spec), cfg.noise, cfg.alpha)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr.at(at), "temperature": self.cfg.temperature.at(at)}

    def draws(self) -> Draws:
        return Draws(self.planner.draws, Draw(uniform=1), learn=Draw(uniform=1))

    def neutral(self, rows: Tensor) -> Noise:
        return search.calm(super().neutral(rows))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        found = self.found(*ops.map_tree(lambda x: x.flatten(0, 1), (obs, noise)))
        weights, action, value = (x.unflatten(0, past.start.shape) for x in found[:3])
        return Prediction(search.Planned(weights, action), value, ())

    def found(self, obs: Obs, noise: Noise) -> search.Found:
        """A search from each of N boards."""
        logits, value = self.said(obs)
        root = search.Root(self.rules.read(obs), logits, value)
        return self.planner.plan(root, self.dynamics, obs["action_mask"].bool(), noise)

    def dynamics(self, board: Tensor, action: Tensor) -> search.Outcome:
        after, reward, ended = self.rules.play(board, action)
        obs = self.rules.show(after)
        logits, value = self.said(obs)
        discount = torch.where(ended, 0.0, self.rules.discount)
        return search.Outcome(after, reward.float(), discount, ops.blocked(logits, obs["action_mask"]), value)

    def said(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """What the network says of boards [N, ...]."""
        rows = ops.map_tree(lambda x: x[None], obs)
        logits, value = self.model.both(rows, Past((), torch.zeros_like(obs["action_mask"][None, :, 0])))
        return logits[0], value[0]

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = self.planner.choose(prediction.dist, knobs["temperature"], noise)
        return Acted(action, {"weights": prediction.dist.weights, "value": prediction.value}, ())

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, (obs, weights) = mini.data, (mini.data.obs, mini.data.extras["weights"])
        if self.cfg.symmetries:
            obs, weights = self.rules.turned(obs, weights, noise.uniform[..., 0])
        logits, value = self.model.both(obs, r.past)
        goal = self.goal(r)
        log_probs = ops.Categorical(logits, obs["action_mask"].bool()).log_probs()
        each = -(weights * torch.where(weights > 0, log_probs, 0.0)).sum(-1)
        policy = ops.weighted_mean(each, mini.weight)
        critic = ops.weighted_mean((value - goal).square(), mini.weight)
        norm = self.optim.step(policy + self.cfg.value_weight * critic, lr=knobs["lr"])
        surprise = ops.weighted_mean(each - search.entropy(weights), mini.weight)  # KL(search || network)
        metrics = {"policy": policy, "value": critic, "kl": surprise, "grad_norm": norm}
        priority = ops.sequence_priority((value - goal).detach(), mini.weight)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    @torch.no_grad()
    def goal(self, r: Rollout) -> Tensor:
        """Lambda returns of whoever moves, over what search said of later rows, [T, B]."""
        after = torch.cat([r.extras["value"][1:], self.model.both(*r.last)[1]])
        return ops.lambda_returns(r.reward, after, self.rules.discount * r.discount, r.cut, self.cfg.lam)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}
