"""XingTian's environments of several agents, in both ways of stepping, as games of Ganglion.

In XingTian an environment says by `api_type` how it is stepped: "unified", where one call takes the actions of all
agents, or "standalone", where each agent calls `step(action, agent_index)` for itself. Here the first is a game whose
agents act at once, the second one in which they take turns; `update_weights_map`, which says whose weights an agent
gets, is `players`.

    python examples/from_xingtian_agents.py
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

import ganglion
from ganglion.config import EnvConfig, register
from ganglion.envs.agent_games import GameStep
from ganglion.envs.agent_slots import AgentGames
from ganglion.runtime.build import build

ROUNDS = 4


class Pair:
    """As one would write it for XingTian: two agents see a number, and both get 1 where both name it."""

    def __init__(self, api_type: str) -> None:
        self.env_info = {"n_agents": 2, "api_type": api_type}

    def get_env_info(self) -> dict[str, Any]:
        return self.env_info

    def reset(self, seed: int) -> dict[int, Any]:
        self.dice, self.round, self.said = random.Random(seed), 0, dict[int, int]()
        return self.deal()

    def deal(self) -> dict[int, Any]:
        number = self.dice.randrange(3)
        self.number = number
        return {i: np.eye(3, dtype=np.float32)[number] for i in range(2)}

    def step(self, action: Any, agent_index: int = 0) -> tuple[Any, Any, Any, Any]:
        """Of all agents, or of one; then the round ends with the second agent's call."""
        if self.env_info["api_type"] == "unified":
            return self.settle(action)
        self.said[agent_index] = action
        if agent_index == 0:
            return {i: np.eye(3, dtype=np.float32)[self.number] for i in range(2)}, {0: 0.0, 1: 0.0}, False, {}
        return self.settle(self.said)

    def settle(self, said: Mapping[int, int]) -> tuple[Any, Any, Any, Any]:
        self.round += 1
        reward = float(said[0] == said[1] == self.number)
        return self.deal(), {0: reward, 1: reward}, self.round == ROUNDS, {}


class Port:
    """Any such environment as a game: agents are numbers there and names here."""

    def __init__(self, env: Pair) -> None:
        self.env, info = env, env.get_env_info()
        self.names = tuple(f"agent_{i}" for i in range(info["n_agents"]))
        self.turns, self.turn = info["api_type"] == "standalone", 0

    def spaces(self, agent: str) -> tuple[Any, Any]:
        return spaces.Box(0, 1, (3,), np.float32), spaces.Discrete(3)

    def central(self) -> None:
        return None

    def reset(self, seed: int) -> GameStep:
        self.turn = 0
        return GameStep(self.named(self.env.reset(seed)), {}, {}, {}, self.acts())

    def step(self, actions: Mapping[str, Any]) -> GameStep:
        if self.turns:
            obs, reward, over, _ = self.env.step(actions[self.names[self.turn]], self.turn)
            self.turn = (self.turn + 1) % len(self.names)
        else:
            obs, reward, over, _ = self.env.step({i: actions[name] for i, name in enumerate(self.names)})
        ended = dict.fromkeys(self.names, over)
        return GameStep(self.named(obs), self.named(reward), ended, dict.fromkeys(self.names, False), self.acts())

    def acts(self) -> frozenset[str] | None:
        return frozenset({self.names[self.turn]}) if self.turns else None

    def named(self, values: Mapping[int, Any]) -> dict[str, Any]:
        return {name: values[i] for i, name in enumerate(self.names)}

    def close(self) -> None: ...


@register("env", "xingtian-pair")
class PairConfig(EnvConfig):
    """Name the same number, stepped as XingTian does."""

    api_type: Literal["unified", "standalone"] = "unified"

    def build(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> AgentGames:
        return AgentGames(lambda: Port(Pair(self.api_type)), slots or self.slots, "pair", device)


def main(steps: int = 8_000) -> dict[str, float]:
    """What both agents get on average, at most ROUNDS: learning together, and one after the other with two players."""
    players = "players={agent_0: {}, agent_1: {}}"
    rollouts = "horizon: 16, lr: 3e-3, net: {hidden: [32]}"
    runs = {
        "unified": [f"algo={{kind: mappo, {rollouts}, critic: {{hidden: [32]}}}}"],
        "standalone": [f"algo={{kind: ppo, {rollouts}}}", players],
    }
    scores = {}
    for api_type, words in runs.items():
        env = f"env={{kind: xingtian-pair, api_type: {api_type}, slots: 16}}"
        trainer = build(ganglion.load_config(None, [*words, env, f"train.budget={steps} steps"]))
        for _ in trainer():
            pass
        scores[api_type] = trainer.run_evaluate()[1]["eval/return_mean"]
        trainer.close()
    return scores


if __name__ == "__main__":
    for name, score in main().items():
        print(f"{name}: {score:.2f} of {ROUNDS}")
