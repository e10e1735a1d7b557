"""Writes one file in the manner of CleanRL: settings, networks, loss and loop in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from ganglion import registry
from ganglion.config import RunConfig
from ganglion.errors import UserError

NAMES = {
    "dqn": "Deep Q-learning",
    "ppo": "Proximal policy optimisation",
    "sac": "Soft actor-critic",
    "td3": "Twin delayed deep deterministic policy gradient",
}
SCHEDULES = ("constant", "linear")
REPLAY = {"replay.capacity": "CAPACITY", "replay.batch": "BATCH"}
LIMITER = {"limiter.opt_interval": "OPT_INTERVAL", "limiter.warmup": "WARMUP"}
NET = {"net.hidden": "HIDDEN", "net.activation": "ACTIVATION"}
REWARD = {"processor.reward_scale": "REWARD_SCALE", "processor.reward_clip": "REWARD_CLIP"}
# Which settings each file has, by the names they have there. Any other must be at its default.
KNOWN: Mapping[str, Mapping[str, str]] = {
    "dqn": {
        "lr": "LR", "gamma": "GAMMA", "n_step": "N_STEP", "double": "DOUBLE", "loss": "LOSS", "max_norm": "MAX_NORM",
        "target_every": "TARGET_EVERY", "tau": "TAU", "epsilon": "EPSILON", **NET, **REPLAY, **LIMITER, **REWARD,
    },
    "ppo": {
        "lr": "LR", "gamma": "GAMMA", "lam": "LAM", "horizon": "HORIZON", "epochs": "EPOCHS", "max_kl": "MAX_KL",
        "minibatches": "MINIBATCHES", "clip": "CLIP", "clip_value": "CLIP_VALUE", "entropy": "ENTROPY",
        "value_weight": "VALUE_WEIGHT", "normalise_advantage": "NORMALISE_ADVANTAGE", "log_std": "LOG_STD",
        "normalise_reward": "NORMALISE_REWARD", "max_norm": "MAX_NORM", "shared": "SHARED", "net.init": "INIT",
        "net.normalise": "NORMALISE", **NET, **REWARD,
    },
    "sac": {
        "lr": "LR", "lr_critic": "LR_CRITIC", "gamma": "GAMMA", "tau": "TAU", "temperature": "TEMPERATURE",
        "target_entropy": "TARGET_ENTROPY", "max_norm": "MAX_NORM", **NET, **REPLAY, **LIMITER, **REWARD,
    },
    "td3": {
        "lr": "LR", "lr_critic": "LR_CRITIC", "gamma": "GAMMA", "tau": "TAU", "delay": "DELAY", "noise": "NOISE",
        "smoothing": "SMOOTHING", "smoothing_limit": "SMOOTHING_LIMIT", "max_norm": "MAX_NORM",
        **NET, **REPLAY, **LIMITER, **REWARD,
    },
}  # fmt: skip
# What has to be so beside: a setting whose default the file does not have, or several of which it has some.
NEEDED: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "sac": {"n_step": (1,)},
    "td3": {"n_step": (1,)},
    "ppo": {"net.init": ("orthogonal", "uniform")},
    "dqn": {},
}
IGNORED = ("max_lag",)  # of distributed runs
EITHER = ("net.grid", "net.images", "net.entities", "net.memory_size", "net.heads", "net.width")  # of other inputs
IMPORTS = {
    "dqn": "import torch.nn.functional as F\n",
    "ppo": "",
    "sac": "import torch.nn.functional as F\n",
    "td3": "",
}
DISTS = {
    "ppo": "from torch.distributions import Categorical, Independent, Normal\n",
    "sac": "from torch.distributions import Normal\n",
}


def one_file(cfg: RunConfig) -> str:
    """The text of it; refuses settings that it does not have."""
    kind = cfg.algo.kind
    if kind not in KNOWN:
        raise UserError(f"algo.kind: {kind} cannot be ejected. Accepted: {', '.join(KNOWN)}.")
    check_run(cfg)
    check_algo(cfg)
    body = template("start") + (template("replay") if kind != "ppo" else "") + template(kind)
    env = cfg.env.plain()["id"]
    head = (
        f'"""{NAMES[kind]} on {env}, in one file that needs torch and gymnasium.\n\n'
        "    python THIS_FILE.py        trains, and prints lines of env steps and mean return of an evaluation\n\n"
        f"Written by `ganglion eject` (Ganglion {registry.version()}) from a run, with its settings. It repeats what\n"
        'the run did in distribution, not number for number.\n"""\n\n'
    )
    imports = f"import gymnasium as gym\nimport numpy as np\nimport torch\n{IMPORTS[kind]}from torch import nn\n"
    settings = "\n".join(f"{name} = {value}" for name, value in constants(cfg))
    return f"{head}{imports}{DISTS.get(kind, '')}\n{settings}\n\n\n{body}"


def template(name: str) -> str:
    return (files("ganglion.eject") / "templates" / f"{name}.txt").read_text(encoding="utf-8")


def constants(cfg: RunConfig) -> Iterator[tuple[str, str]]:
    """The settings of the run as the file names them."""
    env, flat = cfg.env.plain(), levels(cfg.algo.plain())
    yield "ENV_ID", repr(env["id"])
    yield "ENV_OPTIONS", repr(dict(env["options"]))
    yield "SLOTS", f"{cfg.env.slots}  # environments side by side"
    yield "BUDGET", f"{int(cfg.train.budget.count):_}  # env steps, over all of them"
    yield "TARGET", f"{cfg.train.target!r}  # a score that ends the run"
    interval = cfg.eval.every.count if cfg.eval.every.unit == "steps" else cfg.train.budget.count
    yield "EVAL_EVERY", f"{int(interval):_}"
    yield "EVAL_EPISODES", repr(cfg.eval.episodes)
    yield "SEED", repr(cfg.run.seed)
    yield "THREADS", repr(cfg.run.threads)
    for path, name in KNOWN[cfg.algo.kind].items():
        yield name, written(path, flat[path])


def written(path: str, value: Any) -> str:
    """A setting as Python; a schedule as a function of the fraction of the budget that is spent."""
    match value:
        case {"kind": "constant", "value": number}:
            return f"lambda fraction: {number!r}"
        case {"kind": "linear", "until": str()}:
            raise UserError(f"algo.{path}.until: an amount cannot be ejected. Accepted: a fraction of the budget.")
        case {"kind": "linear", "start": start, "end": end, "until": until}:
            return f"lambda fraction: {start!r} + ({end!r} - {start!r}) * min(fraction / {until!r}, 1.0)"
        case {"kind": kind}:
            raise UserError(f"algo.{path}: the schedule {kind!r} cannot be ejected. Accepted: {', '.join(SCHEDULES)}.")
        case list():
            return repr(tuple(value))
    return repr(value)


def levels(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by path; schedules stay whole."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        match value:
            case {"kind": "constant" | "linear" | "cosine" | "exponential" | "piecewise"}:
                found[prefix + key] = value
            case dict():
                found |= levels(value, f"{prefix}{key}.")
            case _:
                found[prefix + key] = value
    return found


def check_run(cfg: RunConfig) -> None:
    env, given = cfg.env.plain(), cfg.plain()
    fresh: dict[str, Any] = type(cfg.env)(id=env["id"]).plain() if cfg.env.kind == "gym" else {}  # type: ignore[call-arg]
    for path, fine, accepted in (
        ("env.kind", cfg.env.kind == "gym", "gym"),
        ("train.budget", cfg.train.budget.unit == "steps", "an amount of steps"),
        ("run.mode", cfg.run.mode == "local", "local"),
        ("players", not given["players"], "none"),
        ("league", given["league"] is None, "none"),
        ("data.path", not given["data"]["path"], "none"),
    ):
        if not fine:
            raise UserError(f"{path}: this run cannot be ejected. Accepted: {accepted}.")
    for name in ("wrap", "time_limit", "keep", "clip_obs", "frame_stack", "wrappers"):
        if env[name] != fresh[name]:
            raise UserError(f"env.{name}: {env[name]!r} cannot be ejected. Accepted: {fresh[name]!r}.")


def check_algo(cfg: RunConfig) -> None:
    """Refuses what the file would not do."""
    kind, flat = cfg.algo.kind, levels(cfg.algo.plain())
    usual = levels(type(cfg.algo)().plain())
    for path, accepted in NEEDED[kind].items():
        if flat[path] not in accepted:
            told = ", ".join(str(one) for one in accepted)
            raise UserError(f"algo.{path}: {flat[path]!r} cannot be ejected. Accepted: {told}.")
    named = {*KNOWN[kind], *NEEDED[kind], *IGNORED, *EITHER}
    for path, value in flat.items():
        if path not in named and value != usual.get(path):
            raise UserError(f"algo.{path}: {value!r} cannot be ejected. Accepted: {usual.get(path)!r}.")
