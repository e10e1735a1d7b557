"""TD-MPC2 (Hansen et al. 2024): a model of latent states, searched by drawing plans, with a value beyond their end.

Sequences are [T, B, ...]. The model is unrolled from their first row; a policy proposes some of the plans and says what
is done beyond the last step. Unlike the paper's, critics are two and compared as they are, and the model learns where
episodes end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from ganglion import buffers, nn, ops, search
from ganglion.config import (
    AlgoConfig, BufferConfig, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Carried, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Prediction, Progress, Recipe, Rollout,
    Sample, Stateful, Update,
)  # fmt: skip
from ganglion.nn.actor_critics import bounded, squashed
from ganglion.nn.support import Support

GROUP = 8  # numbers of a latent state that are one distribution


@register("algo", "tdmpc2")
class TDMPC2Config(AlgoConfig):
    """TD-MPC2."""

    actions = "bounded"
    lacks = {"n_step": "its plans look several steps ahead"}
    lr: Rate = 1e-3
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    horizon: int = Field(3, ge=1, le=100)  # steps that are planned, and that the model is asked to foresee
    samples: int = Field(64, ge=1, le=10_000)  # plans of a round
    own: int = Field(8, ge=1, le=10_000)  # plans of the policy beside them
    elites: int = Field(16, ge=1, le=10_000)  # plans that the next round is drawn around
    iterations: int = Field(4, ge=1, le=100)  # rounds
    temperature: Positive = 0.5  # of the weights of elites
    least_std: Positive = 0.05
    most_std: Positive = 2.0
    rho: float = Field(0.5, ge=0, le=1)  # weight of a step, to the power of how far it is foreseen
    consistency: NonNegative = 20.0  # weights of the losses
    reward_weight: NonNegative = 0.1
    value_weight: NonNegative = 0.1
    entropy: NonNegative = 1e-4
    critics: int = Field(2, ge=1, le=100)
    tau: Positive = Field(0.01, le=1)  # how fast their target follows
    latent: int = Field(64, ge=GROUP, le=65_536, multiple_of=GROUP)  # numbers of a latent state
    bins: int = Field(51, ge=2, le=10_001)  # of the numbers that are learned as distributions
    limit: Positive = 8.0  # on the scale of symlog
    max_norm: Positive = 20.0
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128), activation="silu", norm="layer")
    replay: BufferConfig = buffers.ReplayConfig(capacity=100_000, batch=128)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=1, warmup=1_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    @model_validator(mode="after")
    def _enough(self) -> TDMPC2Config:
        if self.elites > self.samples + self.own:
            raise ValueError(f"elites should be at most the {self.samples + self.own} plans of a round")
        return self

    def build(self, spec: EnvSpec) -> TDMPC2:
        return TDMPC2(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.rollouts(self.gamma, self.horizon), self.limiter)


class Foreseen(NamedTuple):
    """What the model says of latent states and actions."""

    after: Tensor  # [T, B, latent] the next state
    reward: Tensor  # [T, B, bins]
    goes_on: Tensor  # [T, B] logits


class PlanningModel(nn.Encoded):
    """obs -> latent state; with an action the next one, its reward, whether the episode goes on, and values."""

    scale: Tensor  # of values, as the policy sees them

    def __init__(self, cfg: TDMPC2Config, spec: EnvSpec, size: int) -> None:
        super().__init__(cfg.net, spec.obs)
        both, body = cfg.latent + size, cfg.net.body
        self.represent = head(body(self.encoder.out), cfg.latent)
        self.step, self.pays = head(body(both), cfg.latent), head(body(both), cfg.bins + 1)
        self.critics = nn.Ensemble(body(both, count=cfg.critics), cfg.bins)
        self.actor = head(body(cfg.latent), 2 * size)
        self.register_buffer("scale", torch.ones(()))

    def see(self, obs: Obs, past: Past) -> Tensor:
        return simplices(self.represent(self.encoder(obs, past)[0]))

    def imagine(self, latent: Tensor, action: Tensor) -> Foreseen:
        both = torch.cat([latent, action], -1)
        reward, goes_on = self.pays(both).split([self.critics.head.weight.shape[-1], 1], -1)
        return Foreseen(simplices(self.step(both)), reward, goes_on.squeeze(-1))

    def act(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and logarithm of the deviation, before squashing."""
        mean, log_std = squashed(*self.actor(latent).chunk(2, -1)).chunk(2, -1)
        return mean, log_std


def head(body: nn.Body, outputs: int) -> nn.Net:
    return nn.Net(body, nn.LinearHead(body, outputs))


def simplices(x: Tensor) -> Tensor:
    """Each group of numbers as a distribution: no latent state grows."""
    return x.unflatten(-1, (-1, GROUP)).softmax(-1).flatten(-2)


class TDMPC2(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Planning in a model of latent states."""

    model: PlanningModel

    def __init__(self, cfg: TDMPC2Config, spec: EnvSpec) -> None:
        self.cfg, self.space = cfg, (space := bounded(cfg, spec, cfg.net))
        self.support = Support(cfg.limit, cfg.bins, symlog=True)
        self.model = PlanningModel(cfg, spec, space.size)
        self.target = nn.Lagged(self.model)
        m, limit = self.model, cfg.max_norm
        learned = [part for name, part in m.named_children() if name != "actor"]
        self.optim = nn.optimiser(cfg.optim, *learned, lr=cfg.lr, max_norm=limit)
        self.actor_optim = nn.optimiser(cfg.optim, m.actor, lr=cfg.lr, max_norm=limit)
        sizes = cfg.samples, cfg.elites, cfg.iterations, cfg.temperature, cfg.least_std, cfg.most_std
        self.rule = search.MppiRule(cfg.horizon, space.size, *sizes)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"random": float(at.env_steps < self.cfg.limiter.begins)}

    def draws(self) -> Draws:
        n, plans = self.space.size, self.rule.draws
        own = self.cfg.own * self.cfg.horizon * n
        return Draws(plans._replace(normal=plans.normal + own), Draw(n, n), learn=Draw(normal=2 * n))

    def neutral(self, rows: Tensor) -> Noise:
        return search.spread(rows, self.draws().predict)

    def carry(self, slots: int) -> Carried:
        """The plan to begin with."""
        return (torch.zeros(1, slots, self.cfg.horizon, self.space.size),)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        latent, rule = self.model.see(obs, past).flatten(0, 1), self.rule
        numbers = ops.map_tree(lambda x: x.flatten(0, 1), Noise(noise.uniform, noise.normal))
        drawn, own = numbers.normal.split([rule.draws.normal, self.draws().predict.normal - rule.draws.normal], -1)
        start = past.carried[0].flatten(0, 1) if past.carried else latent.new_zeros(len(latent), *self.rule[:2])
        plan = search.mppi(start, self.proposals(latent, own), self.worth(latent), Noise(numbers.uniform, drawn), rule)
        plan = ops.map_tree(lambda x: x.unflatten(0, past.start.shape), plan)
        return Prediction(FirstAction(*(x[..., 0, :] for x in plan[:3])), plan.value, (), (search.shifted(plan.mean),))

    def proposals(self, latent: Tensor, normal: Tensor) -> Tensor:
        """What the policy would do, [H, B, own, A]."""
        own, size = self.cfg.own, self.space.size
        state, actions = repeated(latent, own), []
        for e in normal.view(len(latent), self.cfg.horizon, own, size).unbind(1):
            mean, log_std = self.model.act(state)
            action = torch.tanh(mean + log_std.exp() * e.reshape(1, -1, size))
            actions.append(action.view(-1, own, size))
            state = self.model.imagine(state, action).after
        return torch.stack(actions)

    def worth(self, latent: Tensor) -> search.Worth:
        """What plans [H, B, N, A] earn: sum_h gamma^h r_h + gamma^H Q(z_H, policy(z_H))."""

        def value(plans: Tensor) -> Tensor:
            state, total, discount = repeated(latent, plans.shape[2]), torch.zeros(()), torch.ones(())
            for action in plans.unbind():
                state, reward, goes_on = self.model.imagine(state, action.reshape(1, -1, action.shape[-1]))
                total = total + discount * self.support.number(reward)
                discount = discount * self.cfg.gamma * goes_on.sigmoid()
            last = torch.tanh(self.model.act(state)[0])
            ahead = self.support.number(self.model.critics(torch.cat([state, last], -1))).mean(0)
            return (total + discount * ahead).view(plans.shape[1:3])

        return value

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        found = prediction.dist
        shaken = (found.chosen + found.std * noise.normal).clamp(-1.0, 1.0)
        action = torch.where(knobs["random"] > 0, 2 * noise.uniform - 1, shaken)
        return Acted(self.stretched(action), {"unit": action}, (), prediction.carried)

    def exploit(self, prediction: Prediction) -> Acted:
        return Acted(self.stretched(prediction.dist.mode()), {}, (), prediction.carried)

    def stretched(self, action: Tensor) -> Tensor:
        """From -1 to 1 onto the bounds."""
        return ops.anywhere(self.space, 0.5 * (action + 1))

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, rho = mini.data, self.cfg.rho ** torch.arange(self.cfg.horizon, device=mini.weight.device)[:, None]
        alive = (r.cut.long().cumsum(0) - r.cut.long()) == 0
        weight = mini.weight[:1] * alive
        later, now = noise.normal.chunk(2, -1)
        with torch.no_grad():
            seen = self.model.see(
                *ops.concat([(r.obs, Past((), r.past.start)), (r.last[0], Past((), r.last[1].start))])
            )
            goal = self.goal(r, seen[1:], later)
        state = self.model.see(ops.map_tree(lambda x: x[:1], r.obs), Past((), r.past.start[:1]))
        states: list[Tensor] = []
        losses: dict[str, list[Tensor]] = {}
        for t, action in enumerate(r.extras["unit"].split(1)):
            states.append(state)
            state, own = self.foreseen(r, state, action, t, goal, seen)
            for name, loss in own.items():
                losses.setdefault(name, []).append(loss)
        terms = {name: ops.weighted_mean(rho * torch.cat(rows), weight) for name, rows in losses.items()}
        cfg = self.cfg
        loss = cfg.consistency * terms["consistency"] + cfg.value_weight * terms["value"]
        norm = self.optim.step(loss + cfg.reward_weight * (terms["reward"] + terms["goes_on"]))
        metrics = {**terms, **self.improve(torch.cat(states).detach(), rho, weight, now), "grad_norm": norm}
        self.target.follow(self.model, cfg.tau)
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(losses["value"][0].detach()))

    def foreseen(
        self, r: Rollout, state: Tensor, action: Tensor, t: int, goal: Tensor, seen: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The state after row t's action, and how wrong the model was about it, [1, B] each."""
        q, row = self.model.critics(torch.cat([state, action], -1)), slice(t, t + 1)
        after, reward, goes_on = self.model.imagine(state, action)
        going = (r.discount[row] > 0).to(state.dtype)
        return after, {
            "consistency": (after - seen[t + 1 : t + 2]).square().mean(-1),
            "reward": self.support.cross_entropy(reward, r.reward[row]),
            "value": self.support.cross_entropy(q, goal[row].expand(q.shape[:-1])).mean(0),
            "goes_on": F.binary_cross_entropy_with_logits(goes_on, going, reduction="none"),
        }

    def goal(self, r: Rollout, after: Tensor, normal: Tensor) -> Tensor:
        """r + discount min Q'(z', a'), with a' of the policy: [T, B]."""
        mean, log_std = self.model.act(after)
        action = torch.tanh(mean + log_std.exp() * normal)
        q = self.support.number(self.target.net.critics(torch.cat([after, action], -1)))
        return r.reward + r.discount * q.amin(0)

    def improve(self, latent: Tensor, rho: Tensor, weight: Tensor, normal: Tensor) -> dict[str, Tensor]:
        """One step of the policy towards actions of more value, on the scale of values; its metrics."""
        mean, log_std = self.model.act(latent)
        one, width = torch.ones_like(mean), mean.shape[-1]
        action, logp = ops.TanhNormal(mean, log_std, -one, one).sample_and_log_prob(Noise(normal[..., :0], normal))
        q = self.support.number(self.model.critics(torch.cat([latent, action], -1))).mean(0)
        with torch.no_grad():
            ranked = q.flatten().sort()[0]
            low, high = (ranked[int(share * (len(ranked) - 1))] for share in (0.05, 0.95))
            scale = self.model.scale
            scale.copy_(torch.lerp(scale, (high - low).clamp(min=1.0), self.cfg.tau))
        loss = ops.weighted_mean(rho * (self.cfg.entropy * width * logp - q / scale), weight)
        self.actor_optim.step(loss)
        return {"actor": loss, "q": ops.weighted_mean(q, weight), "entropy": -ops.weighted_mean(logp, weight)}

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"optim": self.optim, "actor_optim": self.actor_optim}
        return {"model": self.model, "target": self.target, **optims}


class FirstAction(NamedTuple):
    """The first action of a plan: a normal, and one of the elites."""

    mean: Tensor  # [T, B, A], from -1 to 1
    std: Tensor
    chosen: Tensor

    def mode(self) -> Tensor:
        return self.mean


def repeated(latent: Tensor, count: int) -> Tensor:
    """Each row so many times, as rows of one moment: [B, n] -> [1, B * count, n]."""
    return latent[None, :, None].expand(-1, -1, count, -1).flatten(1, 2)
