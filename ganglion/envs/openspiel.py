"""Games of OpenSpiel by their name: openspiel:kuhn_poker, openspiel:tiny_hanabi. No torch: workers can step them.

Players take turns, or all act at once, as the game has it; chance is drawn from the seed of the episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from ganglion.config import register
from ganglion.envs.agent_games import AgentGamesConfig, Game, GameStep
from ganglion.envs.gym_arrays import MASK, Array
from ganglion.errors import UserError, nearest

Sight = Literal["information", "observation"]
TENSORS = {"information": "provides_information_state_tensor", "observation": "provides_observation_tensor"}


class SpielGame:
    """One copy of a game: what players see is a tensor, and a mask of their legal actions."""

    def __init__(self, game: Any, sight: Sight, spiel: Any) -> None:
        self.game, self.sight = game, sight
        self.turns = game.get_type().dynamics != spiel.GameType.Dynamics.SIMULTANEOUS
        self.names = tuple(f"player_{i}" for i in range(game.num_players()))
        shape = game.information_state_tensor_shape() if sight == "information" else game.observation_tensor_shape()
        seen = spaces.Box(-np.inf, np.inf, tuple(shape), np.float32)
        self.choices = game.num_distinct_actions()
        mask = spaces.Box(0, 1, (self.choices,), np.int8)
        self.space = spaces.Dict({"observation": seen, MASK: mask}), spaces.Discrete(self.choices)

    def spaces(self, agent: str) -> tuple[Any, Any]:
        return self.space

    def central(self) -> Any:
        return None

    def close(self) -> None:
        pass

    def reset(self, seed: int) -> GameStep:
        self.dice, self.state = np.random.default_rng(seed), self.game.new_initial_state()
        self.returns = np.zeros(len(self.names))
        return self.moment()

    def step(self, actions: Mapping[str, Any]) -> GameStep:
        if self.state.is_simultaneous_node():
            self.state.apply_actions([int(actions[name]) for name in self.names])
        else:
            self.state.apply_action(int(actions[self.names[self.state.current_player()]]))
        return self.moment()

    def moment(self) -> GameStep:
        """What has come of it, once chance has spoken."""
        state = self.state
        while state.is_chance_node():
            outcomes, chances = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(int(self.dice.choice(outcomes, p=np.asarray(chances) / sum(chances))))
        over, returns = state.is_terminal(), np.asarray(state.returns())
        reward = dict(zip(self.names, (returns - self.returns).tolist(), strict=True))
        self.returns = returns
        acts = frozenset() if over else frozenset(self.names) if state.is_simultaneous_node() else self.mover()
        obs = {name: self.seen(i, name in acts) for i, name in enumerate(self.names)}
        return GameStep(obs, reward, dict.fromkeys(self.names, over), {}, acts)

    def mover(self) -> frozenset[str]:
        return frozenset({self.names[self.state.current_player()]})

    def seen(self, player: int, acts: bool) -> dict[str, Array]:
        state = self.state
        said = (
            state.information_state_tensor(player) if self.sight == "information" else state.observation_tensor(player)
        )
        mask = np.zeros(self.choices, np.int8)
        if acts:
            mask[state.legal_actions(player)] = 1
        return {"observation": np.asarray(said, np.float32).reshape(self.space[0]["observation"].shape), MASK: mask}


@register("env", "openspiel")
class OpenSpielConfig(AgentGamesConfig):
    """A game of OpenSpiel by its name; `options` are its parameters."""

    sight: Sight | None = None  # all that a player has seen, or what it sees now; by default the first where there is

    def game(self) -> Game:
        spiel = self.module("pyspiel", "openspiel")
        kinds = {kind.short_name: kind for kind in spiel.registered_games()}
        if self.id not in kinds:
            raise UserError(f"env.id: openspiel has no {self.id!r}.{nearest(self.id, list(kinds))}")
        able = list(kinds[self.id].parameter_specification)
        if wrong := [name for name in self.options if name not in able]:
            known = f"Accepted: {', '.join(able)}." if able else "It has none."
            raise UserError(f"env.options: {self.id} has no {wrong[0]!r}. {known}")
        try:
            made = spiel.load_game(self.id, dict(self.options))
        except (spiel.SpielError, TypeError) as error:
            raise UserError(f"env.options: {self.id} did not take them: {str(error).splitlines()[0]}") from error
        kind = made.get_type()
        if kind.dynamics == spiel.GameType.Dynamics.MEAN_FIELD:
            raise UserError(f"env.id: {self.id} is a mean-field game, which has no players to seat.")
        shown = [sight for sight, name in TENSORS.items() if getattr(kind, name)]
        if not shown or (self.sight is not None and self.sight not in shown):
            has = f"it has {' and '.join(shown)}" if shown else "it shows its players no tensor at all"
            raise UserError(f"env.sight: {self.id} has no {self.sight or 'tensor'}; {has}.")
        return SpielGame(made, self.sight or shown[0], spiel)  # type: ignore[arg-type]
