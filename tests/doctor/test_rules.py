"""The doctor's rules: each speaks of the numbers that show its fault, and is silent about a run that learns."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from ganglion.cli import main
from ganglion.core import LogData, Progress
from ganglion.doctor.examine import returns
from ganglion.doctor.play import Played, ended
from ganglion.record.health import RULES, HealthWatch, findings

CONFIG = {
    "algo": {"kind": "dqn", "gamma": 0.99, "replay": {"batch": 128}},
    "env": {"kind": "gym", "id": "CartPole-v1"},
    "train": {"budget": "10k steps"},
}
GOOD = {
    "episode/return": lambda k: 20.0 + 10 * k,
    "episode/length": lambda k: 20.0 + 10 * k,
    "episodes": lambda k: 10 * k + 5,
    "learn/q": lambda k: 5.0 + k,
    "learn/entropy": lambda k: 0.69 - 0.02 * k,
    "learn/kl": lambda k: 0.01,
    "learn/clipped": lambda k: 0.1,
    "learn/grad_norm": lambda k: 1.0,
    "learn/temperature": lambda k: 0.2,
    "knob/epsilon": lambda k: max(0.05, 1 - 0.3 * k),
    "knob/lr": lambda k: 1e-3,
    "buffer/rows": lambda k: 1_000.0 * (k + 1),
    "buffer/use": lambda k: 20.0,
    "eval/return_mean": lambda k: 25.0 + 10 * k,
}


def events(**changed: Any) -> list[dict[str, Any]]:
    """Ten records of a run that learns, some of its numbers changed."""
    how = {**GOOD, **{name.replace("__", "/"): value for name, value in changed.items()}}
    made = []
    for k in range(10):
        at = {"kind": "record", "env_steps": 1_000 * (k + 1), "opt_steps": 100 * k, "seconds": float(k)}
        made.append({**at, **{name: value(k) for name, value in how.items()}})
    return made


def rules(config: dict[str, Any] = CONFIG, **changed: Any) -> list[str]:
    return [one.rule for one in findings(events(**changed), config)]


FLAT = {"episode__return": lambda k: 20.0, "eval__return_mean": lambda k: 20.0 + 0.1 * k}
ILL: dict[str, dict[str, Any]] = {
    "not_finite": {"learn__loss": lambda k: float("nan") if k == 9 else 1.0},
    "values_out_of_reach": {"learn__q": lambda k: 10.0**k},
    "no_updates": {"opt_steps": lambda k: 0},
    "no_gradient": {"learn__grad_norm": lambda k: 0.0},
    "rate_is_zero": {"knob__lr": lambda k: 0.0},
    "entropy_collapsed": {**FLAT, "learn__entropy": lambda k: 0.69 if k == 0 else 0.001},
    "steps_too_large": {"learn__kl": lambda k: 0.4},
    "no_exploration": {"knob__epsilon": lambda k: 0.0},
    "random_to_the_end": {"knob__epsilon": lambda k: 1.0},
    "replay_too_young": {"buffer__rows": lambda k: 256.0},
    "replay_worn": {"buffer__use": lambda k: 5_000.0},
    "reward_scale": {"episode__return": lambda k: 1_000 * (20.0 + 10 * k)},
    "no_reward": {"episode__return": lambda k: 0.0, "eval__return_mean": lambda k: 0.0},
    "worse_than_at_first": {"episode__return": lambda k: 20.0 - k, "eval__return_mean": lambda k: 9.0},
    "evaluation_apart": {"eval__return_mean": lambda k: 10.0},
    "temperature_high": {**FLAT, "learn__temperature": lambda k: 2.0},
}


def test_a_run_that_learns_has_no_findings() -> None:
    assert rules() == []
    assert findings([], CONFIG) == [] and findings([], {}) == []


def test_every_rule_has_its_case() -> None:
    assert {rule.__name__ for rule in RULES} == {*ILL}


@pytest.mark.parametrize("rule", ILL)
def test_a_rule_names_its_fault(rule: str) -> None:
    assert rule in rules(**ILL[rule])


@pytest.mark.parametrize("name", GOOD)
def test_numbers_that_are_missing_or_foreign_are_no_findings(name: str) -> None:
    """A file may hold anything."""
    for value in ("x", None, True):
        assert rules(**{name.replace("/", "__"): lambda k, value=value: value}) == []


def test_a_shaped_reward_is_not_compared_with_returns() -> None:
    scaled = {**CONFIG, "algo": {**CONFIG["algo"], "processor": {"reward_scale": 0.001}}}
    assert "reward_scale" not in rules(scaled, **ILL["reward_scale"])


def test_findings_are_said_once_while_training(caplog: pytest.LogCaptureFixture) -> None:
    watch = HealthWatch(CONFIG)
    with caplog.at_level(logging.WARNING):
        for event in events(**ILL["steps_too_large"]) * 60:  # longer than what is kept
            metrics = {name: value for name, value in event.items() if "/" in name}
            watch.write(LogData("record", Progress(event["env_steps"], 1, 1, 1.0, 0.5), metrics))
        watch.close()
    assert [r.message.partition(":")[0] for r in caplog.records].count("steps_too_large") == 1
    assert len(watch.events) <= HealthWatch.MOST


def test_discounted_returns_against_a_slow_reference() -> None:
    """Episodes that are terminated, cut off, and still running, beside each other."""
    torch.manual_seed(0)
    steps, slots, gamma = 12, 3, 0.9
    reward, value = torch.randn(steps, slots), torch.randn(steps, slots)
    terminated, truncated = torch.zeros(steps, slots, dtype=torch.bool), torch.zeros(steps, slots, dtype=torch.bool)
    terminated[4, 0] = truncated[6, 1] = True
    valid = torch.ones(steps, slots, dtype=torch.bool)
    valid[5, 0] = valid[7, 1] = False  # the rows after an ending
    played = Played({}, {}, reward, reward, terminated, truncated, valid, value, {}, [])
    totals, beyond = returns(played, gamma)
    for slot in range(slots):
        for begin in range(steps):
            total, weight, t = 0.0, 1.0, begin
            while True:
                total += weight * float(reward[t, slot])
                weight *= gamma
                if terminated[t, slot]:
                    weight = 0.0
                    break
                if truncated[t, slot] or t == steps - 1:
                    total += weight * float(value[min(t + 1, steps - 1), slot])
                    break
                t += 1
            assert float(totals[begin, slot]) == pytest.approx(total, abs=1e-6)
            assert float(beyond[begin, slot]) == pytest.approx(weight, abs=1e-6)
    assert ended(terminated, truncated, valid) == [(5, True), (7, False)]


# ------------------------------------------------------------ runs


QUICK = ["log={writers: [jsonl], every: 500 steps}", "eval={every: 1k steps, episodes: 4}"]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "run"
    assert main(["train", "cartpole/ppo-quick", "train.budget=8k steps", *QUICK, f"run.dir={folder}"]) == 0
    return folder


def report(folder: Path | str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["doctor", str(folder), "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_healthy_run_is_healthy(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(healthy, capsys)
    assert found["findings"] == [] and found["notes"] == []
    assert found["numbers"]["value_mean"] > 0
    assert main(["doctor", str(healthy)]) == 0
    assert "nothing found" in capsys.readouterr().out


def test_a_damaged_run_is_examined_as_far_as_it_goes(
    healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.yaml").write_text((healthy / "config.yaml").read_text())
    lines = (healthy / "metrics.jsonl").read_text().splitlines()
    (damaged / "metrics.jsonl").write_text("\n".join([*lines[:3], lines[3][:20], "{]", *lines[4:]]) + "\n")
    found = report(damaged, capsys)
    assert any("2 lines" in note for note in found["notes"])
    assert any("no checkpoint" in note for note in found["notes"])
    assert main(["doctor", str(tmp_path / "nowhere")]) == 2


def test_endings_called_truncated_are_found_by_playing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing that is recorded shows it."""
    from benchmarks.injected_bugs import BUGS, diagnosis, train

    bug = BUGS["env_ends_as_truncated"]
    assert {*diagnosis(train("env_ends_as_truncated", tmp_path, "1500 steps"))} & {*bug.named_by}
