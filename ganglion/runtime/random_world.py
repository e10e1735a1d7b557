"""A made-up world over any spaces: random observations, rewards and endings. Algorithms are checked in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ganglion import ops
from ganglion.core import (
    CENTRAL,
    Box,
    Composite,
    Discrete,
    Env,
    EnvSpec,
    Episode,
    MultiBinary,
    MultiDiscrete,
    Space,
    State,
    Step,
    central,
)  # fmt: skip

CPU = torch.device("cpu")


class BrokenError(AssertionError):
    """A promise that an algorithm does not keep."""


def hold(promise: object, text: str) -> None:
    if not promise:
        raise BrokenError(text)


def draw(space: Space, slots: int, g: torch.Generator, mask: bool = False) -> Any:
    """A random element per slot."""
    match space:
        case Box() if space.dtype == torch.uint8:
            return torch.randint(0, 256, (slots, *space.shape), generator=g, dtype=torch.uint8)
        case Box():
            return torch.randn(slots, *space.shape, generator=g).to(space.dtype)
        case Discrete():
            return torch.randint(0, space.n, (slots,), generator=g)
        case MultiDiscrete():
            return torch.stack([torch.randint(0, n, (slots,), generator=g) for n in space.nvec], -1)
        case MultiBinary():
            bits = torch.randint(0, 2, (slots, space.n), generator=g)
            bits[:, 0] = 1  # as a mask, it leaves something legal
            return bits.bool() if mask else bits
        case Composite():
            return {k: draw(s, slots, g, mask or k == "action_mask") for k, s in space.items.items()}


class RandomWorld(Env):
    """Says when an action does not fit its space, or is illegal."""

    promise = "state"

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec

    def reset(self, seed: int) -> Step:
        self.g = torch.Generator().manual_seed(seed % 2**31)
        slots = self.spec.slots
        off = torch.zeros(slots, dtype=torch.bool)
        self.now = Step(self.show(), torch.zeros(slots), off, off, ~off)
        return self.now

    def show(self) -> Any:
        """What the slots see; what is central is the same for all agents of a copy."""
        spec = self.spec
        obs = draw(spec.obs, spec.slots, self.g)
        if central(spec.obs) is not None:
            copies = torch.arange(spec.slots) % spec.copies
            obs[CENTRAL] = ops.map_tree(lambda x: x[copies], obs[CENTRAL])
        return obs

    def endings(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Which slots' episodes are terminated and truncated, and which go on: agents die one by one, time is up for
        all of a copy, and the dead wait for the last."""
        agents, alive = len(self.spec.agents), self.now.valid
        ends = torch.rand(self.spec.slots, generator=self.g)
        late = ends > 0.9
        if agents > 1:
            late = late[: self.spec.copies].repeat(agents)
        waits = alive.view(agents, -1).any(0).repeat(agents) & ~alive  # for the end of others
        terminated, truncated = (ends < 0.1) & alive, late & alive
        return terminated, truncated, ~(terminated | truncated | waits)

    def step(self, action: Any) -> Step:
        action = ops.to_device(action, CPU)
        self.check(self.spec.action, action)
        self.check_legal(action)
        terminated, truncated, valid = self.endings()
        reward = torch.randn(self.spec.slots, generator=self.g) * self.now.valid
        self.now = Step(self.show(), reward, terminated, truncated, valid)
        return self.now

    def check(self, space: Space, action: Any) -> None:
        """Refuses an action [B, ...] that is no element of the space in every slot."""
        shape: tuple[int, ...] = ()
        match space:
            case Composite():
                hold(list(action) == list(space.items), f"an action has {list(action)} instead of {list(space.items)}")
                for name, part in space.items.items():
                    self.check(part, action[name])
                return
            case Discrete():
                fits = (action >= 0) & (action < space.n) & (not action.is_floating_point())
            case MultiDiscrete():
                shape, fits = (len(space.nvec),), (action >= 0) & (action < torch.tensor(space.nvec))
            case MultiBinary():
                shape, fits = (space.n,), (action == 0) | (action == 1)
            case Box():
                shape, fits = tuple(space.shape), action.isfinite() & (action.dtype == torch.float32)
        hold(tuple(action.shape) == (self.spec.slots, *shape), f"an action of shape {list(action.shape)} for {space}")
        hold(fits.all(), f"an action outside of {space}")

    def check_legal(self, action: Any) -> None:
        match self.now.obs, self.spec.action:
            case {"action_mask": mask}, Discrete():
                hold(mask.gather(-1, action[:, None]).all(), "an action that the mask forbids was taken")
            case {"action_mask": masks}, Composite():
                legal = [mask.gather(-1, action[name][:, None]).all() for name, mask in masks.items()]
                hold(all(legal), "an action that a mask forbids was taken")

    def episodes(self) -> list[Episode]:
        return []

    def render(self) -> None:
        return None

    def close(self) -> None: ...

    def state(self) -> State:
        return State({"generator": self.g.get_state(), **ops.flatten_names({"now": self.now})})

    def restore(self, state: State) -> None:
        self.g = torch.Generator()
        self.g.set_state(state.tensors["generator"])
        self.now = Step(**ops.nest(state.tensors)["now"])


def all_legal(obs: Any) -> Any:
    """The observation where every action is legal."""
    match obs:
        case Mapping() if "action_mask" in obs:
            return {**obs, "action_mask": ops.map_tree(torch.ones_like, obs["action_mask"])}
    return obs
