"""A small DreamerV3 (Hafner et al. 2023): a recurrent model of the world, in which actor and critic imagine and learn.

Sequences are [T, B, ...] and start from the state of the world that was stored with them. Rewards and values are
learned as two-hot numbers on the scale of symlog; the actor follows the gradient of the likelihood of actions, whatever
these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Action, Algorithm, Box, Composite, Draw, Draws, EnvSpec, Knobs, Memory, Noise, Obs, Past,
    Prediction, Recipe, Rollout, Sample, Space, Stateful, Update,
)  # fmt: skip
from ganglion.errors import UserError
from ganglion.nn.heads import parts
from ganglion.nn.inputs import Reading, flat_size, flatten
from ganglion.nn.state_space import StateSpace, WorldState, kl
from ganglion.nn.support import Support

FLAT = Reading(least=1_000_000)  # images are decoded as numbers, too


@register("algo", "dreamer")
class DreamerConfig(AlgoConfig):
    """DreamerV3, small."""

    lacks = {"n_step": "its returns are of what it imagines"}
    lr: Rate = 4e-4  # of the model
    lr_actor: Rate = 3e-4  # of the actor and the critic
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    lam: float = Field(0.95, ge=0, le=1)
    sequence: Count = Field(16, ge=2)  # rows that the model learns from
    imagine: int = Field(12, ge=1, le=1_000)  # steps that are imagined from each of them
    deter: int = Field(128, ge=1, le=65_536)  # numbers of what is certain of a state
    groups: int = Field(8, ge=1, le=1_024)  # of what is drawn, each one of `classes`
    classes: int = Field(8, ge=2, le=1_024)
    free: NonNegative = 1.0  # nats by which prior and posterior may differ
    dynamics_weight: NonNegative = 0.5  # of the prior's way to the posterior
    posterior_weight: NonNegative = 0.1  # of the posterior's way to the prior
    entropy: NonNegative = 1e-3
    tau: Positive = Field(0.02, le=1)  # how fast the target of the critic follows
    bins: int = Field(41, ge=2, le=10_001)
    limit: Positive = 10.0  # on the scale of symlog
    max_norm: Positive = 100.0
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128,), activation="silu", norm="rms")
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000, batch=32)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    @classmethod
    def accepts(cls, space: Space) -> bool:
        """Actions are drawn within their bounds."""
        return all(part.bounded for part in parts(space) if type(part) is Box)

    def build(self, spec: EnvSpec) -> Dreamer:
        self.check_actions(spec)
        return Dreamer(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.rollouts(self.gamma, self.sequence), self.limiter)


class DreamModel(nn.Encoded):
    """A world as it is understood; what is done in it, and what that is worth."""

    scale: Tensor  # of returns, as the actor sees them

    def __init__(self, cfg: DreamerConfig, spec: EnvSpec, size: int) -> None:
        super().__init__(cfg.net, spec.obs)
        self.recurrent, self.size, body = True, size, cfg.net.body
        self.world = StateSpace(cfg.net, self.encoder.out, size, (cfg.deter, cfg.groups, cfg.classes))
        out = self.world.out
        self.decoder, self.reward, self.goes_on, self.actor, self.critic = (
            nn.Net(part := body(out), nn.LinearHead(part, outputs, "orthogonal", gain))
            for outputs, gain in (
                (flat_size(spec.obs, FLAT), 1.0), (cfg.bins, 0.01), (1, 1.0), (ops.dist_size(spec.action), 0.01),
                (cfg.bins, 0.01),
            )
        )  # fmt: skip
        self.space, self.standard = spec.obs, nn.ObsNormaliser(flat_size(spec.obs, FLAT))
        self.register_buffer("scale", torch.ones(()))

    def observe(self, obs: Obs, valid: Tensor) -> None:
        super().observe(obs, valid)
        self.standard.moments.observe(flatten(obs, self.space, FLAT), valid)

    def pictured(self, obs: Obs) -> Tensor:
        """What is to be decoded: all numbers of an observation, by their mean and deviation."""
        return self.standard(flatten(obs, self.space, FLAT))

    def parts(self, *without: str) -> list[torch.nn.Module]:
        """All but some."""
        return [part for name, part in self.named_children() if name not in without]

    def initial(self, slots: int) -> Memory:
        """The state of the world, and the action that led out of it."""
        state = self.world.initial(slots)
        return *state, state.deter.new_zeros(1, slots, self.size)

    def begun(self, memory: Memory, start: Tensor) -> tuple[WorldState, Tensor]:
        """State and action before a row [1, B]: nothing where an episode starts."""
        deter, stoch, action = (x.masked_fill(start[..., None], 0.0) for x in memory)
        return WorldState(deter, stoch), action


class Watched(NamedTuple):
    """What the model made of rows that were seen, [T, B, ...]."""

    state: WorldState
    prior: Tensor  # logarithms [T, B, groups, classes]
    posterior: Tensor


class Dreamer(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Learning in imagination."""

    model: DreamModel

    def __init__(self, cfg: DreamerConfig, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, spec.action
        size = encoded_size(spec)
        if cfg.net.recurrent:
            raise UserError("algo.net.memory: dreamer has one of its own. Accepted: none.")
        self.support = Support(cfg.limit, cfg.bins, symlog=True)
        self.model = DreamModel(cfg, spec, size)
        self.target = nn.Lagged(self.model)
        m, limit = self.model, cfg.max_norm
        self.optim = nn.optimiser(cfg.optim, *m.parts("actor", "critic"), lr=cfg.lr, max_norm=limit)
        self.actor_optim = nn.optimiser(cfg.optim, m.actor, lr=cfg.lr_actor, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, m.critic, lr=cfg.lr_actor, max_norm=limit)

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        state, act = self.model.world.draws, ops.dist_draws(self.space)
        each = Draw(state.uniform + act.uniform, act.normal)
        steps = self.cfg.imagine
        learn = Draw(state.uniform + steps * each.uniform, steps * each.normal)
        return Draws(state, act, learn=learn, update=state)

    def neutral(self, rows: Tensor) -> Noise:
        still = super().neutral(rows)
        return still._replace(uniform=torch.full_like(still.uniform, -1.0))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        before, action = self.model.begun(past.memory, past.start)
        features, _ = self.model.encoder(obs, past)
        state, _ = self.model.world.seen(before, action, features, noise.uniform)
        value = self.support.number(self.model.critic(state.features))
        return Prediction(self.policy(state.features), value, tuple(state))

    def policy(self, features: Tensor) -> ops.Dist:
        dist: ops.Dist = ops.dist(self.model.actor(features), self.space, squash=True)
        return dist

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = prediction.dist.sample(noise)
        return Acted(action, {}, (*prediction.memory, self.encoded(action)))

    def exploit(self, prediction: Prediction) -> Acted:
        action = prediction.dist.mode()
        return Acted(action, {}, (*prediction.memory, self.encoded(action)))

    def encoded(self, action: Action) -> Tensor:
        """An action as the model reads it."""
        return flatten(action, self.space)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, weight, groups = mini.data, mini.weight, self.model.world.groups
        seen = self.watched(r, noise)
        image = self.blurred(r, seen)
        terms = self.wrong(r, seen, image, weight)
        cfg = self.cfg
        kls = cfg.dynamics_weight * terms["dynamics"] + cfg.posterior_weight * terms["posterior"]
        norm = self.optim.step(terms["image"] + terms["reward"] + terms["goes_on"] + kls)
        start = WorldState(*(x[:-1].detach().flatten(0, 1)[None] for x in seen.state))
        numbers = ops.map_tree(lambda x: x.flatten(0, 1)[None], Noise(noise.uniform[..., groups:], noise.normal))
        metrics = {**terms, **self.improve(start, weight.flatten(), numbers), "grad_norm": norm}
        self.target.follow(self.model, cfg.tau)
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(image[:-1], weight))

    def watched(self, r: Rollout, noise: Noise) -> Watched:
        """The states of the world at T rows and the one that follows them."""
        model, world = self.model, self.model.world
        obs = ops.concat([r.obs, r.last[0]])
        start = torch.cat([r.past.start, r.last[1].start])
        features, _ = model.encoder(obs, Past((), start))
        last = noise.update.uniform.expand(1, start.shape[1], -1)
        uniform = torch.cat([noise.uniform[..., : world.groups], last])
        memory, actions = r.past.memory, self.encoded(r.action)
        states, posteriors = [], []
        for t in range(len(start)):
            before, action = model.begun(memory, start[t : t + 1])
            state, log_probs = world.seen(before, action, features[t : t + 1], uniform[t : t + 1])
            memory = (*state, actions[t : t + 1])
            states.append(state)
            posteriors.append(log_probs)
        whole = ops.concat(states)
        return Watched(whole, world.log_probs(world.prior(whole.deter)), torch.cat(posteriors))

    def blurred(self, r: Rollout, seen: Watched) -> Tensor:
        """How far what is decoded is from what was seen, [T + 1, B]."""
        goal = self.model.pictured(ops.concat([r.obs, r.last[0]]))
        return (self.model.decoder(seen.state.features) - goal).square().sum(-1)

    def wrong(self, r: Rollout, seen: Watched, image: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """How wrong the model is: about what was seen, and about what followed each action."""
        model, features = self.model, seen.state.features
        none = torch.zeros_like(weight[:1])
        shown = torch.maximum(torch.cat([weight, none]), torch.cat([none, weight]))  # of rows, and of endings
        ways = kl(seen.posterior.detach(), seen.prior), kl(seen.posterior, seen.prior.detach())
        dynamics, posterior = (ops.weighted_mean(x.clamp(min=self.cfg.free), shown) for x in ways)
        reward = self.support.cross_entropy(model.reward(features[1:]), r.reward)
        going = (r.discount > 0).to(features.dtype)
        logits = model.goes_on(features[1:]).squeeze(-1)
        return {
            "image": ops.weighted_mean(image, shown), "dynamics": dynamics, "posterior": posterior,
            "reward": ops.weighted_mean(reward, weight),
            "goes_on": ops.weighted_mean(F.binary_cross_entropy_with_logits(logits, going, reduction="none"), weight),
        }  # fmt: skip

    def improve(self, start: WorldState, weight: Tensor, noise: Noise) -> dict[str, Tensor]:
        """One step of the actor and of the critic, from what follows states [1, N]; metrics."""
        with torch.no_grad():
            features, action = self.dreamed(start, noise)
            reward = self.support.number(self.model.reward(features[1:]))
            discount = self.cfg.gamma * self.model.goes_on(features[1:]).squeeze(-1).sigmoid()
            value = self.support.number(self.target.net.critic(features))
            never = torch.zeros_like(reward, dtype=torch.bool)
            goal = ops.lambda_returns(reward, value[1:], discount, never, self.cfg.lam)
            lasting = torch.cat([torch.ones_like(discount[:1]), discount[:-1] / max(self.cfg.gamma, 1e-8)]).cumprod(0)
            weight = lasting * weight
            advantage = (goal - value[:-1]) / self.rescaled(goal)
        features = features[:-1]
        dist = self.policy(features)
        entropy, logp = dist.entropy(), dist.log_prob(action)
        actor = ops.weighted_mean(-advantage * logp - self.cfg.entropy * entropy, weight)
        self.actor_optim.step(actor)
        critic = ops.weighted_mean(self.support.cross_entropy(self.model.critic(features), goal), weight)
        self.critic_optim.step(critic)
        mean, entropy = ops.weighted_mean(value[:-1], weight), ops.weighted_mean(entropy, weight)
        return {"actor": actor, "critic": critic, "value": mean, "entropy": entropy}

    def dreamed(self, state: WorldState, noise: Noise) -> tuple[Tensor, Action]:
        """H steps of the actor in the model: features of H + 1 states [H + 1, N, size], and H actions."""
        act, groups = ops.dist_draws(self.space), self.model.world.groups
        sizes = groups + act.uniform, act.normal
        features, actions = [state.features], []
        for k in range(self.cfg.imagine):
            uniform, normal = (x[..., k * n : (k + 1) * n] for x, n in zip(noise, sizes, strict=False))
            action = self.policy(features[-1]).sample(Noise(uniform[..., groups:], normal))
            state = self.model.world.imagined(state, self.encoded(action), uniform[..., :groups])
            features.append(state.features)
            actions.append(action)
        return torch.cat(features), ops.concat(actions)

    def rescaled(self, goal: Tensor) -> Tensor:
        """The running distance of the 5th and the 95th percentile of returns, at least 1."""
        ranked, scale = goal.flatten().sort()[0], self.model.scale
        low, high = (ranked[int(share * (len(ranked) - 1))] for share in (0.05, 0.95))
        scale.copy_(torch.lerp(scale, (high - low).clamp(min=1.0), 0.01))
        return scale

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"optim": self.optim, "actor_optim": self.actor_optim, "critic_optim": self.critic_optim}
        return {"model": self.model, "target": self.target, **optims}


def encoded_size(spec: EnvSpec) -> int:
    """How many numbers an action is; refuses what cannot be imagined."""
    if type(spec.obs) is Composite and "action_mask" in spec.obs.items:
        raise UserError("env: dreamer knows nothing of what is legal in a dream, no action_mask. Try muzero or ppo.")
    return flat_size(spec.action)
