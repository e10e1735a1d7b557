"""An algorithm computed by another library than torch: here numpy, with gradients by hand. JAX and TensorFlow are the
same with their own `array` and `tensor`; docs/backends.md has both.

    python examples/numpy_backend.py
"""

from collections.abc import Mapping

import numpy as np
import torch

import ganglion
from ganglion import buffers, nn, ops
from ganglion.backends.arrays import WHOLE, ArrayAlgorithm, NamedArrays
from ganglion.config import AlgoConfig, LimiterConfig, RateSchedule, constant, register
from ganglion.core import Acted, Draws, Prediction, Recipe, Update
from ganglion.runtime.build import build


class Numpy:
    """The library: how tensors and arrays become each other. Nothing is copied."""

    def array(self, tensor):
        return np.from_dlpack(tensor)

    def tensor(self, array):
        return torch.from_dlpack(np.asarray(array))


def values(params, obs):
    """Q of every action, [1, B, n]."""
    return obs @ params["weight"] + params["bias"]


def update(params, obs, action, goal, lr):
    """One step of stochastic gradient descent on (Q - goal)^2 / 2: parameters, the loss, the error of each sample."""
    error = np.take_along_axis(values(params, obs), action[..., None], -1)[..., 0] - goal  # [1, B]
    signal = np.eye(params["bias"].size, dtype=np.float32)[action] * error[..., None] / error.size  # [1, B, n]
    weight = params["weight"] - lr * np.einsum("tbi,tbn->in", obs, signal)
    bias = params["bias"] - lr * signal.sum((0, 1))
    return {"weight": weight, "bias": bias}, 0.5 * np.square(error).mean(), np.abs(error[0])


@register("algo", "linear_q")
class LinearQConfig(AlgoConfig):
    """Q-learning with a linear function, for one-step tasks."""

    actions = "discrete"
    library = "numpy"
    lr: RateSchedule = constant(0.5)
    epsilon: float = 0.2
    replay: buffers.ReplayConfig = buffers.ReplayConfig(capacity=1_000, batch=32)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=100)

    def build(self, spec):
        return LinearQ(self, spec)

    def recipe(self, spec):
        return Recipe(buffers.RowsConfig(), self.replay.folded(1, 0.0, False), self.limiter)


class LinearQ(ArrayAlgorithm):
    library = Numpy()

    def __init__(self, cfg, spec):
        self.cfg, self.spec = cfg, spec
        inputs, outputs = nn.flat_size(spec.obs, WHOLE), spec.action.n
        zeros = {"weight": np.zeros((inputs, outputs), np.float32), "bias": np.zeros(outputs, np.float32)}
        self.model = NamedArrays(self.library, zeros)

    def knobs(self, at):
        return {"epsilon": self.cfg.epsilon, "lr": self.cfg.lr(at.fraction)}

    def draws(self):
        return Draws(explore=ops.Greedy.draws)

    def predict(self, obs, past, noise):
        q = self.run(values, self.model, self.seen(obs))
        return Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), ())

    def explore(self, prediction, knobs, noise):
        return Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, ())

    def learn(self, mini, knobs, noise):
        t = mini.data
        rows = self.entered((self.seen(t.obs), t.action, t.reward, knobs["lr"]))
        self.model.arrays, loss, error = update(self.model.arrays, *rows)
        return Update(*self.left(({"loss": loss}, error), mini.weight))

    def parts(self) -> Mapping:
        return {"model": self.model}


def main() -> float:
    trainer = build(ganglion.load_config(None, ["algo=linear_q", "env={kind: toy, id: identity}", "train.budget=2k"]))
    for _ in trainer():
        pass
    _, numbers = trainer.evaluator.run()
    trainer.close()
    return numbers["eval/return_mean"]


if __name__ == "__main__":
    print(f"mean return {main():.1f}")
