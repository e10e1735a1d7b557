"""ATOC, attentional communication (Jiang and Lu 2018): actors that speak with each other where that pays.

    h_i = what agent i makes of its own view             p_i = how likely it is to open a group, read from h_i
    group of i: itself and the others whose h are most like its own
    m_j = attention of j over the h of all with whom it shares an open group       action_j = mu(h_j, m_j)

Actors climb a central critic Q(s, a_1 .. a_N), as in MADDPG, through what others say to them. The attention unit learns
whether a group pays: is Q higher with the group of i alone open than with none? The groups' channel is attention in
place of the paper's bidirectional LSTM, so that it does not matter in which order agents are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ganglion import buffers, nn, ops
from ganglion.buffers.copies import ONE_STEP, TEAM, ByCopy, Pay
from ganglion.config import (
    AlgoConfig, Amount, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig, Rate, Real,
    constant, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Algorithm, Draw, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction, Progress, Recipe,
    Rollout, Sample, Stateful, Update,
)  # fmt: skip
from ganglion.nn.central import CentralCritics
from ganglion.nn.communication import Speakers, Thoughts
from ganglion.nn.team_actions import OneHotChoices, Numbers, team_actions
from ganglion.ops.agents import blank, by_agent, by_copy, by_slot, whole


@register("algo", "atoc")
class ATOCConfig(AlgoConfig):
    """Agents that learn when to communicate."""

    actions = "single"
    lacks = TEAM | ONE_STEP
    lr: Rate = 5e-4  # of the actor and the attention unit
    lr_critic: Rate = 1e-3
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    tau: Positive = Field(0.01, le=1)  # how fast the targets follow
    noise: Amount = constant(0.1)  # of real actions, in units of half the range; of choices, the share of random ones
    communicate: bool = True  # false: the same networks, and nobody says anything
    group: Count | None = Field(None, ge=2)  # agents of a group, with the one that opens it; None: all
    message: Count = Field(32, ge=1)  # numbers of what an agent is told
    cost: Real = 0.0  # a group opens where the value rises by more
    trial: float = Field(0.1, ge=0, le=1)  # how likely it is to open in training, at least: what is not tried closes
    regular: NonNegative = 1e-3  # weight of the squares of what actors say, which keeps choices soft
    max_norm: Positive | None = 0.5  # of gradients; None: no limit
    reward: Pay = "sum"  # of the agents: the team's
    net: nn.MLPConfig = nn.MLPConfig(hidden=(128,))  # what an agent makes of its view, and then of that and a message
    critic: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))  # without a memory
    replay: BufferConfig = buffers.ReplayConfig(capacity=200_000, batch=256)  # in rows of copies
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=32, warmup=2_000)  # random actions until then
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> ATOC:
        return ATOC(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        rollouts = self.replay.rollouts(self.gamma, 16 if self.net.recurrent else 1)
        return Recipe(self.processor, ByCopy(rollouts, self.reward), self.limiter)


class ATOCModel(Model):
    """Those who speak, and who judges them."""

    def __init__(self, cfg: ATOCConfig, spec: EnvSpec, kind: OneHotChoices | Numbers) -> None:
        super().__init__()
        self.recurrent, self.communicate = cfg.net.recurrent, cfg.communicate
        self.actor = Speakers(cfg.net, spec, kind.outputs, cfg.message, cfg.group, cfg.replay.warms)
        self.critics = CentralCritics(cfg.critic, spec, len(spec.agents) * kind.size, 1)

    def initial(self, slots: int) -> Memory:
        return self.actor.initial(slots)

    def sure(self, thoughts: Thoughts) -> Tensor:
        """What they do, raw [T, B, outputs], where a group opens if it is more likely to pay than not."""
        return by_slot(self.actor.say(thoughts, (thoughts.wish > 0) & self.communicate))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        thoughts = self.actor.think(obs, past)
        return self.sure(thoughts), thoughts.memory


class ATOC(Algorithm[Sample[Rollout], Sample[Rollout]]):
    """Actors that climb a critic of all, and tell each other what helps."""

    model: ATOCModel

    def __init__(self, cfg: ATOCConfig, spec: EnvSpec) -> None:
        self.cfg, self.agents, self.kind, limit = cfg, len(spec.agents), team_actions(cfg, spec), cfg.max_norm or inf
        self.model = ATOCModel(cfg, spec, self.kind)
        self.target = nn.Lagged(self.model)
        self.actor_optim = nn.optimiser(cfg.optim, self.model.actor, lr=cfg.lr, max_norm=limit)
        self.critic_optim = nn.optimiser(cfg.optim, self.model.critics, lr=cfg.lr_critic, max_norm=limit)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"random": float(at.env_steps < self.cfg.limiter.begins), "noise": self.cfg.noise(at.fraction)}

    def draws(self) -> Draws:
        uniform, normal = self.kind.relaxing
        each = Draw(self.agents * (uniform + 1), self.agents * normal)
        return Draws(predict=Draw(uniform=1), explore=self.kind.exploring, learn=each)

    def opens(self, thoughts: Thoughts, coin: Tensor) -> Tensor:
        """Who opens its group [T, C, N], by coins [T, B] in [0, 1); a coin of 1/2 where nothing is random."""
        likely = torch.sigmoid(thoughts.wish).clamp(min=self.cfg.trial)
        return (by_copy(coin, self.agents) < likely) & self.cfg.communicate

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        thoughts = self.model.actor.think(obs, past)
        raw = by_slot(self.model.actor.say(thoughts, self.opens(thoughts, noise.uniform[..., 0])))
        return Prediction(self.kind.dist(raw, ops.mask(obs)), ops.empty(raw), thoughts.memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        action = self.kind.explored(prediction.dist, knobs["random"], knobs["noise"], noise)
        return Acted(action, {}, prediction.memory)

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:
        r, w = mini.data, mini.weight
        alive, obs = r.extras["alive"], by_slot(r.obs)
        taken = blank(by_copy(self.kind.numbers(by_slot(r.action)), self.agents), alive)  # [T, C, N, size]
        error = self.model.critics(r.obs, alive, taken.flatten(2))[0, ..., 0] - self.goal(r)  # [T, C]
        critic = ops.weighted_mean(error.square(), w)
        norm = self.critic_optim.step(critic)

        numbers = by_agent(noise, w.shape[0], self.agents)
        coin, rest = numbers.uniform[..., 0], Noise(numbers.uniform[..., 1:], numbers.normal)
        thoughts = self.model.actor.think(obs, Past(*by_slot((r.past.memory, r.extras["starts"]))), alive)
        raw = self.model.actor.say(thoughts, opens := self.opens(thoughts, coin))
        dist = self.kind.dist(by_slot(raw), ops.mask(obs))
        now = by_copy(self.kind.relaxed(dist, rest), self.agents)
        value = self.model.critics(r.obs, alive, blank(now, alive).flatten(2))[0, ..., 0]  # [T, C]
        acts = ops.decisions(alive, r.extras) & (w > 0)[..., None]
        held = ops.masked_mean(raw.square().mean(-1), acts)
        actor = -ops.weighted_mean(value, w)
        pays, gain = self.worth(r, thoughts, acts)
        self.actor_optim.step(actor + self.cfg.regular * held + pays)
        self.target.follow(self.model, self.cfg.tau)
        metrics = {"critic": critic, "actor": actor, "q": ops.weighted_mean(value, w), "grad_norm": norm}
        metrics |= {"attention": pays, "gain": gain, "opened": ops.masked_mean(opens.float(), acts)}
        return Update({k: v.detach() for k, v in metrics.items()}, ops.sequence_priority(error.detach(), w))

    def worth(self, r: Rollout, thoughts: Thoughts, acts: Tensor) -> tuple[Tensor, Tensor]:
        """The attention unit's loss: does it pay that one agent's group alone is open? And by how much on average."""
        alive, legal, agents = r.extras["alive"], ops.mask(by_slot(r.obs)), self.agents
        with torch.no_grad():
            none = torch.zeros_like(alive)
            one = torch.eye(agents, dtype=torch.bool, device=alive.device)
            said = [self.model.actor.say(thoughts, none | opener) for opener in (none, *one)]
            did = [by_copy(self.kind.best(self.kind.dist(by_slot(raw), legal)), agents) for raw in said]
            beside = torch.stack([blank(x, alive).flatten(2) for x in did], 2)  # [T, C, 1 + N, N * size]
            q = self.model.critics(r.obs, alive, beside)[0, ..., 0]
            gain = q[..., 1:] - q[..., :1]
        label = 0.5 + 0.5 * torch.sign(gain - self.cfg.cost)  # even where it makes no difference
        loss = binary_cross_entropy_with_logits(thoughts.wish, label, reduction="none")
        return ops.masked_mean(loss, acts), ops.masked_mean(gain, acts)

    @torch.no_grad()
    def goal(self, r: Rollout) -> Tensor:
        """What follows one step on, [T, C]."""
        seen = whole(r)
        raw = self.target.net.sure(self.target.net.actor.think(seen.obs, seen.past, seen.there))
        later = by_copy(self.kind.best(self.kind.dist(raw, ops.mask(seen.obs))), self.agents)
        after = self.target.net.critics(seen.copies, seen.there, blank(later, seen.there).flatten(2))[0, ..., 0]
        return r.reward + r.discount * after[1:]

    def parts(self) -> Mapping[str, Stateful]:
        optims = {"actor_optim": self.actor_optim, "critic_optim": self.critic_optim}
        return {"model": self.model, "target": self.target, **optims}
