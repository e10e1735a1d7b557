"""Networks of continuous control: actors of bounded actions, critics of observation and action, the two together."""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from ganglion import ops
from ganglion.config import AlgoConfig
from ganglion.core import Action, Box, EnvSpec, Memory, Model, Obs, Past, Transition
from ganglion.errors import UserError
from ganglion.nn.heads import check_mask
from ganglion.nn.layers import LinearHead
from ganglion.nn.nets import Encoded, Ensemble, MLPConfig, Net


def bounded(cfg: AlgoConfig, spec: EnvSpec, *nets: MLPConfig) -> Box:
    """The action space of an algorithm that squashes its actions onto bounds; `nets`: what has no recurrent form."""
    cfg.check_actions(spec)
    check_mask(spec)
    assert isinstance(spec.action, Box)
    for net in nets:
        feed_forward(cfg.kind, net)
    return spec.action


def feed_forward(kind: str, net: MLPConfig) -> None:
    """Refuses a memory, for an algorithm without a recurrent form."""
    if net.recurrent:
        raise UserError(
            f"algo.net.memory: {kind} has no recurrent form; accepted: none. Recurrent for such actions: awac, cql, "
            "crossq, d4pg, ddpg, edac, flashsac, iql, redq, sac, td3, td3_bc, tqc."
        )


def squashed(mean: Tensor, spread: Tensor, least: float = -5.0, most: float = 2.0) -> Tensor:
    """Raw outputs of `ops.dist`: the logarithm of the deviation between two limits, without a dead gradient there."""
    return torch.cat([mean, least + 0.5 * (most - least) * (torch.tanh(spread) + 1)], -1)


def of_actor(past: Past) -> Past:
    """What the actor remembers: the first half. Actor and critics have encoders, and so memories, of their own."""
    return past._replace(memory=past.memory[: len(past.memory) // 2])


def of_critics(past: Past) -> Past:
    """What the critics remember: the second half."""
    return past._replace(memory=past.memory[len(past.memory) // 2 :])


class GaussianActor(Encoded):
    """obs -> mean and log deviation of each action component, before squashing [T, B, 2 * A]."""

    def __init__(self, net: MLPConfig, spec: EnvSpec, space: Box, burn_in: int = 0) -> None:
        super().__init__(net, spec.obs, burn_in)
        body = net.body(self.encoder.out)
        self.net = Net(body, LinearHead(body, 2 * space.size))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, of_actor(past))
        return squashed(*self.net(features).chunk(2, -1)), memory


class DeterministicActor(Encoded):
    """obs -> one action, within its bounds [T, B, *shape]."""

    def __init__(self, net: MLPConfig, spec: EnvSpec, space: Box, burn_in: int = 0) -> None:
        super().__init__(net, spec.obs, burn_in)
        self.space = space
        body = net.body(self.encoder.out)
        self.net = Net(body, LinearHead(body, space.size))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, of_actor(past))
        raw = torch.tanh(self.net(features))
        low, high = ops.bounds(self.space, raw)
        return torch.lerp(low, high, 0.5 * (raw.reshape(*raw.shape[:2], *self.space.shape) + 1)), memory


class Critics(Encoded):
    """obs and action -> values [count, T, B], or what `outputs` numbers say of them [count, T, B, outputs]."""

    def __init__(
        self, net: MLPConfig, spec: EnvSpec, space: Box, count: int = 2, outputs: int = 1, burn_in: int = 0
    ) -> None:
        super().__init__(net, spec.obs, burn_in)
        self.nets = Ensemble(net.body(self.encoder.out + space.size, count=count), outputs)

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, of_critics(past))
        assert action is not None
        return self.nets(features, action), memory

    def first(self, obs: Obs, past: Past, action: Action) -> Tensor:
        """What the first critic says, [T, B]."""
        return self.nets.first(self.encode(obs, of_critics(past))[0], action)


Judges = TypeVar("Judges", bound=Encoded)


class ActorCritics(Model, Generic[Judges]):
    """An actor and the critics that judge it. What they remember is a half each of one memory."""

    def __init__(self, actor: Model, critics: Judges) -> None:
        super().__init__()
        self.actor, self.critics, self.recurrent = actor, critics, actor.recurrent

    def initial(self, slots: int) -> Memory:
        return (*self.actor.initial(slots), *self.critics.initial(slots))

    def act(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        """`action` while acting, when the critics remember what is seen as well: rows are stored with both memories."""
        said, memory = self.actor.action(obs, past)
        if not self.recurrent:
            return said, memory
        return said, (*memory, *self.critics.encode(obs, of_critics(past))[1])

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        return self.actor.action(obs, past)

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        return self.critics.value(obs, past, action)


class SoftActorCritics(ActorCritics[Judges]):
    """The same, with the logarithm of a temperature."""

    def __init__(self, actor: Model, critics: Judges, temperature: float = 1.0) -> None:
        super().__init__(actor, critics)
        self.warmth = nn.ParameterDict({"log": nn.Parameter(torch.tensor(temperature).log())})


def together(t: Transition) -> tuple[Obs, Past]:
    """This row and the next beside each other, [T, 2 B, ...]; with a memory of one step (`with_memory`)."""
    memory = tuple(torch.cat(pair, 1) for pair in zip(t.past.memory, t.next_past.memory, strict=True))
    return ops.concat([t.obs, t.next_obs], 1), Past(memory, torch.cat([t.past.start, t.next_past.start], 1))


def with_memory(kind: str, net: MLPConfig, critic: MLPConfig, n_step: int) -> MLPConfig:
    """The critics' settings with the actor's memory. With one several steps are refused: rows are normalised beside
    those that follow them."""
    if critic.recurrent and critic.memory != net.memory:
        raise UserError(f"algo.net_critic.memory: follows algo.net.memory, which is {net.memory}; leave it out.")
    if net.recurrent and n_step > 1:
        raise UserError(
            f"algo.n_step: {kind} normalises each row beside the one after it, so with a memory it can only be 1, not "
            f"{n_step}. Algorithms of several steps with a memory: sac, td3, tqc, redq."
        )
    own = ("memory", "memory_size", "memory_window", "memory_layers", "heads")
    return critic.model_copy(update={name: value for name, value in net.plain().items() if name in own})


def cycled(normal: Tensor, rows: int) -> Tensor:
    """Numbers of T rows for so many: with a memory and n steps there are n - 1 more rows to bootstrap from, which take
    the numbers of the first again."""
    count = normal.shape[0]
    return normal if count == rows else normal.repeat(-(-rows // count), *(1,) * (normal.dim() - 1))[:rows]


def beside(numbers: Tensor, count: int) -> Tensor:
    """[T, B, count n] -> [T, count B, n]: numbers of several actions of each row beside each other."""
    return numbers.unflatten(-1, (count, -1)).transpose(1, 2).flatten(1, 2)


class MeanActor(Encoded):
    """obs -> mean within the bounds of actions, and log deviations that are free parameters [T, B, 2 * A].

    Unlike a squashed normal, it gives every action of a dataset a finite log-probability, those on the bounds too.
    """

    def __init__(self, net: MLPConfig, spec: EnvSpec, space: Box, log_std: float = 0.0, burn_in: int = 0) -> None:
        super().__init__(net, spec.obs, burn_in)
        self.space = space
        body = net.body(self.encoder.out)
        self.net = Net(body, LinearHead(body, space.size))
        self.log_std = nn.Parameter(torch.full((space.size,), log_std))

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, of_actor(past))
        raw = torch.tanh(self.net(features))
        low, high = (edge.reshape(-1) for edge in ops.bounds(self.space, raw))
        spread = self.log_std.clamp(-5.0, 2.0) + (0.5 * (high - low)).log()
        return torch.cat([torch.lerp(low, high, 0.5 * (raw + 1)), spread.expand_as(raw)], -1), memory


class StateValue(Encoded):
    """obs -> its value [T, B]."""

    def __init__(self, net: MLPConfig, spec: EnvSpec, burn_in: int = 0) -> None:
        super().__init__(net, spec.obs, burn_in)
        body = net.body(self.encoder.out)
        self.net = Net(body, LinearHead(body, 1))

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        features, memory = self.encode(obs, past)
        return self.net(features).squeeze(-1), memory


def apart(action: Tensor, other: Tensor, space: Box) -> Tensor:
    """The squared distance of two actions [T, B, ...], in units of half the range, summed over components: [T, B]."""
    low, high = ops.bounds(space, action)
    return ((action - other) / (0.5 * (high - low))).square().flatten(2).sum(-1)
