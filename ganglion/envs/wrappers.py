"""Changes to what an environment shows, on any environment of the contract, on its own device.

Normalisation is not here: it belongs to the agent, which saves it. Rewards are not: the step processor shapes them.
Time limits are not here either: only the environment itself can end an episode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ganglion.config import WrapperConfig, register
from ganglion.core import (
    Action,
    Box,
    Composite,
    Discrete,
    Env,
    EnvSpec,
    Episode,
    Faults,
    MultiBinary,
    MultiDiscrete,
    Obs,
    Promise,
    Pure,
    Space,
    State,
    Step,
    join,
    under,
)  # fmt: skip
from ganglion.envs.gym_arrays import MASK
from ganglion.errors import UserError


class Wrapper(Env):
    """An environment that passes everything on."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.spec: EnvSpec = env.spec
        self.promise: Promise = env.promise

    @cached_property
    def faults(self) -> Faults:
        return self.env.faults

    @property
    def outside(self) -> Any:
        """Of an observation that is changed here, only the changed one is known: as the spec has it."""
        inner = self.env.outside
        if inner is None or self.spec.obs is self.env.spec.obs:
            return inner
        from ganglion.envs.gym_spaces import to_gym

        return to_gym(self.spec.obs), inner[1]

    def reset(self, seed: int) -> Step:
        return self.env.reset(seed)

    def step(self, action: Action) -> Step:
        return self.env.step(action)

    def episodes(self) -> list[Episode]:
        return self.env.episodes()

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def state(self) -> State:
        return self.env.state()

    def restore(self, state: State) -> None:
        self.env.restore(state)


class PureWrapper(Wrapper):
    """Changes what is shown by pure functions of tensors, so that a pure world stays one. `own` is what it remembers:
    a tree of tensors."""

    own: Any = ()

    def act(self, action: Action) -> Action:
        """What is done in the environment."""
        return action

    def first(self, step: Step) -> tuple[Any, Step]:
        """After a reset: what is remembered, what is shown."""
        raise NotImplementedError

    def after(self, own: Any, action: Action, step: Step) -> tuple[Any, Step]:
        """After a step."""
        raise NotImplementedError

    @property
    def pure(self) -> Pure | None:
        inner = self.env.pure
        return None if inner is None else PureChange(self, inner)

    def reset(self, seed: int) -> Step:
        self.own, step = self.first(self.env.reset(seed))
        return step

    def step(self, action: Action) -> Step:
        self.own, step = self.after(self.own, action, self.env.step(self.act(action)))
        return step


class PureChange:
    """A pure world inside a PureWrapper."""

    def __init__(self, wrapper: PureWrapper, inner: Pure) -> None:
        self.wrapper, self.inner = wrapper, inner

    def now(self) -> Any:
        return self.inner.now(), self.wrapper.own

    def keep(self, world: Any) -> None:
        inner, self.wrapper.own = world
        self.inner.keep(inner)

    def turn(self, world: Any, action: Action) -> tuple[Any, Step]:
        inner, step = self.inner.turn(world[0], self.wrapper.act(action))
        own, shown = self.wrapper.after(world[1], action, step)
        return (inner, own), shown

    def score(self, world: Any) -> tuple[Tensor, Tensor, Tensor]:
        return self.inner.score(world[0])


def _boxes(space: Space, change: Callable[[Box], Space]) -> Space:
    """The space with every Box of it changed, masks aside."""
    if isinstance(space, Composite):
        return Composite({k: part if k == MASK else _boxes(part, change) for k, part in space.items.items()})
    return change(space) if isinstance(space, Box) else space


def _tensors(space: Space, obs: Obs, change: Callable[[Tensor], Tensor]) -> Obs:
    """The observation with the tensor of every Box changed, masks aside."""
    if isinstance(space, Composite):
        return {k: obs[k] if k == MASK else _tensors(part, obs[k], change) for k, part in space.items.items()}
    return change(obs) if isinstance(space, Box) else obs


class Show(PureWrapper):
    """Observations changed one row at a time."""

    def __init__(self, env: Env, space: Callable[[Box], Space], change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(env)
        self._change = change
        self.spec = replace(env.spec, obs=_boxes(env.spec.obs, space), frame=None)

    def first(self, step: Step) -> tuple[Any, Step]:
        return self.after((), None, step)

    def after(self, own: Any, action: Action, step: Step) -> tuple[Any, Step]:
        return own, step._replace(obs=_tensors(self.env.spec.obs, step.obs, self._change))


def clip_obs(env: Env, bound: float) -> Show:
    """Observations clipped to [-bound, bound]."""

    def space(box: Box) -> Box:
        low, high = (tuple(min(max(x, -bound), bound) for x in side) for side in (box.low, box.high))
        return replace(box, low=low, high=high)

    return Show(env, space, lambda obs: obs.clamp(-bound, bound))


def keep(env: Env, places: tuple[int, ...]) -> Show:
    """Only these places of a vector observation: CartPole without velocities keeps 0 and 2."""
    obs = env.spec.obs
    if not isinstance(obs, Box) or len(obs.shape) != 1:
        raise UserError("env.keep: only a vector observation has places to keep")
    if not places or max(places) >= obs.shape[0]:
        raise UserError(f"env.keep: {list(places)} should name places from 0 to {obs.shape[0] - 1}")

    def space(box: Box) -> Box:
        low, high = (tuple(side[i] for i in places) if len(side) > 1 else side for side in (box.low, box.high))
        return replace(box, shape=(len(places),), low=low, high=high)

    chosen = list(places)
    return Show(env, space, lambda obs: torch.stack([obs[..., i] for i in chosen], -1))


class FrameStack(PureWrapper):
    """The last `count` observations as one: vectors end to end, images channel by channel; the newest is last.

    An episode starts with its first observation repeated.
    """

    def __init__(self, env: Env, count: int) -> None:
        super().__init__(env)
        self.count = count
        self.spec = replace(env.spec, obs=_boxes(env.spec.obs, self._space), frame=env.spec.obs)
        # per Box of the observation the last `count`, [B, ...] each; and [B]: the next observation starts an episode
        self.own: tuple[tuple[tuple[Tensor, ...], ...], Tensor] = (), torch.zeros(0, dtype=torch.bool)

    def _space(self, box: Box) -> Box:
        shape = (1, *box.shape) if len(box.shape) == 2 else box.shape  # a grey image gets a channel
        axis = _channels(shape)
        stacked = (*shape[:axis], self.count * shape[axis], *shape[axis + 1 :])
        low, high = (self._bound(side, shape, axis) for side in (box.low, box.high))
        return replace(box, shape=stacked, low=low, high=high)

    def _bound(self, side: tuple[float, ...], shape: tuple[int, ...], axis: int) -> tuple[float, ...]:
        if len(side) == 1:
            return side
        whole = torch.tensor(side, dtype=torch.float64).reshape(shape)
        return tuple(torch.cat([whole] * self.count, axis).flatten().tolist())

    def first(self, step: Step) -> tuple[Any, Step]:
        return self._stacked((), torch.ones_like(step.valid), step, begins=True)

    def after(self, own: Any, action: Action, step: Step) -> tuple[Any, Step]:
        kept, fresh = own
        return self._stacked(kept, fresh, step, begins=True)

    def step(self, action: Action) -> Step:
        kept, fresh = self.own
        begins = fresh.device.type != "cpu" or bool(fresh.any())  # elsewhere, asking would wait for the device
        self.own, step = self._stacked(kept, fresh, self.env.step(action), begins)
        return step

    def _stacked(self, kept: Any, fresh: Tensor, step: Step, begins: bool) -> tuple[Any, Step]:
        """`begins` false: where no slot's episode starts."""
        device = step.valid.device  # a restored state may come from elsewhere
        fresh, old, new = fresh.to(device), iter(kept), []

        def push(obs: Tensor) -> Tensor:
            image = obs.unsqueeze(1) if obs.dim() == 3 else obs
            frames = [x.to(device) for x in next(old, (image,) * self.count)[1:]]
            if begins:
                first = fresh.reshape(-1, *[1] * (image.dim() - 1))
                frames = [torch.where(first, image, frame) for frame in frames]
            frames.append(image)
            new.append(tuple(frames))
            return torch.cat(frames, 1 + _channels(tuple(image.shape[1:])))

        obs = _tensors(self.env.spec.obs, step.obs, push)
        return (tuple(new), ~step.valid), step._replace(obs=obs)

    def state(self) -> State:
        kept, fresh = self.own
        own = {"fresh": fresh.clone(), **{f"frames{i}": torch.stack(x) for i, x in enumerate(kept)}}
        return join({"stack": State(own), "env": self.env.state()})

    def restore(self, state: State) -> None:
        own = under(state, "stack").tensors
        self.own = tuple(own[f"frames{i}"].unbind(0) for i in range(len(own) - 1)), own["fresh"]
        self.env.restore(under(state, "env"))


def _channels(shape: tuple[int, ...]) -> int:
    """The axis along which frames are joined: the channels of an image, the end beside a square, else the shorter."""
    if len(shape) != 3:
        return 0
    square = (shape[0] == shape[1]) - (shape[1] == shape[2])
    return 2 if square > 0 or (square == 0 and shape[2] < shape[0]) else 0


@register("wrapper", "previous")
class PreviousConfig(WrapperConfig):
    """The last action and its reward beside the observation, as recurrent agents often see them."""

    action: bool = True
    reward: bool = True

    def build(self, env: Env) -> Env:
        return Previous(env, self.action, self.reward)


class Previous(PureWrapper):
    """`previous_action` and `previous_reward` beside the observation (its parts, or `obs` where it is one); nothing of
    them at the start of an episode: reward 0, and a choice that no action is, numbered 0."""

    def __init__(self, env: Env, action: bool = True, reward: bool = True) -> None:
        super().__init__(env)
        self.action, self.reward = action, reward
        inner = env.spec.obs
        parts = dict(inner.items) if isinstance(inner, Composite) else {"obs": inner}
        parts |= {"previous_action": _shifted_space(env.spec.action)} if action else {}
        parts |= {"previous_reward": Box((1,))} if reward else {}
        self.spec = replace(env.spec, obs=Composite(parts), frame=None)
        self.own = torch.zeros(env.spec.slots, dtype=torch.bool)  # [B]: the next observation starts an episode

    def first(self, step: Step) -> tuple[Any, Step]:
        none = torch.ones_like(step.valid)
        return self._beside(none, _nothing(self.env.spec.action, none), step)

    def after(self, own: Any, action: Action, step: Step) -> tuple[Any, Step]:
        fresh = own.to(step.valid.device)
        return self._beside(fresh, _shifted(self.env.spec.action, action, fresh), step)

    def _beside(self, fresh: Tensor, action: Any, step: Step) -> tuple[Any, Step]:
        shown = dict(step.obs) if isinstance(self.env.spec.obs, Composite) else {"obs": step.obs}
        if self.action:
            shown["previous_action"] = action
        if self.reward:
            shown["previous_reward"] = step.reward.masked_fill(fresh, 0.0)[:, None]
        return ~step.valid, step._replace(obs=shown)

    def state(self) -> State:
        return join({"previous": State({"fresh": self.own.clone()}), "env": self.env.state()})

    def restore(self, state: State) -> None:
        self.own = under(state, "previous").tensors["fresh"]
        self.env.restore(under(state, "env"))


@register("wrapper", "identity")
class IdentityConfig(WrapperConfig):
    """Which agent of a game a slot is, beside the observation: agents that share a network tell their roles by it."""

    def build(self, env: Env) -> Env:
        return AgentIdentity(env)


class AboutAgents(PureWrapper):
    """One number per agent of the copy beside the observation (its parts, or `obs` where it is one). A subclass gives
    the name, and the numbers."""

    name: str

    def numbers(self, step: Step) -> Tensor:
        """[slots, agents]."""
        raise NotImplementedError

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        inner = env.spec.obs
        parts, self.named = {"obs": inner}, False
        if isinstance(inner, Composite):
            parts, self.named = dict(inner.items), True
        shown = {self.name: Box((len(env.spec.agents),), low=(0.0,), high=(1.0,))}
        self.spec = replace(env.spec, obs=Composite({**parts, **shown}), frame=None)

    def first(self, step: Step) -> tuple[Any, Step]:
        return self.after((), None, step)

    def after(self, own: Any, action: Action, step: Step) -> tuple[Any, Step]:
        shown = dict(step.obs) if self.named else {"obs": step.obs}
        return own, step._replace(obs={**shown, self.name: self.numbers(step)})


class AgentIdentity(AboutAgents):
    """`identity`: which agent it is, one-hot."""

    name = "identity"

    def numbers(self, step: Step) -> Tensor:
        return torch.eye(len(self.spec.agents), device=step.valid.device).repeat_interleave(self.spec.copies, 0)


@register("wrapper", "present")
class PresentConfig(WrapperConfig):
    """Which agents of its copy are there, beside the observation, where some may die before the others."""

    def build(self, env: Env) -> Env:
        return PresentAgents(env)


class PresentAgents(AboutAgents):
    """`present`: 1 for each agent of the copy that lives."""

    name = "present"

    def numbers(self, step: Step) -> Tensor:
        agents = len(self.spec.agents)
        return step.valid.float().reshape(agents, -1).T.repeat(agents, 1)


def _shifted_space(space: Space) -> Space:
    """Actions, and the choice that none of them is."""
    match space:
        case Composite(items):
            return Composite({key: _shifted_space(part) for key, part in items.items()})
        case Discrete(n):
            return Discrete(n + 1)
        case MultiDiscrete(nvec):
            return MultiDiscrete(tuple(n + 1 for n in nvec))
    return space


def _shifted(space: Space, action: Any, fresh: Tensor) -> Any:
    """Actions as observations: choices count from 1, and are 0 where an episode starts, as real numbers are."""
    match space:
        case Composite(items):
            return {key: _shifted(part, action[key], fresh) for key, part in items.items()}
        case Discrete() | MultiDiscrete():
            action = action + 1
    return action.to(fresh.device).masked_fill(fresh.reshape(-1, *[1] * (action.dim() - 1)), 0)


def _nothing(space: Space, fresh: Tensor) -> Any:
    """The same before the first action."""
    match space:
        case Composite(items):
            return {key: _nothing(part, fresh) for key, part in items.items()}
        case Box(shape, dtype):
            return torch.zeros(len(fresh), *shape, dtype=dtype, device=fresh.device)
        case MultiDiscrete(nvec):
            return fresh.new_zeros(len(fresh), len(nvec), dtype=torch.int64)
        case MultiBinary(n):
            return fresh.new_zeros(len(fresh), n, dtype=torch.int64)
    return fresh.new_zeros(len(fresh), dtype=torch.int64)
