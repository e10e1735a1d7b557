"""Algorithms as a user would write them, each for one thing that the contracts promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import AlgoConfig, register
from ganglion.core import (
    Acted,
    Algorithm,
    Carried,
    Discrete,
    Draw,
    Draws,
    EnvSpec,
    Knobs,
    Memory,
    Model,
    Noise,
    Obs,
    Past,
    Phase,
    Prediction,
    Progress,
    Recipe,
    Rollout,
    Sample,
    Stateful,
    Transition,
    Update,
)  # fmt: skip


class QConfig(AlgoConfig):
    """Q-learning without a frill."""

    lr: float = Field(1e-2, gt=0)
    gamma: float = Field(0.9, ge=0, le=1)
    size: int = 16
    replay: buffers.ReplayConfig = buffers.ReplayConfig(capacity=600, batch=16)
    limiter: buffers.RatioConfig = buffers.RatioConfig(opt_interval=8, warmup=60)

    def recipe(self, spec: EnvSpec) -> Recipe:
        return Recipe(buffers.RowsConfig(), self.replay.folded(1, self.gamma, False), self.limiter)


class Perceptron(Model):
    """One hidden layer; weights of the last are shaken by numbers that whoever calls brings."""

    def __init__(self, spec: EnvSpec, size: int) -> None:
        super().__init__()
        assert isinstance(spec.action, Discrete)
        self.inner = torch.nn.Linear(ops.dist_size(spec.obs) if isinstance(spec.obs, Discrete) else spec.obs.size, size)
        self.outer = torch.nn.Linear(size, spec.action.n)
        self.spread = torch.nn.Parameter(torch.full((size,), 0.3))

    def shaken(self, obs: Obs, noise: Tensor) -> Tensor:
        """`noise` [..., size]: of each row, or one for all of them."""
        hidden = torch.relu(self.inner(obs.float()))
        return self.outer(hidden * (1 + self.spread * noise))


class Q(Algorithm[Sample[Transition], Sample[Transition]]):
    """What the algorithms below share."""

    model: Perceptron

    def __init__(self, cfg: QConfig, spec: EnvSpec) -> None:
        self.cfg = cfg
        self.model = self.network(spec)
        self.target = nn.Lagged(self.model)
        self.optim = nn.Adam(self.model, lr=cfg.lr)
        self.sync_every = 5

    def network(self, spec: EnvSpec) -> Perceptron:
        return Perceptron(spec, self.cfg.size)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": 0.2}

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def loss(self, mini: Sample[Transition], online: Tensor, later: Tensor) -> Update:
        t = mini.data
        with torch.no_grad():
            goal = t.reward + t.discount * ops.at(later.amax(-1), t.ahead)
        loss = ops.weighted_mean((ops.pick(online, t.action) - goal).square(), mini.weight)
        norm = self.optim.step(loss)
        return Update({"loss": loss.detach(), "grad_norm": norm}, ops.empty(loss))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}


@register("algo", "noisy-q")
class NoisyConfig(QConfig):
    """Noise in the network: of each slot while acting, one for a whole batch while learning."""

    def build(self, spec: EnvSpec) -> NoisyQ:
        return NoisyQ(self, spec)


class NoisyQ(Q):
    def draws(self) -> Draws:
        size = self.cfg.size
        return Draws(predict=Draw(normal=size), explore=ops.Greedy.draws, update=Draw(normal=2 * size))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q = self.model.shaken(obs, noise.normal)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), ())

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        now, then = noise.update.normal.chunk(2, -1)
        with torch.no_grad():
            later = self.target.net.shaken(mini.data.next_obs, then)  # type: ignore[operator]
        return self.loss(mini, self.model.shaken(mini.data.obs, now), later)


@register("algo", "slow-q")
class SlowConfig(QConfig):
    """Acts with its target, which explorers in other processes need, too."""

    def build(self, spec: EnvSpec) -> SlowQ:
        return SlowQ(self, spec)


class SlowQ(Q):
    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q = self.target.net.shaken(obs, self.model.spread * 0)  # type: ignore[operator]
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), self.remembered())

    def remembered(self) -> Memory:
        return ()

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        none = self.model.spread.detach() * 0
        with torch.no_grad():
            later = self.target.net.shaken(mini.data.next_obs, none)  # type: ignore[operator]
        return self.loss(mini, self.model.shaken(mini.data.obs, none), later)

    def acting(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target}


@register("algo", "drifting-q")
class DriftingConfig(QConfig):
    """Preferences that drift from action to action, and begin anew with each episode: Ornstein-Uhlenbeck noise."""

    def build(self, spec: EnvSpec) -> DriftingQ:
        return DriftingQ(self, spec)


class DriftingQ(SlowQ):
    def draws(self) -> Draws:
        return Draws(explore=Draw(normal=self.model.outer.out_features))

    def carry(self, slots: int) -> Carried:
        return (torch.zeros(1, slots, self.model.outer.out_features),)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        (drift,) = prediction.carried
        drift = 0.9 * drift + 0.3 * noise.normal
        action = (prediction.dist.q + drift).argmax(-1)
        return Acted(action, {"drift": drift}, prediction.memory, (drift,))


@register("algo", "phased")
class PhasedConfig(QConfig):
    """Two kinds of learning phases: of the policy after each rollout, of the values after every other, from both."""

    horizon: int = 8

    def recipe(self, spec: EnvSpec) -> Recipe:
        rollouts = buffers.RolloutConfig().rollouts(self.gamma, self.horizon, keep=2)
        return Recipe(buffers.RowsConfig(), rollouts, buffers.ReadyConfig())

    def build(self, spec: EnvSpec) -> Phased:
        return Phased(self, spec)


class Phased(Algorithm[Rollout, Rollout]):
    model: Perceptron

    def __init__(self, cfg: PhasedConfig, spec: EnvSpec) -> None:
        assert isinstance(spec.action, Discrete)
        self.cfg, self.spec = cfg, spec
        self.model = Perceptron(replace(spec, action=Discrete(spec.action.n + 1)), cfg.size)  # the last one: a value
        self.optim = nn.Adam(self.model, lr=cfg.lr)

    def read(self, obs: Obs) -> tuple[Tensor, Tensor]:
        out = self.model.shaken(obs, self.model.spread * 0)
        return out[..., :-1], out[..., -1]

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        logits, value = self.read(obs)
        return Prediction(ops.Categorical(logits, ops.mask(obs)), value, ())

    def draws(self) -> Draws:
        return Draws(explore=ops.Categorical.draws, plan=Draw(uniform=1))

    def phases(self) -> Mapping[str, Phase]:
        policy = Phase(self.prepare, self.plan, self.learn)
        return {"learn": policy, "values": Phase(self.values_of, self.plan, self.learn_values, rollouts=2)}

    def plan(self, rows: int, noise: Noise) -> Tensor:
        return noise.uniform[:, 0].argsort().reshape(2, -1)

    def learn(self, mini: Rollout, knobs: Knobs, noise: Noise) -> Update:
        prediction = self.predict(mini.obs, mini.past, noise)
        gain = mini.reward - prediction.value.detach()
        loss = -(gain * prediction.dist.log_prob(mini.action) * mini.valid).mean()
        return Update({"policy_loss": loss.detach(), "grad_norm": self.optim.step(loss)}, ops.empty(loss))

    def values_of(self, item: Rollout) -> Rollout:
        assert item.reward.shape == (self.cfg.horizon, 2 * self.spec.slots), "both rollouts"
        return item

    def learn_values(self, mini: Rollout, knobs: Knobs, noise: Noise) -> Update:
        loss = ((self.read(mini.obs)[1] - mini.reward).square() * mini.valid).mean()
        return Update({"value_loss": loss.detach(), "grad_norm": self.optim.step(loss)}, ops.empty(loss))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}


@register("algo", "strided-q")
class StridedConfig(QConfig):
    """Its memory is a part of a larger tensor, and in the beginning one row for all slots."""

    def build(self, spec: EnvSpec) -> StridedQ:
        return StridedQ(self, spec)


class Strided(Perceptron):
    recurrent = True

    def initial(self, slots: int) -> Memory:
        return (torch.zeros(1, 1, 4).expand(1, slots, 4),)


class StridedQ(SlowQ):
    model: Strided

    def network(self, spec: EnvSpec) -> Strided:
        return Strided(spec, self.cfg.size)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        hidden = torch.relu(self.model.inner(obs.float()))
        kept = torch.where(past.start[..., None], hidden[..., :4], past.memory[0] + hidden[..., :4])
        q = self.model.outer(hidden) + kept.sum(-1, keepdim=True)
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), (torch.cat([kept, hidden], -1)[..., :4],))
