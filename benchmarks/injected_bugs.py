"""Known bugs injected into copies of algorithms and environments: which of them does `ganglion doctor` name?

    python -m benchmarks.injected_bugs                       all, and docs/results/injected-bugs.md
    python -m benchmarks.injected_bugs --only dqn_loss_sign  one
    python -m benchmarks.injected_bugs --healthy RUN ...     what it says of runs that learned

Each bug is trained for a short budget with the settings of a preset; the doctor then reads the run and plays with its
agent. A bug counts as named where one of the findings in its row is among those that describe it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import ganglion
from ganglion.algos.dqn import DQN, DQNConfig
from ganglion.algos.ppo import PPO, PPOConfig
from ganglion.algos.sac import SAC, SACConfig
from ganglion.algos.td3 import TD3, TD3Config
from ganglion.analysis.runs import read_run
from ganglion.config import register
from ganglion.doctor.examine import examine
from ganglion.errors import UserError
from ganglion.record.health import History, findings
from ganglion.runtime.run import load_trained

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"

# ------------------------------------------------------------ algorithms


def flipped(optim: Any, factor: float = -1.0) -> None:
    """The optimiser climbs what it should descend (-1), or gets nothing to descend (0)."""
    step = optim.step
    optim.step = lambda loss, *args, **named: step(factor * loss, *args, **named)


class ClimbingDQN(DQN):
    def __init__(self, cfg: Any, spec: Any) -> None:
        super().__init__(cfg, spec)
        flipped(self.optim)


class StillDQN(DQN):
    def __init__(self, cfg: Any, spec: Any) -> None:
        super().__init__(cfg, spec)
        flipped(self.optim, 0.0)


class FrozenTargetDQN(DQN):
    def sync_target(self) -> None:
        """Forgotten."""


class GreedyDQN(DQN):
    def knobs(self, at: Any) -> Mapping[str, float]:
        return {**super().knobs(at), "epsilon": 0.0}


class AlwaysRandomDQN(DQN):
    def knobs(self, at: Any) -> Mapping[str, float]:
        return {**super().knobs(at), "epsilon": 1.0}


class NoDiscountDQN(DQN):
    """The discount is lost, also where an episode ended."""

    def goal(self, t: Any, normal: Any) -> Any:
        return super().goal(t._replace(discount=t.discount * 0 + 1.0), normal)


class WrongAdvantagePPO(PPO):
    def prepare(self, r: Any) -> Any:
        m = super().prepare(r)
        return m._replace(advantage=-m.advantage)


class ForgottenValuePPO(PPO):
    """The goal of the critic is the advantage: the value was not added."""

    def prepare(self, r: Any) -> Any:
        m = super().prepare(r)
        return m._replace(goal=m.advantage)


class OtherActionsPPO(PPO):
    """Log-probabilities are those of other rows."""

    def prepare(self, r: Any) -> Any:
        m = super().prepare(r)
        return m._replace(logp=m.logp.roll(1, -1) - 0.5)


class WrongEntropyPPO(PPO):
    def knobs(self, at: Any) -> Mapping[str, float]:
        return {**super().knobs(at), "entropy_weight": -0.5}


class DescendingTD3(TD3):
    def __init__(self, cfg: Any, spec: Any) -> None:
        super().__init__(cfg, spec)
        flipped(self.actor_optim)


class DescendingSAC(SAC):
    def __init__(self, cfg: Any, spec: Any) -> None:
        super().__init__(cfg, spec)
        flipped(self.actor_optim)


class WrongTemperatureSAC(SAC):
    def __init__(self, cfg: Any, spec: Any) -> None:
        super().__init__(cfg, spec)
        flipped(self.warmth_optim)


def made(name: str, config: type, algo: type) -> str:
    """Registers a copy of an algorithm."""

    class Copy(config):  # type: ignore[misc]
        def build(self, spec: Any) -> Any:
            return algo(self, spec)

    Copy.__name__ = algo.__name__ + "Config"
    register("algo", name)(Copy)
    return name


# ------------------------------------------------------------ environments


class Bugged(gym.Wrapper):  # type: ignore[type-arg]
    """An environment with one bug."""

    def __init__(self, env: gym.Env[Any, Any], bug: str, factor: float = 1.0) -> None:
        super().__init__(env)
        self.bug, self.factor, self.first = bug, factor, None
        if bug == "large_observation":
            space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)
            self.observation_space = space

    def seen(self, obs: Any) -> Any:
        if self.bug == "large_observation":
            return (obs * self.factor).astype(np.float32)
        if self.bug == "frozen_observation":
            self.first = obs if self.first is None else self.first
            return self.first
        return obs

    def reset(self, **named: Any) -> Any:
        obs, info = super().reset(**named)
        return self.seen(obs), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        reward = float(reward)
        match self.bug:
            case "ends_as_truncated":
                terminated, truncated = False, terminated or truncated
            case "limit_as_terminated":
                terminated, truncated = terminated or truncated, False
            case "large_reward":
                reward *= self.factor
            case "no_reward":
                reward = 0.0
            case "wrong_reward":
                reward = -reward
        return self.seen(obs), reward, terminated, truncated, info


def world(env: str, bug: str, factor: float = 1.0) -> str:
    name = f"Bugged{env.split('-')[0]}{bug.title().replace('_', '')}-v0"
    if name not in gym.registry:
        gym.register(name, lambda **named: Bugged(gym.make(env, **named), bug, factor))
    return name


# ------------------------------------------------------------ the table


class Bug(NamedTuple):
    what: str
    preset: str
    settings: Callable[[], list[str]]
    named_by: tuple[str, ...]  # rules that describe it


def algo(name: str, config: type, cls: type) -> Callable[[], list[str]]:
    return lambda: [f"algo.kind={made(name, config, cls)}"]


def env(source: str, bug: str, factor: float = 1.0, *more: str) -> Callable[[], list[str]]:
    return lambda: [f"env.id={world(source, bug, factor)}", *more]


CART, PEND = "CartPole-v1", "Pendulum-v1"
WRONG_WAY = ("worse_than_at_first", "values_out_of_reach", "one_action", "actions_saturated")
BUGS = {
    "dqn_loss_sign": Bug("DQN: the loss is climbed", "dqn", algo("b1", DQNConfig, ClimbingDQN), WRONG_WAY),
    "dqn_no_gradient": Bug("DQN: the loss is detached", "dqn", algo("b2", DQNConfig, StillDQN), ("no_gradient",)),
    "dqn_target_frozen": Bug(
        "DQN: the target is never updated", "dqn", algo("b3", DQNConfig, FrozenTargetDQN), ("values_underestimated",)
    ),
    "dqn_never_explores": Bug("DQN: epsilon is 0", "dqn", algo("b4", DQNConfig, GreedyDQN), ("no_exploration",)),
    "dqn_always_random": Bug(
        "DQN: epsilon never falls", "dqn", algo("b5", DQNConfig, AlwaysRandomDQN), ("random_to_the_end",)
    ),
    "dqn_no_discount": Bug(
        "DQN: no discount, also at the end of episodes",
        "dqn",
        algo("b6", DQNConfig, NoDiscountDQN),
        ("values_overestimated", "values_out_of_reach"),
    ),
    "dqn_small_replay": Bug(
        "DQN: a replay of 256 rows", "dqn", lambda: ["algo.replay.capacity=256"], ("replay_too_young",)
    ),
    "dqn_other_evaluation": Bug(
        "DQN: evaluation sees observations on another scale",
        "dqn",
        lambda: [f"eval.env={{kind: gym, id: {world(CART, 'large_observation', -1.0)}, slots: 4}}"],
        ("evaluation_apart",),
    ),
    "ppo_advantage_sign": Bug(
        "PPO: the advantage has the wrong sign", "ppo", algo("b7", PPOConfig, WrongAdvantagePPO), WRONG_WAY
    ),
    "ppo_value_forgotten": Bug(
        "PPO: the critic's goal is the advantage alone",
        "ppo",
        algo("b8", PPOConfig, ForgottenValuePPO),
        ("values_underestimated", "critic_explains_nothing"),
    ),
    "ppo_log_probabilities": Bug(
        "PPO: log-probabilities of other rows", "ppo", algo("b9", PPOConfig, OtherActionsPPO), ("steps_too_large",)
    ),
    "ppo_entropy_sign": Bug(
        "PPO: the entropy bonus is a penalty", "ppo", algo("b10", PPOConfig, WrongEntropyPPO), ("entropy_collapsed",)
    ),
    "ppo_learning_rate": Bug(
        "PPO: a learning rate of 1",
        "ppo",
        lambda: ["algo.lr=1.0"],
        ("steps_too_large", "dead_units", "entropy_collapsed", "weights_exploded"),
    ),
    "td3_actor_sign": Bug("TD3: the actor descends its value", "td3", algo("b11", TD3Config, DescendingTD3), WRONG_WAY),
    "sac_actor_sign": Bug("SAC: the actor descends its value", "sac", algo("b12", SACConfig, DescendingSAC), WRONG_WAY),
    "sac_temperature_sign": Bug(
        "SAC: the temperature moves away from its goal",
        "sac",
        algo("b13", SACConfig, WrongTemperatureSAC),
        ("temperature_high",),
    ),
    "env_ends_as_truncated": Bug(
        "environment: endings are called truncated",
        "dqn",
        env(CART, "ends_as_truncated"),
        ("endings_truncated", "values_overestimated", "values_out_of_reach"),
    ),
    "env_limit_as_terminated": Bug(
        "environment: the time limit is called terminated (no bootstrap at truncation)",
        "td3",
        env(PEND, "limit_as_terminated"),
        ("time_limit_terminates",),
    ),
    "env_large_observation": Bug(
        "environment: observations times 1000, not normalised",
        "ppo",
        env(CART, "large_observation", 1000.0),
        ("observation_scale",),
    ),
    "env_frozen_observation": Bug(
        "environment: the observation never changes", "ppo", env(CART, "frozen_observation"), ("observation_frozen",)
    ),
    "env_large_reward": Bug(
        "environment: rewards times 1000", "dqn", env(CART, "large_reward", 1000.0), ("reward_scale",)
    ),
    "env_no_reward": Bug("environment: rewards are lost", "ppo", env(CART, "no_reward"), ("no_reward",)),
    "env_reward_sign": Bug("environment: rewards have the wrong sign", "ppo", env(CART, "wrong_reward"), WRONG_WAY),
}
PRESETS = {
    "dqn": ("cartpole/dqn", "6k steps"),
    "ppo": ("cartpole/ppo-quick", "20k steps"),
    "td3": ("pendulum/td3", "4k steps"),
    "sac": ("pendulum/sac", "4k steps"),
}


def train(name: str, folder: Path, budget: str | None = None) -> Path:
    """A run with this bug; one that diverges leaves what it recorded."""
    bug = BUGS[name]
    preset, usual = PRESETS[bug.preset]
    base = ganglion.load_config(preset).plain()
    own = bug.settings()
    kinds = [word.partition("=")[2] for word in own if word.startswith("algo.kind=")]
    if kinds:  # a copy of the algorithm has its settings
        base["algo"]["kind"] = kinds[0]
        own = [word for word in own if not word.startswith("algo.kind=")]
    base["env"]["vector"] = False  # the copies have no vectorised version
    base["train"].update(budget=budget or usual, target=None)
    base["log"] = {"every": "250 steps", "writers": ["jsonl"]}
    place = folder / name
    cfg = ganglion.load_config(
        base, [f"run.dir={place}", "eval={every: 1k steps, episodes: 5, slots: 5}", "save.every=2k steps", *own]
    )
    run = ganglion.Run.create(cfg)
    with closing(run), suppress(UserError):
        for _ in run.stream():
            pass
    return place


def diagnosis(place: Path | str, live: bool = False) -> list[str]:
    """`live`: also what was said at any time while it trained."""
    found = read_run(str(place))
    history = History(found.events, found.config)
    parts = range(5, len(found.events) + 1) if live else [len(found.events)]
    told = [one.rule for k in parts for one in findings(found.events[:k], found.config)]
    with suppress(UserError):
        told += [one.rule for one in examine(load_trained(str(place), "last"), history).findings]
    return list(dict.fromkeys(told))


def table(rows: Mapping[str, Mapping[str, Any]], healthy: Mapping[str, list[str]]) -> str:
    count = sum(row["named"] for row in rows.values())
    told = f"`python -m benchmarks.injected_bugs`: {len(rows)} bugs, {count} named by `ganglion doctor`. "
    lines = [
        "# Injected bugs",
        "",
        told + "Each was trained once, seed 0, for 4k to 20k env steps.",
        "",
        "| bug | named | findings |",
        "|---|---|---|",
        *(f"| {r['what']} | {'yes' if r['named'] else 'no'} | {', '.join(r['found']) or '-'} |" for r in rows.values()),
    ]
    if healthy:
        false = sum(bool(found) for found in healthy.values())
        lines += ["", "## Runs that learned", ""]
        told = f"Runs of presets, seed 0, their whole budgets: {len(healthy)}, of which {false} have a finding, "
        lines += [told + "at the end or at any record before.", ""]
        lines += ["| run | findings |", "|---|---|"]
        lines += [f"| {name} | {', '.join(found) or '-'} |" for name, found in healthy.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=BUGS, action="append")
    parser.add_argument("--healthy", nargs="*", default=[], metavar="RUN")
    parser.add_argument("--folder", help="keeps the runs")
    args = parser.parse_args()
    file = RESULTS / "injected-bugs.json"
    kept = json.loads(file.read_text()) if file.exists() else {"bugs": {}, "healthy": {}}
    for place in args.healthy:
        found = read_run(place)
        kept["healthy"][f"{found.task} {found.config['algo']['kind']} ({Path(place).name})"] = diagnosis(
            place, live=True
        )
    with tempfile.TemporaryDirectory() as temporary:
        for name in (args.only or BUGS) if not args.healthy else ():
            found = diagnosis(train(name, Path(args.folder or temporary)))
            named = any(rule in BUGS[name].named_by for rule in found)
            kept["bugs"][name] = {"what": BUGS[name].what, "found": found, "named": named}
            print(f"{'named ' if named else 'MISSED'} {name}: {', '.join(found) or 'nothing'}", flush=True)
    kept["bugs"] = {name: kept["bugs"][name] for name in BUGS if name in kept["bugs"]}
    file.write_text(json.dumps(kept, indent=1) + "\n")
    (RESULTS / "injected-bugs.md").write_text(table(kept["bugs"], kept["healthy"]))


if __name__ == "__main__":
    main()
