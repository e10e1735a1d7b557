"""Every numeric setting with numbers that nobody means: it trains a few steps, or is refused with one message."""

from __future__ import annotations

import io
import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from ganglion.cli import main
from ganglion.config import Config, Every, Schedule, load

VALUES = ["0", "-1", ".nan", ".inf", "1e308", "1e-320", str(2**62), str(2**63), "-0.0", str(10**40), "1k", "true",
          "null", "[]", "{}"]  # fmt: skip
PATIENCE = 30  # seconds
SMALL = ["env.slots=4", "algo.net.hidden=[8]", "train.budget=64 steps", "eval={every: 40 steps, episodes: 2}",
         "save={every: 40 steps, keep: 1}", "log={every: 20 steps, writers: [jsonl]}", "run.fast=eager",
         "run.device=cpu"]  # fmt: skip
RATIO = "algo.limiter={opt_interval: 4, warmup: 8}"
REPLAY = "algo.replay={capacity: 64, batch: 4}"
RANKED = "algo.replay={kind: prioritised, capacity: 64, batch: 4, beta: {kind: cosine, start: 0.4, end: 1.0}}"
REAL = "env={kind: torch, id: pendulum, time_limit: 20}"
CASES = {
    "ppo": ["algo=ppo", "algo.horizon=8", "algo.clip_value=0.2", "env={kind: torch, id: cartpole, clip_obs: 5.0}"],
    "memory": ["algo=ppo", "algo.horizon=8", "algo.net.memory=gru", "env={kind: toy, id: memory}"],
    "real": ["algo=ppo", "algo.horizon=8", "algo.max_kl=1.0", "algo.processor.reward_clip=1.0", REAL],
    "impala": ["algo=impala", "algo.horizon=8", "env={kind: toy, id: chain}", "run.mode=sync"],
    "workers": ["algo=ppo", "algo.horizon=8", "env={kind: gym, id: CartPole-v1, workers: 1}"],
    "dqn": ["algo=dqn", RATIO, RANKED, "algo.epsilon={kind: exponential, start: 1.0, end: 0.1}",
            "env={kind: gym, id: CartPole-v1, workers: 0, log_episodes: 2}"],
    "sac": ["algo=sac", RATIO, REPLAY, REAL],
    "td3": ["algo=td3", RATIO, REPLAY, "algo.replay.sequence=4", REAL],
    "points": ["algo=dqn", RATIO, REPLAY, "algo.epsilon={kind: piecewise, points: [[0.0, 1.0], [1.0, 0.1]]}",
               "env={kind: toy, id: bandit}"],
    "atari": ["algo=ppo", "algo.horizon=4", "env={kind: atari, id: pong, workers: 0, frames: 60}"],
}  # fmt: skip


def numeric(annotation: Any) -> bool:
    """Whether a field takes a number, or things made of numbers."""
    if get_origin(annotation) in (Annotated, Union, types.UnionType, tuple):
        return any(map(numeric, get_args(annotation)))
    return annotation in (int, float) or (isinstance(annotation, type) and issubclass(annotation, (Every, Schedule)))


def places(config: Config, at: str = "") -> Iterator[str]:
    """The path of each numeric field."""
    for name, field in type(config).model_fields.items():
        value, path = getattr(config, name), f"{at}{name}"
        if numeric(field.annotation):
            yield path
        if isinstance(value, Config):
            yield from places(value, f"{path}.")


def found() -> list[tuple[str, str]]:
    """Each field of each class once, in the first case that has it."""
    seen: dict[tuple[type, str], tuple[str, str]] = {}
    for case, words in CASES.items():
        config = load(None, [*words, *SMALL])
        for path in places(config):
            owner: Any = config
            for part in path.split(".")[:-1]:
                owner = getattr(owner, part)
            seen.setdefault((type(owner), path.split(".")[-1]), (case, path))
    return list(seen.values())


FIELDS = found()


class Late(BaseException):
    """Nobody catches it."""


@contextmanager
def patience() -> Iterator[None]:
    def late(*_: object) -> None:
        raise Late(f"longer than {PATIENCE} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(case: str, path: str, value: str, folder: Path) -> str:
    """What is wrong with how it went; nothing where it trained, or was refused."""
    out, err = io.StringIO(), io.StringIO()
    words = ["train", *CASES[case], *SMALL, f"{path}={value}", f"run.dir={folder}"]
    try:
        with patience(), redirect_stdout(out), redirect_stderr(err):
            code = main(words)
    except BaseException as error:
        return f"{path}={value}: {type(error).__name__}: {error}"
    said = err.getvalue()
    if code == 0 or (code == 2 and said.count("ganglion: ") == 1 and len(said) < 5_000):
        return ""
    return f"{path}={value}: exit code {code}: {said}"
