"""Behaviour cloning (Pomerleau 1989): the actions of a dataset as labels, for any action space, with or without a
memory. It asks for no rewards, and learns from whatever its replay holds.

All tensors are [T, B, ...]; T is 1 without a memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past, Prediction, Recipe, Sample, Stateful, Transition,
    Update,
)  # fmt: skip


@register("algo", "bc")
class BCConfig(AlgoConfig):
    """Behaviour cloning."""

    lacks = dict.fromkeys(("n_step", "bonus"), "it copies actions, and rewards take no part in that")
    lr: Rate = 3e-4
    optim: nn.OptimConfig = nn.OptimConfig()
    entropy: NonNegative = 0.0  # weight of the entropy bonus: keeps the copy from being surer than its data
    max_norm: Positive = 10.0
    log_std: float = Field(0.0, ge=-5, le=2)  # of Box actions, at the start
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> BC:
        return BC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(1, 1.0, self.net.recurrent), self.limiter)


class Policy(nn.Encoded):
    """obs -> raw parameters of a distribution over any action space."""

    def __init__(self, cfg: BCConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.net, spec.obs, cfg.replay.warms)
        nn.check_mask(spec)
        body = cfg.net.body(self.encoder.out)
        self.net = nn.Net(body, nn.PolicyHead(body, spec.action, cfg.net.init, cfg.log_std))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, past)
        return self.net(features), memory


class BC(Algorithm[Sample[Transition], Sample[Transition]]):
    """Maximum likelihood of what was done."""

    model: Policy

    def __init__(self, cfg: BCConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, spec.action
        self.model = Policy(cfg, spec)
        self.optim = nn.optimiser(cfg.optim, self.model, lr=cfg.lr, max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.space))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.action(obs, past)
        return Prediction(ops.dist(raw, self.space, ops.mask(obs)), ops.empty(raw), memory)  # nothing is valued

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = prediction.dist.sample(noise)
        return Acted(action, {"logp": prediction.dist.log_prob(action)}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w = mini.data, mini.weight
        dist = self.predict(t.obs, t.past, noise).dist
        logp = dist.log_prob(t.action)
        likelihood, entropy = ops.weighted_mean(logp, w), ops.weighted_mean(dist.entropy(), w)
        norm = self.optim.step(-likelihood - self.cfg.entropy * entropy)
        metrics = {"loss": -likelihood, "entropy": entropy, "grad_norm": norm}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(logp.detach(), w))

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "optim": self.optim}
