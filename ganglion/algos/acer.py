"""Actor-critic with experience replay (Wang et al. 2017), for discrete actions.

Action values learn Retrace targets along replayed rollouts, whoever acted; the actor's gradient has importance weights
truncated at `clip`, what that cuts off is added back from the values, and it is bent so as not to leave an average of
earlier actors by more than `limit`. All tensors are [T, B, ...], with a memory or without.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
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
    Acted, Action, Algorithm, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Progress, Recipe,
    Rollout, Sample, Stateful, Update,
)  # fmt: skip

LEAST = 1e-6  # probability that a gradient is divided by


@register("algo", "acer")
class ACERConfig(AlgoConfig):
    """Actor-critic with experience replay."""

    actions = "discrete"
    lacks = {"n_step": "Retrace weighs sums of every length over its replayed rollouts"}
    lr: RateSchedule = linear(7e-4, 0.0)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)  # of Retrace: how far corrections look ahead
    horizon: Count = Field(16, ge=1)  # rows per replayed rollout
    clip: Positive = 10.0  # of the ratio that weighs the actor's gradient
    limit: Positive | None = 1.0  # of a step away from the average actor; None: no trust region
    average: float = Field(0.01, gt=0, le=1)  # how fast that one follows
    entropy: Amount = constant(0.001)
    value_weight: NonNegative = 0.5
    max_norm: Positive = 10.0
    shared: bool = False  # actor and critic read one body; otherwise each has its own
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), activation="tanh", init="orthogonal")
    replay: BufferConfig = buffers.ReplayConfig(capacity=50_000, batch=16)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=64, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> ACER:
        return ACER(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.rollouts(self.gamma, self.horizon), self.limiter)


class ActorQ(nn.Encoded):
    """obs [T, B, ...] -> raw action parameters and one value per action, [T, B, A] each."""

    def __init__(self, cfg: ACERConfig, spec: EnvSpec, actions: int) -> None:
        super().__init__(cfg.net, spec.obs)
        self.bodies = cfg.net.body(self.encoder.out, count=1 if cfg.shared else 2)
        self.actor = nn.PolicyHead(self.bodies, spec.action, cfg.net.init)
        self.critic = nn.QHead(self.bodies, actions, dueling=False)

    def action_and_values(self, obs: Obs, past: Past) -> tuple[Tensor, Tensor, Memory]:
        features, memory = self.encoder(obs, past)
        hidden = self.bodies(features).unbind()  # one or two, [T, B, size]
        return self.actor(hidden[0]), self.critic(hidden[-1]), memory

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        raw, _, memory = self.action_and_values(obs, past)
        return raw, memory

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        _, q, memory = self.action_and_values(obs, past)
        return q, memory


class ACER(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """An actor and action values that learn from what any earlier actor did."""

    model: ActorQ

    def __init__(self, cfg: ACERConfig, spec: EnvSpec) -> None:
        self.cfg, self.spec = cfg, spec
        self.model = ActorQ(cfg, spec, nn.discrete_actions(cfg, spec))
        self.average = nn.Lagged(self.model)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr(0.0), max_norm=cfg.max_norm, eps=1e-5)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"lr": self.cfg.lr.at(at), "entropy_weight": self.cfg.entropy.at(at)}

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.spec.action))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, q, memory = self.model.action_and_values(obs, past)
        dist = ops.Categorical(raw, ops.mask(obs))
        return Prediction(dist, ops.expected_value(q, dist.probs()), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        dist = prediction.dist
        return Acted(dist.sample(noise), {"log_probs": dist.log_probs()}, prediction.memory)  # of all actions

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, behaviour = mini.data, mini.data.extras["log_probs"]
        raw, q, memory = self.model.action_and_values(r.obs, r.past)
        dist, chosen = ops.Categorical(raw, ops.mask(r.obs)), ops.pick(q, r.action)
        log_probs = dist.log_probs()
        with torch.no_grad():
            value = ops.expected_value(q, log_probs.exp())
            obs, past = r.last
            last = self.predict(obs, Past(memory, past.start), noise).value  # remembered as the model now would
            after = torch.cat([value[1:], last])  # the dead row carries the true last observation
            log_ratio = ops.pick(log_probs - behaviour, r.action)
            goal = ops.retrace(log_ratio, r.reward, chosen, after, r.discount, r.cut, self.cfg.lam)
            climb = self.climb(r, log_probs, ops.acer_weights(log_probs, behaviour, q, goal, r.action, self.cfg.clip))
        actor = ops.weighted_mean(-(climb * log_probs.exp()).sum(-1), mini.weight)
        critic = ops.weighted_mean(0.5 * (goal - chosen).square(), mini.weight)
        entropy = ops.weighted_mean(dist.entropy(), mini.weight)
        loss = actor + self.cfg.value_weight * critic - knobs["entropy_weight"] * entropy
        norm = self.optim.step(loss, lr=knobs["lr"])
        self.average.follow(self.model, self.cfg.average)
        metrics = {"actor": actor, "value": critic, "entropy": entropy, "grad_norm": norm}
        metrics |= {"q": ops.weighted_mean(chosen, mini.weight)}
        metrics |= {"kl": ops.weighted_mean(ops.kl_k3(log_ratio), mini.weight)}  # between who acted and who learns
        priority = ops.sequence_priority((goal - chosen).detach(), mini.weight)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def climb(self, r: Rollout, log_probs: Tensor, weights: Tensor) -> Tensor:
        """The actor's gradient at its probabilities [T, B, A], within the trust region."""
        probs = log_probs.exp().clamp(min=LEAST)
        gradient = weights / probs
        if self.cfg.limit is None:
            return gradient
        raw, _ = self.average.action(r.obs, r.past)
        average = ops.Categorical(raw, ops.mask(r.obs)).probs()
        return ops.trust_region(gradient, -average / probs, self.cfg.limit)  # of KL(average || pi) at pi

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "average": self.average, "optim": self.optim}
