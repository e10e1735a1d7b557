"""Bootstrapped deep Q-learning (Osband et al. 2016) with randomised priors (Osband et al. 2018).

K heads learn from different rows, each towards a target of its own, and each adds a random network that never learns.
An episode follows one of them: it explores for as long as it takes to find out whether that head is right. Masks,
memories, n-step sums and priorities are choices of observation, network and replay, as in DQN. All tensors are
[T, B, ...]; T is 1 without a memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from ganglion import buffers, nn, ops
from ganglion.config import (
    AlgoConfig, BufferConfig, Count, LimiterConfig, NonNegative, Positive, ProcessorConfig,
    RateSchedule, Share, constant, register,
)  # fmt: skip
from ganglion.core import (
    Acted, Action, Algorithm, Carried, Draw, Draws, EnvSpec, Knobs, Memory, Model, Noise, Obs, Past, Prediction,
    Progress, Recipe, Sample, Stateful, Transition, Update,
)  # fmt: skip


@register("algo", "bootstrapped_dqn")
class BootstrappedDQNConfig(AlgoConfig):
    """Deep Q-learning by several heads, one of which acts for an episode."""

    actions = "discrete"
    lr: RateSchedule = constant(1e-3)
    optim: nn.OptimConfig = nn.OptimConfig()
    gamma: float = Field(0.99, ge=0, le=1)
    n_step: int = Field(1, ge=1, le=1_000)
    heads: int = Field(10, ge=1, le=1_000)
    prior: NonNegative = 3.0  # scale of the random network that each head adds; 0: none
    share: float = Field(1.0, gt=0, le=1)  # of the rows that each head learns from, drawn when a row is collected
    evaluation: Literal["vote", "mean"] = "vote"  # of the heads, over actions
    double: bool = True  # the online head chooses the next action, its target values it
    loss: Literal["mse", "huber"] = "mse"
    max_norm: Positive = 10.0
    target_every: Count = Field(4, ge=1)  # updates between two copies onto the target
    epsilon: Share = constant(0.0)  # share of random actions beside what the heads do
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), init="orthogonal")
    replay: BufferConfig = buffers.ReplayConfig()
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=1_000)
    processor: ProcessorConfig = buffers.RowsConfig()

    def build(self, spec: EnvSpec) -> BootstrappedDQN:
        return BootstrappedDQN(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What to plug around the algorithm: read here, built by runtime.build."""
        return Recipe(self.processor, self.replay.folded(self.n_step, self.gamma, self.net.recurrent), self.limiter)


class HeadValues(NamedTuple):
    """Values of actions by each head, and how they are acted on when all are asked."""

    q: Tensor  # [T, B, K, A]
    legal: Tensor | None  # [T, B, A]
    votes: bool

    def best(self) -> Tensor:
        """What each head would do, [T, B, K]."""
        return ops.best(self.q, None if self.legal is None else self.legal.unsqueeze(-2))

    def mode(self) -> Tensor:
        """The action of most heads, or of the best mean; [T, B]."""
        actions = torch.arange(self.q.shape[-1], device=self.q.device)
        said = self.best()[..., None] == actions if self.votes else self.q
        return ops.best(said.to(self.q.dtype).mean(-2), self.legal)

    def of(self, head: Tensor) -> ops.Greedy:
        """One head for each slot, [T, B] -> values [T, B, A]."""
        return ops.Greedy(ops.pick_atoms(self.q, head), self.legal)


class QHeads(nn.Encoded):
    """obs [T, B, ...] -> values [T, B, K, A]: bodies of their own, as one batched product, over one encoder."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, heads: int, actions: int, burn_in: int) -> None:
        super().__init__(net, spec.obs, burn_in)
        self.heads, self.actions = heads, actions
        self.net = nn.Ensemble(net.body(self.encoder.out, count=heads), actions)

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, past)
        q = self.net(features).reshape(self.heads, *features.shape[:2], self.actions)
        return q.movedim(0, 2), memory


class PriorQHeads(Model):
    """The values of QHeads, and those of others that never learn added to them. What never learns has no memory."""

    def __init__(self, cfg: BootstrappedDQNConfig, spec: EnvSpec, actions: int) -> None:
        super().__init__()
        self.scale, self.recurrent = cfg.prior, cfg.net.recurrent
        self.learned = QHeads(cfg.net, spec, cfg.heads, actions, cfg.replay.warms)
        fixed = cfg.net.model_copy(update={"memory": "none"})
        self.fixed = QHeads(fixed, spec, cfg.heads, actions, 0).requires_grad_(False) if cfg.prior else None

    def initial(self, slots: int) -> Memory:
        return self.learned.initial(slots)

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.value(obs, past)  # it is chosen by these

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        q, memory = self.learned.value(obs, past)
        return q + self.prior(obs, past), memory

    @torch.no_grad()
    def prior(self, obs: Obs, past: Past) -> Tensor | float:
        """What is added to the values."""
        return 0.0 if self.fixed is None else self.scale * self.fixed.value(obs, Past((), past.start))[0]


class BootstrappedDQN(Algorithm[Sample[Transition], Sample[Transition]]):
    """Q-learning by heads that disagree where little is known."""

    model: PriorQHeads

    def __init__(self, cfg: BootstrappedDQNConfig, spec: EnvSpec) -> None:
        self.cfg, self.sync_every, self.coins = cfg, cfg.target_every, ops.Greedy.draws.uniform
        self.model = PriorQHeads(cfg, spec, nn.discrete_actions(cfg, spec))
        self.target = nn.Lagged(self.model.learned)
        self.optim = nn.optimiser(cfg.optim, self.model.learned, lr=cfg.lr(0.0), max_norm=cfg.max_norm)

    # ------------------------------------------------------------ acting

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at), "lr": self.cfg.lr.at(at)}

    def draws(self) -> Draws:
        masks = self.cfg.heads if self.cfg.share < 1 else 0
        return Draws(explore=Draw(uniform=self.coins + 1 + masks))

    def carry(self, slots: int) -> Carried:
        """The head that a slot follows; none is drawn yet."""
        return (torch.full((1, slots), -1),)

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        q, memory = self.model.value(obs, past)
        return Prediction(HeadValues(q, ops.mask(obs), self.cfg.evaluation == "vote"), q.mean(-2).amax(-1), memory)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        coins, (which,), heads = self.coins, prediction.carried, self.cfg.heads
        drawn = (noise.uniform[..., coins] * heads).long().clamp(max=heads - 1)
        head = torch.where(which < 0, drawn, which)
        action = prediction.dist.of(head).epsilon(knobs["epsilon"], noise)
        learns = {"learns": noise.uniform[..., coins + 1 :] < self.cfg.share} if self.cfg.share < 1 else {}
        return Acted(action, learns, prediction.memory, (head,))

    # ------------------------------------------------------------ learning

    def learn(self, mini: Sample[Transition], knobs: Knobs, noise: Noise) -> Update:
        t = mini.data
        goal = self.goal(t)
        q = by_head(self.model.value(t.obs, t.past)[0], t.action)
        error = q - goal  # [T, B, K]
        learns = t.extras["learns"] if self.cfg.share < 1 else torch.ones_like(error)
        loss = ops.weighted_mean((learns * ops.penalty(error, self.cfg.loss)).mean(-1), mini.weight)
        norm = self.optim.step(loss, knobs["lr"])
        known = q.detach()
        metrics = {
            "loss": loss.detach(),
            "q": ops.weighted_mean(known.mean(-1), mini.weight),
            "spread": ops.weighted_mean(known.std(-1, correction=0), mini.weight),  # of the heads
            "grad_norm": norm,
        }
        return Update(metrics, ops.sequence_priority(error.detach().abs().mean(-1), mini.weight))

    @torch.no_grad()
    def goal(self, t: Transition) -> Tensor:
        """r + d Q-_k(s', a'_k) of each head k, [T, B, K]."""
        prior = self.model.prior(t.next_obs, t.next_past)
        later = self.target.value(t.next_obs, t.next_past)[0] + prior
        chooser = self.model.learned.value(t.next_obs, t.next_past)[0] + prior if self.cfg.double else later
        choice = HeadValues(chooser, ops.mask(t.next_obs), False).best()
        return t.reward[..., None] + t.discount[..., None] * ops.at(ops.pick(later, choice), t.ahead)

    def sync_target(self) -> None:
        self.target.copy(self.model.learned)

    def parts(self) -> Mapping[str, Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}


def by_head(q: Tensor, action: Tensor) -> Tensor:
    """Every head's value of what was done: [T, B, K, A], [T, B] -> [T, B, K]."""
    return ops.pick(q, action[..., None].expand(q.shape[:-1]))
