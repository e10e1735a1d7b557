"""Every numeric setting with numbers that nobody means: it trains a few steps, or is refused with one message."""

from __future__ import annotations

import io
import json
import signal
import types
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import reduce
from inspect import get_annotations
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pytest

from ganglion import registry
from ganglion.cli import main
from ganglion.config import Config, Every, Schedule
from ganglion.config.files import load
from ganglion.envs.configs import AtariConfig
from ganglion.envs.gym_make import SETTINGS
from tests.contract import worlds

VALUES = ["0", "-1", ".nan", ".inf", "1e308", "1e-320", str(2**62), str(2**63), "-0.0", str(10**40), "1k", "true",
          "null", "[]", "{}"]  # fmt: skip
PATIENCE = 30  # seconds
SMALL = ["env.slots=4", "train.budget=64 steps", "eval={every: 40 steps, episodes: 2}",
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
    "c51": ["algo=c51", RATIO, REPLAY, "env={kind: toy, id: bandit}"],
    "qrdqn": ["algo=qrdqn", RATIO, REPLAY, "env={kind: toy, id: bandit}"],
    "iqn": ["algo=iqn", RATIO, REPLAY, "env={kind: toy, id: bandit}"],
    "fqf": ["algo=fqf", RATIO, REPLAY, "env={kind: toy, id: bandit}"],
    "rainbow": ["algo=rainbow", RATIO, REPLAY, "env={kind: toy, id: bandit}"],
    "pqn": ["algo=pqn", "algo.horizon=8", "env={kind: toy, id: bandit}"],
    "r2d2": ["algo=r2d2", RATIO, REPLAY, "algo.replay={sequence: 4, burn_in: 1}", "env={kind: toy, id: bandit}"],
    "sac": ["algo=sac", RATIO, REPLAY, REAL],
    "td3": ["algo=td3", RATIO, REPLAY, "algo.replay.sequence=4", REAL],
    "points": ["algo=dqn", RATIO, REPLAY, "algo.epsilon={kind: piecewise, points: [[0.0, 1.0], [1.0, 0.1]]}",
               "env={kind: toy, id: bandit}"],
    "atari": ["algo=ppo", "algo.horizon=4", "env={kind: atari, id: pong, workers: 0, frames: 60}"],
    "games": ["algo=ppo", "algo.horizon=8", "env={kind: matrix, id: penalty, k: 1}"],
    "board": ["algo=dqn", RATIO, REPLAY, "env={kind: board, id: gomoku, side: 5}"],
    "turns": ["algo=dqn", RATIO, REPLAY, "env={kind: board_turns, id: gomoku, side: 5}"],
    "colours": ["algo=dqn", RATIO, REPLAY, "env=colours"],
    "foraging": ["algo=dqn", RATIO, REPLAY, "env=foraging"],
    "particles": ["algo=dqn", RATIO, REPLAY, "env={kind: particles, id: spread}"],
    "kuhn": ["algo=ppo", "algo.horizon=8", "env=kuhn"],
    "goals": ["algo=dqn", RATIO, "algo.replay={capacity: 64, batch: 4, relabel: {kind: hindsight}}",
              "env={kind: toy, id: goal, size: 4}"],
    "demonstrated": ["algo=dqn", RATIO, REPLAY, "algo.processor=demonstrated", "env={kind: toy, id: bandit}"],
    "joint": ["algo=dqn", RATIO, REPLAY, "env={kind: torch, id: pendulum, wrap: [{kind: joint, bins: 3}]}"],
}  # fmt: skip
ROUNDS = "env={kind: matrix, id: rock_paper_scissors, rounds: 8}"
for matchmaker in registry.TABLE["matchmaker"]:
    league = f"league={{kind: {matchmaker}, players: {{main: main}}}}"
    CASES[f"league {matchmaker}"] = ["algo=ppo", "algo.horizon=8", ROUNDS, league]


def of_contract() -> dict[str, list[str]]:
    """An algorithm, or a bonus, that has no case above is trained as its first contract case says."""
    cases: dict[str, list[str]] = {}
    for case in worlds.CASES:
        bonus = case.settings.get("bonus")
        name = case.algo if bonus is None else bonus["kind"]
        world = REAL if registry.lookup("algo", case.algo).actions == "bounded" else "env={kind: toy, id: bandit}"
        cases.setdefault(name, ["algo=" + json.dumps({"kind": case.algo, **case.settings}), world])
    return {
        name: words for name, words in cases.items() if f"algo={name}" not in [words[0] for words in CASES.values()]
    }


CASES = {name: [*words, "algo.net.hidden=[8]"] for name, words in CASES.items()} | of_contract()


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


# A library or another process is needed, or it is gym's and frames beside it.
ELSEWHERE = {
    "atari",
    "envpool",
    "lbforaging",
    "openspiel",
    "pettingzoo",
    "remote",
    "rware",
    "starcraft",
    "sumo",
    "vmas",
}


def everywhere() -> Iterator[tuple[str, str]]:
    """All numeric settings of all that is registered."""
    for family in registry.TABLE.keys() - {"mode", "wrapper"}:
        for name in registry.TABLE[family]:
            if name not in ELSEWHERE:
                kind = registry.lookup(family, name)
                yield from (definer(kind, key) for key, x in kind.model_fields.items() if numeric(x.annotation))


def definer(kind: type[Config], name: str) -> tuple[str, str]:
    """A setting, and the class that says what it takes."""
    return next(cls.__name__ for cls in kind.__mro__ if name in get_annotations(cls)), name


def found() -> dict[tuple[type, str], tuple[str, str]]:
    """The numeric fields of all classes, each once, in the first case that has it."""
    seen: dict[tuple[type, str], tuple[str, str]] = {}
    for case, words in CASES.items():
        config = load(None, [*words, *SMALL])
        for path in places(config):
            *above, name = path.split(".")
            owner = type(reduce(getattr, above, config))
            if case != "atari" or name in AtariConfig.__annotations__:  # the rest of it is gym's
                seen.setdefault((owner, name), (case, path))
    return seen


SEEN = found()
WRAPPERS = [(name, registry.lookup("wrapper", name).model_fields) for name in registry.TABLE["wrapper"]]
FIELDS = [
    *SEEN.values(),
    *(("atari", f"env.wrappers=[{{{name}: §}}]") for name in SETTINGS),
    *(
        ("joint", f"env.wrap=[{{kind: {name}, {key}: §}}]")
        for name, fields in WRAPPERS
        for key, field in fields.items()
        if numeric(field.annotation)
    ),
]


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
    setting = path.replace("§", value) if "§" in path else f"{path}={value}"
    words = ["train", *CASES[case], *SMALL, setting, f"run.dir={folder}"]
    try:
        with patience(), redirect_stdout(out), redirect_stderr(err):
            code = main(words)
    except BaseException as error:
        return f"{path}={value}: {type(error).__name__}: {error}"
    said = err.getvalue()
    if code == 4 and "lr" in path.split(".")[-1] and value == str(2**62):  # accepted, and it diverges
        return ""
    if code == 0 or (code == 2 and said.count("ganglion: ") == 1 and len(said) < 5_000):
        return ""
    return f"{path}={value}: exit code {code}: {said}"


def test_there_are_enough_fields() -> None:
    assert len(FIELDS) > 120
    named = {path for _, path in FIELDS}
    owners = {definer(kind, name) for kind, name in SEEN}
    missing = [at for at in everywhere() if at not in owners]
    assert not missing, "CASES needs one that has these"
    assert {"algo.lr", "algo.replay.capacity", "env.clip_obs", "fleet.queue", "eval.every", "run.seed"} <= named


NAMED = ["algo.processor.reward_clip", "env.clip_obs", "algo.clip_value", "algo.clip_rho", "algo.replay.capacity",
         "algo.horizon", "algo.limiter.opt_interval", "algo.smoothing_limit", "env.delay", "env.frames"]  # fmt: skip


@pytest.mark.parametrize("value", ["1e308", "1e-320", str(2**62)])
def test_fields_that_have_failed(value: str, tmp_path: Path) -> None:
    where = {path: case for case, path in reversed(FIELDS)}
    wrong = [attempt(where[path], path, value, tmp_path / path) for path in NAMED]
    assert not any(wrong), [told for told in wrong if told]


QUICK = [(case, path, value) for case, path in FIELDS if case not in ("workers", "atari") for value in VALUES]


def test_some_fields(tmp_path: Path) -> None:
    wrong = [attempt(*each, tmp_path / str(number)) for number, each in enumerate(QUICK[::89])]
    assert not any(wrong), [told for told in wrong if told]


@pytest.mark.soak
@pytest.mark.parametrize(("case", "path"), FIELDS)
def test_every_field(case: str, path: str, tmp_path: Path) -> None:
    wrong = [attempt(case, path, value, tmp_path / str(number)) for number, value in enumerate(VALUES)]
    assert not any(wrong), [told for told in wrong if told]


# ------------------------------------------------------------ numbers of the command line

OPTIONS = [
    ("eval RUN", "episodes seed"),
    ("play RUN --out nothing.txt", "episodes frames fps seed"),  # refused at the latest for what it should write
    ("check CartPole-v1", "steps seconds seed"),
    ("bench cartpole/ppo env.workers=0", "seconds"),
    ("launch local --algo nothing --env CartPole-v1", "restarts"),
    ("launch slurm cartpole/ppo --dry-run", "restarts nodes cpus gpus"),
    ("train --algo nothing --env CartPole-v1", "seeds explorers learners"),
    ("explore nowhere --import nothing", "wait"),
]


@pytest.mark.soak
@pytest.mark.parametrize(("command", "options"), OPTIONS)
def test_every_option(command: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *CASES["ppo"], *SMALL, "run.dir=RUN"]) == 0
    for option in options.split():
        for value in [*VALUES, "nan", "inf", "9" * 5_000]:
            err = io.StringIO()
            with patience(), redirect_stderr(err):
                assert main([*command.split(), f"--{option}={value}"]) in (0, 2), (option, value, err.getvalue())
            assert len(err.getvalue()) < 5_000
