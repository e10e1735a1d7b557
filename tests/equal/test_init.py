"""Starting from saved weights: what fits is taken over, what does not is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ganglion.errors import UserError
from ganglion.runtime.run import Run
from tests.equal.runs import config, finish


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init") / "trained"
    finish(Run.create(config("dqn", folder, budget=400))).close()
    return folder


def test_all_of_an_equal_agent(trained: Path, tmp_path: Path):
    run = Run.create(
        config(
            "dqn",
            tmp_path / "next",
            init={"run": str(trained), "which": "last"},
            run={"dir": str(tmp_path / "next"), "seed": 9},
        )
    )
    theirs, ours = (each.trainer.learner.agent.algo for each in (Run.open(trained), run))
    for part in ("model", "target"):
        for name, tensor in theirs.parts()[part].state().tensors.items():
            assert torch.equal(tensor, ours.parts()[part].state().tensors[name]), name
    assert "Started from" in run.why and "Not there" not in run.why and run.trainer.at.env_steps == 0
    moments = [x for x in ours.optim.state().tensors.values() if x.dim() > 1]
    assert all(not x.any() for x in moments), "an optimiser starts anew"
    run.close()


def test_what_does_not_fit_is_told(trained: Path, tmp_path: Path):
    raw = config("dqn", tmp_path / "next", init=str(trained)).plain()
    raw["algo"]["net"]["hidden"], raw["algo"]["dueling"] = [16, 24], True
    cfg = type(config("dqn", tmp_path)).model_validate(raw)
    run = Run.create(cfg)
    assert "Of another shape: model/" in run.why and "there" in run.why and "Not there: model/" in run.why
    run.close()


def test_a_copied_target_follows_what_was_taken_over(trained: Path, tmp_path: Path):
    init = {"run": str(trained), "parts": ["model"]}
    run = Run.create(config("dqn", tmp_path / "next", init=init, run={"dir": str(tmp_path / "next"), "seed": 9}))
    parts = run.trainer.learner.agent.algo.parts()
    target = parts["target"].state().tensors
    assert target and all(
        torch.equal(x, parts["model"].state().tensors[k.removeprefix("net.")]) for k, x in target.items()
    )
    run.close()


def test_what_has_nothing_in_common_is_refused(trained: Path, tmp_path: Path):
    for init, why in (
        ({"run": str(trained), "parts": ["modle"]}, "no tensor of .* Its parts: .*model"),
        (str(tmp_path), "not the folder of a run"),
    ):
        with pytest.raises(UserError, match=why):
            Run.create(config("dqn", tmp_path / "next", init=init))
        assert not (tmp_path / "next").exists()
