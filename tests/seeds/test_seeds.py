"""Runs that train together: each is the run it would have been alone, in a folder like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ganglion
from ganglion.config import RunConfig
from ganglion.core import State, Stop
from ganglion.errors import UserError
from ganglion.runtime.engine import Engine, as_it_is
from ganglion.runtime.run import Run, evaluate
from ganglion.runtime.seeds import Seeds, interval

TENSORS = "env={kind: torch, id: cartpole, slots: 4}"
GYM = "env={kind: gym, id: CartPole-v1, slots: 3, workers: 0}"
PPO = ["algo=ppo", "algo.horizon=16", "algo.net.hidden=[16, 16]", "algo.epochs=2", "algo.minibatches=2"]
# Random actions and no double choice: nothing is decided by values that are equal up to their last bits.
DQN = ["algo=dqn", "algo.epsilon=1.0", "algo.double=false", "algo.net.hidden=[16, 16]", "algo.target_every=40",
       "algo.limiter={opt_interval: 4, warmup: 100}", "algo.replay={capacity: 400, batch: 32}"]  # fmt: skip
REST = ["train.budget=900 steps", "eval={every: 400 steps, episodes: 2}", "save={every: 500 steps, keep: 9}",
        "log={every: 200 steps, writers: [jsonl]}", "run.fast=eager", "run.device=cpu"]  # fmt: skip
SEEDS = 3
Words = list[str]
TWO = [["run.seed=0"], ["run.seed=1"]]


def configs(folder: Path, words: Words, differing: list[Words] | None = None) -> list[RunConfig]:
    given = differing or [[f"run.seed={k}"] for k in range(SEEDS)]
    return [
        ganglion.load_config(None, [*REST, *words, *own, f"run.dir={folder / str(k)}"]) for k, own in enumerate(given)
    ]


def together(cfgs: list[RunConfig], stop_at: int = 0) -> Seeds:
    seeds = Seeds(cfgs)
    stream, told, stop = seeds.stream(), 0, None
    try:
        while True:
            event = stream.send(stop)
            told += 1
            stop = Stop() if stop_at and event.log.at.env_steps >= stop_at and stop is None else None
    except StopIteration:
        pass
    seeds.close()
    return seeds


def alone(cfg: RunConfig) -> Run:
    run = Run.create(cfg)
    for _ in run.stream():
        pass
    run.close()
    return run


def timeless(value: Any) -> Any:
    """Without what depends on the clock."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if "seconds" not in k and "speed/" not in k and k != "path"}
    return value


def same(one: State, other: State, clock: tuple[str, ...] = ("counters/at", "own/since")) -> None:
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(other.tensors[name], tensor, rtol=2e-4, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    for name, ring in one.rings.items():
        for key, array in ring.arrays.items():
            torch.testing.assert_close(other.rings[name].arrays[key], array)
    for name, value in one.scalars.items():
        if not name.endswith(clock) and "sums" not in name:
            assert other.scalars[name] == value, name
    at, their = one.scalars["trainer/counters/at"], other.scalars["trainer/counters/at"]
    assert at[:3] == their[:3]  # env steps, opt steps, episodes


def metrics(run: Run) -> list[dict[str, Any]]:
    return [timeless(json.loads(line)) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def kept(run: Run) -> list[str]:
    return sorted(path.name for path in (run.folder / "checkpoints").glob("*") if path.is_dir())


def check(tmp_path: Path, words: Words, differing: list[Words] | None = None) -> Seeds:
    seeds = together(configs(tmp_path / "together", words, differing))
    for run, cfg in zip(seeds.runs, configs(tmp_path / "alone", words, differing), strict=True):
        one = alone(cfg)
        same(one.state(), run.state())
        assert [sorted(row) for row in metrics(run)] == [sorted(row) for row in metrics(one)]
        for ours, theirs in zip(metrics(run), metrics(one), strict=True):
            for name, value in theirs.items():
                close = value if isinstance(value, str | list) else pytest.approx(value, rel=1e-3, abs=1e-4)
                assert ours[name] == close, name
        assert run.evaluated.best == one.evaluated.best
        assert kept(run) == kept(one)
    return seeds


def test_ppo_in_a_world_of_tensors(tmp_path: Path) -> None:
    seeds = check(tmp_path, [*PPO, TENSORS])
    assert all(run.trainer.at.opt_steps > 50 for run in seeds.runs)
    assert len({run.trainer.at.episodes for run in seeds.runs}) > 1  # endings come at different times


def test_ppo_whose_phases_end_at_different_times(tmp_path: Path) -> None:
    more = ["algo.max_kl=0.001", "algo.epochs=4", "algo.normalise_reward=true", "algo.net.normalise=true"]
    seeds = check(tmp_path, [*PPO, TENSORS, *more, "train.budget=1600 steps"])
    assert len({run.trainer.at.opt_steps for run in seeds.runs}) > 1


def test_ppo_in_gymnasium(tmp_path: Path) -> None:
    check(tmp_path, [*PPO, GYM, "train.budget=500 steps"])


UPDATES = ["train.budget=64 updates", "algo.lr=1e-3", "eval=never", "save=never", "log.every=40 updates"]


def test_ppo_by_plain_operations(tmp_path: Path) -> None:
    check(tmp_path / "rollouts", [*PPO, TENSORS, *UPDATES, "run.fast=auto"])
    check(tmp_path / "samples", [*DQN, GYM, *UPDATES, "run.fast=auto"], TWO)


def captured(cfg: RunConfig) -> Engine:
    """What a GPU captures, run as it is: whole rollouts and phases, with nothing wrapped."""
    return Engine(torch.device("cpu"), as_it_is, fuse=as_it_is)


def test_whole_rollouts_and_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ganglion.runtime.seeds.build_engine", captured)
    words = [*PPO, TENSORS, *UPDATES, "run.fast=eager"]
    seeds = Seeds(configs(tmp_path / "together", words))
    events = [told.log.kind for told in seeds.stream()]
    assert events.count("collect") == SEEDS * 16 and events.count("learn") == SEEDS * (4 + 15)  # the first one by one
    for run, cfg in zip(seeds.runs, configs(tmp_path / "alone", words), strict=True):
        one = Run.create(cfg, captured(cfg))
        for _ in one.stream():
            pass
        same(one.state(), run.state())


@pytest.mark.gpu
@pytest.mark.parametrize("words", [[*PPO, TENSORS], [*DQN, TENSORS]], ids=["ppo", "dqn"])
def test_captured(tmp_path: Path, words: Words) -> None:
    more = [*words, *UPDATES, "run.fast=auto", "run.device=cuda"]
    seeds = together(configs(tmp_path / "together", more))
    for run, cfg in zip(seeds.runs, configs(tmp_path / "alone", more), strict=True):
        one, other = alone(cfg).state(), run.state()
        for name, tensor in one.tensors.items():
            if name.startswith("trainer/agent"):
                torch.testing.assert_close(other.tensors[name], tensor, rtol=1e-3, atol=1e-4)


def test_ppo_with_a_memory(tmp_path: Path) -> None:
    check(tmp_path, [*PPO, TENSORS, "algo.net.memory=gru", "algo.net.memory_size=8", "train.budget=450 steps"])


def test_dqn(tmp_path: Path) -> None:
    seeds = check(tmp_path, [*DQN, GYM])
    assert len({run.trainer.at.episodes for run in seeds.runs}) > 1


VALUE = {
    "noisy": ["algo=dqn", "algo.noisy=0.5", "algo.tau=0.01"],
    "munchausen": ["algo=dqn", "algo.munchausen=0.9", "algo.temperature=0.3"],
    "bootstrapped_dqn": ["algo=bootstrapped_dqn", "algo.heads=4", "algo.share=0.5"],
    "nfsp": ["algo=nfsp", "algo.anticipation=0.4", "algo.reservoir=50"],
    "c51": ["algo=c51", "algo.atoms=11", "algo.low=0"],
    "qrdqn": ["algo=qrdqn", "algo.quantiles=7"],
    "iqn": ["algo=iqn", "algo.percentiles.count=4", "algo.act_percentiles={sample: uniform, count: 4}"],
    "fqf": ["algo=fqf", "algo.fractions=6"],
    "rainbow": ["algo=rainbow", "algo.atoms=11", "algo.low=0"],
    "r2d2": ["algo=r2d2", "algo.net.memory_size=8", "algo.replay={kind: replay, sequence: 4, burn_in: 2, batch: 8}"],
}


@pytest.mark.parametrize("name", VALUE)
def test_value_based(tmp_path: Path, name: str) -> None:
    kind, *own = VALUE[name]
    rest = [
        word for word in DQN[1:] if name not in ("rainbow", "r2d2", "nfsp") or "double" not in word
    ]  # they always are
    check(tmp_path, [kind, *rest, *own, TENSORS, "train.budget=300 steps", "eval=never"], TWO)


def test_pqn(tmp_path: Path) -> None:
    words = ["algo=pqn", "algo.horizon=8", "algo.epsilon=1.0", "algo.net.hidden=[16, 16]", TENSORS]
    check(tmp_path, [*words, "train.budget=300 steps"], TWO)


def test_dqn_prioritised_in_a_world_of_tensors(tmp_path: Path) -> None:
    more = ["algo.replay.kind=prioritised", "algo.n_step=3", "algo.hold=2.0", "algo.limiter.opt_interval=0.9"]
    check(tmp_path, [*DQN, TENSORS, *more, "train.budget=180 steps"], TWO)  # few: a sum decides each draw


def test_impala(tmp_path: Path) -> None:
    words = ["algo=impala", "algo.horizon=8", "algo.net.hidden=[16, 16]", TENSORS, "train.budget=450 steps"]
    check(tmp_path / "whole", words)
    check(tmp_path / "parts", [*words, "algo.minibatches=2", "algo.epochs=2"], TWO)


@pytest.mark.parametrize("algo", ["{kind: a2c, optim: rmsprop}", "{kind: a2c, optim: adam}", "reinforce"])
def test_one_update_from_each_rollout(tmp_path: Path, algo: str) -> None:
    words = [f"algo={algo}", "algo.horizon=8", "algo.net.hidden=[16, 16]", TENSORS, "train.budget=450 steps"]
    check(tmp_path, words, TWO)


def test_acer(tmp_path: Path) -> None:
    words = ["algo={kind: acer, horizon: 6}", "algo.net.hidden=[16, 16]", "algo.limiter={opt_interval: 8, warmup: 100}",
             "algo.replay={capacity: 400, batch: 8}", TENSORS, "train.budget=300 steps", "eval=never"]  # fmt: skip
    check(tmp_path, words, TWO)


BONUS = "algo.bonus={kind: rnd, net: {hidden: [8]}}"


@pytest.mark.parametrize("words", [[*PPO, TENSORS], [*DQN, GYM]], ids=["ppo", "dqn"])
def test_a_bonus(tmp_path: Path, words: Words) -> None:
    check(tmp_path, [*words, BONUS, "train.budget=400 steps"], TWO)


PENDULUM = "env={kind: torch, id: pendulum, slots: 3}"
CONTINUOUS = ["algo.net.hidden=[16, 16]", "algo.limiter={opt_interval: 4, warmup: 100}", "train.budget=400 steps",
              "algo.replay={capacity: 400, batch: 32}", PENDULUM]  # fmt: skip


@pytest.mark.parametrize(("algo", "steps"), [("sac", 400), ("td3", 400), ("ddpg", 250), ("tqc", 250)])
def test_continuous_control(tmp_path: Path, algo: str, steps: int) -> None:
    """Random numbers in updates, three optimisers, parts that learn more rarely, targets that follow slowly. A run
    alone uses torch's Adam, which rounds otherwise: some algorithms tell last bits apart after some 40 updates."""
    words = [f"algo={algo}", *CONTINUOUS, "eval=never", f"train.budget={steps} steps"]  # scores would tell them apart
    check(tmp_path, words, [[f"run.seed={k}"] for k in range(4)])


@pytest.mark.parametrize("algo", ["flashsac", "redq", "d4pg"])
def test_continuous_control_for_few_updates(tmp_path: Path, algo: str) -> None:
    """Statistics that move in updates, numbers of a whole update. Some gradients are 0 up to rounding (a shift before a
    batch norm), and Adam makes a step of any: many updates would tell last bits apart. CrossQ: test_vmapped."""
    check(tmp_path, [f"algo={algo}", *CONTINUOUS, "eval=never", "train.budget=130 steps"], TWO)


@pytest.mark.parametrize("noise", ["ou", "pink"])
def test_noise_that_slots_carry(tmp_path: Path, noise: str) -> None:
    check(tmp_path, ["algo=ddpg", *CONTINUOUS, "eval=never", f"algo.noise_kind={noise}", "train.budget=200 steps"], TWO)


def test_discrete_sac(tmp_path: Path) -> None:
    words = ["algo=discrete_sac", *CONTINUOUS[:-1], TENSORS, "eval=never"]
    check(tmp_path, words, TWO)


def test_ppo_with_a_long_memory(tmp_path: Path) -> None:
    more = ["algo.net.memory=lstm", "algo.net.memory_size=8", "algo.recompute=true", "algo.dual_clip=3.0"]
    check(tmp_path, [*PPO, TENSORS, *more, "train.budget=450 steps"], TWO)


def test_numbers_of_the_algorithm_may_differ(tmp_path: Path) -> None:
    numbers = {"lr": (1e-3, 2e-4), "gamma": (0.9, 0.99), "lam": (0.8, 0.95), "value_weight": (0.5, 1.0),
               "max_norm": (0.1, 2.0), "entropy": (0.0, 0.1), "clip_value": (0.1, 0.3)}  # fmt: skip
    differing = [[f"algo.{name}={values[k]}" for name, values in numbers.items()] for k in range(2)]
    check(tmp_path / "ppo", [*PPO, TENSORS, "train.budget=450 steps"], differing)
    numbers = {"lr": (1e-3, 2e-4), "gamma": (0.9, 0.99), "max_norm": (0.01, 10.0), "limiter.opt_interval": (4.0, 7.0)}
    differing = [[f"algo.{name}={values[k]}" for name, values in numbers.items()] for k in range(2)]
    check(tmp_path / "dqn", [*DQN, GYM, "train.budget=450 steps"], differing)


@pytest.mark.parametrize("words", [[*PPO, TENSORS], [*DQN, GYM]], ids=["ppo", "dqn"])
def test_stopped_each_goes_on_by_itself(tmp_path: Path, words: Words) -> None:
    seeds = together(configs(tmp_path / "together", words), stop_at=550)
    assert all(run.trainer.at.fraction < 1 for run in seeds.runs)
    for run, cfg in zip(seeds.runs, configs(tmp_path / "alone", words), strict=True):
        again = Run.open(run.folder)
        assert again.trainer.at[:3] == run.trainer.at[:3]
        for _ in again.stream():
            pass
        again.close()
        one = alone(cfg)
        same(one.state(), again.state())


def test_each_can_be_scored(tmp_path: Path) -> None:
    seeds = together(configs(tmp_path, [*PPO, TENSORS, "train.budget=300 steps"]))
    assert evaluate(seeds.runs[1].folder, 2, 0)["episodes"] == 2


def test_what_cannot_train_together_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"algo\.horizon: runs that train together may differ in run.seed"):
        Seeds(configs(tmp_path, [*PPO, TENSORS], [["algo.horizon=16"], ["algo.horizon=32"]]))
    with pytest.raises(UserError, match=r"run\.mode: threads cannot train several runs together"):
        Seeds(configs(tmp_path, [*PPO, TENSORS, "run.mode=threads"]))
    with pytest.raises(UserError, match=r"NaturalGradient cannot train several runs together. Accepted: Adam"):
        together(configs(tmp_path / "trpo", ["algo=trpo", TENSORS]))
    with pytest.raises(UserError, match="1 runs cannot train together"):
        Seeds(configs(tmp_path, [*PPO, TENSORS], [[]]))
    assert list(tmp_path.iterdir()) == []


def test_the_interval_is_students() -> None:
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert interval([5.0]) == (5.0, 5.0, 5.0)


GTRXL = ["algo.net={memory: gtrxl, memory_size: 8, memory_window: 4, heads: 2}"]
RULES = ["algo.optim={name: adamw, clip: momentum, after: 3, ignore: norm, ignore_at: 1.0}", "algo.net.spectral=true"]


@pytest.mark.parametrize("words", [[*PPO, *GTRXL], [*DQN, *RULES, "algo.net.norm=rms"]], ids=["gtrxl", "rules"])
def test_transformers_and_rules_of_gradients(tmp_path: Path, words: Words) -> None:
    seeds = together(configs(tmp_path / "together", [*words, TENSORS]))
    for run, cfg in zip(seeds.runs, configs(tmp_path / "alone", [*words, TENSORS]), strict=True):
        same(alone(cfg).state(), run.state())
