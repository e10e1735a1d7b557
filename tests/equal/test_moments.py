"""Several things due at one count, and commands at the first event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ganglion.core import Evaluate, Save, SetKnob, Stop
from ganglion.runtime.run import Run
from tests.equal.runs import config, finish, metrics, saved

TOGETHER: dict[str, Any] = {
    "save": {"every": "200 steps", "keep": 9},
    "eval": {"every": "200 steps", "episodes": 2},
    "log": {"every": "200 steps", "writers": ["jsonl"]},
}


def left_at_a_save(folder: Path, **more: Any) -> Run:
    """A run resumed where saving, recording and evaluating were due at once and only the saving had happened."""
    stream = Run.create(config("dqn", folder, 600, **{**TOGETHER, **more})).stream()
    while next(stream).kind != "save":
        pass
    stream.close()
    return Run.open(folder)


def test_resumed_where_everything_was_due_at_once(tmp_path):
    whole = finish(Run.create(config("dqn", tmp_path / "whole", 600, **TOGETHER)))
    resumed = finish(left_at_a_save(tmp_path / "resumed"))
    assert metrics(resumed.folder) == metrics(whole.folder)
    assert saved(resumed.folder) == saved(whole.folder)


def test_a_target_reached_by_the_first_evaluation_after_a_resume_ends_the_run_there(tmp_path):
    easy = {"train": {"budget": "600 steps", "target": 1.0}}
    whole = finish(Run.create(config("dqn", tmp_path / "whole", 600, **TOGETHER, **easy)))
    resumed = finish(left_at_a_save(tmp_path / "resumed", **easy))
    assert resumed.trainer.at.env_steps == whole.trainer.at.env_steps < 600
    assert metrics(resumed.folder) == metrics(whole.folder)


def test_a_stop_at_the_first_event_after_a_resume(tmp_path):
    run = left_at_a_save(tmp_path / "run")
    stream, before = run.stream(), run.trainer.at
    assert next(stream).kind == "record"
    with pytest.raises(StopIteration):
        while True:
            stream.send(Stop())
    assert run.trainer.at == before, "nothing was trained after the word was given"
    whole = finish(Run.create(config("dqn", tmp_path / "whole", 600, **TOGETHER)))
    assert metrics(finish(Run.open(run.folder)).folder) == metrics(whole.folder)


@pytest.mark.parametrize("command", [Save(), Evaluate(), SetKnob("epsilon", 0.25)])
def test_any_command_at_the_first_event_after_a_resume(command, tmp_path):
    run = left_at_a_save(tmp_path / "run")
    stream = run.stream()
    next(stream)
    kinds = [stream.send(command).kind] + [next(stream).kind for _ in range(8)]
    if isinstance(command, SetKnob):
        assert run.trainer.learner.agent.held.pinned == {"epsilon": 0.25}
    else:
        assert type(command).__name__.lower() in kinds


def test_no_command_is_lost_to_another_sent_right_after_it(tmp_path):
    run = Run.create(config("ppo", tmp_path / "run", log={"every": "8 steps", "writers": []}))
    stream, knobs = run.stream(), {"lr": 0.5, "clip": 0.25, "entropy_weight": 0.125}
    while next(stream).kind != "collect":
        pass
    for name, value in knobs.items():  # some of these meet a record, which trains nothing
        stream.send(SetKnob(name, value))
    for _ in range(6):
        next(stream)
    assert run.trainer.learner.agent.held.pinned == knobs
