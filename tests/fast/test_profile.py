"""Timers around a Trainer tell where time goes, cost little, and change no result; limits are what they say."""

from __future__ import annotations

import json
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ganglion
from ganglion.cli import main
from ganglion.core import Action, Step
from ganglion.envs import Wrapper
from ganglion.fast import roofline
from ganglion.fast.profile import Profile, Shares, bottleneck
from ganglion.runtime.bench import advise, bench
from ganglion.runtime.build import build
from ganglion.runtime.trainer import Trainer

Captured = pytest.CaptureFixture[str]
TOY = ["env={kind: toy, id: identity, slots: 4}", "log=[]", "save=never", "eval=never"]
DQN = ["algo={kind: dqn, limiter: {warmup: 50}}", *TOY]
PPO = ["algo={kind: ppo, horizon: 16}", *TOY]


def trainer_of(settings: list[str]) -> Trainer:
    return build(ganglion.load_config(None, settings))


def run(trainer: Trainer, events: int) -> Trainer:
    for _ in range(events):
        trainer.run_train() if trainer.learner.owes(trainer.at) else trainer.run_collect()
    return trainer


class Slow(Wrapper):
    """A world whose step takes a while; reset too."""

    def step(self, action: Action) -> Step:
        time.sleep(0.02)
        return super().step(action)


def test_nothing_is_timed_inside_of_a_graph() -> None:
    """A clock that a compiled function meets would have it run eagerly."""
    world = ["env={kind: torch, id: cartpole, slots: 2}", "run.fast=compile", "run.device=cpu", *TOY[1:]]
    trainer = trainer_of(["algo={kind: ppo, horizon: 16}", *world])
    Profile(trainer)
    explorer, knobs = trainer.source, trainer.learner.agent.knobs(trainer.at)
    walk, seat = torch.compile(explorer.walks[1].eager, fullgraph=True, backend="eager"), explorer.seats[0]
    walked = walk(explorer.pure.now(), explorer.begin(), (seat.past,), (knobs,), (seat.noise.steps(2),))
    assert walked.seen.reward.shape == (3, 2)


# ------------------------------------------------------------ shares


@pytest.mark.parametrize("settings", [DQN, PPO], ids=["dqn", "ppo"])
def test_counts_and_shares(settings: list[str]) -> None:
    trainer = trainer_of(settings)
    profile = Profile(trainer)
    assert profile.line() == ""
    run(trainer, 300)
    shares, at = profile.shares(), trainer.at
    assert (profile.steps, profile.updates) == (at.env_steps, at.opt_steps) and at.opt_steps > 0
    assert shares.env + shares.act + shares.learn + shares.other == pytest.approx(1.0, abs=1e-6)
    assert min(shares) >= 0 and shares.store + shares.sample <= shares.other + 1e-6
    assert profile.seconds <= at.seconds
    steps, updates = profile.rates()
    assert steps == pytest.approx(at.env_steps / profile.seconds) and updates > 0
    assert f"{steps:,.0f} env steps/s" in profile.line() and "bottleneck" in profile.line()
    profile.clear()
    assert profile.steps == profile.seconds == 0


def test_laps_are_of_the_time_between() -> None:
    trainer = trainer_of(DQN)
    profile = Profile(trainer)
    assert profile.lap() == {}
    run(trainer, 40)
    first = profile.lap()
    assert list(first) == [f"speed/{name}_share" for name in ("env", "act", "learn", "other")]
    assert sum(first.values()) == pytest.approx(1.0, abs=1e-6)
    assert profile.lap() == {}
    trainer.source.env.step = lambda action: time.sleep(0.2)  # type: ignore[assignment, func-returns-value]
    profile.watch(trainer.source.env, "env", "step")
    with pytest.raises(AttributeError):  # nothing came of that step, but its time was spent
        trainer.run_collect()
    assert profile.lap()["speed/env_share"] > 0.5 > first["speed/env_share"]


def test_the_part_that_takes_the_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(PPO)
    trainer.source.env = Slow(trainer.source.env)
    profile = Profile(trainer)
    for _ in range(15):  # before anything is learned from
        trainer.run_collect()
    assert profile.shares().env > 0.5 and "the environment is the bottleneck" in profile.line()

    trainer = trainer_of(PPO)
    learn = trainer.learner.agent.learn

    def slowly(*args: Any) -> Any:
        time.sleep(0.05)
        return learn(*args)

    monkeypatch.setattr(trainer.learner.agent, "learn", slowly)
    profile = Profile(trainer)
    run(trainer, 60)
    assert profile.shares().learn > 0.5 and "learning is the bottleneck" in profile.line()


@pytest.mark.parametrize("name", ["env", "act", "learn", "other"])
def test_each_bottleneck_has_its_words(name: str) -> None:
    shares = Shares(0.1, 0.1, 0.1, 0.1, 0.0, 0.0)._replace(**{name: 0.7})
    words = {"env": "environment", "act": "acting", "learn": "learning", "other": "between"}
    assert words[name] in bottleneck(shares)


def test_a_call_inside_a_call_is_counted_once() -> None:
    class World:
        def step(self) -> None:
            self.send()
            time.sleep(0.01)

        def send(self) -> None:
            time.sleep(0.02)

    profile, world = Profile(trainer_of(DQN)), World()
    profile.watch(world, "env", "step", "send", "recv")
    began = time.perf_counter()
    world.step()
    assert profile.timers["env"].calls == 1
    assert 0.03 <= profile.timers["env"].seconds <= time.perf_counter() - began


def test_nothing_is_kept_alive() -> None:
    """A buffer is large: it goes when its trainer does, not when the collector comes by."""
    trainer = trainer_of(DQN)
    profile = Profile(trainer)
    run(trainer, 30)
    parts = [trainer.learner.buffer, trainer.source.env, trainer.learner, trainer.source]
    gone = [weakref.ref(part) for part in parts]
    del parts, trainer
    assert [ref() for ref in gone] == [None] * 4
    assert profile.steps > 0


def test_time_is_counted_when_a_part_raises() -> None:
    profile = Profile(trainer_of(DQN))
    timed = profile.timed(SimpleNamespace(step=lambda: 1 / 0), "step", profile.timers["env"])
    with pytest.raises(ZeroDivisionError):
        timed()
    assert profile.timers["env"].seconds > 0 and not profile.timers["env"].inside


def test_watching_changes_nothing() -> None:
    states = []
    for watched in (False, True):
        trainer = trainer_of(DQN)
        if watched:
            Profile(trainer)
        states.append(run(trainer, 250).state())
    for name, tensor in states[0].tensors.items():
        assert torch.equal(tensor, states[1].tensors[name]), name


def test_watching_costs_less_than_a_hundredth() -> None:
    """What five timed calls add to a step, against the fastest step there is."""

    class Idle:
        def step(self) -> None: ...

    profile, idle = Profile(trainer_of(DQN)), Idle()
    plain, timed = idle.step, profile.timed(idle, "step", profile.timers["act"])

    def cost(call: Any) -> float:
        best = 1.0
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(1_000):
                call()
            best = min(best, (time.perf_counter() - began) / 1_000)
        return best

    trainer, steps = trainer_of(PPO), []
    for _ in range(200):
        if trainer.learner.owes(trainer.at):
            trainer.run_train()
            continue
        began = time.perf_counter()
        trainer.run_collect()
        steps.append(time.perf_counter() - began)
    added = 5 * (cost(timed) - cost(plain))
    assert added < 0.01 * min(steps), (added, min(steps))


# ------------------------------------------------------------ limits


def test_arithmetic_counts_products() -> None:
    a, b = torch.randn(64, 32), torch.randn(32, 128)
    found = roofline.arithmetic(lambda: (a @ b, a @ b, torch.relu(a)))
    assert found.flops == 2 * 2 * 64 * 32 * 128
    alone = roofline.duration(lambda: a @ b, a.device)
    assert 0.1 * 2 * alone < found.seconds < 10 * 2 * alone
    assert found.rate > 0


def test_arithmetic_of_gradients_and_convolutions() -> None:
    weight = torch.randn(8, 3, 3, 3, requires_grad=True)
    image = torch.randn(2, 3, 16, 16)

    def learn() -> None:
        torch.autograd.grad(torch.nn.functional.conv2d(image, weight).sum(), weight)

    found = roofline.arithmetic(learn)
    forward = 2 * 2 * 8 * 14 * 14 * 3 * 9
    assert found.flops == 2 * forward and found.seconds > 0


def test_bandwidth_is_that_of_a_machine() -> None:
    assert 1e8 < roofline.bandwidth(1 << 20, torch.device("cpu")) < 1e13


def test_no_products_no_seconds() -> None:
    assert roofline.arithmetic(lambda: torch.ones(3) + 1) == (0, 0.0)


# ------------------------------------------------------------ the command


def test_bench() -> None:
    result = bench(ganglion.load_config(None, PPO), seconds=0.5)
    assert result.steps > 0 and result.updates > 0
    assert list(result.limits) == ["environment", "arithmetic", "memory", "together"]
    assert all(limit.rate > 0 and limit.about for limit in result.limits.values())
    whole = result.limits["together"].rate
    assert whole <= min(limit.rate for limit in result.limits.values())
    assert result.advice.endswith(".") and "of the time is" in result.advice


def test_bench_of_every_algorithm() -> None:
    sac = ["algo={kind: sac, limiter: {warmup: 50}}", "env={kind: toy, id: identity, continuous: true, slots: 2}"]
    for settings in (DQN, [*sac, *TOY[1:]]):
        assert bench(ganglion.load_config(None, settings), seconds=0.3).limits["arithmetic"].rate > 0


def test_advice_for_each_part() -> None:
    cfg = ganglion.load_config(None, PPO)
    profile = Profile(trainer_of(PPO))
    said = {}
    for name, timers in (("env", {"env": 0.8}), ("act", {"act": 0.8}), ("other", {"store": 0.8}), ("learn", {})):
        profile.clear()
        profile.timers["collect"].seconds = 1.0 if timers else 0.1
        profile.timers["learning"].seconds = 0.0 if timers else 0.9
        for timer, seconds in timers.items():
            profile.timers[timer].seconds = seconds
        profile.steps = 100
        said[name] = advise(cfg, profile, {})
    assert "the environment" in said["env"] and "more slots" in said["act"] and "storing rows" in said["other"]
    assert "run.fast=compile" in said["learn"]


def test_the_command(capsys: Captured) -> None:
    assert main(["bench", *PPO, "--seconds", "0.3"]) == 0
    out = capsys.readouterr().out
    assert "env steps/s" in out and "arithmetic" in out and "Bottleneck: " in out
    assert main(["bench", *PPO, "--seconds", "0.3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] > 0 and result["limits"]["memory"]["steps"] > 0 and "learn" in result["shares"]


@pytest.mark.parametrize(
    ("argv", "message"), [([], "nothing to"), (["cartpole/ppo", "--seconds", "0"], "--seconds should be between")]
)
def test_bad_input(argv: list[str], message: str, capsys: Captured) -> None:
    assert main(["bench", *argv]) == 2
    assert message in capsys.readouterr().err


def test_a_finished_run_says_where_its_time_went(tmp_path: Any, capsys: Captured) -> None:
    settings = [setting for setting in DQN if setting != "log=[]"]
    asked = ["log={every: 100 steps, writers: [jsonl]}", "train.budget=300 steps", f"run.dir={tmp_path / 'run'}"]
    assert main(["train", *settings, *asked]) == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(0 < record.get("speed/learn_share", 0) < 1 for record in records)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Speed"))
    assert "env steps/s" in line and "env " in line and "learn " in line and "bottleneck" in line
