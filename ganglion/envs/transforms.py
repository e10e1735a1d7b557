"""Elements: what passes between an environment and an agent, changed on its way; each with a spec and saved state.

    env = Processed(env, obs=Series(Each({"unit": Apply(lambda x: features.one_hot(x, 5), 0, 1)}), Join()))

An observation or reward goes from the environment to the agent, an action from the agent to the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch import Tensor

from ganglion.core import Action, Box, Composite, Discrete, Env, Space, State, Step, join, under
from ganglion.envs.encodings import rescale
from ganglion.envs.gym_arrays import MASK
from ganglion.envs.wrappers import Wrapper
from ganglion.errors import UserError

REWARD = Box(())  # what a reward element starts from


class Element:
    """One change. `bind` is told the environment's space and answers with the agent's; then it is called every step."""

    def bind(self, space: Space) -> Space:
        """What the agent sees in place of the environment's `space`."""
        return space

    def __call__(self, x: Any, start: Tensor) -> Any:
        """A batch [B, ...], changed; `start` [B] is true where an episode begins."""
        raise NotImplementedError

    def state(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        pass


# ------------------------------------------------------------ elements


class Apply(Element):
    """A pure function of batches, such as those of `features`; what comes out of zeros tells its shape and dtype."""

    def __init__(self, change: Callable[[Tensor], Tensor], low: float = -inf, high: float = inf) -> None:
        self.change, self.low, self.high = change, low, high

    def bind(self, space: Space) -> Space:
        out = self.change(zeros(space, 2))
        return Box(tuple(out.shape[1:]), out.dtype, (float(self.low),), (float(self.high),))

    def __call__(self, x: Tensor, start: Tensor) -> Tensor:
        return self.change(x)


class Delta(Element):
    """The change since the step before; 0 where an episode begins."""

    def __init__(self) -> None:
        self.before: Tensor | None = None

    def bind(self, space: Space) -> Space:
        if not isinstance(space, Box) or not space.dtype.is_floating_point:
            raise UserError(f"Delta is of real numbers, not of {space}")
        return Box(space.shape, space.dtype)

    def __call__(self, x: Tensor, start: Tensor) -> Tensor:
        before = x if self.before is None else self.before.to(x.device)
        self.before = x.clone()
        return torch.where(start.reshape(-1, *[1] * (x.dim() - 1)), torch.zeros_like(x), x - before)

    def state(self) -> State:
        return State({} if self.before is None else {"before": self.before.clone()})

    def restore(self, state: State) -> None:
        self.before = state.tensors.get("before")


class Join(Element):
    """All parts of an observation as one vector, in order; a mask stays beside it."""

    def bind(self, space: Space) -> Space:
        flat = Box((int(_flat(zeros(space, 1)).shape[1]),))
        masked = isinstance(space, Composite) and MASK in space.items
        return Composite({"obs": flat, MASK: space.items[MASK]}) if masked else flat  # type: ignore[union-attr]

    def __call__(self, x: Any, start: Tensor) -> Any:
        flat = _flat(x)
        return {"obs": flat, MASK: x[MASK]} if isinstance(x, dict) and MASK in x else flat


def _flat(tree: Any) -> Tensor:
    if isinstance(tree, Mapping):
        return torch.cat([_flat(part) for key, part in tree.items() if key != MASK], -1)
    return tree.reshape(tree.shape[0], -1).to(torch.float32)


class Rescale(Element):
    """Actions in [-1, 1] for an environment whose bounds are others; outside them they are clipped."""

    def bind(self, space: Space) -> Space:
        if not isinstance(space, Box) or any(abs(bound) == inf for bound in (*space.low, *space.high)):
            raise UserError(f"Rescale needs actions with finite bounds, not {space}")
        self.low, self.high = (spread(side, space.shape) for side in (space.low, space.high))
        return Box(space.shape, space.dtype, (-1.0,), (1.0,))

    def __call__(self, x: Tensor, start: Tensor) -> Tensor:
        return rescale(x, self.low, self.high, clip=True)


class Choices(Element):
    """One of several ready actions, by its number: turns real actions into a Discrete choice."""

    def __init__(self, actions: Sequence[Sequence[float]]) -> None:
        self.actions = torch.tensor(actions, dtype=torch.float32)

    def bind(self, space: Space) -> Space:
        if not isinstance(space, Box) or self.actions.shape[1:] != space.shape:
            raise UserError(f"Choices are of the shape {list(self.actions.shape[1:])}, the environment takes {space}")
        return Discrete(len(self.actions))

    def __call__(self, x: Tensor, start: Tensor) -> Tensor:
        return self.actions.to(x.device)[x]


def spread(side: Sequence[float], shape: Sequence[int]) -> Tensor:
    """Bounds as a tensor of the space's shape."""
    bound = torch.tensor(side, dtype=torch.float32)
    return bound.reshape(list(shape)) if len(side) > 1 else bound.expand(list(shape))


def zeros(space: Space, slots: int) -> Any:
    """A batch of zeros of a space."""
    match space:
        case Composite(items):
            return {key: zeros(part, slots) for key, part in items.items()}
        case Box(shape, dtype):
            return torch.zeros(slots, *shape, dtype=dtype)
        case Discrete():
            return torch.zeros(slots, dtype=torch.int64)
    size = space.n if hasattr(space, "n") else len(space.nvec)
    return torch.zeros(slots, size, dtype=torch.int64)


# ------------------------------------------------------------ together


class Series(Element):
    """Elements one after another, as the data flow; `outward` for actions, which flow towards the environment."""

    def __init__(self, *parts: Element, outward: bool = False) -> None:
        self.parts, self.outward = parts, outward

    def bind(self, space: Space) -> Space:
        for part in reversed(self.parts) if self.outward else self.parts:  # from the environment's side
            space = part.bind(space)
        return space

    def __call__(self, x: Any, start: Tensor) -> Any:
        for part in self.parts:
            x = part(x, start)
        return x

    def state(self) -> State:
        return join({str(i): part.state() for i, part in enumerate(self.parts)})

    def restore(self, state: State) -> None:
        for i, part in enumerate(self.parts):
            part.restore(under(state, str(i)))


class Each(Element):
    """An element per named part of a Composite; a part not named stays, one named None is left out."""

    def __init__(self, parts: Mapping[str, Element | None]) -> None:
        self.parts = dict(parts)

    def bind(self, space: Space) -> Space:
        if not isinstance(space, Composite) or not self.parts.keys() <= space.items.keys():
            known = sorted(space.items) if isinstance(space, Composite) else "no named parts"
            raise UserError(f"Each: {sorted(self.parts)} should be parts of the space, which has {known}")
        return Composite({key: self._bound(key, part) for key, part in space.items.items() if self._kept(key)})

    def _kept(self, key: str) -> bool:
        return self.parts.get(key, self) is not None

    def _bound(self, key: str, space: Space) -> Space:
        element = self.parts.get(key)
        return space if element is None else element.bind(space)

    def __call__(self, x: Any, start: Tensor) -> Any:
        return {key: self._changed(key, part, start) for key, part in x.items() if self._kept(key)}

    def _changed(self, key: str, x: Any, start: Tensor) -> Any:
        element = self.parts.get(key)
        return x if element is None else element(x, start)

    def state(self) -> State:
        return join({key: part.state() for key, part in self.parts.items() if part is not None})

    def restore(self, state: State) -> None:
        for key, part in self.parts.items():
            if part is not None:
                part.restore(under(state, key))


# ------------------------------------------------------------ around an environment


class Processed(Wrapper):
    """An environment with elements around it. Finished episodes still report the environment's own score."""

    def __init__(
        self, env: Env, obs: Element | None = None, action: Element | None = None, reward: Element | None = None
    ) -> None:
        super().__init__(env)
        self.parts = {"obs": obs, "action": action, "reward": reward}
        seen = env.spec.obs if obs is None else obs.bind(env.spec.obs)
        taken = env.spec.action if action is None else action.bind(env.spec.action)
        worth = REWARD if reward is None else reward.bind(REWARD)
        if not isinstance(worth, Box) or worth.shape or not worth.dtype.is_floating_point:
            raise UserError(f"a reward element should give one real number, not {worth}")
        self.spec = replace(env.spec, obs=seen, action=taken)
        self._first = torch.ones(env.spec.slots, dtype=torch.bool)  # [B]: the observation shown last began an episode
        self._dead = torch.zeros_like(self._first)  # [B]: the next one will

    def reset(self, seed: int) -> Step:
        step = self.env.reset(seed)
        return self._changed(step, torch.ones_like(step.valid))

    def step(self, action: Action) -> Step:
        element = self.parts["action"]
        step = self.env.step(action if element is None else element(action, self._first))
        return self._changed(step, self._dead.to(step.valid.device))

    def _changed(self, step: Step, start: Tensor) -> Step:
        obs, reward = self.parts["obs"], self.parts["reward"]
        seen = step.obs if obs is None else obs(step.obs, start)
        worth = step.reward if reward is None else reward(step.reward, start).masked_fill(start, 0.0)
        self._first, self._dead = start, ~step.valid
        return step._replace(obs=seen, reward=worth)

    def state(self) -> State:
        own: dict[str, State] = {name: part.state() for name, part in self.parts.items() if part is not None}
        flags = {"first": self._first.cpu().clone(), "dead": self._dead.cpu().clone()}
        return join({**own, "slots": State(flags), "env": self.env.state()})

    def restore(self, state: State) -> None:
        for name, part in self.parts.items():
            if part is not None:
                part.restore(under(state, name))
        flags = under(state, "slots").tensors
        self._first, self._dead = flags["first"].clone(), flags["dead"].clone()
        self.env.restore(under(state, "env"))
