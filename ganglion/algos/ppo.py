"""Proximal policy optimisation (Schulman et al. 2017) with generalised advantages (Schulman et al. 2016).

All tensors are [T, B, ...]. Minibatches are drawn along the second axis: single rows folded to [1, T * B] for a
feed-forward model, whole slots [T, B] for a recurrent one or where advantages are recomputed; `learn` cannot tell the
difference. With a `replay`, rollouts of earlier actors are learned from as well: V-trace (Espeholt et al. 2018) weighs
their advantages, and ratios are to the actor of when they were drawn (Hilton et al. 2022), not to whoever acted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    FRESH, AlgoConfig, Amount, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig,
    Rate, RateSchedule, constant, linear, register,
)  # fmt: skip
from ganglion.core import (
    Action, Algorithm, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout, Row, Sample,
    Stateful, Update,
)  # fmt: skip
from ganglion.errors import UserError


@register("algo", "ppo")
class PPOConfig(AlgoConfig):
    """Proximal policy optimisation."""

    lacks = {"n_step": FRESH["n_step"]}
    lr: RateSchedule = linear(2.5e-4, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    horizon: Count = Field(128, ge=1)  # rows per slot and rollout
    episodes: bool = False  # rollouts are whole episodes, of at most `horizon` rows each
    epochs: int = Field(4, ge=1, le=1_000)
    minibatches: Count = Field(4, ge=1)
    clip: Amount = constant(0.2)
    dual_clip: float | None = Field(None, gt=1, le=1e6)  # of the ratio where A < 0 (Ye et al. 2020)
    clip_value: Positive | None = None
    entropy: Amount = constant(0.01)
    value_weight: NonNegative = 0.5
    popart: Rate | None = None  # how fast the scale of values follows that of goals (3e-4); None: it is fixed
    normalise_advantage: bool = True
    recompute: bool = False  # advantages, by the critic of now at every update; minibatches are then whole slots
    normalise_reward: bool = False  # by the deviation of the discounted return
    log_std: float = Field(0.0, ge=-20, le=20)  # of continuous actions, at the start
    max_norm: Positive = 0.5
    max_kl: Positive | None = None  # ends a learning phase early; costs one sync per epoch
    max_lag: Count = Field(16, ge=0)  # rollouts behind which one of a remote explorer is dropped
    shared: bool = False  # actor and critic read one body; otherwise each has its own
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), activation="tanh", init="orthogonal")
    replay: BufferConfig | None = None  # of rollouts, also old ones; None: what was just collected, once
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=64, warmup=1_000)  # with a replay
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> PPO:
        return PPO(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        if self.replay is not None:
            return Recipe(self.processor, self.replay.rollouts(self.gamma, self.horizon), self.limiter)
        lag = self.max_lag * self.epochs * self.minibatches  # in updates
        rollouts = buffers.RolloutConfig(episodes=self.episodes).rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, rollouts, buffers.ReadyConfig(), lag)


class PPOMinibatch(NamedTuple):
    """Rows with what was believed of them when they were collected."""

    obs: Obs
    past: Past
    action: Action
    logp: Tensor
    value: Tensor
    advantage: Tensor
    goal: Tensor
    valid: Tensor
    acts: Tensor  # valid, and this slot's turn
    whole: Rollout | tuple[()] = ()  # where advantages are recomputed
    weight: Tensor | tuple[()] = ()  # of replayed rows
    drawn: Tensor | tuple[()] = ()  # where they lie in the replay

    @property
    def index(self) -> Tensor:  # type: ignore[override]
        """Where new priorities go."""
        return ops.first(self.drawn)


class PPO(Algorithm[Any, PPOMinibatch]):
    """An actor and a critic that learn from what they just did, several times over, in small steps."""

    model: nn.ActorCritic

    def __init__(self, cfg: PPOConfig, spec: EnvSpec) -> None:
        self.cfg, self.spec, self.passes = cfg, spec, cfg.epochs
        self.whole = cfg.net.recurrent or cfg.recompute or cfg.replay is not None  # slots in a minibatch
        rows = spec.slots if self.whole else spec.slots * cfg.horizon
        if rows < cfg.minibatches and cfg.replay is None:
            why = "a memory learns" if cfg.net.recurrent else "recomputed advantages learn"
            what = f"env.slots ({why} from whole slots)" if self.whole else "env.slots * algo.horizon"
            raise UserError(
                f"algo.minibatches: {cfg.minibatches} is more than {what} = {rows}; lower it to {rows} or less."
            )
        self.model = nn.ActorCritic(cfg.net, spec, cfg.shared, cfg.log_std, cfg.popart)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm, eps=1e-5)
        self.scale = nn.RewardScale(spec.slots, cfg.gamma) if cfg.normalise_reward else None

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        cfg = self.cfg
        return {"lr": cfg.lr.at(at), "entropy_weight": cfg.entropy.at(at), "clip": cfg.clip.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.spec.action), plan=ops.shuffle_draws(self.cfg.epochs))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, value, memory = self.model.action_and_value(obs, past)
        return Prediction(ops.dist(raw, self.spec.action, ops.mask(obs)), value, memory)

    # explore() and exploit() are the defaults: sample the distribution, take its mode; logp and value go into extras

    # ------------------------------------------------------------ learning

    @torch.no_grad()
    def prepare(self, item: Rollout | Sample[Rollout]) -> PPOMinibatch:
        match item:
            case Sample(data=data):
                return self.replayed(self.scaled(data), item)
            case r:
                return self.collected(self.scaled(r))

    def scaled(self, r: Rollout) -> Rollout:
        return r if self.scale is None else r._replace(reward=self.scale(r.reward))

    def collected(self, r: Rollout) -> PPOMinibatch:
        """Rows of the actor of now, with what its critic said of them."""
        value = r.extras["value"]
        advantage = self.advantage(r, value, r.last[1])
        acts, kept = ops.decisions(r.valid, r.extras), r if self.cfg.recompute else ()
        m = PPOMinibatch(
            r.obs, r.past, r.action, r.extras["logp"], value, advantage, advantage + value, r.valid, acts, kept
        )
        return m if self.whole else ops.fold(m)

    def replayed(self, r: Rollout, item: Sample[Rollout]) -> PPOMinibatch:
        """Rows of earlier actors, with what is believed of them now."""
        p = self.predict(r.obs, r.past, self.neutral(r.reward))
        valid, kept = item.weight > 0, r if self.cfg.recompute else ()
        about = *self.recomputed(r, p), valid, ops.decisions(valid, r.extras), kept, item.weight, item.index
        return PPOMinibatch(r.obs, r.past, r.action, p.dist.log_prob(r.action), p.value, *about)

    def after(self, r: Rollout, value: Tensor, past: Past) -> Tensor:
        """The value of what follows each row, [T, B]; the dead row carries the true last observation."""
        return torch.cat([value[1:], self.predict(r.last[0], past, self.neutral(value[:1])).value])

    def advantage(self, r: Rollout, value: Tensor, past: Past) -> Tensor:
        return ops.gae(r.reward, value, self.after(r, value, past), r.discount, r.cut, self.cfg.lam)

    @torch.no_grad()
    def recomputed(self, r: Rollout, p: Prediction) -> tuple[Tensor, Tensor]:
        """Advantages and goals by the critic of now, which remembers as the model now would."""
        past = Past(p.memory, r.last[1].start)
        if self.cfg.replay is None:
            advantage = self.advantage(r, p.value, past)
            return advantage, advantage + p.value
        log_ratio, after = p.dist.log_prob(r.action) - r.extras["logp"], self.after(r, p.value, past)
        trace = ops.vtrace(log_ratio, r.reward, p.value, after, r.discount, r.cut, self.cfg.lam)
        return trace.advantage, trace.goal

    def plan(self, rows: int, noise: Noise) -> Tensor:
        if rows < self.cfg.minibatches:
            raise UserError(f"algo.minibatches: {self.cfg.minibatches} is more than algo.replay.batch = {rows}.")
        return ops.shuffled(rows, self.cfg.epochs, self.cfg.minibatches, noise)  # [epochs * minibatches, rows each]

    def enough(self, update: Update) -> Tensor | None:
        return ops.above(update.metrics["kl"], self.cfg.max_kl)

    def learn(self, m: PPOMinibatch, knobs: Knobs, noise: Noise) -> Update:
        p = self.predict(m.obs, m.past, noise)
        log_ratio = p.dist.log_prob(m.action) - m.logp
        advantage, goal = self.recomputed(m.whole, p) if m.whole else (m.advantage, m.goal)
        advantage = ops.normalise(advantage, m.acts) if self.cfg.normalise_advantage else advantage
        surrogate = ops.clipped_surrogate(log_ratio, advantage, knobs["clip"], self.cfg.dual_clip)
        error, priority = ops.value_loss(p.value, m.value, goal, self.cfg.clip_value), ops.empty(m.logp)
        if self.cfg.replay is not None:
            weight = ops.first(m.weight)
            surrogate, error, priority = (
                surrogate * weight,
                error * weight,
                ops.sequence_priority(goal - p.value, weight),
            )
        policy, entropy = ops.masked_means(m.acts, surrogate, p.dist.entropy())
        critic = ops.masked_mean(error, m.valid)
        critic = critic if self.cfg.popart is None else critic / self.model.critic.variance
        loss = policy + self.cfg.value_weight * critic - knobs["entropy_weight"] * entropy
        norm = self.optim.step(loss, lr=knobs["lr"])
        self.model.critic.follow(goal, m.valid)
        moved = log_ratio.detach()
        beyond = (moved.exp() - 1).abs() > knobs["clip"]
        kl, clipped = ops.masked_means(m.acts, ops.kl_k3(moved), beyond.to(moved.dtype))
        metrics = {
            "policy": policy,
            "value": critic,
            "entropy": entropy,
            "kl": kl,
            "clipped": clipped,
            "grad_norm": norm,
        }
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def observe(self, rows: Row) -> None:
        super().observe(rows)
        if self.scale is not None:
            self.scale.observe(rows)

    def parts(self) -> Mapping[str, Stateful]:
        scale = {} if self.scale is None else {"scale": self.scale}
        return {"model": self.model, "optim": self.optim, **scale}
