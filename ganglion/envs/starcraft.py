"""StarCraft II micromanagement (SMAC, Samvelyan et al. 2019): `env.kind: starcraft`, its map as `env.id`.

Written against the documented interface of SMAC's StarCraft2Env (`get_env_info`, `get_obs`, `get_state`,
`get_avail_actions`, `step`), which SMACv2 shares. The game is not part of any package. No torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ganglion.config import register
from ganglion.envs.agent_games import AgentGamesConfig, Game, GameStep
from ganglion.envs.gym_arrays import MASK
from ganglion.errors import UserError


class SmacGame:
    """One battle: a team of agents with one reward; the dead stay, with nothing legal but to do nothing."""

    turns = False

    def __init__(self, env: Any) -> None:
        self.env, self.about = env, dict(env.get_env_info())
        self.names = tuple(f"unit_{i}" for i in range(int(self.about["n_agents"])))
        self.state = np.zeros(int(self.about["state_shape"]), np.float32)

    def spaces(self, agent: str) -> tuple[Any, Any]:
        seen = spaces.Box(-np.inf, np.inf, (int(self.about["obs_shape"]),), np.float32)
        choices = int(self.about["n_actions"])
        return spaces.Dict({"observation": seen, MASK: spaces.MultiBinary(choices)}), spaces.Discrete(choices)

    def central(self) -> Any:
        return self.state

    def reset(self, seed: int) -> GameStep:
        """The game takes its seed when it is made, and never again."""
        self.env.reset()
        return GameStep(self.shown(), {}, {}, {})

    def step(self, actions: Mapping[str, Any]) -> GameStep:
        reward, ended, info = self.env.step([int(actions[name]) for name in self.names])
        late = bool(info.get("episode_limit", False))
        over, cut = dict.fromkeys(self.names, bool(ended) and not late), dict.fromkeys(self.names, bool(ended) and late)
        share = float(reward) / len(self.names)  # the sum over the team is the game's own
        won = {"won": float(bool(info.get("battle_won", False)))} if ended else {}
        return GameStep(self.shown(), dict.fromkeys(self.names, share), over, cut, info=won)

    def shown(self) -> dict[str, Any]:
        self.state = np.asarray(self.env.get_state(), np.float32)
        rows = zip(self.names, self.env.get_obs(), self.env.get_avail_actions(), strict=True)
        return {
            name: {"observation": np.asarray(obs, np.float32), MASK: np.asarray(legal)} for name, obs, legal in rows
        }

    def close(self) -> None:
        self.env.close()


@register("env", "starcraft")
class StarCraftConfig(AgentGamesConfig):
    """A map of SMAC's by its name: 3m, 8m, 2s3z."""

    def game(self) -> Game:
        try:
            made = importlib.import_module("smac.env").StarCraft2Env
        except (ImportError, AttributeError) as error:
            raise UserError(
                "env.kind: starcraft needs SMAC (pip install git+https://github.com/oxwhirl/smac.git; the package smac "
                "of the index is another) and StarCraft II itself."
            ) from error
        return SmacGame(made(map_name=self.id, **self.options))
