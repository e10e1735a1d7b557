"""Games of several agents that other packages play, one copy after another: PettingZoo's (mpe2's among them), and
Gymnasium environments that take and give one thing per agent (lbforaging, rware).

A row is a moment of all agents. One that dies early, or is not there, has dead rows until its copy begins anew. In
games of turns (AEC) all others wait: their action is ignored, and rewards come in the row in which they are given.
Where agents differ, observations are flat and padded with zeros, and a mask says which of the actions are each one's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium import spaces
from pydantic import Field

from ganglion.config import Count, EnvConfig, register
from ganglion.core import (
    CENTRAL,
    Action,
    Box,
    Composite,
    Discrete,
    Env,
    EnvSpec,
    Episode,
    MultiBinary,
    Promise,
    Space,
    State,
    Step,
    read_count,
)  # fmt: skip
from ganglion.envs.gym_spaces import from_gym
from ganglion.envs.seeds import episode_seed
from ganglion.errors import EnvError, UserError

Array = np.ndarray[Any, Any]
PACKAGES = ("mpe2", "pettingzoo")  # whose modules a config may name


class GameStep(NamedTuple):
    """What happened to the agents that are there, by name."""

    obs: Mapping[str, Any]
    reward: Mapping[str, float]
    terminated: Mapping[str, bool]
    truncated: Mapping[str, bool]
    acts: frozenset[str] | None = None  # who decides; None: all


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
        self.masked = all(isinstance(seen, spaces.Dict) and "action_mask" in seen.spaces for seen, _ in each)
        self.seen = [seen.spaces["observation"] if self.masked else seen for seen, _ in each]
        self.own = [action for _, action in each]
        self.same = all(space == self.seen[0] for space in self.seen) and isinstance(self.seen[0], spaces.Box)
        self.sizes = [spaces.flatdim(space) for space in self.seen]
        state = game.central()
        parts: dict[str, Space] = {"obs": from_gym(self.seen[0]) if self.same else Box((max(self.sizes),))}
        self.discrete = all(isinstance(action, spaces.Discrete) for action in self.own)
        self.action = self.actions()
        if self.discrete and (self.masked or len({int(action.n) for action in self.own}) > 1):
            parts["action_mask"] = MultiBinary(self.action.n)  # type: ignore[union-attr]
        if state is not None:
            parts[CENTRAL] = Box(np.shape(state))
        self.parts = parts
        self.space: Space = Composite(parts) if len(parts) > 1 else parts["obs"]

    def actions(self) -> Space:
        if self.discrete:
            return Discrete(max(int(action.n) for action in self.own))
        if not all(isinstance(action, spaces.Box) and len(action.shape) == 1 for action in self.own):
            raise UserError(f"env.id: actions {self.own[0]} are not supported: agents need Discrete or flat Box ones.")
        widest = max(self.own, key=lambda action: action.shape[0])
        found: Space = from_gym(widest)
        return found

    def watched(self, agent: int, obs: Any) -> tuple[Array, Array | None]:
        """What an agent sees, as an array of the one space, and its mask."""
        mask = np.arange(self.action.n) < self.own[agent].n if "action_mask" in self.parts else None  # type: ignore[union-attr]
        if self.masked:
            obs, given = obs["observation"], np.asarray(obs["action_mask"], bool)
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

    def blank(self) -> dict[str, Array]:
        """What an agent that is not there sees."""
        made = {}
        for name, part in self.parts.items():
            shape = (part.n,) if isinstance(part, MultiBinary) else part.shape  # type: ignore[union-attr]
            dtype = np.bool_ if isinstance(part, MultiBinary) else torch.empty(0, dtype=part.dtype).numpy().dtype  # type: ignore[union-attr]
            made[name] = np.zeros(shape, dtype)
        if "action_mask" in made:
            made["action_mask"][0] = True
        return made


# ------------------------------------------------------------ slots


class Copy:
    """One copy of a game: who lives, and what was done in the running episode."""

    def __init__(self, game: Game) -> None:
        self.game, self.alive, self.taken = game, set[str](), list[dict[str, Any]]()
        self.totals: dict[str, float] = {}
        self.lengths: dict[str, int] = {}


class AgentGames(Env):
    """C copies of a game, stepped one after another."""

    promise: Promise = "replay"

    def __init__(self, make: Callable[[], Game], slots: int, name: str, device: str, limit: int = 0) -> None:
        first = make()
        agents = len(first.names)
        if slots % agents:
            raise UserError(f"env.slots: {slots} are no whole copies of a game of {agents} agents.")
        self.copies = [Copy(first), *(Copy(make()) for _ in range(slots // agents - 1))]
        self.agent_spaces, self.limit, self.device = AgentSpaces(first), limit, torch.device(device)
        self.names, self.seed, self.episode = first.names, 0, [0] * len(self.copies)
        self.spec = EnvSpec(
            self.agent_spaces.space, self.agent_spaces.action, slots, name, first.names, turns=first.turns
        )
        blank = self.agent_spaces.blank()
        self.obs = {key: np.stack([part] * slots) for key, part in blank.items()}
        self.reward = np.zeros(slots, np.float32)
        self.flags = np.zeros((4, slots), np.bool_)  # terminated, truncated, valid, acts
        self.finished: list[Episode] = []

    def reset(self, seed: int) -> Step:
        self.seed, self.finished, self.episode = seed, [], [0] * len(self.copies)
        self.reward[:], self.flags[:2] = 0.0, False
        for c in range(len(self.copies)):
            self.begin(c)
        return self.shown()

    def step(self, action: Action) -> Step:
        chosen = action.cpu().numpy()
        self.reward[:], self.flags[:2] = 0.0, False
        for c, copy in enumerate(self.copies):
            if copy.alive:
                slots = {name: self.slot(c, name) for name in copy.alive}
                self.move(c, {n: self.agent_spaces.chosen(self.names.index(n), chosen[s]) for n, s in slots.items()})
            else:
                self.episode[c] += 1
                self.begin(c)
        return self.shown()

    def slot(self, copy: int, name: str) -> int:
        return self.names.index(name) * len(self.copies) + copy

    def begin(self, c: int) -> None:
        copy = self.copies[c]
        moment = self.called(copy.game.reset, episode_seed(self.seed, c, self.episode[c]))
        copy.alive, copy.taken = set(moment.obs), []
        copy.totals, copy.lengths = dict.fromkeys(self.names, 0.0), dict.fromkeys(self.names, 0)
        for name in self.names:
            self.put(c, name, moment)

    def move(self, c: int, actions: dict[str, Any]) -> None:
        copy = self.copies[c]
        copy.taken.append(actions)
        moment = self.called(copy.game.step, actions)
        late = 0 < self.limit <= len(copy.taken)
        for name in sorted(copy.alive):
            slot = self.slot(c, name)
            over, cut = bool(moment.terminated.get(name)), bool(moment.truncated.get(name)) or late
            self.reward[slot] = reward = float(moment.reward.get(name, 0.0))
            if not np.isfinite(reward):
                raise EnvError(f"env: {self.spec.name} gave {name} the reward {reward}.")
            self.flags[:2, slot] = over, cut
            copy.totals[name] += reward
            copy.lengths[name] += 1
            if over or cut:
                copy.alive.discard(name)
        for name in self.names:
            self.put(c, name, moment)
        if not copy.alive:
            slots = [self.slot(c, name) for name in self.names]
            scores = zip(slots, copy.totals.values(), copy.lengths.values(), strict=True)
            self.finished += [Episode(slot, total, length, {}) for slot, total, length in scores]

    def put(self, c: int, name: str, moment: GameStep) -> None:
        """What an agent sees now; the dead keep what they saw last."""
        slot, game = self.slot(c, name), self.copies[c].game
        alive = name in self.copies[c].alive
        self.flags[2:, slot] = alive, alive and (moment.acts is None or name in moment.acts)
        if name in moment.obs:
            self.obs["obs"][slot], mask = self.agent_spaces.watched(self.names.index(name), moment.obs[name])
            if mask is not None:
                self.obs["action_mask"][slot] = mask
        elif not self.copies[c].taken:
            for key, part in self.agent_spaces.blank().items():
                self.obs[key][slot] = part
        if CENTRAL in self.obs:
            self.obs[CENTRAL][slot] = game.central()

    def called(self, call: Callable[[Any], GameStep], given: Any) -> GameStep:
        try:
            return call(given)
        except Exception as error:
            raise EnvError(f"env: {self.spec.name} raised {type(error).__name__}: {str(error)[:200]}") from error

    def shown(self) -> Step:
        obs = {key: torch.from_numpy(part.copy()).to(self.device) for key, part in self.obs.items()}
        over, cut, valid, acts = (torch.from_numpy(x.copy()).to(self.device) for x in self.flags)
        reward = torch.from_numpy(self.reward.copy()).to(self.device)
        seen = obs if len(obs) > 1 else obs["obs"]
        return Step(seen, reward, over, cut, valid, acts if self.spec.turns else ())

    def episodes(self) -> list[Episode]:
        finished, self.finished = self.finished, []
        return finished

    def close(self) -> None:
        for copy in self.copies:
            copy.game.close()

    # ------------------------------------------------------------ resuming: the same episodes, played again

    def state(self) -> State:
        tensors = {f"actions/{c}": self.packed(copy.taken) for c, copy in enumerate(self.copies)}
        where = {"seed": self.seed, "episodes": list(self.episode), "finished": [list(e) for e in self.finished]}
        return State(tensors, where)

    def packed(self, taken: list[dict[str, Any]]) -> torch.Tensor:
        """Actions of an episode [steps, agents, ...]; zeros of those who took none."""
        none = self.agent_spaces.action
        zero = np.zeros(() if isinstance(none, Discrete) else none.shape)  # type: ignore[union-attr]
        rows = [[self.widened(row[name]) if name in row else zero for name in self.names] for row in taken]
        return torch.tensor(np.array(rows, np.float64).reshape(len(taken), len(self.names), *zero.shape))

    def widened(self, action: Any) -> Array:
        wide = np.zeros(() if self.agent_spaces.discrete else self.agent_spaces.action.shape)  # type: ignore[union-attr]
        if self.agent_spaces.discrete:
            return np.asarray(float(action))
        wide[: len(action)] = action
        return wide

    def restore(self, state: State) -> None:
        self.seed = int(state.scalars["seed"])
        self.episode = [read_count(n) for n in state.scalars["episodes"]]
        if len(self.episode) != len(self.copies):
            raise UserError(f"env.slots: the saved run has {len(self.episode)} copies, this one {len(self.copies)}.")
        for c, copy in enumerate(self.copies):
            self.begin(c)
            for row in state.tensors[f"actions/{c}"].numpy():
                self.move(c, {n: self.again(self.names.index(n), row) for n in copy.alive})
        self.finished = [Episode.read(e) for e in state.scalars["finished"]]

    def again(self, agent: int, row: Array) -> Any:
        own = self.agent_spaces.own[agent]
        return int(row[agent]) if self.agent_spaces.discrete else row[agent][: own.shape[0]].astype(own.dtype)


# ------------------------------------------------------------ configs


class AgentGamesConfig(EnvConfig):
    """A game of several agents by its id."""

    id: str = Field(min_length=1, max_length=200)
    options: Mapping[str, Any] = Field(default_factory=dict)  # given to its constructor
    time_limit: Count | None = Field(None, ge=1)  # steps until all are truncated; by default the game's own

    def game(self) -> Game:
        raise NotImplementedError(f"{type(self).__name__} makes no game")

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> AgentGames:
        return AgentGames(self.game, slots or self.slots, self.id, device, self.time_limit or 0)

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
