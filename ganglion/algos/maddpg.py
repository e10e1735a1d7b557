"""MADDPG (Lowe et al. 2017): deterministic actors of their own views, and critics of what all see and do.

    critic: (Q(s, a_1 .. a_N) - r - d Q-(s', mu-(o'_1) .. mu-(o'_N)))^2
    actor:  - Q(s, a_1 .. mu(o_i) .. a_N) of each agent i, with the others' actions from the replay

Choices are one-hot where the critic reads them, and pass gradients by Gumbel-softmax. `twin` is MATD3's minimum of
two critics. A team has one value; with `reward: own` each agent has its own, by its own rewards, and agents may
compete.
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
    AlgoConfig, Amount, BufferConfig, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, constant, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction, Progress, Recipe,
    Rollout, Sample, Stateful, Update,
)  # fmt: skip
from ganglion.nn.central import CentralCritics
from ganglion.nn.team_actions import OneHotChoices, Numbers, TeamActor, team_actions
from ganglion.ops.agents import (
    agents_weight, blank, by_agent, by_copy, by_slot, each_own, own_values, payments, whole,
)  # fmt: skip


@register("algo", "maddpg")
class MADDPGConfig(AlgoConfig):
    """Deterministic policy gradients of agents with central critics."""

    actions = "single"
    lacks = TEAM | ONE_STEP
    lr: Rate = 5e-4  # of the actor
    lr_critic: Rate = 1e-3
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    tau: Positive = Field(0.01, le=1)  # how fast the targets follow
    noise: Amount = constant(0.1)  # of real actions, in units of half the range; of choices, the share of random ones
    twin: bool = False  # two critics, of which the lower one is bootstrapped from
    current: bool = False  # an actor is judged beside what the others would do now, not what they did
    regular: NonNegative = 1e-3  # weight of the squares of what actors say, which keeps choices soft
    max_norm: Positive | None = 0.5  # of gradients; None: no limit
    reward: OwnPay = "sum"  # of the agents: the team's; own: each has its own value
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    critic: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))  # without a memory
    replay: BufferConfig = buffers.ReplayConfig(capacity=200_000, batch=256)  # in rows of copies
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=32, warmup=2_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> MADDPG:
        return MADDPG(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        rollouts = self.replay.rollouts(self.gamma, 16 if self.net.recurrent else 1)
        return Recipe(self.processor, ByCopy(rollouts, team_pay(self.reward)), self.limiter)


class ActorsAndCritics(Model):
    """An actor that agents share, and critics of them all."""

    def __init__(self, cfg: MADDPGConfig, spec: EnvSpec, kind: OneHotChoices | Numbers) -> None:
        super().__init__()
        agents = len(spec.agents)
        self.recurrent = cfg.net.recurrent
        self.actor = TeamActor(cfg.net, spec, kind.outputs, cfg.replay.warms)
        heads = agents if cfg.reward == "own" else 1
        self.critics = CentralCritics(cfg.critic, spec, agents * kind.size, heads, 2 if cfg.twin else 1)

    def initial(self, slots: int) -> Memory:
        return self.actor.initial(slots)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.actor.action(obs, past)


class MADDPG(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Actors that climb a critic of all."""

    model: ActorsAndCritics

    def __init__(self, cfg: MADDPGConfig, spec: EnvSpec) -> None:
        self.cfg, self.agents, self.kind, limit = cfg, len(spec.agents), team_actions(cfg, spec), cfg.max_norm or inf
        self.model = ActorsAndCritics(cfg, spec, self.kind)
        self.target = nn.Lagged(self.model)
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"random": float(at.env_steps < self.cfg.limiter.begins), "noise": self.cfg.noise(at.fraction)}

    def draws(self) -> Draws:
        uniform, normal = self.kind.relaxing
        return Draws(explore=self.kind.exploring, learn=Draw(self.agents * uniform, self.agents * normal))

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        raw, memory = self.model.action(obs, past)
        return Prediction(self.kind.dist(raw, ops.mask(obs)), ops.empty(raw), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        return Acted(self.kind.explored(prediction.dist, knobs["random"], knobs["noise"], noise), {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, w, own = mini.data, mini.weight, self.cfg.reward == "own"
        alive = r.extras["alive"]
        live = agents_weight(w, alive)
        taken = blank(by_copy(self.kind.numbers(by_slot(r.action)), self.agents), alive)  # [T, C, N, size]
        goal = self.goal(r)
        q = self.model.critics(r.obs, alive, taken.flatten(2))  # [count, T, C, heads]
        error = q - goal
        critic = ops.weighted_mean(error.square().sum(0), live if own else w[..., None])
        norm = self.critic_optim.step(critic)

        raw, _ = self.model.action(by_slot(r.obs), Past(*by_slot((r.past.memory, r.extras["starts"]))))
        dist = self.kind.dist(raw, ops.mask(by_slot(r.obs)))
        now = by_copy(self.kind.relaxed(dist, by_agent(noise, raw.shape[0], self.agents)), self.agents)
        beside = each_own(now, blank(now.detach(), alive) if self.cfg.current else taken)
        value = own_values(self.model.critics(r.obs, alive, beside)[0])  # [T, C, N]
        acts = torch.where(ops.decisions(alive, r.extras), live, 0.0)
        held = ops.weighted_mean(by_copy(raw.square().mean(-1), self.agents), acts)
        actor = -ops.weighted_mean(value, acts)
        self.actor_optim.step(actor + self.cfg.regular * held)
        self.target.follow(self.model, self.cfg.tau)
        metrics = {"critic": critic, "actor": actor, "q": ops.weighted_mean(value, acts), "grad_norm": norm}
        priority = ops.sequence_priority(error.abs().mean((0, -1)), w)
        return Update({k: v.detach() for k, v in metrics.items()}, priority.detach())

    @torch.no_grad()
    def goal(self, r: Rollout) -> Tensor:
        """What follows one step on, of the team or of each agent: [T, C, heads]."""
        seen = whole(r)
        raw, _ = self.target.action(seen.obs, seen.past)
        later = by_copy(self.kind.best(self.kind.dist(raw, ops.mask(seen.obs))), self.agents)
        after = self.target.net.critics(seen.copies, seen.there, blank(later, seen.there).flatten(2)).amin(0)
        reward, discount = payments(r, self.cfg.gamma, self.cfg.reward == "own")
        return reward + discount * after[1:]

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim}
        return {"model": self.model, "target": self.target, **optims}
