"""MAPPO (Yu et al. 2022): PPO of agents whose critic knows what is central.

    actor:  the clipped surrogate of each living agent, with the advantage of its team
    critic: V(s), one value of the team in each copy, from the central state

The critic is read when a rollout is complete, not while acting: agents act by what they see themselves. Minibatches are
of copies, whole ones [T, C] with a memory, else single rows folded to [1, T * C].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.buffers.copies import TEAM, ByCopy, Pay, check_minibatches
from ganglion.config import (
    FRESH, AlgoConfig, Amount, Count, Positive, ProcessorConfig, RateSchedule, constant, linear, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Action, Algorithm, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction, Progress, Recipe,
    Rollout, Stateful, Update,
)  # fmt: skip
from ganglion.nn.central import CentralEncoder
from ganglion.ops.agents import by_slot, whole


@register("algo", "mappo")
class MAPPOConfig(AlgoConfig):
    """Proximal policy optimisation of agents with a central critic."""

    lacks = TEAM | FRESH
    lr: RateSchedule = linear(5e-4, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    horizon: Count = Field(64, ge=1)  # rows per slot and rollout
    epochs: int = Field(4, ge=1, le=1_000)
    minibatches: Count = Field(4, ge=1)
    clip: Amount = constant(0.2)
    clip_value: Positive | None = None
    entropy: Amount = constant(0.01)
    normalise_advantage: bool = True
    log_std: float = Field(0.0, ge=-20, le=20)  # of continuous actions, at the start
    max_norm: Positive = 10.0
    max_kl: Positive | None = None  # ends a learning phase early; costs one sync per epoch
    max_lag: Count = Field(16, ge=0)  # rollouts behind which one of a remote explorer is dropped
    reward: Pay = "sum"  # of the agents: the team's
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), activation="tanh", init="orthogonal")
    critic: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), activation="tanh", init="orthogonal")  # without a memory
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> MAPPO:
        return MAPPO(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        lag = self.max_lag * self.epochs * self.minibatches  # in updates
        rollouts = buffers.RolloutConfig().rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, ByCopy(rollouts, self.reward), buffers.ReadyConfig(), lag)


class Actor(nn.Encoded):
    """What an agent sees -> raw action parameters, and the critic of its team."""

    def __init__(self, cfg: MAPPOConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.net, spec.obs)
        nn.check_mask(spec)
        self.body = cfg.net.body(self.encoder.out)
        self.head = nn.PolicyHead(self.body, spec.action, cfg.net.init, cfg.log_std)
        self.critic = Critic(cfg, spec)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encoder(obs, past)
        return self.head(self.body(features)[0]), memory


class Critic(Model):
    """What is central -> the value of each copy [T, C]."""

    def __init__(self, cfg: MAPPOConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.central = CentralEncoder(cfg.critic, spec)
        self.body = cfg.critic.body(self.central.out)
        self.head = nn.ValueHead(self.body, cfg.critic.init)

    def forward(self, copies: Obs, there: Tensor) -> Tensor:
        value: Tensor = self.head(self.body(self.central(copies, there))[0])
        return value


class MAPPORows(NamedTuple):
    """Rows with what was believed of them when they were collected: of copies, then of their agents [T, C, N, ...]."""

    advantage: Tensor
    value: Tensor
    goal: Tensor
    valid: Tensor
    copies: Obs
    action: Action
    logp: Tensor
    alive: Tensor
    acts: Tensor  # alive, and this agent's turn
    memory: Memory
    starts: Tensor


class MAPPO(Algorithm[Rollout, MAPPORows]):
    """Actors of their own views, and a critic of the whole."""

    model: Actor

    def __init__(self, cfg: MAPPOConfig, spec: EnvSpec) -> None:
        self.cfg, self.spec, self.agents, self.passes = cfg, spec, len(spec.agents), cfg.epochs
        check_minibatches(cfg.minibatches, spec, cfg.horizon, cfg.net.recurrent)
        self.model = Actor(cfg, spec)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm, eps=1e-5)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        cfg = self.cfg
        return {"lr": cfg.lr.at(at), "entropy_weight": cfg.entropy.at(at), "clip": cfg.clip.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.spec.action), plan=ops.shuffle_draws(self.cfg.epochs))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.action(obs, past)
        return Prediction(ops.dist(raw, self.spec.action, ops.mask(obs)), ops.empty(raw), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = prediction.dist.sample(noise)
        return Acted(action, {"logp": prediction.dist.log_prob(action)}, prediction.memory)

    # ------------------------------------------------------------ learning

    @torch.no_grad()
    def prepare(self, r: Rollout) -> MAPPORows:
        seen, extras = whole(r), r.extras
        value = self.model.critic(seen.copies, seen.there)  # [T + 1, C]; dead rows carry true last observations
        advantage = ops.gae(r.reward, value[:-1], value[1:], r.discount, r.cut, self.cfg.lam)
        acts = ops.decisions(extras["alive"], extras)
        own = r.action, extras["logp"], extras["alive"], acts, r.past.memory, extras["starts"]
        m = MAPPORows(advantage, value[:-1], advantage + value[:-1], r.valid, r.obs, *own)
        return m if self.model.recurrent else ops.fold(m)

    def plan(self, rows: int, noise: Noise) -> Tensor:
        return ops.shuffled(rows, self.cfg.epochs, self.cfg.minibatches, noise)  # [epochs * minibatches, rows each]

    def enough(self, update: Update) -> Tensor | None:
        return ops.above(update.metrics["kl"], self.cfg.max_kl)

    def learn(self, m: MAPPORows, knobs: Knobs, noise: Noise) -> Update:
        past = Past(*by_slot((m.memory, m.starts)))
        dist = self.predict(by_slot(m.copies), past, noise).dist
        action, before, acts = by_slot((m.action, m.logp, m.acts))
        log_ratio = torch.where(acts, dist.log_prob(action) - before, 0.0)
        advantage = ops.normalise(m.advantage, m.valid) if self.cfg.normalise_advantage else m.advantage
        surrogate = ops.clipped_surrogate(log_ratio, advantage.repeat(1, self.agents), knobs["clip"])
        actor = ops.masked_mean(surrogate, acts)
        value = self.model.critic(m.copies, m.alive)
        critic = ops.masked_mean(ops.value_loss(value, m.value, m.goal, self.cfg.clip_value), m.valid)
        entropy = ops.masked_mean(dist.entropy(), acts)
        norm = self.optim.step(actor + critic - knobs["entropy_weight"] * entropy, lr=knobs["lr"])
        moved = log_ratio.detach()
        metrics = {"policy": actor, "value": critic, "entropy": entropy, "kl": ops.masked_mean(ops.kl_k3(moved), acts)}
        metrics |= {"clipped": ops.masked_mean((moved.exp() - 1).abs() > knobs["clip"], acts), "grad_norm": norm}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.empty(value))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}
