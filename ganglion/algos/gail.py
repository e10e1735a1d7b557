"""GAIL (Ho and Ermon 2016), off-policy as in DAC (Kostrikov et al. 2019): a discriminator learns to tell demonstrated
steps from own ones, and another algorithm learns to be taken for the demonstrator.

Rows are kept without rewards: each minibatch is given what the discriminator says by then. All tensors are [T, B, ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from ganglion import nn, ops
from ganglion.bonuses.around import Imitating, JudgedItem, judged_loss, replayed
from ganglion.config import AlgoConfig, NonNegative, Rate, register
from ganglion.core import (
    Action, Draw, Draws, EnvSpec, Knobs, Noise, Obs, Past, Recipe, Row, Sample, Stateful, Transition, Update,
)  # fmt: skip

STEP = 0.1  # over which the discriminator's slope is measured


@register("algo", "gail")
class GAILConfig(AlgoConfig):
    """Generative adversarial imitation."""

    imitates: ClassVar[bool] = True
    lacks = {"bonus": "its rewards are those of imitation alone"}
    inner: AlgoConfig = Field(default_factory=lambda: "sac")  # type: ignore[assignment]  # what learns from the rewards
    lr_judge: Rate = 3e-4  # of the discriminator
    reward: Literal["softplus", "log", "logit"] = "softplus"  # -log(1 - D): living is good; log D: it is bad; or both
    penalty: NonNegative = 1.0  # on the square of the discriminator's slope
    net: nn.MLPConfig = nn.MLPConfig(hidden=(100, 100))  # of the discriminator

    def build(self, spec: EnvSpec) -> GAIL:
        return GAIL(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        """What is around the algorithm within."""
        return replayed(self.inner, spec)


class Judge(nn.Encoded):
    """obs and action -> the logit of having been demonstrated [T, B]."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec) -> None:
        super().__init__(net, spec.obs)
        self.space = spec.action
        body = net.body(self.encoder.out + nn.flat_size(spec.action))
        self.net = nn.Net(body, nn.LinearHead(body, 1))

    def inputs(self, obs: Obs, start: Tensor, action: Action) -> Tensor:
        """What it looks at, [T, B, n]."""
        return torch.cat([self.encoder(obs, Past((), start))[0], nn.flatten(action, self.space)], -1)

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.net(x).squeeze(-1)
        return said


class GAIL(Imitating[JudgedItem]):
    """Another algorithm, whose rewards are what a discriminator says."""

    def __init__(self, cfg: GAILConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.inner.whole(spec))
        self.cfg, self.judge = cfg, Judge(cfg.net, spec)
        self.wide = self.judge.encoder.out + nn.flat_size(spec.action)
        self.judge_optim = nn.Adam(self.judge, lr=cfg.lr_judge)

    def draws(self) -> Draws:
        own = self.inner.draws()
        return own._replace(learn=Draw(own.learn.uniform, own.learn.normal + self.wide))

    @torch.no_grad()
    def prepare(self, item: Sample[Transition]) -> JudgedItem:
        logit = self.judge(self.seen(item.data))
        said = {"softplus": softplus(logit), "log": -softplus(-logit), "logit": logit}[self.cfg.reward]
        return JudgedItem(self.inner.prepare(item._replace(data=item.data._replace(reward=said))), item)

    def seen(self, t: Transition) -> Tensor:
        return self.judge.inputs(t.obs, t.past.start, t.action)

    def learn(self, m: JudgedItem, knobs: Knobs, noise: Noise) -> Update:
        own, moves = noise.normal.split([noise.normal.shape[-1] - self.wide, self.wide], -1)
        update = self.inner.learn(m.mini, knobs, noise._replace(normal=own))
        x = self.seen(m.item.data)
        logit = self.judge(x)
        loss, right = judged_loss(logit, m.item)
        slope = (self.judge(x + STEP * moves) - logit) / STEP  # along a random direction: its mean square is |grad|^2
        steep = ops.weighted_mean(slope.square(), (m.item.weight > 0).float())
        self.judge_optim.step(loss + self.cfg.penalty * steep)
        metrics = {"judge_loss": loss.detach(), "judge_right": right, "judge_slope": steep.detach()}
        return update._replace(metrics={**update.metrics, **metrics})

    def learn_late(self, m: JudgedItem, knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        return self.inner.learn_late(m.mini, knobs, noise._replace(normal=noise.normal[..., : -self.wide]))

    def observe(self, rows: Row) -> None:
        self.inner.observe(rows)
        self.judge.observe(rows.obs, rows.valid)

    def parts(self) -> Mapping[str, Stateful]:
        return {**self.inner.parts(), "judge": self.judge, "judge_optim": self.judge_optim}
