"""Environments made of tensors: all slots in one batch, on any device, without a sync in `step`.

A world is one float64 tensor [B, n]; its rules are three functions of it. Random numbers are a stateless hash of
(seed, slot, episode, step), so nothing but counters has to be saved, and slots never disturb each other. All state
changes in place: a captured graph may replay `step`.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor

from ganglion.core import Action, Env, EnvSpec, Episode, Json, Obs, Promise, Space, State, Step
from ganglion.envs import seeds
from ganglion.errors import UserError

RECENT = 256  # finished episodes a slot remembers on its device


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


class Hash(NamedTuple):
    """splitmix64 on int64 tensors. Its constants are tensors: written into a kernel, some compilers refuse them."""

    golden: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def on(cls, device: torch.device) -> Hash:
        constants = (seeds.GOLDEN, seeds.FIRST, seeds.SECOND)
        return cls(*(torch.tensor(_signed(x), device=device) for x in constants))

    def mix(self, x: Tensor) -> Tensor:
        """One round, bit for bit `seeds.mix`; multiplication wraps, shifts are made unsigned."""
        x = x + self.golden
        x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * self.first
        x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * self.second
        return x ^ ((x >> 31) & ((1 << 33) - 1))

    def uniforms(self, key: Tensor, count: int) -> Tensor:
        """Numbers in [0, 1) from int64 keys: [...] -> [..., count] float64."""
        stream = torch.arange(1, count + 1, device=key.device) * self.golden
        bits = (self.mix(key.unsqueeze(-1) + stream) >> 11) & ((1 << 53) - 1)
        return bits.to(torch.float64) * 2.0**-53


class World(NamedTuple):
    """All that changes in a world of B slots."""

    root: Tensor  # of each slot's random numbers: seed and slot, mixed
    world: Tensor  # [B, size] float64
    ended: Tensor  # the next step restarts
    episode: Tensor
    length: Tensor
    total: Tensor


class TorchEnv(Env):
    """B slots of one world. A subclass gives its spaces, `first`, `advance` and `observe`.

    Ask for `episodes` at least every RECENT steps: beyond that a step moves them itself, at the price of a sync (in a
    captured graph it cannot, and the oldest are lost).
    """

    promise: Promise = "state"
    size: int  # numbers per slot
    starts: int = 0  # random numbers a start needs
    draws: int = 0  # random numbers a step needs
    limit: int = 0  # steps until truncation; 0: never
    obs_space: Space
    action_space: Space
    agents: tuple[str, ...] = ("agent",)  # of one copy of the game: see TorchGame
    turns: bool = False  # whether they take turns

    def first(self, dice: Tensor) -> Tensor:
        """The world at the start of an episode: [B, starts] -> [B, size]."""
        raise NotImplementedError

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step: the world after it, the reward and whether it ended the episode."""
        raise NotImplementedError

    def observe(self, world: Tensor) -> Obs:
        """What a slot sees."""
        raise NotImplementedError

    def acts(self, world: Tensor) -> Tensor | tuple[()]:
        """Which slots decide, in a game of turns; (): all."""
        return ()

    # ------------------------------------------------------------ the contract

    def __init__(self, slots: int, name: str, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.hash = Hash.on(self.device)
        self.spec = EnvSpec(self.obs_space, self.action_space, slots, name, self.agents, turns=self.turns)
        if slots % len(self.agents):
            raise UserError(f"env.slots: {slots} are no whole copies of a game of {len(self.agents)} agents.")

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.root = zeros(slots)
        self.world = zeros(slots, self.size, dtype=torch.float64)
        self.ended = zeros(slots, dtype=torch.bool)
        self.episode = zeros(slots)
        self.length = zeros(slots)
        self.total = zeros(slots, dtype=torch.float64)
        self.count = zeros(slots)  # finished episodes, of which the last RECENT are kept
        self.recent = zeros(3, RECENT, slots, dtype=torch.float64)  # their totals, lengths and times
        self.clock = zeros()
        self._drained = torch.zeros(slots, dtype=torch.int64)
        self._waiting: list[Episode] = []
        self._calls = 0  # since the last look at finished episodes

    def reset(self, seed: int) -> Step:
        slots = torch.arange(self.spec.slots, device=self.device) % self.spec.copies  # agents of a copy share its dice
        self.root.copy_(self.hash.mix(slots ^ _signed(seeds.mix(seed & seeds.MASK))))
        for tensor in (self.ended, self.episode, self.length, self.total, self.count):
            tensor.zero_()
        self._drained, self._waiting, self._calls = torch.zeros_like(self._drained), [], 0
        self.world.copy_(self.first(self.hash.uniforms(self._key(self.root, self.episode), self.starts)))
        no = torch.zeros_like(self.ended)
        nothing = torch.zeros_like(self.total, dtype=torch.float32)
        return Step(self.observe(self.world), nothing, no, no.clone(), ~no, self.acts(self.world))

    def step(self, action: Action) -> Step:
        # on a CPU looking is cheaper than a start thrown away
        starting = self.device.type != "cpu" or bool(self.ended.any())
        after, step = self.turn(self.now(), action, starting)
        self._remember(after.ended, after.total, after.length)
        self.keep(after)
        return step

    # ------------------------------------------------------------ as pure functions

    @property
    def pure(self) -> Self:
        return self

    def now(self) -> World:
        """The world as it is: its own tensors."""
        return World(*(getattr(self, name) for name in World._fields))

    def keep(self, world: World) -> None:
        """Goes on from there."""
        for name, tensor in world._asdict().items():
            getattr(self, name).copy_(tensor)

    def turn(self, now: World, action: Action, starting: bool = True) -> tuple[World, Step]:
        """One step as a pure function; `starting` false: where no slot restarts."""
        restart = now.ended
        world, reward, terminated = self.advance(now.world, action, self._dice(now))
        reward = reward.to(torch.float64).masked_fill(restart, 0.0)
        terminated = terminated & ~restart
        length = (now.length + 1).masked_fill(restart, 0)
        truncated = (length == self.limit) & ~restart if self.limit else torch.zeros_like(terminated)
        ended, episode = terminated | truncated, now.episode
        if starting:
            episode = episode + restart
            first = self.first(self.hash.uniforms(self._key(now.root, episode), self.starts))
            world = torch.where(restart.unsqueeze(-1), first, world)
        total = now.total.masked_fill(restart, 0.0) + reward
        step = Step(self.observe(world), reward.to(torch.float32), terminated, truncated, ~ended, self.acts(world))
        return World(now.root, world, ended, episode, length, total), step

    def score(self, world: World) -> tuple[Tensor, Tensor, Tensor]:
        return world.ended, world.total, world.length

    def _dice(self, now: World) -> Tensor:
        if not self.draws:
            return now.world[:, :0]
        return self.hash.uniforms(self._key(now.root, now.episode) + (now.length + 1) * self.hash.second, self.draws)

    def _key(self, root: Tensor, episode: Tensor) -> Tensor:
        return self.hash.mix(root ^ episode)

    # ------------------------------------------------------------ finished episodes

    def _remember(self, ended: Tensor, total: Tensor, length: Tensor) -> None:
        self._calls += 1
        if self._calls > RECENT and not self._captured():
            self._collect()  # nobody has asked for a while: an episode takes two calls at least, so none is lost
        self.clock.add_(1)
        if self.device.type == "cpu" and not bool(ended.any()):
            return
        place = (self.count % RECENT).expand(3, 1, -1)
        row = torch.stack((total, length.to(total.dtype), self.clock.expand_as(length).to(total.dtype))).unsqueeze(1)
        self.recent.scatter_(1, place, torch.where(ended, row, self.recent.gather(1, place)))
        self.count.add_(ended)

    def _captured(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _collect(self) -> None:
        """Moves finished episodes from the device to the host, in the order they ended, whoever asks and whenever."""
        self._calls = 0
        count = self.count.to("cpu", copy=True)
        new = (count - self._drained).clamp_max(RECENT)  # [B]
        if not bool(new.any()):
            return
        back = torch.arange(int(new.max()), 0, -1).unsqueeze(-1)
        place = ((count - back) % RECENT).expand(3, -1, -1)  # [3, most, B]
        rows = self.recent.gather(1, place.to(self.device)).cpu()
        which = back <= new
        slots = which.nonzero()[:, 1].tolist()
        found = zip(*rows[:, which].tolist(), slots)  # totals, lengths, times, slots
        waiting = sorted((time, slot, total, int(length)) for total, length, time, slot in found)
        self._waiting += [Episode(slot, total, length, {}) for _, slot, total, length in waiting]
        self._drained = count

    def episodes(self) -> list[Episode]:
        self._collect()
        waiting, self._waiting = self._waiting, []
        return waiting

    def close(self) -> None:
        pass

    # ------------------------------------------------------------ resuming

    def state(self) -> State:
        self._collect()
        waiting: Json = [list(episode) for episode in self._waiting]
        return State(
            {name: tensor.cpu().clone() for name, tensor in self.now()._asdict().items()}, {"finished": waiting}
        )

    def restore(self, state: State) -> None:
        if state.tensors["world"].shape != self.world.shape:
            shapes = tuple(state.tensors["world"].shape), tuple(self.world.shape)
            raise UserError(f"env.slots: the state is of {shapes[0]} (slots, numbers), this environment of {shapes[1]}")
        for name, tensor in self.now()._asdict().items():
            tensor.copy_(state.tensors[name])
        self.count.zero_()
        self._drained, self._calls = torch.zeros_like(self._drained), 0
        self._waiting = [Episode.read(episode) for episode in state.scalars["finished"]]


class TorchGame(TorchEnv):
    """A game of several agents, who share one world. A subclass gives `agents`, its spaces, and three functions of the
    world [C, size] of C copies; rewards and observations are of every agent, [agents, C, ...]. In a game of turns
    (`turns`) `acting` says who decides; those that wait should have one legal action in their mask."""

    def begin(self, dice: Tensor) -> Tensor:
        """The world at the start of an episode: [C, starts] -> [C, size]."""
        raise NotImplementedError

    def deals(self) -> Tensor:
        """Every way in which an episode may start, equally likely, where they can be listed: [deals, size]."""
        raise NotImplementedError(f"{type(self).__name__} cannot list how its episodes start")

    def play(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step, of actions [agents, C, ...]: the world after it, rewards [agents, C], which copies ended [C]."""
        raise NotImplementedError

    def show(self, world: Tensor) -> Obs:
        """What each agent sees, [agents, C, ...]."""
        raise NotImplementedError

    def acting(self, world: Tensor) -> Tensor:
        """Who decides, [agents, C]; only where `turns`."""
        raise NotImplementedError

    # The slots of all agents of a copy hold the same world.

    def first(self, dice: Tensor) -> Tensor:
        return self._all(self.begin(self._one(dice)))

    def advance(self, world: Tensor, action: Tensor, dice: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chosen = action.reshape(len(self.agents), -1, *action.shape[1:])
        after, reward, ended = self.play(self._one(world), chosen, self._one(dice))
        return self._all(after), reward.flatten(), self._all(ended)

    def observe(self, world: Tensor) -> Obs:
        return _merged(self.show(self._one(world)))

    def acts(self, world: Tensor) -> Tensor | tuple[()]:
        return self.acting(self._one(world)).flatten() if self.turns else ()

    def _one(self, x: Tensor) -> Tensor:
        return x[: len(x) // len(self.agents)]

    def _all(self, x: Tensor) -> Tensor:
        return x.repeat(len(self.agents), *(1,) * (x.ndim - 1))


def _merged(obs: Obs) -> Obs:
    """[agents, C, ...] -> [slots, ...]."""
    return {key: _merged(part) for key, part in obs.items()} if isinstance(obs, dict) else obs.flatten(0, 1)
