"""An algorithm with a bonus: the same algorithm, learning from rewards to which what is new adds something.

Rows are kept with the rewards of the environment. The bonus is added where an item is prepared, by what the bonus'
networks know by then, and these learn from the same minibatch, after the algorithm, by an optimiser of their own.

What is new does not end with an episode: who terminates one begins another. A critic of bonuses alone knows what comes
after a start on average, and that is a part of the reward of each row that terminates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from ganglion import nn, ops
from ganglion.bonuses.around import Around
from ganglion.config import BonusConfig, NonNegative, Rate
from ganglion.core import (
    Action,
    Algorithm,
    EnvSpec,
    Knobs,
    Model,
    Noise,
    Obs,
    Past,
    Phase,
    Rollout,
    Row,
    Sample,
    Stateful,
    Transition,
    Update,
)  # fmt: skip

NOTED = "bonus"  # the name among a row's extras


class CuriousConfig(BonusConfig):
    """What every learned bonus has."""

    scale: NonNegative = 1.0  # of the bonus, whose root mean square over the run is 1
    lr: Rate = 1e-3
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64, 64), normalise=True)
    gamma: float = Field(0.99, ge=0, lt=1)  # of bonuses beyond the end of an episode
    episodic: bool = False  # whether they end with it, as rewards do

    @model_validator(mode="after")
    def _forgets(self) -> Self:
        if self.net.recurrent:
            raise ValueError("net.memory should be none: single observations are judged")
        return self


class Seen(NamedTuple):
    """Rows [T, B, ...] as a bonus sees them: what was there, what was done, what came of it."""

    obs: Obs
    action: Action
    next_obs: Obs
    counts: Tensor  # bool: a decision to learn from
    start: Tensor  # bool: the first of an episode
    ended: Tensor  # bool: it terminated
    noted: Tensor | tuple[()] = ()  # what the bonus said when a row was collected, where it does


class Judged(NamedTuple):
    """What is made of rows, [T, B] each."""

    surprise: Tensor  # never negative
    loss: Tensor


class Bonus(Model):
    """Networks that are surprised by rows, and learn not to be."""

    square: Tensor
    updates: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("square", torch.ones(()))  # mean of squared surprises, over all updates
        self.register_buffer("updates", torch.zeros(()))

    def judge(self, seen: Seen) -> Judged:
        raise NotImplementedError(f"{type(self).__name__} judges nothing")

    def reward(self, seen: Seen) -> Tensor:
        """The bonus of each row, [T, B]."""
        return torch.where(seen.counts, self.worth(self.judge(seen)), 0.0)

    def worth(self, judged: Judged) -> Tensor:
        """Surprises in units of their root mean square."""
        return judged.surprise * (self.square + 1e-12).rsqrt()

    @torch.no_grad()
    def note(self, surprise: Tensor, counts: Tensor) -> None:
        """Takes an update's surprises into account."""
        self.updates.add_(1)
        now = ops.masked_mean(surprise.square(), counts)
        self.square.copy_(self.square + (now - self.square) / self.updates)


class Embedding(nn.Encoded):
    """obs [T, B, ...] -> features [T, B, n]."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, features: int) -> None:
        super().__init__(net, spec.obs)
        body = net.body(self.encoder.out)
        self.net = nn.Net(body, nn.LinearHead(body, features))

    def forward(self, obs: Obs, start: Tensor) -> Tensor:
        features, _ = self.encoder(obs, Past((), start))
        said: Tensor = self.net(features)
        return said


class ActionFeatures(Bonus):
    """Features f of observations that know what the agent does: learned by naming a from f(s) and f(s')."""

    def __init__(self, net: nn.MLPConfig, spec: EnvSpec, features: int) -> None:
        super().__init__()
        self.space = spec.action
        self.features = Embedding(net, spec, features)
        between = net.body(2 * features)
        self.inverse = nn.Net(between, nn.PolicyHead(between, spec.action, net.init))

    def named(self, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
        """f(s), f(s') and the log-probability of a."""
        start = torch.zeros_like(seen.counts)
        now, later = self.features(seen.obs, start), self.features(seen.next_obs, start)
        raw = self.inverse(torch.cat([now, later], -1))
        return now, later, ops.dist(raw, self.space).log_prob(seen.action)


class Ahead(nn.Encoded):
    """obs [T, B, ...] -> the bonuses to come [T, B], over the ends of episodes; and their mean where one starts."""

    mean: Tensor

    def __init__(self, cfg: CuriousConfig, spec: EnvSpec) -> None:
        super().__init__(cfg.net, spec.obs)
        body = cfg.net.body(self.encoder.out)
        self.net, self.gamma = nn.Net(body, nn.LinearHead(body, 1)), cfg.gamma
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, obs: Obs, start: Tensor) -> Tensor:
        said: Tensor = self.net(self.encoder(obs, Past((), torch.zeros_like(start)))[0])
        return said.squeeze(-1)

    def after_end(self, ended: Tensor) -> Tensor:
        """What the end of an episode is worth, [T, B]."""
        return self.gamma * self.mean * ended

    def loss(self, seen: Seen, bonus: Tensor) -> Tensor:
        """Of one step of temporal differences, in which the first row of an episode follows the last of another."""
        value = self(seen.obs, seen.start)
        with torch.no_grad():
            after = torch.where(seen.ended, self.mean, self(seen.next_obs, seen.start))
            first = seen.counts & seen.start
            rate = 0.01 * first.any()  # of what the mean moves by
            self.mean.copy_(torch.lerp(self.mean, ops.masked_mean(value, first), rate))
        return ops.masked_mean((value - bonus - self.gamma * after).square(), seen.counts)


class Surprised(NamedTuple):
    """What the algorithm learns from, and beside it the same rows for the bonus."""

    mini: Any
    seen: Seen

    @property
    def index(self) -> Tensor:  # type: ignore[override]
        """Where a sample came from: new priorities go there."""
        where: Tensor = self.mini.index
        return where


class Curious(Around[Surprised]):
    """Another algorithm, whose items bring a bonus."""

    def __init__(self, cfg: CuriousConfig, inner: Algorithm[Any, Any], bonus: Bonus, spec: EnvSpec) -> None:
        super().__init__(inner)
        self.cfg, self.bonus, self.ahead = cfg, bonus, Ahead(cfg, spec)
        self.optim, self.ahead_optim = nn.Adam(bonus, lr=cfg.lr), nn.Adam(self.ahead, lr=cfg.lr)

    # ------------------------------------------------------------ learning

    @torch.no_grad()
    def prepare(self, item: Any) -> Surprised:
        match item:
            case Sample(data=data):
                seen = seen_of(data, item.weight > 0)
                mini = self.inner.prepare(item._replace(data=self.richer(data, seen)))
            case _:
                seen = seen_of(item, item.valid)
                mini = self.inner.prepare(self.richer(item, seen))
        folded = ops.first(mini).shape[1] != seen.counts.shape[1]  # rows beside each other, not along time
        return Surprised(mini, ops.fold(seen) if folded else seen)

    def richer(self, data: Any, seen: Seen) -> Any:
        bonus = self.bonus.reward(seen)
        if not self.cfg.episodic:
            bonus = bonus + self.ahead.after_end(seen.ended & seen.counts)
        return data._replace(reward=data.reward + self.cfg.scale * bonus)

    def learn(self, m: Surprised, knobs: Knobs, noise: Noise) -> Update:
        update = self.inner.learn(m.mini, knobs, noise)
        judged = self.bonus.judge(m.seen)
        loss = ops.masked_mean(judged.loss, m.seen.counts)
        worth = self.bonus.worth(judged).detach()
        self.optim.step(loss)
        self.bonus.note(judged.surprise.detach(), m.seen.counts)
        own = {"bonus": ops.masked_mean(worth, m.seen.counts), "bonus_loss": loss.detach()}
        if not self.cfg.episodic:
            self.ahead_optim.step(self.ahead.loss(m.seen, worth))
            own["bonus_ahead"] = self.ahead.mean.clone()
        return update._replace(metrics={**update.metrics, **own})

    def phases(self) -> Mapping[str, Phase]:
        """The bonus is learned in those of the first kind; others are the algorithm's own, of its own reward."""
        first, *others = self.inner.phases().items()
        return {first[0]: Phase(self.prepare, self.plan, self.learn, first[1].rollouts), **dict(others)}

    def learn_late(self, m: Surprised, knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        return self.inner.learn_late(m.mini, knobs, noise)

    def observe(self, rows: Row) -> None:
        self.inner.observe(rows)
        self.bonus.observe(rows.obs, rows.valid)
        self.ahead.observe(rows.obs, rows.valid)

    def parts(self) -> Mapping[str, Stateful]:
        own: dict[str, Stateful] = {"bonus": self.bonus, "bonus_optim": self.optim}
        if not self.cfg.episodic:
            own |= {"bonus_ahead": self.ahead, "bonus_ahead_optim": self.ahead_optim}
        return {**self.inner.parts(), **own}


def seen_of(data: Rollout | Transition, counts: Tensor) -> Seen:
    """What the bonus sees of an item."""
    own = data.past.start, (data.discount == 0) & counts, data.extras.get(NOTED, ())
    return Seen(*around(data), counts, *own)


def around(data: Rollout | Transition) -> tuple[Obs, Action, Obs]:
    """Observation, action and next observation of each row; the dead row after an ending holds the true last one."""
    match data:
        case Rollout():
            later = ops.concat([ops.map_tree(lambda x: x[1:], data.obs), data.last[0]])
        case _:
            later = ops.map_tree(lambda x: ops.at(x, data.ahead), data.next_obs)
    return data.obs, data.action, later
