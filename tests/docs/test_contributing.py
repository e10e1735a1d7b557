"""CONTRIBUTING's example algorithm is a real one: it runs from the command line, learns, and resumes."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import ganglion
from ganglion.cli import main
from tests.docs.blocks import code, section

TEXT = section("CONTRIBUTING.md", "## Add an algorithm in five steps")
TOY = ["algo=actor-critic", "env={kind: toy, id: identity}", "log=[]", "save=never"]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The five blocks as the file a reader would have."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "actor_critic.py").write_text("\n\n".join(code(TEXT)), encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield importlib.import_module("actor_critic")
    sys.path.remove(str(folder))


def test_there_are_five_steps() -> None:
    assert len(code(TEXT)) == 5
    assert all(f"**{step}. " in TEXT for step in range(1, 6))


def test_it_learns(module: ModuleType, tmp_path: Path) -> None:
    """Naming what is shown, one of several: from chance to nearly always."""
    settings = [*TOY, "train.budget=12k steps", "eval={every: 6k steps, episodes: 20}", f"run.dir={tmp_path / 'run'}"]
    run = ganglion.Run.create(ganglion.load_config(None, settings))
    before = mean_return(run)
    for _ in run.stream():
        pass
    after, best = mean_return(run), best_return(run)
    assert before < 0.6 * best
    assert after > 0.95 * best


def test_it_resumes(module: ModuleType, tmp_path: Path) -> None:
    """All that changes is in `parts`: a run continued in a new object ends with the same numbers."""
    whole = ganglion.Run.create(
        ganglion.load_config(None, [*TOY, "train.budget=2k steps", f"run.dir={tmp_path / 'a'}"])
    )
    for _ in whole.stream():
        pass
    halves = ganglion.Run.create(
        ganglion.load_config(None, [*TOY, "train.budget=2k steps", f"run.dir={tmp_path / 'b'}"])
    )
    stream = halves.stream()
    for _ in range(100):
        next(stream)
    stream.close()
    halves.save()
    again = ganglion.Run.open(tmp_path / "b")
    for _ in again.stream():
        pass
    theirs = again.trainer.learner.agent.state().tensors
    for name, tensor in whole.trainer.learner.agent.state().tensors.items():
        assert torch.equal(tensor, theirs[name]), name


def test_the_command_runs(module: ModuleType, tmp_path: Path) -> None:
    command, check = (line for block in code(TEXT, "bash") for line in block.splitlines())
    assert check.startswith("ganglion check --import actor_critic --algo actor-critic ")
    program, *words = shlex.split(command)
    assert program == "ganglion"
    script = Path(sys.executable).with_name("ganglion")
    start = [str(script)] if script.exists() else [sys.executable, "-m", "ganglion"]
    short = ["train.budget=1k steps", "eval=never", "run.dir=run"]
    folder = Path(str(module.__file__)).parent
    result = subprocess.run([*start, *words, *short], cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert (folder / "run" / "config.yaml").exists()
    assert main([*shlex.split(check)[1:], "algo.net.hidden=[8]"]) == 0


def mean_return(run: ganglion.Run) -> float:
    episodes, _ = run.trainer.run_evaluate()
    return sum(episode.total for episode in episodes) / len(episodes)


def best_return(run: ganglion.Run) -> float:
    return float(run.trainer.source.env.best_return)  # type: ignore[attr-defined]
