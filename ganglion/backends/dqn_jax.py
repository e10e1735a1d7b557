"""Deep Q-learning (Mnih et al. 2015), double by default (van Hasselt et al. 2016), computed by JAX.

The settings are those of `dqn` without what it does not have. Acting and learning are two compiled functions of JAX;
exploration, replay, priorities and masks are Ganglion's. Feed-forward; all arrays are [1, B, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from pydantic import Field

from ganglion import buffers, nn, ops
from ganglion.backends.arrays import WHOLE, ArrayAlgorithm, NamedArrays, check_plain
from ganglion.backends.jax_arrays import Jax, adam, adam_start, forward, mlp, seed, weighted_mean
from ganglion.config import (
    AlgoConfig,
    BufferConfig,
    Count,
    LimiterConfig,
    Positive,
    ProcessorConfig,
    RateSchedule,
    Share,
    linear,
    register,
)
from ganglion.core import (
    Acted,
    Draws,
    EnvSpec,
    Knobs,
    Noise,
    Obs,
    Past,
    Prediction,
    Progress,
    Recipe,
    Sample,
    Stateful,
    Transition,
    Update,
)


@register("algo", "dqn_jax")
class DQNJaxConfig(AlgoConfig):
    """Deep Q-learning computed by JAX."""

    actions = "discrete"
    library = "jax"
    lr: RateSchedule = linear(1e-3, 0.0)
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(3, ge=1, le=1_000)
    double: bool = True  # the online model chooses the next action, the target values it
    max_norm: Positive = 10.0
    target_every: Count = Field(200, ge=1)  # updates between two copies onto the target
    epsilon: Share = linear(1.0, 0.05, until=0.2)  # share of random actions, over the budget
    hidden: tuple[int, ...] = (128, 128)  # the sizes of hidden layers
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> DQNJax:
        return DQNJax(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, False), self.limiter)


class DQNJax(ArrayAlgorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning with a replay and a lagged target."""

    library = Jax()
    model: NamedArrays

    def __init__(self, cfg: DQNJaxConfig, spec: EnvSpec) -> None:
        check_plain(cfg.kind, spec)
        self.cfg, self.spec, self.sync_every = cfg, spec, cfg.target_every
        sizes = [nn.flat_size(spec.obs, WHOLE), *cfg.hidden, nn.discrete_actions(cfg, spec)]
        params = mlp(seed(), sizes, "q")
        self.model, self.target = NamedArrays(self.library, params), NamedArrays(self.library, params)
        self.optim = NamedArrays(self.library, adam_start(params))
        self.values = jax.jit(values)
        self.update = jax.jit(partial(update, cfg.double, cfg.max_norm))

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon(at.fraction), "lr": self.cfg.lr(at.fraction)}

    def draws(self) -> Draws:
        return Draws(explore=ops.Greedy.draws)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q = self.run(self.values, self.model, self.seen(obs))
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), ())

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, ())

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, legal = mini.data, ops.mask(mini.data.next_obs)
        rows = (self.seen(t.obs), t.action, t.reward, t.discount, self.seen(t.next_obs), mini.weight)
        entered = self.entered((rows, () if legal is None else legal, knobs["lr"]))
        held = self.model.arrays, self.target.arrays, self.optim.arrays
        self.model.arrays, self.optim.arrays, metrics, error = self.update(*held, *entered)
        return Update(*self.left((metrics, error), mini.weight))

    def sync_target(self) -> None:
        self.target.arrays = dict(self.model.arrays)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}


# ------------------------------------------------------------ pure functions of arrays


def values(params: Any, obs: Any) -> Any:
    """Q of every action, [1, B, n]."""
    return forward(params, "q", obs, jax.nn.relu)


def goal(params: Any, target: Any, rows: Any, legal: Any, double: bool) -> Any:
    """r + d Q-(s', a'), [1, B]."""
    _, _, reward, discount, next_obs, _ = rows
    next_q = values(target, next_obs)
    chooser = values(params, next_obs) if double else next_q
    chooser = chooser if not len(legal) else jnp.where(legal, chooser, -jnp.inf)
    best = jnp.argmax(chooser, -1)
    return reward + discount * jnp.take_along_axis(next_q, best[..., None], -1)[..., 0]


def update(
    double: bool, max_norm: float, params: Any, target: Any, optim: Any, rows: Any, legal: Any, lr: Any
) -> tuple[Any, Any, Any, Any]:
    """One step: parameters, the optimiser's arrays, metrics, the error of each sample."""
    obs, action, *_, weight = rows
    wanted = goal(params, target, rows, legal, double)

    def loss_of(params: Any) -> tuple[Any, tuple[Any, Any]]:
        q = jnp.take_along_axis(values(params, obs), action[..., None], -1)[..., 0]
        error = q - wanted
        size = jnp.abs(error)
        huber = jnp.where(size < 1, 0.5 * error**2, size - 0.5)
        return weighted_mean(huber, weight), (q, size)

    (loss, (q, size)), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
    params, optim, norm = adam(params, grads, optim, lr, max_norm, 1e-8)
    metrics = {"loss": loss, "q": weighted_mean(q, weight), "grad_norm": norm}
    return params, optim, metrics, jnp.where(weight > 0, size, 0.0)[0]  # what takes no part has no priority
