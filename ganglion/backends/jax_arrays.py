"""JAX as a library of arrays, and the small networks and the optimiser that its algorithms share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import Tensor

Params = dict[str, Any]


class Jax:
    """Arrays of JAX on the CPU."""

    def array(self, tensor: Tensor) -> Any:
        return jnp.from_dlpack(tensor)

    def tensor(self, array: Any) -> Tensor:
        return torch.utils.dlpack.from_dlpack(
            array.block_until_ready()
        )  # what it was computed from may change from here on


def seed() -> Any:
    """A key from torch's generator, which is seeded where algorithms are built."""
    return jax.random.PRNGKey(int(torch.randint(2**31 - 1, ())))


def mlp(key: Any, sizes: list[int], name: str, scale: float | None = None) -> Params:
    """The parameters of a multilayer perceptron, uniform within 1 / sqrt(inputs) as torch's are; or, with the `scale`
    of the last layer, orthogonal."""
    params: Params = {}
    for i, (into, out) in enumerate(zip(sizes, sizes[1:])):
        key, one, two = jax.random.split(key, 3)
        if scale is None:
            bound = into**-0.5
            params[f"{name}.w{i}"] = jax.random.uniform(one, (into, out), minval=-bound, maxval=bound)
            params[f"{name}.b{i}"] = jax.random.uniform(two, (out,), minval=-bound, maxval=bound)
        else:
            gain = scale if i == len(sizes) - 2 else 2**0.5
            params[f"{name}.w{i}"] = jax.nn.initializers.orthogonal(gain)(one, (into, out))
            params[f"{name}.b{i}"] = jnp.zeros(out)
    return params


def forward(params: Params, name: str, x: Any, activation: Any) -> Any:
    """Its output, [..., inputs] -> [..., outputs]."""
    layers = sum(key.startswith(f"{name}.w") for key in params)
    for i in range(layers):
        x = x @ params[f"{name}.w{i}"] + params[f"{name}.b{i}"]
        x = activation(x) if i < layers - 1 else x
    return x


def adam_start(params: Params) -> Params:
    """The optimiser's own arrays."""
    zeros = {f"{part}.{name}": jnp.zeros_like(value) for part in "mv" for name, value in params.items()}
    return {"count": jnp.zeros((), jnp.int32), **zeros}


def adam(
    params: Params, grads: Params, state: Params, lr: Any, max_norm: float, eps: float
) -> tuple[Params, Params, Any]:
    """One step of Adam (Kingma and Ba 2015) on gradients clipped to a norm: parameters, its own arrays, the norm."""
    norm = jnp.sqrt(sum(jnp.sum(grad**2) for grad in grads.values()))
    shrink = jnp.where(norm > max_norm, max_norm / jnp.maximum(norm, 1e-12), 1.0)
    count = state["count"] + 1
    new, own = {}, {"count": count}
    for name, grad in grads.items():
        grad = grad * shrink
        first = own[f"m.{name}"] = 0.9 * state[f"m.{name}"] + 0.1 * grad
        second = own[f"v.{name}"] = 0.999 * state[f"v.{name}"] + 0.001 * grad**2
        mean, var = first / (1 - 0.9**count), second / (1 - 0.999**count)
        new[name] = params[name] - lr * mean / (jnp.sqrt(var) + eps)
    return new, own, norm


def weighted_mean(x: Any, weight: Any) -> Any:
    """sum(w x) / count(w > 0), as `ops.weighted_mean`."""
    live = weight > 0
    return jnp.sum(jnp.where(live, weight * x, 0.0)) / jnp.maximum(jnp.sum(live), 1)


def masked_mean(x: Any, valid: Any) -> Any:
    """The mean over rows where `valid`; 0 where none is."""
    return jnp.sum(jnp.where(valid, x, 0.0)) / jnp.maximum(jnp.sum(valid), 1)
