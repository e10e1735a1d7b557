"""A resumed run equals one that never stopped: parameters, buffers, random streams, environments, metrics."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ganglion.config.files import dump
from ganglion.core import Evaluate, Save, SetKnob, Stop
from ganglion.errors import UserError
from ganglion.record.checkpoint import load
from ganglion.runtime.run import Run
from tests.equal.runs import SORTS, config, fingerprint, finish, metrics, saved

SOAK = os.environ.get("GANGLION_SOAK") == "1"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One uninterrupted run of each sort."""
    root = tmp_path_factory.mktemp("whole")
    for sort in SORTS:
        finish(Run.create(config(sort, root / sort)))
    return {sort: root / sort for sort in SORTS}


@pytest.mark.parametrize("sort", SORTS)
def test_same_config_same_everything(sort, whole, tmp_path):
    finish(Run.create(config(sort, tmp_path / "again")))
    assert saved(tmp_path / "again") == saved(whole[sort])
    assert metrics(tmp_path / "again") == metrics(whole[sort])


@pytest.mark.parametrize("sort", SORTS)
def test_stopped_anywhere_and_resumed_is_the_same(sort, whole, tmp_path):
    """Stops by command at several arbitrary events, each time continuing in a new process's worth of objects."""
    folder, dice = tmp_path / "stopped", random.Random(sort)
    most = 70 if sort == "pqn_vdn" else 120  # it has 305 events
    run = Run.create(config(sort, folder))
    for _ in range(4):
        stream = run.stream()
        for _ in range(dice.randint(1, most)):
            next(stream)
        with pytest.raises(StopIteration):
            while True:
                stream.send(Stop())
        run = Run.open(folder)
    finish(run)
    assert metrics(folder) == metrics(whole[sort])
    assert saved(folder) == saved(whole[sort])


@pytest.mark.parametrize("sort", SORTS)
def test_killed_between_saves_and_resumed_is_the_same(sort, whole, tmp_path):
    """Left without a word: what happened after the last save happens again."""
    folder, dice = tmp_path / "killed", random.Random(f"kill {sort}")
    run = Run.create(config(sort, folder))
    for _ in range(3):
        stream = run.stream()
        for _ in range(dice.randint(40, 200)):
            if next(stream, None) is None:
                break
        run.saved.save = lambda: pytest.fail("a killed process saves nothing")
        stream.close()
        run = Run.open(folder)
    finish(run)
    assert metrics(folder) == metrics(whole[sort])
    assert saved(folder) == saved(whole[sort])


def start(words: list[str]) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "ganglion", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env
    )


@pytest.mark.parametrize("sort", SORTS)
def test_sigkill_at_a_random_moment(sort, tmp_path):
    """A real process, a real SIGKILL, while it trains, saves or evaluates."""
    points = 20 if SOAK else 1
    reference = finish(Run.create(config(sort, tmp_path / "reference", budget=2_500))).folder
    dice = random.Random(int.from_bytes(os.urandom(4), "big")) if SOAK else random.Random(sort)
    for point in range(points):
        folder, file = tmp_path / f"kill-{point}", tmp_path / f"{point}.yaml"
        file.write_text(dump(config(sort, folder, budget=2_500)))
        process = start(["train", str(file)])
        while not (folder / "metrics.jsonl").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(dice.uniform(0.0, 2.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        resumed = start(["resume", str(folder)])
        _, said = resumed.communicate(timeout=120)
        assert resumed.returncode == 0, said.decode()
        assert saved(folder) == saved(reference)
        assert metrics(folder) == metrics(reference)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_first_and_say_how_to_go_on(number, whole, tmp_path):
    folder, file = tmp_path / "asked", tmp_path / "asked.yaml"
    long = config("ppo", folder, budget=1_000_000)
    file.write_text(dump(long))
    process = subprocess.Popen(
        [sys.executable, "-m", "ganglion", "train", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not (folder / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err.decode()
    assert f"ganglion resume {folder}" in out.decode() and b"Traceback" not in err
    run = Run.open(folder)
    assert run.trainer.at.env_steps > 0


def test_leaving_the_loop_and_calling_again_continues(whole, tmp_path):
    run = Run.create(config("dqn", tmp_path / "left"))
    while run.trainer.at.fraction < 1:
        for number, _ in enumerate(run.stream()):
            if number > 150:
                break
    finish(run)
    assert metrics(tmp_path / "left") == metrics(whole["dqn"])


@pytest.mark.parametrize("sort", ["dqn", "recurrent", "sac"])
def test_training_does_not_notice_evaluation(sort, whole, tmp_path):
    run = finish(Run.create(config(sort, tmp_path / "blind", eval="never")))
    seen = Run.open(whole[sort])
    assert fingerprint(run.trainer.state()) == fingerprint(seen.trainer.state())


def test_commands_save_evaluate_and_set_knobs(tmp_path):
    run = Run.create(config("dqn", tmp_path / "told", eval={"every": "1M steps", "episodes": 2}, save="900k steps"))
    stream = run.stream()
    for _ in range(60):
        next(stream)
    stream.send(SetKnob("epsilon", 0.25))
    kinds = [stream.send(Evaluate()).kind] + [next(stream).kind for _ in range(2)]
    assert "evaluate" in kinds
    kinds = [stream.send(Save()).kind] + [next(stream).kind for _ in range(2)]
    assert "save" in kinds
    for _ in range(5):
        next(stream)
    assert run.trainer.learner.agent.held.values["epsilon"] == 0.25
    again = Run.open(tmp_path / "told")
    assert again.trainer.learner.agent.held.pinned == {"epsilon": 0.25}, "a pinned knob is part of the state"


def test_a_longer_budget_goes_on_from_where_it_was(tmp_path):
    run = finish(Run.create(config("dqn", tmp_path / "long")))
    longer = finish(Run.open(run.folder, ["train.budget=1500 steps"]))
    assert longer.trainer.at.env_steps >= 1_500
    assert [m["env_steps"] for m in metrics(run.folder) if m["kind"] == "record"] == sorted(
        m["env_steps"] for m in metrics(run.folder) if m["kind"] == "record"
    )


def test_two_processes_cannot_run_one_folder(tmp_path):
    run = Run.create(config("dqn", tmp_path / "shared"))
    stream, said = run.stream(), (run.folder / "config.yaml").read_text()
    next(stream)
    with pytest.raises(UserError, match="another process"):
        next(Run.open(run.folder, ["train.budget=1500 steps"]).stream())
    assert (run.folder / "config.yaml").read_text() == said, "the settings of a run that goes on"
    stream.close()
    next(Run.open(run.folder, ["train.budget=1500 steps"]).stream())
    assert (run.folder / "config.yaml").read_text() != said


def test_two_runs_of_one_second_get_two_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = config("dqn", tmp_path, run={})
    assert len({Run.create(cfg).folder for _ in range(3)}) == 3


def test_best_holds_the_agent_alone(whole):
    state, _ = load(whole["dqn"] / "checkpoints" / "best")
    assert not state.rings and all(name.startswith("trainer/agent/") for name in state.tensors)
