"""Proximal policy optimisation (Schulman et al. 2017) with generalised advantages, computed by JAX.

The settings are those of `ppo` without what it does not have. Acting and learning are two compiled functions of JAX;
sampling, advantages and minibatches are Ganglion's. Feed-forward; Discrete actions, with masks, or Box ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.backends.arrays import WHOLE, ArrayAlgorithm, NamedArrays, check_plain
from ganglion.backends.jax_arrays import Jax, adam, adam_start, forward, masked_mean, mlp, seed
from ganglion.config import (
    FRESH,
    AlgoConfig,
    Amount,
    Count,
    NonNegative,
    Positive,
    ProcessorConfig,
    RateSchedule,
    constant,
    linear,
    register,
)
from ganglion.core import (
    Box,
    Discrete,
    Draws,
    EnvSpec,
    Knobs,
    Noise,
    Obs,
    Past,
    Prediction,
    Progress,
    Recipe,
    Rollout,
    Stateful,
    Update,
)
from ganglion.errors import UserError


@register("algo", "ppo_jax")
class PPOJaxConfig(AlgoConfig):
    """Proximal policy optimisation computed by JAX."""

    lacks = FRESH
    library = "jax"
    lr: RateSchedule = linear(2.5e-4, 0.0)
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    horizon: Count = Field(128, ge=1)  # rows per slot and rollout
    epochs: int = Field(4, ge=1, le=1_000)
    minibatches: Count = Field(4, ge=1)
    clip: Amount = constant(0.2)
    entropy: Amount = constant(0.01)
    value_weight: NonNegative = 0.5
    log_std: float = Field(0.0, ge=-20, le=20)  # of continuous actions, at the start
    max_norm: Positive = 0.5
    max_kl: Positive | None = None  # ends a learning phase early; costs one sync per epoch
    max_lag: Count = Field(16, ge=0)  # rollouts behind which one of a remote explorer is dropped
    hidden: tuple[int, ...] = (64, 64)  # the sizes of hidden layers, of actor and critic each
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> PPOJax:
        return PPOJax(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        lag = self.max_lag * self.epochs * self.minibatches  # in updates
        rollouts = buffers.RolloutConfig().rollouts(self.gamma, self.horizon)
        return Recipe(self.processor, rollouts, buffers.ReadyConfig(), lag)


class Minibatch(NamedTuple):
    """Rows with what was believed of them when they were collected."""

    obs: Tensor  # numbers, [T, B, n]
    legal: Any  # the action mask, or ()
    action: Tensor
    logp: Tensor
    advantage: Tensor
    goal: Tensor
    valid: Tensor
    acts: Tensor  # valid, and this slot's turn


class PPOJax(ArrayAlgorithm[Rollout, Minibatch]):
    """An actor and a critic that learn from what they just did, several times over, in small steps."""

    library = Jax()
    model: NamedArrays

    def __init__(self, cfg: PPOJaxConfig, spec: EnvSpec) -> None:
        check_plain(cfg.kind, spec)
        if type(spec.action) is not Discrete and type(spec.action) is not Box:
            raise UserError(
                f"algo.kind: {cfg.kind} needs Discrete or Box actions; {spec.name} has {spec.action}. Try ppo."
            )
        if spec.slots * cfg.horizon < cfg.minibatches:
            rows = spec.slots * cfg.horizon
            raise UserError(f"algo.minibatches: {cfg.minibatches} is more than env.slots * algo.horizon = {rows}.")
        self.cfg, self.spec, self.passes = cfg, spec, cfg.epochs
        body = [nn.flat_size(spec.obs, WHOLE), *cfg.hidden]
        box = type(spec.action) is Box
        outputs = ops.dist_size(spec.action) // (1 + box)  # a Box has a mean and a deviation for each number
        params = mlp(seed(), [*body, outputs], "actor", 0.01) | mlp(seed(), [*body, 1], "critic", 1.0)
        if box:
            params["log_std"] = jnp.full(outputs, cfg.log_std)
        self.model = NamedArrays(self.library, params)
        self.optim = NamedArrays(self.library, adam_start(params))
        self.read = jax.jit(read)
        self.update = jax.jit(partial(update, cfg.value_weight, cfg.max_norm))

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        cfg, now = self.cfg, at.fraction
        return {"lr": cfg.lr(now), "entropy_weight": cfg.entropy(now), "clip": cfg.clip(now)}

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.spec.action), plan=ops.shuffle_draws(self.cfg.epochs))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, value = self.run(self.read, self.model, self.seen(obs))
        return Prediction(ops.dist(raw, self.spec.action, ops.mask(obs)), value, ())

    # explore() and exploit() are the defaults: sample the distribution, take its mode; logp and value go into extras

    # ------------------------------------------------------------ learning

    @torch.no_grad()
    def prepare(self, r: Rollout) -> Minibatch:
        value = r.extras["value"]
        last = self.predict(r.last[0], r.last[1], self.neutral(value[:1])).value
        after = torch.cat([value[1:], last])  # the dead row carries the true last observation
        advantage = ops.gae(r.reward, value, after, r.discount, r.cut, self.cfg.lam)
        acts, legal = ops.decisions(r.valid, r.extras), ops.mask(r.obs)
        return ops.fold(
            Minibatch(
                self.seen(r.obs), () if legal is None else legal, r.action, r.extras["logp"], advantage,
                advantage + value, r.valid, acts,
            )
        )  # fmt: skip

    def plan(self, rows: int, noise: Noise) -> Tensor:
        return ops.shuffled(rows, self.cfg.epochs, self.cfg.minibatches, noise)  # [epochs * minibatches, rows each]

    def enough(self, update: Update) -> Tensor | None:
        return ops.above(update.metrics["kl"], self.cfg.max_kl)

    def learn(self, m: Minibatch, knobs: Knobs, noise: Noise) -> Update:
        mini, arrays = self.entered(m), self.entered(dict(knobs))
        held = self.model.arrays, self.optim.arrays
        self.model.arrays, self.optim.arrays, metrics = self.update(*held, mini, arrays)
        return Update(self.left(metrics, m.logp), ops.empty(m.logp))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}


# ------------------------------------------------------------ pure functions of arrays


def read(params: Any, obs: Any) -> tuple[Any, Any]:
    """What a distribution over actions is made of, and the value, [T, B]."""
    raw = forward(params, "actor", obs, jnp.tanh)
    if "log_std" in params:
        raw = jnp.concatenate([raw, jnp.broadcast_to(params["log_std"], raw.shape)], -1)
    return raw, forward(params, "critic", obs, jnp.tanh)[..., 0]


def believed(raw: Any, m: Any) -> tuple[Any, Any]:
    """The log-probability of what was done, and the entropy, [T, B]."""
    if jnp.issubdtype(m.action.dtype, jnp.integer):
        raw = raw if not len(m.legal) else jnp.where(m.legal, raw, -1e30)
        logs = jax.nn.log_softmax(raw)
        entropy = -jnp.sum(jnp.where(logs > -1e20, jnp.exp(logs) * logs, 0.0), -1)
        return jnp.take_along_axis(logs, m.action[..., None], -1)[..., 0], entropy
    action = m.action.reshape(*m.action.shape[:2], -1)
    means, log_std = jnp.split(raw, 2, -1)
    half = 0.5 * jnp.log(2 * jnp.pi)
    logp = -0.5 * ((action - means) / jnp.exp(log_std)) ** 2 - log_std - half
    return logp.sum(-1), (log_std + 0.5 + half).sum(-1)


def update(
    value_weight: float, max_norm: float, params: Any, optim: Any, m: Minibatch, knobs: Any
) -> tuple[Any, Any, Any]:
    """One step: parameters, the optimiser's arrays, metrics."""
    centred = m.advantage - masked_mean(m.advantage, m.acts)
    advantage = centred / jnp.sqrt(masked_mean(centred**2, m.acts) + 1e-12)

    def loss_of(params: Any) -> tuple[Any, Any]:
        raw, value = read(params, m.obs)
        logp, entropy = believed(raw, m)
        log_ratio = logp - m.logp
        ratio = jnp.exp(log_ratio)
        near = jnp.clip(ratio, 1 - knobs["clip"], 1 + knobs["clip"])
        policy = masked_mean(-jnp.minimum(ratio * advantage, near * advantage), m.acts)
        critic, chaos = masked_mean(0.5 * (value - m.goal) ** 2, m.valid), masked_mean(entropy, m.acts)
        loss = policy + value_weight * critic - knobs["entropy_weight"] * chaos
        kl = masked_mean(ratio - 1 - log_ratio, m.acts)
        clipped = masked_mean(jnp.abs(ratio - 1) > knobs["clip"], m.acts)
        return loss, {"policy": policy, "value": critic, "entropy": chaos, "kl": kl, "clipped": clipped}

    (_, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    params, optim, norm = adam(params, grads, optim, knobs["lr"], max_norm, 1e-5)
    return params, optim, {**metrics, "grad_norm": norm}
