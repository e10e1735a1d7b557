"""Soft actor-critic for parametrised actions (Delalleau et al. 2019; the critic reads all parameters at once, as in
P-DQN, Xiong et al. 2018): one choice, and numbers that go with it.

The action space is a Dict or Tuple of one Discrete part and bounded Boxes. The expectation over choices is a sum, that
over numbers a sample; each has an entropy and a temperature of its own. All tensors are [T, B, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, LimiterConfig, Positive, ProcessorConfig, Rate, Real, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Action, Algorithm, Box, Composite, Discrete, Draw, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past,
    Prediction, Recipe, Sample, Stateful, Transition, Update,
)  # fmt: skip
from ganglion.nn.actor_critics import ActorCritics, cycled, of_actor, of_critics, squashed


@register("algo", "hybrid_sac")
class HybridSACConfig(AlgoConfig):
    """Soft actor-critic for parametrised actions."""

    actions = "hybrid"
    lr: Rate = 3e-4  # of the actor and the temperatures
    lr_critic: Rate = 1e-3
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    tau: Positive = Field(0.005, le=1)  # how fast the target follows
    temperature: Positive | None = None  # of both entropies; None: learned
    entropy: float = Field(0.25, ge=0, le=1)  # of the choice, that is aimed at: a share of the most possible
    target_entropy: Real | None = None  # of the numbers; None: minus how many there are
    max_norm: Positive | None = None  # of gradients; None: no limit
    net: nn.MLPConfig = nn.MLPConfig(hidden=(256, 256))
    replay: BufferConfig = buffers.ReplayConfig(capacity=1_000_000, batch=256)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> HybridSAC:
        return HybridSAC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class HybridActor(nn.Encoded):
    """obs -> the raw parameters of the distribution over each part of an action, in order [T, B, ...]."""

    def __init__(self, cfg: HybridSACConfig, spec: EnvSpec, space: Composite) -> None:
        super().__init__(cfg.net, spec.obs, cfg.replay.warms)
        body = cfg.net.body(self.encoder.out)
        self.sizes = [ops.dist_size(part) for part in space.items.values()]
        self.numbers = [part.size if type(part) is Box else 0 for part in space.items.values()]
        self.net = nn.Net(body, nn.LinearHead(body, sum(self.sizes)))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, of_actor(past))
        raw = self.net(features).split(self.sizes, -1)
        told = [squashed(*x.chunk(2, -1)) if n else x for x, n in zip(raw, self.numbers, strict=True)]
        return torch.cat(told, -1), memory


class HybridCritics(nn.Encoded):
    """obs and the numbers of an action -> two values per choice [2, T, B, choices]."""

    def __init__(self, cfg: HybridSACConfig, spec: EnvSpec, numbers: int, choices: int) -> None:
        super().__init__(cfg.net, spec.obs, cfg.replay.warms)
        self.nets = nn.Ensemble(cfg.net.body(self.encoder.out + numbers, count=2), choices)

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, of_critics(past))
        assert action is not None
        return self.nets(features, action), memory


class HybridActorCritics(ActorCritics[HybridCritics]):
    """Actor and critics, with the logarithms of two temperatures: of the choice, and of the numbers."""

    def __init__(self, actor: HybridActor, critics: HybridCritics, temperature: float) -> None:
        super().__init__(actor, critics)
        self.warmth = torch.nn.ParameterDict({"log": torch.nn.Parameter(torch.full((2,), temperature).log())})


class HybridSAC(Algorithm[Sample[Transition], Sample[Transition]]):
    """A stochastic actor that chooses, and says numbers, seeking value and both entropies at once."""

    model: HybridActorCritics

    def __init__(self, cfg: HybridSACConfig, spec: EnvSpec) -> None:
        cfg.check_actions(spec)
        nn.check_mask(spec)
        assert type(spec.action) is Composite
        self.cfg, self.space, limit = cfg, spec.action, cfg.max_norm or inf
        self.boxes = {name: part.size for name, part in self.space.items.items() if type(part) is Box}
        ((self.choice, self.choices),) = ((k, p.n) for k, p in self.space.items.items() if type(p) is Discrete)
        self.numbers = sum(self.boxes.values())
        actor, critics = HybridActor(cfg, spec, self.space), HybridCritics(cfg, spec, self.numbers, self.choices)
        self.model = HybridActorCritics(actor, critics, cfg.temperature or 1.0)
        self.target = nn.Lagged(self.model.critics)
        self.actor_optim = nn.optimiser(cfg.optim, actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)
        self.warmth_optim = nn.Adam(self.model.warmth, lr=cfg.lr)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        return Draws(explore=ops.dist_draws(self.space), learn=Draw(normal=2 * self.numbers))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.act(obs, past)
        return Prediction(ops.dist(raw, self.space, ops.mask(obs), squash=True), ops.empty(raw), memory)

    def policy(self, obs: Obs, past: Past) -> ops.Product:
        """The same in `learn`, where nobody asks for the memory after it."""
        dist: ops.Product = ops.dist(self.model.action(obs, past)[0], self.space, ops.mask(obs), squash=True)
        return dist

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(prediction.dist.sample(noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def flat(self, action: Mapping[str, Tensor]) -> Tensor:
        """The numbers of an action side by side, [T, B, numbers]."""
        return torch.cat([action[name].reshape(*action[name].shape[:2], -1) for name in self.boxes], -1)

    def say(self, dist: ops.Product, normal: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers drawn by the policy, and the logarithm of their density."""
        parts = zip(self.boxes, normal.split(list(self.boxes.values()), -1), strict=True)
        said = {name: dist.parts[name].sample_and_log_prob(Noise(own, own)) for name, own in parts}
        drawn = self.flat({name: action for name, (action, _) in said.items()})
        return drawn, torch.stack([logp for _, logp in said.values()]).sum(0)

    def wanted(self, obs: Obs, like: Tensor) -> Tensor:
        """The entropy of the choice that is aimed at in each row [T, B]: a share of what is legal allows."""
        legal = (ops.mask(obs) or {}).get(self.choice)
        count = torch.full_like(like, self.choices) if legal is None else legal.sum(-1).to(like.dtype)
        return self.cfg.entropy * count.log()

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t, w = mini.data, mini.weight
        later, now = noise.normal.chunk(2, -1)
        warm, warmth = self.model.warmth["log"].exp()
        with torch.no_grad():
            dist = self.policy(t.next_obs, t.next_past)
            chooser, rows = dist.parts[self.choice], t.next_past.start.shape[0]
            numbers, logp = self.say(dist, cycled(later, rows))
            q = self.target.value(t.next_obs, t.next_past, numbers)[0].amin(0)  # [T, B, choices]
            after = ops.expected_value(q, chooser.probs()) + warm * chooser.entropy() - warmth * logp
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        q = self.model.value(t.obs, t.past, self.flat(t.action))[0]  # [2, T, B, choices]
        error = ops.pick(q, t.action[self.choice].expand(q.shape[:-1])) - goal
        critic = ops.weighted_mean(error.square().sum(0), w)
        norm = self.critic_optim.step(critic)

        dist = self.policy(t.obs, t.past)
        chooser = dist.parts[self.choice]
        numbers, logp = self.say(dist, now)
        q, entropy = self.model.value(t.obs, t.past, numbers)[0].amin(0), chooser.entropy()
        value = ops.expected_value(q, chooser.probs())
        actor = -ops.weighted_mean(value + warm.detach() * entropy - warmth.detach() * logp, w)
        self.actor_optim.step(actor)
        spread = -ops.weighted_mean(logp.detach(), w)
        if self.cfg.temperature is None:
            aim = -float(self.numbers) if self.cfg.target_entropy is None else self.cfg.target_entropy
            beyond = ops.weighted_mean(entropy.detach() - self.wanted(t.obs, entropy), w)
            log = self.model.warmth["log"]
            self.warmth_optim.step(log[0] * beyond + log[1] * (spread - aim))
        self.target.follow(self.model.critics, self.cfg.tau)

        metrics = {"critic": critic, "actor": actor, "q": ops.weighted_mean(value, w), "grad_norm": norm}
        metrics |= {"entropy": ops.weighted_mean(entropy, w), "spread": spread}
        metrics |= {"temperature": warm, "temperature_numbers": warmth}
        priority = ops.sequence_priority(error.abs().mean(0), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "warmth_optim": self.warmth_optim}
        return {"model": self.model, "target": self.target, **optims}
