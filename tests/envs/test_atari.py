"""Atari's pre-processing: each part against a plain reference, then whole, resumed, and native."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ganglion.config import RunConfig
from ganglion.core import Stop
from ganglion.envs import AtariConfig, wrapped
from ganglion.envs.gym_make import find_spec, make_one
from ganglion.envs.slots import GOES_ON
from ganglion.errors import UserError
from ganglion.processes import python
from ganglion.runtime.run import Run
from tests.budgets.source import ROOT
from tests.envs.worlds import random_action, same_step
from tests.equal.runs import finish, metrics, saved

ale = pytest.importorskip("ale_py", reason="the extra atari is not installed")
pytest.importorskip("cv2", reason="the extra atari is not installed")


class Counting(gymnasium.Env[Any, Any]):
    """Frames that say how many steps were taken; three lives of `life` steps each."""

    action_space = spaces.Discrete(4)
    observation_space = spaces.Box(0, 255, (4, 4), np.uint8)

    def __init__(self, life: int = 100) -> None:
        self.life, self.actions = life, [0]
        self.actions.clear()

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE", "RIGHT", "LEFT"]

    def seen(self) -> tuple[Any, dict[str, Any]]:
        frame = np.zeros((4, 4), np.uint8)
        frame[0, self.steps % 4] = self.steps % 256  # a sprite that is drawn in every fourth frame only
        return frame, {"lives": 3 - self.steps // self.life}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.actions.append(-1)
        return self.seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(int(action))
        self.steps += 1
        obs, info = self.seen()
        return obs, 1.0, info["lives"] == 0, False, info


# ------------------------------------------------------------ each part


def test_noop_counts_follow_from_the_seed() -> None:
    counts = []
    for seed in [*range(200), *range(3)]:
        env = Counting()
        wrapped(env, [["noop", 5]]).reset(seed=seed)
        assert set(env.actions[1:]) == {0}
        counts.append(len(env.actions) - 1)
    assert set(counts) == {1, 2, 3, 4, 5}
    assert counts[-3:] == counts[:3]


def test_skip_repeats_and_takes_the_brighter_of_two_frames() -> None:
    env = Counting()
    one = wrapped(env, [["skip", 4]])
    one.reset(seed=0)
    obs, reward, *_ = one.step(2)
    assert env.actions[1:] == [2, 2, 2, 2] and reward == 4.0
    assert obs[0].tolist() == [4, 0, 0, 3]  # frames 3 and 4, of 1 to 4


def test_skip_stops_at_the_end() -> None:
    env = Counting(life=2)
    one = wrapped(env, [["skip", 4]])
    one.reset(seed=0)
    assert one.step(3)[1:4] == (4.0, False, False)
    assert one.step(3)[1:4] == (2.0, True, False)


def test_a_life_is_an_ending_and_the_game_goes_on() -> None:
    env = Counting(life=3)
    one = wrapped(env, [["life"]])
    one.reset(seed=0)
    ends = []
    for _ in range(3):
        while True:
            _, _, terminated, _, info = one.step(2)
            if terminated:
                break
        ends.append((env.steps, GOES_ON in info))
        _, info = one.reset()
    assert ends == [(3, True), (6, True), (9, False)]
    assert env.actions.count(-1) == 2  # it started anew once, after the last life
    one.reset(seed=1)
    assert env.steps == 0  # a seed always starts anew


def test_fire_starts_each_life() -> None:
    env = Counting(life=3)
    one = wrapped(env, [["life"], ["fire"]])
    one.reset(seed=0)
    assert env.actions == [-1, 1]
    while not one.step(2)[2]:
        pass
    one.reset()
    assert env.actions[-2:] == [0, 1]  # the next life, then fire


def test_sticky_repeats_as_often_as_it_should() -> None:
    env = Counting(life=10_000)
    one = wrapped(env, [["sticky", 0.25]])
    one.reset(seed=3)
    asked = [1 + t % 3 for t in range(8000)]
    for action in asked:
        one.step(action)
    took = env.actions[1:]
    kept = [a != b for a, b in zip(took, asked)]
    before = [0, *took[:-1]]
    assert all(took[t] == before[t] for t in range(8000) if kept[t])
    assert abs(np.mean(kept) - 0.25) < 0.02
    one.reset(seed=3)
    for action in asked[:50]:
        one.step(action)
    assert env.actions[-50:] == took[:50]


@pytest.mark.parametrize("colour", [False, True])
def test_warp_is_grey_and_square(colour: bool) -> None:
    class Screen(Counting):
        observation_space = spaces.Box(0, 255, (210, 160, 3) if colour else (210, 160), np.uint8)

        def seen(self) -> tuple[Any, dict[str, Any]]:
            return np.full(self.observation_space.shape, 90, np.uint8), {}

    obs, _ = wrapped(Screen(), [["warp", 84]]).reset(seed=0)
    assert obs.shape == (1, 84, 84) and obs.dtype == np.uint8 and (abs(obs.astype(int) - 90) <= 1).all()


def test_wrappers_say_what_they_need() -> None:
    with pytest.raises(UserError, match=r"warp needs frames"):
        wrapped(gymnasium.make("CartPole-v1"), [["warp", 84]])
    with pytest.raises(UserError, match=r"unknown name 'nop'.*Did you mean 'noop'"):
        wrapped(Counting(), [["nop", 3]])


# ------------------------------------------------------------ the whole


def single(config: AtariConfig) -> Any:
    return wrapped(make_one(find_spec(config.registered()), config.made_with(), False), config.layers())


@pytest.mark.parametrize("game", ["pong", "breakout"])
def test_frames_are_gymnasiums(game: str) -> None:
    ours = single(AtariConfig(id=game, noop=0, life=False, fire=False))
    name = find_spec(AtariConfig(id=game).registered())
    theirs = gymnasium.wrappers.AtariPreprocessing(
        gymnasium.make(name, frameskip=1, repeat_action_probability=0.0), noop_max=0, grayscale_newaxis=False
    )
    rng = np.random.default_rng(0)
    assert np.array_equal(ours.reset(seed=1)[0][0], theirs.reset(seed=1)[0])
    for t in range(400):
        action = int(rng.integers(ours.action_space.n))
        a, b = ours.step(action), theirs.step(action)
        assert a[1:4] == b[1:4], t
        if a[2] or a[3]:
            break  # the last frames of a game that ends within a skip: theirs mixes in the step before
        assert np.array_equal(a[0][0], b[0]), t
    assert t > 100


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_the_quick_way_to_skip_is_the_plain_one(sticky: float) -> None:
    quick, plain = (single(AtariConfig(id="breakout", sticky=sticky)) for _ in range(2))
    layer = plain
    while type(layer).__name__ != "SkipMax":
        layer = layer.env
    assert layer.game is not None
    layer.game = None
    rng = np.random.default_rng(0)
    quick.reset(seed=7), plain.reset(seed=7)
    for t in range(200):
        action = int(rng.integers(4))
        a, b = quick.step(action), plain.step(action)
        assert np.array_equal(a[0], b[0]) and a[1:4] == b[1:4] and a[4]["lives"] == b[4]["lives"], t
        if a[2]:
            quick.reset(), plain.reset()


def test_slots_resume_inside_a_game_with_lives() -> None:
    """At a life lost and in the middle of the next one: both replay the whole game."""
    config = AtariConfig(id="breakout", slots=2, noop=3)
    env, other = config.build(), config.build()
    assert env.promise == "replay" and env.spec.obs.shape == (4, 84, 84)  # type: ignore[union-attr]
    env.reset(5)
    kept, lost = [], 0
    for t in range(400):
        step = env.step(random_action(env.spec.action, 2, t))
        lost += int(step.terminated.sum())
        if step.terminated.any() or (kept and len(kept[-1][2]) == 4):
            kept.append((t, env.state(), []))
        for _, _, after in kept:
            if len(after) < 12:
                after.append(step)
        if lost >= 9:
            break
    assert len(kept) >= 6 and lost >= 9
    for t, state, after in kept[2:6]:
        other.reset(99)
        other.restore(state)
        for k, wanted in enumerate(after[1:], start=t + 1):
            assert same_step(other.step(random_action(env.spec.action, 2, k)), wanted), (t, k)


def test_workers_play_the_same_games() -> None:
    """Lives included, and a state of two workers goes on in this process."""
    config = AtariConfig(id="breakout", slots=3, size=36, noop=5)
    here, there = config.build(), config.model_copy(update={"workers": 2}).build()
    try:
        assert same_step(here.reset(2), there.reset(2))
        lives = 0
        for t in range(150):
            action = random_action(here.spec.action, 3, t)
            step = here.step(action)
            assert same_step(step, there.step(action)), t
            lives += int(step.terminated.sum())
        assert lives >= 9 and here.episodes() == there.episodes()
        here.restore(there.state())
        for t in range(150, 170):
            action = random_action(here.spec.action, 3, t)
            assert same_step(here.step(action), there.step(action)), t
    finally:
        there.close()


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path: Path) -> None:
    net = {"hidden": [16], "init": "orthogonal"}
    raw: dict[str, Any] = {
        "algo": {"kind": "ppo", "horizon": 16, "minibatches": 2, "net": net, "processor": {"reward": "sign"}},
        "env": {"kind": "atari", "id": "breakout", "slots": 2, "size": 36, "noop": 5},
        "train": {"budget": "160 steps"},
        "eval": "never",
        "log": {"every": "20 steps", "writers": ["jsonl"]},
    }
    whole, parts = (RunConfig.model_validate({**raw, "run": {"dir": str(tmp_path / name)}}) for name in "ab")
    finish(Run.create(whole))
    run = Run.create(parts)
    for stop in (25, 50):
        stream = run.stream()
        for _ in range(stop):
            next(stream)
        with pytest.raises(StopIteration):
            while True:
                stream.send(Stop())
        run = Run.open(tmp_path / "b")
    finish(run)
    assert saved(tmp_path / "a") == saved(tmp_path / "b")
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


def test_scores_are_of_whole_games_and_raw() -> None:
    env = AtariConfig(id="breakout", slots=1).build()
    env.reset(0)
    total, lives, found = 0.0, 1, []
    for t in range(1500):
        step = env.step(random_action(env.spec.action, 1, t))
        total += float(step.reward)
        found += env.episodes()
        if found:
            break
        lives += int(step.terminated)
    assert lives == 5 and found[0].total == total


def test_unknown_games_are_refused() -> None:
    with pytest.raises(UserError, match=r"no Atari game 'pongg'.*Did you mean 'pong'"):
        AtariConfig(id="pongg").build()


def test_a_worker_needs_neither_torch_nor_pydantic() -> None:
    config = AtariConfig(id="pong")
    given = json.dumps([config.registered(), config.made_with(), config.layers()])
    code = (
        "import sys, json; sys.modules['torch'] = sys.modules['pydantic'] = None\n"
        "from ganglion.envs.gym_make import find_spec, make_one\n"
        "from ganglion.envs.gym_make import wrapped\n"
        f"name, options, layers = json.loads({given!r})\n"
        "env = wrapped(make_one(find_spec(name), options, False), layers)\n"
        "assert env.reset(seed=0)[0].shape == (1, 84, 84)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


# ------------------------------------------------------------ ALE's own vector


def test_native_frames_are_the_wrappers() -> None:
    settings: dict[str, Any] = {"id": "pong", "slots": 2, "noop": 0, "fire": False}
    native, ours = AtariConfig(vector=True, **settings).build(), AtariConfig(**settings).build()
    assert native.promise == "restart" and native.spec.obs == ours.spec.obs
    a, b = native.reset(0), ours.reset(0)
    for t in range(150):
        assert torch.equal(a.reward, b.reward) and torch.equal(a.valid, b.valid), t
        off = (a.obs.int() - b.obs.int()).abs()
        assert off.max() <= 1, t  # two ways to round the mean of an area
        action = random_action(ours.spec.action, 2, t)
        a, b = native.step(action), ours.step(action)
    native.close()


def test_native_lives_and_scores() -> None:
    env = AtariConfig(id="breakout", slots=2, vector=True).build()
    env.reset(3)
    totals, ends, found, reset = torch.zeros(2), torch.zeros(2), [], torch.zeros(2, dtype=torch.bool)
    for t in range(600):
        step = env.step(random_action(env.spec.action, 2, t))
        assert not step.reward[reset].any()  # what brings the next life or game is never learned from
        reset = ~step.valid
        totals, ends = totals + step.reward, ends + step.terminated
        found += env.episodes()
        if len(found) >= 2:
            break
    assert found and all(episode.length > 60 for episode in found)
    assert ends.sum() >= 5 * len(found)  # five lives each
    env.close()


@pytest.mark.parametrize("life", [True, False])
def test_native_stacks_are_those_of_the_wrapper(life: bool) -> None:
    """ALE's threads put them together; ours would start every life and game with its first frame repeated."""
    settings: dict[str, Any] = {"id": "breakout", "slots": 2, "vector": True, "life": life, "frames": 300}
    env = AtariConfig(**settings).build()
    assert env.spec.frame == AtariConfig(**settings, frame_stack=1).build().spec.obs
    step = env.reset(3)
    frames: list[list[Any]] = [[x] * 4 for x in step.obs[:, -1].clone()]
    ends = 0
    for t in range(250):
        fresh = ~step.valid
        step = env.step(random_action(env.spec.action, 2, t))
        for slot, newest in enumerate(step.obs[:, -1].clone()):
            frames[slot] = [newest] * 4 if fresh[slot] else [*frames[slot][1:], newest]
            assert torch.equal(step.obs[slot], torch.stack(frames[slot])), t
        ends += int(fresh.sum())
    assert ends >= 4
    env.close()


def test_native_is_drawn_slot_by_slot() -> None:
    env = AtariConfig(id="pong", vector=True).build(slots=1, render=True)
    env.reset(0)
    assert env.render().shape == (210, 160, 3)


def test_native_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UserError, match=r"env.options.*'difficulty'"):
        AtariConfig(id="pong", vector=True, options={"difficulty": 1}).build()
    with pytest.raises(UserError, match="autoreset_mode"):
        AtariConfig(id="pong", vector=True, options={"autoreset_mode": "SameStep"}).build()
    with pytest.raises(UserError, match=r"env.workers"):
        AtariConfig(id="pong", vector=True, workers=2).build()


def test_native_restart_cuts_running_games() -> None:
    env = AtariConfig(id="pong", slots=2, vector=True).build()
    env.reset(3)
    for t in range(5):
        env.step(random_action(env.spec.action, 2, t))
    env.restore(env.state())
    step = env.step(random_action(env.spec.action, 2, 6))
    assert step.truncated.all() and not step.valid.any() and not env.episodes()
    assert env.step(random_action(env.spec.action, 2, 7)).valid.all()
    env.close()


def test_a_process_that_has_played_ends_in_silence(tmp_path: Path) -> None:
    """The games of a process without workers: what is left of them when it ends was told in 25 lines."""
    words = ["train", "--algo", "ppo", "--env", "ALE/Pong-v5", "env.slots=1", "env.workers=0", "algo.horizon=8"]
    rest = ["train.budget=8 steps", "eval=never", "save=never", "log=[]", f"run.dir={tmp_path / 'run'}"]
    ended = subprocess.run(python("ganglion", *words, *rest), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "leaked" not in ended.stderr, ended.stderr[-2_000:]
