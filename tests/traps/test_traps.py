"""Faults seen in other systems, one test each. Those of pure mathematics are in tests/ops."""

from __future__ import annotations

import json
import weakref

import pytest
import torch

from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import LogData, Past, Progress
from ganglion.record.stages import Recorded
from ganglion.runtime.build import build
from ganglion.runtime.check_algorithm import NoSync
from ganglion.runtime.run import Run
from tests.contract.worlds import CASES, Bench
from tests.equal.runs import config, finish, metrics

CASE = {case.name: case for case in CASES}


@pytest.mark.parametrize("name", ["ppo", "ppo-box", "ppo-all", "ppo-hybrid", "impala", "impala-hybrid", "impala-all"])
def test_first_minibatch_has_ratio_one(name):
    """Statistics that advance between acting and learning, or a memory read differently, would move it off 1."""
    bench = Bench(CASE[name])
    at = Progress()
    for _ in range(3):  # over several phases, so that statistics have moved
        while not bench.learner.owes(at):
            at = bench.explorer.step(at).at
        bench.learner.begin(at)
        m = bench.learner.mini
        with torch.no_grad():
            logp = bench.algo.predict(m.obs, m.past, bench.algo.neutral(m.valid)).dist.log_prob(m.action)
        behaviour = m.extras["logp"] if CASE[name].algo == "impala" else m.logp
        ratio = (logp - behaviour).exp()[m.valid]
        assert (ratio - 1).abs().max() < 2e-6
        at = bench.train(3, at)
        while bench.learner.mini is not None:
            at = bench.learner.step(at).at


@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_importance_weights_count_under_every_loss(loss):
    """One library multiplied them into one branch only; another let [B, 1] * [B] spread to [B, B]."""
    norms = []
    for weight in (1.0, 0.5, 0.0):
        bench = Bench(CASE["dqn"])
        mini, noise, at = bench.learnable()
        bench.algo.cfg = bench.algo.cfg.model_copy(update={"loss": loss})
        weighed = mini._replace(weight=torch.full_like(mini.weight, weight))
        update = bench.algo.learn(weighed, bench.agent.knobs(at), noise)
        norms.append(update.metrics["grad_norm"].item())
        assert update.priority.shape == mini.index.shape[1:]
    assert norms[0] > 0 and norms[1] == pytest.approx(norms[0] / 2, rel=1e-4) and norms[2] == 0


def test_soft_targets_ask_the_current_actor():
    """The lagged copy holds critics alone: no lagged actor exists to ask."""
    bench = Bench(CASE["sac"])
    assert not any("actor" in name for name, _ in bench.algo.target.named_parameters())


def test_target_noise_differs_per_row():
    bench = Bench(CASE["sac"])
    mini, noise, _ = bench.learnable()
    same = ops.map_tree(lambda x: x[:, :1].expand_as(x), mini.data)
    assert noise.normal.shape[:2] == mini.weight.shape, "random numbers per row, not per batch"
    dist = bench.algo.predict(same.obs, Past((), same.past.start), bench.algo.neutral(same.past.start)).dist
    action, _ = dist.sample_and_log_prob(noise._replace(normal=noise.normal.chunk(2, -1)[0]))
    assert action.std(1).min() > 0


@pytest.mark.gpu
def test_recording_never_waits_for_the_device():
    stage = Recorded([], config_every("10 steps"), lambda: Progress(), dict)
    losses = torch.arange(100.0, device="cuda").unbind()
    with NoSync():
        for k, loss in enumerate(losses):
            stage.seen(LogData("learn", Progress(opt_steps=k), {"loss": loss}))
    stage.settle()
    assert stage.sums["learn/loss"] == [4950.0, 100.0]


def test_recording_keeps_no_tensors_of_the_cpu():
    """Small ones that live on split the memory which each update uses again: SAC grew by 0.6 MB with every update."""
    stage, kept = Recorded([], config_every("10 steps"), lambda: Progress(), dict), []
    for k in range(100):
        loss = torch.tensor(float(k))
        kept.append(weakref.ref(loss))
        stage.seen(LogData("learn", Progress(opt_steps=k), {"loss": loss}))
    del loss
    assert not any(ref() is not None for ref in kept)
    stage.settle()
    assert stage.sums["learn/loss"] == [4950.0, 100.0]


def config_every(text: str):
    from ganglion.config import every

    return every(text)


def test_two_runs_in_one_process_do_not_log_twice(tmp_path):
    """A decorator that edits the class would."""
    alone = finish(Run.create(config("ppo", tmp_path / "alone")))
    one, two = Run.create(config("ppo", tmp_path / "one")), Run.create(config("ppo", tmp_path / "two"))
    for _ in zip(one.stream(), two.stream(), strict=True):
        pass
    assert metrics(tmp_path / "one") == metrics(tmp_path / "two") == metrics(alone.folder)


def test_values_and_predictions_advance_no_counter(tmp_path):
    run = Run.create(config("dqn", tmp_path / "asked"))
    stream = run.stream()
    for _ in range(80):
        next(stream)
    before, state = run.trainer.at, torch.clone(run.trainer.source.seats[0].stream.generator.get_state())
    run.trainer.run_evaluate()
    step, past = run.trainer.source.now, run.trainer.source.seats[0].past
    run.trainer.learner.agent.predict(step.obs, past)
    assert run.trainer.at == before and torch.equal(state, run.trainer.source.seats[0].stream.generator.get_state())


def test_a_held_choice_lasts_as_long_as_asked_and_each_slot_has_its_own():
    from dataclasses import replace

    case = CASE["dqn"]
    bench = Bench(replace(case, slots=64, settings={**case.settings, "hold": 5.0}))
    bench.explorer.step(Progress())
    rows = torch.stack([bench.explorer.seats[0].noise.next().uniform[0, :, 0] for _ in range(400)])  # [T, B]
    changed = (rows[1:] != rows[:-1]).float()
    assert changed.mean().item() == pytest.approx(1 / 5, abs=0.01)
    assert (changed.std(1) > 0).float().mean() > 0.9, "slots let go at different times"


def test_learning_declines_during_warm_up_and_nothing_else_happens():
    """Border: an update that declines advances no counter and ends nothing."""
    bench = Bench(CASE["dqn"])
    at = Progress()
    while at.env_steps < 50:
        assert not bench.learner.owes(at) and at.opt_steps == 0
        at = bench.explorer.step(at).at
    for _ in range(40):
        at = (bench.learner.step(at) if bench.learner.owes(at) else bench.explorer.step(at)).at
    assert at.opt_steps == pytest.approx((at.env_steps - 50) / 6, abs=1.01)


@pytest.mark.parametrize("interval", [0.25, 0.4, 1, 2.5, 10])
def test_updates_follow_fractional_ratios_for_any_number_of_slots(interval):
    from ganglion.buffers import RatioConfig

    limiter = RatioConfig(opt_interval=interval, warmup=100).build(CASE["dqn"].spec(), torch.device("cpu"))
    for slots in (1, 3, 8):
        at = Progress()
        while at.env_steps < 2_000:
            if limiter.owes(at, ready=at.env_steps >= 20):
                at = at._replace(opt_steps=at.opt_steps + 1)
            else:
                at = at._replace(env_steps=at.env_steps + slots)
        assert at.opt_steps == pytest.approx((at.env_steps - 100) / interval, abs=1 + slots / interval)


def test_env_steps_count_decisions_over_slots_and_dead_rows_do_not():
    cfg = {
        "algo": {"kind": "ppo", "horizon": 8},
        "env": {"kind": "toy", "id": "bandit", "slots": 5},
        "train": {"budget": "1k steps"},
    }
    trainer = build(RunConfig.model_validate(cfg))
    for _ in trainer():
        pass
    # every second row of a one-step world is dead
    assert trainer.at.env_steps == pytest.approx(1_000, abs=5) and trainer.at.episodes == trainer.at.env_steps


def test_a_time_limited_episode_bootstraps_from_its_own_last_observation():
    """Not from the first observation of the next episode, and not from nothing."""
    bench = Bench(CASE["ppo"])
    at = Progress()
    while not bench.learner.owes(at):
        at = bench.explorer.step(at).at
    rollout = bench.learner.buffer.take(torch.empty(0), at)
    rows = bench.learner.buffer.rows()
    with torch.no_grad():
        last = bench.algo.predict(*rollout.last, bench.algo.neutral(rollout.valid[:1])).value
        after = torch.cat([rollout.extras["value"][1:], last])
    truncated = rows.truncated[:-1].nonzero()
    assert len(truncated), "the made-up world truncates"
    for t, b in truncated.tolist():
        assert not rows.valid[t + 1, b], "a dead row follows"
        with torch.no_grad():
            start = torch.zeros(1, 1, dtype=torch.bool)
            seen = rows.obs[t + 1, b][None, None]
            own = bench.algo.predict(seen, Past((), start), bench.algo.neutral(start)).value
        assert torch.isclose(after[t, b], own.squeeze(), atol=1e-6)
        assert rollout.discount[t, b] == pytest.approx(0.99) and rollout.cut[t, b]


def test_metrics_file_is_plain_json(tmp_path):
    run = finish(Run.create(config("sac", tmp_path / "plain")))
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    assert lines and all(isinstance(json.loads(line, parse_constant=pytest.fail), dict) for line in lines)
