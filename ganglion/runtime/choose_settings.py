"""Settings for an environment of which nothing else was said: those of its preset, or an algorithm by its spaces and
the budget, and slots and workers by what a step costs. What was chosen, and why, is `run.chosen` of the config."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from ganglion import registry
from ganglion.config import EnvConfig, Every, RunConfig
from ganglion.config.files import load, read_raw
from ganglion.core import Box, Composite, Discrete, EnvSpec, Space
from ganglion.envs.auto_workers import Cost, choose, measure, usable_cores
from ganglion.envs.configs import GymConfig, PooledConfig
from ganglion.errors import UserError
from ganglion.runtime.build import build_env, light

USUAL = "100k steps"  # the budget where none is given
STEP = 250e-6  # seconds that acting and learning add to a step, about, of an algorithm without a replay
FEW = {"dqn": 300_000, "sac": 1_000_000, "hybrid_sac": 1_000_000}  # steps below which a replay learns more from them
BYTES = 2_000_000_000  # that a replay of images may hold
CHEAP = 100e-6  # seconds of a step above which more slots keep workers busy
IMAGE = 36  # pixels a side
SLOTS = (8, 12, 10, 14, 11, 13)  # of which one holds whole copies of games of up to seven agents
APART = (
    "slots",
    "workers",
    "timeout",
    "max_memory",
    "max_failures",
    "log_episodes",
)  # of no concern to what is learned


def is_env(name: str) -> bool:
    """Whether a word names an environment: KIND:ID of a known kind, or an id that gymnasium knows."""
    kind, colon, _ = name.partition(":")
    if colon:
        return kind in registry.names("env")
    import gymnasium

    from ganglion.envs.gym_make import find_spec

    if name in gymnasium.registry:
        return True
    versioned = name.rpartition("-v")[2].isdecimal() and "-v" in name
    try:
        find_spec(name)  # imports what registers it
    except UserError:
        if versioned:
            raise
        return False
    return True


def settings(env: str, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The plain config of an environment by its name; `overrides` are what was said besides."""
    given = [text for text in overrides if text.startswith(("env.", "env=", "train.budget=", "run."))]
    world = [f"env={json.dumps(known(env))}"]
    asked = load(None, ["algo=ppo", f"train.budget={USUAL}", *world, *given])
    own = preset(asked.env)
    if own is not None:
        raw = read_raw(own)
        raw["run"]["chosen"] = f"preset {own}, tuned for this environment"
        return raw
    return SettingsChoice(asked, any(text.startswith("env.slots=") for text in given)).raw()


def known(env: str) -> str | dict[str, Any]:
    """The environment with what it cannot be learned without: Atari's frames, MiniGrid's grids as numbers."""
    package, _, game = env.partition("/")
    if package == "ALE":
        name = game.partition("-v")[0]
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in name).strip("_")
        return {"kind": "atari", "id": words}
    if env.startswith(("MiniGrid-", "BabyAI-")):
        return {"kind": "gym", "id": env, "wrappers": ["one_hot"]}
    return env


def preset(env: EnvConfig) -> str | None:
    """The preset of this environment, by the algorithm that is chosen for most, or the first there is."""
    found = [name for name in registry.presets() if fits(name, env)]
    order = ("dqn", "sac", "ppo", "td3")
    found.sort(key=lambda name: order.index(kind) if (kind := name.partition("/")[2]) in order else len(order))
    return found[0] if found else None


def fits(name: str, env: EnvConfig) -> bool:
    """Whether a preset, of one process and one player, is for this environment."""
    raw = read_raw(name)
    if "league" in raw or "data" in raw or "players" in raw or raw["run"].get("mode", "local") != "local":
        return False
    return same_env(raw["env"], env)


def same_env(raw: Any, env: EnvConfig) -> bool:
    """Whether plain settings describe this environment, whatever the number of its slots."""
    ours = env.plain()
    match EnvConfig.expand(raw):
        case {**value} if value.get("kind", "gym") == env.kind and value.get("id") == ours.get("id"):
            theirs = EnvConfig.model_validate(value).plain()
            return all(theirs[key] == ours[key] for key in theirs if key not in APART)
    return False


class ChosenAlgo(NamedTuple):
    """An algorithm with its settings, and why."""

    algo: dict[str, Any]
    why: str


class SettingsChoice:
    """What is chosen for an environment without a preset."""

    def __init__(self, asked: RunConfig, slots_given: bool) -> None:
        self.asked, self.slots_given = asked, slots_given
        self.spec = spec_of(asked, slots_given)
        self.cost = cost_of(asked.env)
        self.budget: Every = asked.train.budget

    @property
    def steps(self) -> float:
        """How many the budget is about, of an algorithm that learns as it goes."""
        if self.budget.unit == "seconds":
            return self.budget.count / ((self.cost.seconds if self.cost else 0.0) + STEP)
        return self.budget.count * (1 if self.budget.unit == "steps" else 4)

    def raw(self) -> dict[str, Any]:
        plan = self.algorithm()
        slots, workers, stepped = self.slots(plan.algo["kind"])
        env: dict[str, Any] = {**self.asked.env.plain(), "slots": slots}
        env |= {} if workers is None else {"workers": workers}
        said = f"{plan.algo['kind']}: {plan.why}; {slots} slots{': ' + stepped if stepped else ''}"
        shares = {"eval": 20, "save": 5, "log": 100}  # of the budget, between two
        count, unit = self.budget.count, self.budget.unit
        often = {name: {"every": str(Every(max(1, count // share), unit))} for name, share in shares.items()}
        return {"algo": plan.algo, "env": env, "train": {"budget": str(self.budget)}, **often, "run": {"chosen": said}}

    def algorithm(self) -> ChosenAlgo:
        spec, action = self.spec, self.spec.action
        if len(spec.agents) > 1:
            return ChosenAlgo(self.ppo(), f"{len(spec.agents)} agents act at once, one player for all of them")
        match action:
            case Discrete():
                kind = "dqn"
            case Composite():
                kind = "hybrid_sac"
            case _:
                kind = "sac"
        fits = registry.lookup("algo", kind).accepts(action)
        if not fits or (kind != "dqn" and images(spec.obs)):
            seen = "images" if fits else f"{type(action).__name__} actions"
            return ChosenAlgo(self.ppo(), f"it takes any actions and observations, here {seen}")
        if self.steps > FEW[kind]:
            return ChosenAlgo(self.ppo(), f"about {self.steps:,.0f} steps are enough to learn without a replay")
        learned = {"dqn": "choices", "sac": "bounded real actions", "hybrid_sac": "a choice and real actions"}[kind]
        why = f"{learned}, and a replay learns most from about {self.steps:,.0f} steps"
        return ChosenAlgo({"kind": kind, **self.replay(kind)}, why)

    def ppo(self) -> dict[str, Any]:
        """Observations and rewards of unknown scale are normalised."""
        real = type(self.spec.action) is not Discrete
        return {
            "kind": "ppo",
            "normalise_reward": True,
            "net": {"normalise": True},
            **({"entropy": 0.0} if real else {}),
        }

    def replay(self, kind: str) -> dict[str, Any]:
        """As large as the budget, or as memory is; with a warm-up that leaves most of the budget for learning."""
        row = max(bytes_of(self.spec.frame or self.spec.obs), 1)
        usual = registry.lookup("algo", kind).model_fields
        most, first = usual["replay"].default.capacity, usual["limiter"].default.warmup
        capacity = max(1_000, int(min(most, self.steps, BYTES // row)))
        return {"replay": {"capacity": capacity}, "limiter": {"warmup": max(1, min(first, int(self.steps / 10)))}}

    def slots(self, kind: str) -> tuple[int, int | None, str]:
        """How many, who steps them (None: nobody has to choose) and why."""
        agents, env = len(self.spec.agents), self.asked.env
        slots = env.slots if self.slots_given else agents * (8 if kind == "ppo" else 4)
        if self.cost is None:
            return slots, None, "all in one step"
        cores = usable_cores()
        if not self.slots_given and cores > 1 and self.cost.seconds > CHEAP:
            slots = max(slots, agents * 2 * cores if kind == "ppo" else agents * cores)
        if not settles(env):
            return slots, None, ""
        choice = choose(self.cost, slots // agents, cores)
        return slots, choice.workers, choice.why


def spec_of(asked: RunConfig, slots_given: bool) -> EnvSpec:
    """Of the environment; games of several agents are made with a number of slots that holds whole copies."""
    for slots in (asked.env.slots,) if slots_given else SLOTS:
        env = light(asked.env).model_copy(update={"slots": slots})
        try:
            made = build_env(asked.model_copy(update={"env": env}))
        except UserError as error:
            if slots_given or slots == SLOTS[-1] or not str(error).startswith("env.slots"):
                raise
        else:
            made.close()
            return made.spec
    raise AssertionError(SLOTS)


def cost_of(env: EnvConfig) -> Cost | None:
    """What a step takes, of a world that is stepped copy by copy."""
    match env:
        case GymConfig(vector=True):
            return None
        case PooledConfig():
            return measure(env.one)
    return None


def settles(env: EnvConfig) -> bool:
    """Whether its workers are to be chosen."""
    match env:
        case PooledConfig(workers="auto"):
            return env.for_workers()
    return False


def images(space: Space) -> bool:
    """Whether convolutions read a part of it."""
    match space:
        case Composite(items):
            return any(images(part) for part in items.values())
        case Box(shape):
            return len(shape) == 3 and sorted(shape)[1] >= IMAGE
    return False


def bytes_of(space: Space) -> int:
    """Of one observation."""
    match space:
        case Composite(items):
            return sum(bytes_of(part) for part in items.values())
        case Box(shape, dtype):
            return prod(shape) * dtype.itemsize
    return 8
