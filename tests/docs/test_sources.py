"""The usage examples of abcdrl, nerveX, XingTian and Border, translated: each runs, and does what its source says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ganglion.core import Progress
from ganglion.record.writers.jsonl import read
from tests.docs.blocks import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ------------------------------------------------------------ abcdrl


def test_abcdrl_prints_its_log_data_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    from examples import from_abcdrl

    decorated = from_abcdrl.main(steps=4_000)
    printed = capsys.readouterr().out.splitlines()
    assert {line.split("'")[1] for line in printed if line.startswith("LogData")} == {"collect", "learn"}
    assert any("scored" in line for line in printed)  # the logger around the stream
    assert {log.kind for log in decorated} == {"collect", "learn", "evaluate"}
    returns = [log.metrics["eval/return_mean"] for log in decorated if log.kind == "evaluate"]
    assert max(returns) > 5 * returns[0]


def test_abcdrl_the_generator_holds_nothing_but_the_trainer_does() -> None:
    """Exhausting it is training; a second call after the end has nothing left to do."""
    from examples import from_abcdrl

    trainer = from_abcdrl.make_trainer(steps=500)
    stream = trainer()
    for _ in range(60):
        next(stream)
    stream.close()
    first = trainer.at
    *_, last = trainer()
    assert 0 < first.env_steps < last.at.env_steps
    assert 500 <= last.at.env_steps < 504
    assert list(trainer()) == []


# ------------------------------------------------------------ nerveX


def test_nervex_environments_are_tensors() -> None:
    from examples import from_nervex

    one, four = from_nervex.make_env(), from_nervex.make_envs()
    assert one.reset(0).obs.shape == (1, 4)
    first = four.reset(0)
    assert first.obs.shape == (4, 4)
    assert [env.unwrapped.gravity for env in four.slots.envs] == [9.8, 9.8, 3.7, 1.6]  # type: ignore[attr-defined]


def test_nervex_agent_modes_and_graph() -> None:
    from examples import from_nervex

    metrics = from_nervex.agent_modes()
    assert metrics["total_loss"] > 0


def test_nervex_buffer_appends_and_samples() -> None:
    from examples import from_nervex

    sample = from_nervex.append_and_sample()
    assert sample.index.shape == (1, 4) and sample.weight.shape == (1, 4)
    torch.testing.assert_close(sample.data.next_obs, sample.data.obs + 1)  # row t + 1, whichever t was drawn


def test_nervex_serial_pipeline_takes_a_config_and_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples import from_nervex

    first = from_nervex.main().run
    assert (first.folder / "config.yaml").exists() and first.checkpoints.best() is not None
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "second")  # folders are named by the second
    second = from_nervex.serial_pipeline(from_nervex.CONFIG.replace("1500 steps", "300 steps"), seed=1).run
    assert [run.cfg.run.seed for run in (first, second)] == [0, 1]
    assert first.trainer.at.env_steps >= 1_500


def test_nervex_policy_learns_by_its_registered_name() -> None:
    from examples import from_nervex_policy

    run = from_nervex_policy.main().run
    assert run.cfg.algo.kind == "nervex-dqn"
    assert run.evaluated.best is not None and run.evaluated.best > 60
    knobs = [run.trainer.learner.agent.algo.knobs(Progress(fraction=f))["eps"] for f in (0.0, 0.4, 0.8, 1.0)]
    assert knobs == sorted(knobs, reverse=True) and knobs[-1] == 0.1


# ------------------------------------------------------------ XingTian


def test_xingtian_four_modules_are_composed_in_yaml(tmp_path: Path) -> None:
    """From the command line: names that only --import brings, and an agent that learns."""
    folder = tmp_path / "run"
    words = ["train", "from_xingtian.yaml", "--import", "from_xingtian", f"run.dir={folder}"]
    result = subprocess.run(
        [sys.executable, "-m", "ganglion", *words], cwd=EXAMPLES, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    last = [event for event in read(folder / "metrics.jsonl") if event["kind"] == "evaluate"][-1]
    assert last["eval/return_mean"] == 1.0 and last["eval/length_mean"] == 6.0  # the shortest way


def test_xingtian_hooks_are_a_run(tmp_path: Path) -> None:
    """Driven hook by hook over a broker it ends where Ganglion's own loop does, to the bit."""
    import ganglion
    from examples import from_xingtian_hooks as hooks
    from ganglion.runtime.build import build

    algorithm, lags = hooks.run()
    trainer = build(ganglion.load_config(None, [*hooks.SETTINGS, "run.fast=eager"]))
    while trainer.at.opt_steps < algorithm.at.opt_steps:  # its last item goes beyond the budget
        trainer.run_train() if trainer.learner.owes(trainer.at) else trainer.run_collect()
    assert algorithm.at.env_steps == trainer.at.env_steps >= 6_000 and set(lags) == {0}
    ours, theirs = trainer.learner.agent.state().tensors, algorithm.agent.state().tensors
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    seen = torch.arange(4)
    assert torch.equal(algorithm.predict(seen), seen), "it says what it sees"

    other, lags = hooks.run(every=8)
    assert max(lags) == 6, "explorers act with older weights"
    assert torch.equal(other.predict(seen), seen), "and V-trace learns from them"
    (name,) = algorithm.save(tmp_path, 7)
    assert name == "actor_00007.safetensors"
    other.restore(tmp_path / name)
    assert weights_of(other) == weights_of(algorithm)
    fresh = hooks.Algorithm(ganglion.load_config(None, hooks.SETTINGS), trainer.source.env.spec, 1)
    before = fresh.get_weights()
    other.restore(tmp_path / name, before)
    assert weights_of(other) == weights_of(fresh), "weights win over a file"


def weights_of(algorithm: Any) -> list[Any]:
    return [tensor.tolist() for tensor in algorithm.get_weights().tensors.values()]


def test_xingtian_names_need_their_import() -> None:
    from ganglion.cli import main

    assert main(["show", str(EXAMPLES / "from_xingtian.yaml")]) == 2


# ------------------------------------------------------------ Border


def test_border_intervals_drive_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    from examples import from_border

    from_border.Recorder.written.clear()
    run = from_border.train()
    printed = [line.split()[:3:2] for line in capsys.readouterr().out.splitlines()]
    happened = {kind: [int(at) for k, at in printed if k == kind] for kind in ("record", "evaluate", "save")}
    assert happened["record"] == [50, 100, 150, 200, 250, 300]
    assert happened["evaluate"] == [100, 200, 300]
    assert happened["save"] == [100, 200, 300]
    assert run.trainer.at.opt_steps == 300  # max_opts
    assert {path.name for path in run.checkpoints.folder.iterdir()} >= {"best", "chunks"}
    records = [log for log in from_border.Recorder.written if log.kind == "record"]
    assert len(records) == 6
    assert all(log.metrics["speed/opt_steps_per_s"] > 0 for log in records)


def test_border_by_hand_agrees() -> None:
    from examples import from_border

    happened = from_border.train_by_hand(max_opts=200, folder="by-hand")
    assert happened["evaluate"] == [100, 200] and happened["save"] == [100, 200]
    assert happened["record"] == [50, 100, 150, 200]
    assert happened["best"][0] == 100  # anything is better than nothing


def test_border_an_update_may_be_declined() -> None:
    """During warm-up, and between intervals: nothing else happens in that turn."""
    import ganglion
    from examples import from_border
    from ganglion.runtime.build import build

    trainer = build(ganglion.load_config(from_border.CONFIG))
    updated = [trainer.at.env_steps for _ in range(240) if from_border.train_step(trainer) is not None]
    assert updated[0] > 200
    assert {b - a for a, b in zip(updated, updated[1:])} <= {4, 5}  # 5 where an episode's dead row lies between
    assert trainer.at.opt_steps == len(updated)
