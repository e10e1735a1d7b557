"""AIRL (Fu et al. 2018): adversarial imitation whose discriminator is a reward and a shaping of it.

    D = exp f / (exp f + pi(a | s)),    f = g(s, a) + gamma h(s') - h(s)

g is the reward that explains the demonstrations, apart from what h takes up of the dynamics. Another algorithm learns
from f: a soft one, such as sac, whose own entropy bonus stands for - log pi, with `temperature` 1. All tensors are
[T, B, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ganglion import nn, ops
from ganglion.bonuses.around import Imitating, JudgedItem, judged_loss, replayed
from ganglion.config import AlgoConfig, NonNegative, Positive, Rate, register
from ganglion.core import (
    Action, EnvSpec, Knobs, Noise, Obs, Past, Recipe, Row, Sample, Stateful, Transition, Update,
)  # fmt: skip


@register("algo", "airl")
class AIRLConfig(AlgoConfig):
    """Adversarial inverse reinforcement learning."""

    imitates: ClassVar[bool] = True
    lacks = {"bonus": "its rewards are those of imitation alone"}
    inner: AlgoConfig = Field(default_factory=lambda: "sac")  # type: ignore[assignment]  # what learns from the rewards
    lr_judge: Rate = 3e-4  # of reward and shaping
    gamma: float = Field(0.99, ge=0, le=1)  # of the shaping; that of the algorithm within is its own
    reads_actions: bool = (
        True  # the reward reads actions; False: it is of states alone, and outlives a change of the dynamics
    )
    limit: Positive = 10.0  # of the log-probability of an action, to either side
    decay: NonNegative = 1e-3  # on the squares of rewards and shaping
    net: nn.MLPConfig = nn.MLPConfig(hidden=(100, 100))  # of reward and shaping each

    def build(self, spec: EnvSpec) -> AIRL:
        return AIRL(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What is around the algorithm within."""
        return replayed(self.inner, spec)


class Shaped(nn.Encoded):
    """g(s, a) and h(s), [T, B] each."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, actions: bool) -> None:
        super().__init__(net, spec.obs)
        self.space, self.actions = spec.action, actions
        wide = self.encoder.out
        bodies = net.body(wide + (nn.flat_size(spec.action) if actions else 0)), net.body(wide)
        self.worth, self.shaping = (nn.Net(body, nn.LinearHead(body, 1)) for body in bodies)

    def reward(self, obs: Obs, start: Tensor, action: Action) -> Tensor:
        x = self.encoder(obs, Past((), start))[0]
        said: Tensor = self.worth(torch.cat([x, nn.flatten(action, self.space)], -1) if self.actions else x)
        return said.squeeze(-1)

    def potential(self, obs: Obs, start: Tensor) -> Tensor:
        said: Tensor = self.shaping(self.encoder(obs, Past((), start))[0])
        return said.squeeze(-1)


class AIRL(Imitating[JudgedItem]):
    """Another algorithm, whose rewards are those that explain demonstrations."""

    def __init__(self, cfg: AIRLConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.inner.whole(spec))
        self.cfg, self.shaped = cfg, Shaped(cfg.net, spec, cfg.reads_actions)
        self.judge_optim = nn.Adam(self.shaped, lr=cfg.lr_judge)

    def said(self, t: Transition) -> Tensor:
        """f, [T, B]; nothing follows a termination."""
        start, after = t.past.start, t.next_past.start
        later = ops.at(self.shaped.potential(t.next_obs, after), t.ahead) * (t.discount > 0)
        return self.shaped.reward(t.obs, start, t.action) + self.cfg.gamma * later - self.shaped.potential(t.obs, start)

    @torch.no_grad()
    def prepare(self, item: Sample[Transition]) -> JudgedItem:
        rewarded = item.data._replace(reward=self.said(item.data))
        return JudgedItem(self.inner.prepare(item._replace(data=rewarded)), item)

    def learn(self, m: JudgedItem, knobs: Knobs, noise: Noise) -> Update:
        update, t = self.inner.learn(m.mini, knobs, noise), m.item.data
        with torch.no_grad():
            dist = self.inner.predict(t.obs, t.past, self.inner.neutral(t.reward)).dist
            logp = dist.log_prob(t.action).clamp(-self.cfg.limit, self.cfg.limit)
        said = self.said(t)
        loss, right = judged_loss(said - logp, m.item)
        size = ops.weighted_mean(said.square(), (m.item.weight > 0).float())
        self.judge_optim.step(loss + self.cfg.decay * size)
        metrics = {
            "judge_loss": loss.detach(),
            "judge_right": right,
            "reward": ops.weighted_mean(said.detach(), m.item.weight),
        }
        return update._replace(metrics={**update.metrics, **metrics})

    def learn_late(self, m: JudgedItem, knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        return self.inner.learn_late(m.mini, knobs, noise)

    def observe(self, rows: Row) -> None:
        self.inner.observe(rows)
        self.shaped.observe(rows.obs, rows.valid)

    def parts(self) -> Mapping[str, Stateful]:
        return {**self.inner.parts(), "shaped": self.shaped, "judge_optim": self.judge_optim}
