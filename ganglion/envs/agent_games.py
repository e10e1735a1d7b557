"""Games of several agents that other packages play: PettingZoo's (mpe2's among them), and Gymnasium environments that
take and give one thing per agent (lbforaging, rware). No torch, so that worker processes can step them.

A copy of a game is a Gymnasium environment of all its agents (`GameEnv`); `agent_slots.py` makes slots of them.
Where agents differ, observations are flat and padded with zeros, and a mask says which of the actions are each one's.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from pydantic import Field

from ganglion.config import Count, register
from ganglion.envs.configs import PooledConfig
from ganglion.envs.gym_arrays import MASK, Array
from ganglion.errors import UserError

if TYPE_CHECKING:
    from ganglion.core import Env

PACKAGES = ("mpe2", "pettingzoo")  # whose modules a config may name


class GameStep(NamedTuple):
    """What happened to the agents that are there, by name."""

    obs: Mapping[str, Any]
    reward: Mapping[str, float]
    terminated: Mapping[str, bool]
    truncated: Mapping[str, bool]
    acts: frozenset[str] | None = None  # who decides; None: all
    info: Mapping[str, float] = {}  # of the copy, averaged over the steps that have it


class Game(Protocol):
    """One copy of a game."""

    names: tuple[str, ...]
    turns: bool

    def spaces(self, agent: str) -> tuple[Any, Any]:
        """Of observations and actions."""
        ...

    def reset(self, seed: int) -> GameStep: ...

    def step(self, actions: Mapping[str, Any]) -> GameStep: ...

    def central(self) -> Any:
        """The state of the game; None where it has none."""
        ...

    def close(self) -> None: ...


class Named:
    """What PettingZoo's two interfaces share."""

    turns = False

    def __init__(self, env: Any) -> None:
        self.env, self.names = env, tuple(env.possible_agents)
        try:
            self.stated = env.state() is not None if hasattr(env, "state_space") else False
        except (NotImplementedError, AttributeError):
            self.stated = False

    def spaces(self, agent: str) -> tuple[Any, Any]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def central(self) -> Any:
        return self.env.state() if self.stated else None

    def close(self) -> None:
        self.env.close()


class ParallelGame(Named):
    """PettingZoo's parallel interface."""

    def __init__(self, env: Any) -> None:
        env.reset(seed=0)
        super().__init__(env)

    def reset(self, seed: int) -> GameStep:
        obs, _ = self.env.reset(seed=seed)
        return GameStep(obs, {}, {}, {})

    def step(self, actions: Mapping[str, Any]) -> GameStep:
        return GameStep(*self.env.step(dict(actions))[:4])


class TurnGame(Named):
    """PettingZoo's AEC interface: one decides, all others wait."""

    turns = True

    def __init__(self, env: Any) -> None:
        env.reset(seed=0)
        super().__init__(env)
        self.stated = False

    def reset(self, seed: int) -> GameStep:
        self.env.reset(seed=seed)
        return self.moment({})

    def step(self, actions: Mapping[str, Any]) -> GameStep:
        env, there = self.env, list(self.env.agents)
        env.step(actions[env.agent_selection])
        said = {name: (env.rewards[name], env.terminations[name], env.truncations[name]) for name in there}
        self.last = {name: env.observe(name) for name in there}
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # how the dead leave
        return self.moment(said)

    def moment(self, said: Mapping[str, tuple[float, bool, bool]]) -> GameStep:
        reward = {name: row[0] for name, row in said.items()}
        over, cut = ({name: bool(row[i]) for name, row in said.items()} for i in (1, 2))
        obs = {name: self.env.observe(name) for name in self.env.agents}
        acts = frozenset({self.env.agent_selection} if self.env.agents else ())
        return GameStep({**(self.last if said else {}), **obs}, reward, over, cut, acts)


class TupleGame:
    """A Gymnasium environment whose spaces, observations, actions and rewards are tuples, one part per agent."""

    turns = False

    def __init__(self, env: Any, limit: int) -> None:
        self.env, self.limit, self.length = env, limit, 0
        self.names = tuple(f"player_{i}" for i in range(len(env.action_space.spaces)))

    def spaces(self, agent: str) -> tuple[Any, Any]:
        i = self.names.index(agent)
        return self.env.observation_space.spaces[i], self.env.action_space.spaces[i]

    def central(self) -> Any:
        return None

    def close(self) -> None:
        self.env.close()

    def reset(self, seed: int) -> GameStep:
        self.length = 0
        for player in getattr(self.env, "players", ()):
            player.position = None  # lbforaging keeps new players off where those of the last episode stood
        return GameStep(self.each(self.env.reset(seed=seed)[0]), {}, {}, {})

    def step(self, actions: Mapping[str, Any]) -> GameStep:
        self.length += 1
        obs, reward, over, cut, _ = self.env.step([actions[name] for name in self.names])
        late = self.length >= self.limit  # which these packages call terminated
        over, cut = bool(over) and not late, bool(cut) or late
        flags = dict.fromkeys(self.names, over), dict.fromkeys(self.names, cut)
        return GameStep(self.each(obs), self.each(reward), *flags)

    def each(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.names, values, strict=True))


# ------------------------------------------------------------ spaces


class AgentSpaces:
    """The observations and actions of agents that may differ, as those of one space."""

    def __init__(self, game: Game) -> None:
        each = [game.spaces(name) for name in game.names]
        self.masked = all(isinstance(seen, spaces.Dict) and MASK in seen.spaces for seen, _ in each)
        self.seen = [seen.spaces["observation"] if self.masked else seen for seen, _ in each]
        self.own = [action for _, action in each]
        self.same = all(space == self.seen[0] for space in self.seen) and isinstance(self.seen[0], spaces.Box)
        self.sizes = [spaces.flatdim(space) for space in self.seen]
        self.obs = self.seen[0] if self.same else spaces.Box(-np.inf, np.inf, (max(self.sizes),), np.float32)
        self.bounds = self.obs.low, self.obs.high
        self.discrete = all(isinstance(action, spaces.Discrete) for action in self.own)
        self.action = self.actions()
        self.choices = int(self.action.n) if self.discrete else 0  # type: ignore[attr-defined]
        differ = self.discrete and any(action.n < self.choices for action in self.own)
        self.mask = self.choices if self.discrete and (self.masked or differ) else 0
        state = game.central()
        self.central = None if state is None else spaces.Box(-np.inf, np.inf, np.shape(state), np.float32)

    def actions(self) -> spaces.Space[Any]:
        if self.discrete:
            return spaces.Discrete(max(int(action.n) for action in self.own))
        if not all(isinstance(action, spaces.Box) and len(action.shape) == 1 for action in self.own):
            raise UserError(f"env.id: actions {self.own[0]} are not supported: agents need Discrete or flat Box ones.")
        return max(self.own, key=lambda action: action.shape[0])

    def watched(self, agent: int, obs: Any) -> tuple[Array, Array | None]:
        """What an agent sees, as an array of the one space, and its mask."""
        mask = np.arange(self.mask) < self.own[agent].n if self.mask else None
        if self.masked:
            obs, given = obs["observation"], np.asarray(obs[MASK], bool)
            assert mask is not None
            mask[: len(given)] &= given
            if not mask.any():
                mask[0] = True  # of those who wait
        if self.same:
            return np.asarray(obs), mask
        flat = np.zeros(max(self.sizes), np.float32)
        flat[: self.sizes[agent]] = np.asarray(spaces.flatten(self.seen[agent], obs))
        return flat, mask

    def chosen(self, agent: int, action: Any) -> Any:
        """An action of the one space as the agent's own."""
        own = self.own[agent]
        if self.discrete:
            return min(int(action), int(own.n) - 1) + int(own.start)
        return np.asarray(action, own.dtype)[: own.shape[0]]


# ------------------------------------------------------------ a copy of a game

STATE = "state"  # what a GameEnv calls the central state
OVER, CUT, ALIVE, ACTS = range(4)  # rows of the flags: terminated, truncated, not dead, who decides next


class Called(NamedTuple):
    """What a failure is told of."""

    id: str


class GameEnv(gymnasium.Env[Any, Any]):
    """One copy of a game: observations, masks, rewards and flags of all its agents, side by side."""

    def __init__(self, game: Game, name: str) -> None:
        self.game, self.names, self.spec = game, game.names, Called(name)  # type: ignore[assignment]
        self.agent_spaces = own = AgentSpaces(game)
        count = len(self.names)
        self.shown: dict[str, Array] = {"obs": np.zeros((count, *own.obs.shape), own.obs.dtype)}
        if own.mask:
            self.shown[MASK] = np.zeros((count, own.mask), np.int8)
        if own.central is not None:
            self.shown[STATE] = np.zeros(own.central.shape, np.float32)
        self.shown |= {"reward": np.zeros(count, np.float32), "flags": np.zeros((4, count), np.uint8)}
        self.observation_space = spaces.Dict({key: self.joint(key, part) for key, part in self.shown.items()})
        if own.discrete:
            self.action_space = spaces.MultiDiscrete([own.choices] * count)
        else:
            low, high = (np.stack([bound] * count) for bound in (own.action.low, own.action.high))  # type: ignore[attr-defined]
            self.action_space = spaces.Box(low, high, dtype=np.float32)

    def joint(self, key: str, part: Array) -> spaces.Space[Any]:
        if key == MASK:
            return spaces.MultiBinary(part.shape)
        if key == "obs":
            low, high = (np.stack([bound] * len(part)) for bound in self.agent_spaces.bounds)
            return spaces.Box(low, high, dtype=part.dtype.type)
        least, most = (0.0, 1.0) if key == "flags" else (-np.inf, np.inf)
        return spaces.Box(least, most, part.shape, part.dtype.type)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        moment = self.game.reset(0 if seed is None else seed)
        for part in self.shown.values():
            part[...] = 0
        if MASK in self.shown:
            self.shown[MASK][:, 0] = 1  # of those that are not there
        self.shown["flags"][ALIVE] = [name in moment.obs for name in self.names]
        self.show(moment)
        return self.copied(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        flags, reward = self.shown["flags"], self.shown["reward"]
        there = [i for i in range(len(self.names)) if flags[ALIVE, i]]
        moment = self.game.step({self.names[i]: self.agent_spaces.chosen(i, action[i]) for i in there})
        reward[:], flags[:2] = 0.0, 0
        for i in there:
            name = self.names[i]
            reward[i] = worth = float(moment.reward.get(name, 0.0))
            if not np.isfinite(worth):
                raise ValueError(f"{name} got the reward {worth}")
            flags[OVER, i], flags[CUT, i] = bool(moment.terminated.get(name)), bool(moment.truncated.get(name))
        flags[ALIVE] &= ~(flags[OVER] | flags[CUT]) & 1
        self.show(moment)
        ended = not flags[ALIVE].any()
        return self.copied(), float(reward.sum()), ended and bool(flags[OVER].any()), ended, dict(moment.info)

    def show(self, moment: GameStep) -> None:
        """What each agent sees now; the dead keep what they saw last."""
        flags = self.shown["flags"]
        acts = [moment.acts is None or name in moment.acts for name in self.names]
        flags[ACTS] = flags[ALIVE] & np.asarray(acts, np.uint8)
        for i, name in enumerate(self.names):
            if name in moment.obs:
                self.shown["obs"][i], mask = self.agent_spaces.watched(i, moment.obs[name])
                if mask is not None:
                    self.shown[MASK][i] = mask
        if STATE in self.shown:
            self.shown[STATE][...] = self.game.central()

    def copied(self) -> dict[str, Array]:
        return {key: part.copy() for key, part in self.shown.items()}

    def close(self) -> None:
        self.game.close()


def game_slot(slot: int, config: str, settings: Mapping[str, Any]) -> GameEnv:
    """A copy of a game in a worker, from the class of its config and its settings."""
    from ganglion.envs.gym_make import by_name

    made = by_name(config).model_validate(settings)
    return GameEnv(made.game(), made.named)


# ------------------------------------------------------------ configs


class AgentGamesConfig(PooledConfig):
    """A game of several agents by its id."""

    id: str = Field(min_length=1, max_length=200)
    options: Mapping[str, Any] = Field(default_factory=dict)  # given to its constructor
    time_limit: Count | None = Field(None, ge=1)  # steps until all are truncated; by default the game's own

    def game(self) -> Game:
        raise NotImplementedError(f"{type(self).__name__} makes no game")

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Env:
        from ganglion.envs.agent_slots import AgentGames

        limit, pool = self.time_limit or 0, None if render or not self.pooled else self.pool
        return AgentGames(self.game, slots or self.slots, self.named, device, limit, self.max_failures, pool)

    @property
    def named(self) -> str:
        return f"{self.kind}:{self.id}"

    def pool(self, copies: int) -> Any:
        """That many copies in worker processes."""
        from ganglion.envs.gym_make import address, plain
        from ganglion.envs.pool import Pool

        settings = plain("env", self.model_dump(mode="json", exclude={"wrap"}))
        made = {"config": address(type(self), self.kind), "settings": settings}
        return Pool(
            "ganglion.envs.agent_games:game_slot",
            made,
            copies,
            self.pooled,
            masks=False,
            limit=self.time_limit or 0,
            timeout=self.timeout,
            max_memory=self.max_memory,
        )

    def for_workers(self) -> bool:
        from ganglion.envs.gym_make import address

        try:
            address(type(self), self.kind)
        except UserError:
            return False
        return True

    def one(self, slot: int) -> gymnasium.Env[Any, Any]:
        return GameEnv(self.game(), self.named)

    def copies(self) -> int:
        game = self.game()
        try:
            return max(1, self.slots // len(game.names))
        finally:
            game.close()

    def module(self, name: str, extra: str) -> Any:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and error.name != name.split(".")[0]:
                raise UserError(f"env.id: there is no {name!r} (it needs {error.name!r}).") from error
            raise UserError(f'env.kind: {self.kind} needs a package. Try pip install "ganglion[{extra}]"') from error


@register("env", "pettingzoo")
class PettingZooConfig(AgentGamesConfig):
    """A game of PettingZoo or mpe2 by its module: mpe2.simple_spread_v3, pettingzoo.classic.connect_four_v3."""

    turns: bool | None = None  # by the AEC interface; by default where there is no parallel one

    def game(self) -> Game:
        if self.id.split(".")[0] not in PACKAGES:
            raise UserError(f"env.id: {self.id!r} should begin with {' or '.join(PACKAGES)}: mpe2.simple_spread_v3.")
        made = self.module(self.id, "pettingzoo")
        parallel = hasattr(made, "parallel_env")
        if not parallel and not hasattr(made, "env"):
            raise UserError(f"env.id: the module {self.id} makes no environment. Example: mpe2.simple_spread_v3.")
        if self.turns is False and not parallel:
            raise UserError(f"env.turns: {self.id} has no parallel interface; leave it out.")
        try:
            turns = not parallel if self.turns is None else self.turns
            return TurnGame(made.env(**self.options)) if turns else ParallelGame(made.parallel_env(**self.options))
        except TypeError as error:
            raise UserError(f"env.options: {self.id} did not take them: {error}") from error


class TupleConfig(AgentGamesConfig):
    """A game of a package that registers it with Gymnasium."""

    package: ClassVar[str] = ""
    limits: ClassVar[tuple[str, ...]] = ()  # the attributes that say when its episodes end

    def game(self) -> Game:
        import gymnasium

        self.module(self.package, self.package)
        if self.id not in gymnasium.registry:
            ours = [
                name for name in gymnasium.registry if str(gymnasium.spec(name).entry_point).startswith(self.package)
            ]
            from ganglion.errors import nearest

            raise UserError(f"env.id: {self.package} has no {self.id!r}.{nearest(self.id, ours)}")
        env: Any = gymnasium.make(self.id, disable_env_checker=True, **self.options).unwrapped
        return TupleGame(env, next((getattr(env, name) for name in self.limits if getattr(env, name, None)), 1 << 62))


@register("env", "lbforaging")
class LbForagingConfig(TupleConfig):
    """Level-based foraging by its id: Foraging-8x8-2p-2f-coop-v3. As tensors: foraging."""

    package, limits = "lbforaging", ("_max_episode_steps",)


@register("env", "rware")
class RwareConfig(TupleConfig):
    """Robots in a warehouse by its id: rware-tiny-2ag-v2."""

    package, limits = "rware", ("max_steps",)
