"""MASAC: soft actor-critic (Haarnoja et al. 2018) of agents whose twin critics know what all see and do (as in Iqbal
and Sha 2019 and in MADDPG).

    critic: (Q(s, a_1 .. a_N) - r - d (min Q-(s', a'_1 .. a'_N) + alpha sum_i H'_i))^2,  a' from the current actors
    actor:  alpha (-H_i) - min Q(s, a_1 .. a_i ~ pi(o_i) .. a_N) of each agent i

Real actions are squashed normals, H is -log pi of the sample; choices are relaxed by Gumbel-softmax, H is exact. With
`reward: own` each agent has a value of its own, by its own rewards and entropy.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.buffers.copies import ONE_STEP, TEAM, ByCopy, OwnPay, team_pay
from ganglion.config import (
    AlgoConfig, BufferConfig, LimiterConfig, Positive, ProcessorConfig, Rate, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction, Progress, Recipe,
    Rollout, Sample, Stateful, Update,
)  # fmt: skip
from ganglion.nn.central import CentralCritics
from ganglion.nn.team_actions import OneHotChoices, SoftNumbers, TeamActor, soft_actions
from ganglion.ops.agents import (
    agents_weight, blank, by_agent, by_copy, by_slot, each_own, own_values, payments, whole,
)  # fmt: skip


@register("algo", "masac")
class MASACConfig(AlgoConfig):
    """Soft actor-critic of agents with central critics."""

    actions = "single"
    lacks = TEAM | ONE_STEP
    lr: Rate = 3e-4  # of the actor and the temperature
    lr_critic: Rate = 1e-3
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    tau: Positive = Field(0.01, le=1)  # how fast the target follows
    temperature: Positive | None = None  # None: learned
    entropy: float = Field(0.2, ge=0, le=1)  # of choices, that is aimed at: a share of the most possible
    target_entropy: float | None = None  # of real actions; None: minus how many there are
    current: bool = True  # an actor is judged beside what the others would do now, not what they did
    max_norm: Positive | None = None  # of gradients; None: no limit
    reward: OwnPay = "sum"  # of the agents: the team's; own: each has its own value
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    critic: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))  # without a memory
    replay: BufferConfig = buffers.ReplayConfig(capacity=200_000, batch=256)  # in rows of copies
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=32, warmup=2_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> MASAC:
        return MASAC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        rollouts = self.replay.rollouts(self.gamma, 16 if self.net.recurrent else 1)
        return Recipe(self.processor, ByCopy(rollouts, team_pay(self.reward)), self.limiter)


class SoftTeam(Model):
    """A stochastic actor that agents share, critics of them all, and the logarithm of a temperature."""

    def __init__(self, cfg: MASACConfig, spec: EnvSpec, kind: OneHotChoices | SoftNumbers) -> None:
        super().__init__()
        agents = len(spec.agents)
        self.recurrent = cfg.net.recurrent
        self.actor = TeamActor(cfg.net, spec, kind.outputs, cfg.replay.warms)
        self.critics = CentralCritics(cfg.critic, spec, agents * kind.size, agents if cfg.reward == "own" else 1, 2)
        start = torch.tensor(cfg.temperature or 1.0).log()
        self.warmth = torch.nn.ParameterDict({"log": torch.nn.Parameter(start)})

    def initial(self, slots: int) -> Memory:
        return self.actor.initial(slots)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.actor.action(obs, past)


class MASAC(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Stochastic actors that seek entropy and the value of all."""

    model: SoftTeam

    def __init__(self, cfg: MASACConfig, spec: EnvSpec) -> None:
        self.cfg, self.agents, limit = cfg, len(spec.agents), cfg.max_norm or inf
        self.kind = soft_actions(cfg, spec)
        self.model = SoftTeam(cfg, spec, self.kind)
        self.target = nn.Lagged(self.model.critics)
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)
        self.warmth_optim = nn.Adam(self.model.warmth, lr=cfg.lr)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"random": float(at.env_steps < self.cfg.limiter.begins)}

    def draws(self) -> Draws:
        uniform, normal = self.kind.relaxing
        return Draws(explore=self.kind.exploring, learn=Draw(2 * self.agents * uniform, 2 * self.agents * normal))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.action(obs, past)
        return Prediction(self.kind.dist(raw, ops.mask(obs)), ops.empty(raw), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(
            self.kind.explored(prediction.dist, knobs["random"], 0 * knobs["random"], noise), {}, prediction.memory
        )

    # ------------------------------------------------------------ learning

    def said(self, obs: Obs, past: Past, numbers: Noise) -> tuple[Tensor, Tensor, Tensor]:
        """What agents would do [T, C, N, size], the entropy of that and what it should be [T, C, N]."""
        raw, legal = self.model.action(obs, past)[0], ops.mask(obs)
        did, entropy = self.kind.sampled(self.kind.dist(raw, legal), by_agent(numbers, raw.shape[0], self.agents))
        aim = self.kind.aim(entropy, legal, self.cfg.entropy, self.cfg.target_entropy)
        return by_copy((did, entropy, aim), self.agents)

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, w, own = mini.data, mini.weight, self.cfg.reward == "own"
        alive = r.extras["alive"]
        live = agents_weight(w, alive)
        later, now = (Noise(*x) for x in zip(noise.uniform.chunk(2, -1), noise.normal.chunk(2, -1), strict=True))
        warmth = self.model.warmth["log"].exp()
        taken = blank(by_copy(self.kind.numbers(by_slot(r.action)), self.agents), alive)  # [T, C, N, size]
        error = self.model.critics(r.obs, alive, taken.flatten(2)) - self.goal(r, warmth, later)
        critic = ops.weighted_mean(error.square().sum(0), live if own else w[..., None])
        norm = self.critic_optim.step(critic)

        did, entropy, aim = self.said(by_slot(r.obs), Past(*by_slot((r.past.memory, r.extras["starts"]))), now)
        beside = each_own(did, blank(did.detach(), alive) if self.cfg.current else taken)
        value = own_values(self.model.critics(r.obs, alive, beside).amin(0))  # [T, C, N]
        acts = torch.where(ops.decisions(alive, r.extras), live, 0.0)
        actor = -ops.weighted_mean(value + warmth.detach() * entropy, acts)
        self.actor_optim.step(actor)
        if self.cfg.temperature is None:
            self.warmth_optim.step(self.model.warmth["log"] * ops.weighted_mean(entropy.detach() - aim, acts))
        self.target.follow(self.model.critics, self.cfg.tau)
        metrics = {"critic": critic, "actor": actor, "q": ops.weighted_mean(value, acts), "temperature": warmth}
        metrics |= {"entropy": ops.weighted_mean(entropy, acts), "grad_norm": norm}
        priority = ops.sequence_priority(error.detach().abs().mean((0, -1)), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority)

    @torch.no_grad()
    def goal(self, r: Rollout, warmth: Tensor, numbers: Noise) -> Tensor:
        """What follows one step on, with the entropy of those who go on: [T, C, heads]."""
        seen, own = whole(r), self.cfg.reward == "own"
        did, entropy, _ = self.said(seen.obs, seen.past, numbers)
        after = self.target.net(seen.copies, seen.there, blank(did, seen.there).flatten(2)).amin(0)
        spread = blank(entropy, seen.there)
        after = after + warmth * (spread if own else spread.sum(-1, keepdim=True))
        reward, discount = payments(r, self.cfg.gamma, own)
        return reward + discount * after[1:]

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim, "warmth_optim": self.warmth_optim}
        return {"model": self.model, "target": self.target, **optims}
