"""Algorithms with a fault of their author's: said by name, and what was learned before it is saved."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.contract.own_algorithms as own
from ganglion.cli import main
from ganglion.config import register
from ganglion.core import Acted, Draws, EnvSpec, Knobs, Noise, Prediction, Stateful, Update
from ganglion.runtime.check_algorithm import PROPERTIES, Bench, made_up, why
from ganglion.runtime.run import Run

Captured = pytest.CaptureFixture[str]
REST = ["env={kind: torch, id: cartpole, slots: 4}", "train.budget=400 steps", "eval.every=never", "run.fast=eager",
        "save={every: 150 steps}", "log={every: 200 steps, writers: [jsonl]}", "run.device=cpu"]  # fmt: skip


class Faulty(own.SlowQ):
    """Does what its config says at the thirtieth update."""

    cfg: FaultyConfig
    made = 0

    def draws(self) -> Draws:
        return Draws() if self.cfg.fault == "draws" else super().draws()

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        if self.cfg.fault == "explore" and self.late:
            raise ValueError("no action today")
        if self.cfg.fault == "coin":
            noise = Noise(*(part[:, :1].expand_as(part) for part in noise[:2]))
        if self.cfg.fault == "peek":
            knobs = {"epsilon": knobs["epsilon"] + self.model.spread.detach().abs().mean()}
        return super().explore(prediction, knobs, noise)

    def acting(self) -> Mapping[str, Stateful]:
        return {"model": self.model} if self.cfg.fault == "acting" else super().acting()

    def learn(self, mini: Any, knobs: Knobs, noise: Noise) -> Update:
        if self.cfg.fault in ("learn", "explore", "counts"):
            self.made += 1
        if self.cfg.fault == "learn" and self.late:
            raise ValueError("nothing learned today")
        if self.cfg.fault == "random":
            mini = mini._replace(weight=mini.weight * torch.rand(()))
        if self.cfg.fault == "host" and mini.weight.sum().item() < 0:
            raise AssertionError
        if self.cfg.fault == "in place":
            mini.weight.mul_(0.5)
        if self.cfg.fault == "branch" and mini.data.reward.sum() > 1e9:
            raise AssertionError
        if self.cfg.fault == "learn draws":
            mini = mini._replace(weight=mini.weight * noise.uniform[..., 1])
        update = super().learn(mini, knobs, noise)
        wrong = {"words": "high", "vector": torch.zeros(3), "none": None}
        return update._replace(metrics={**update.metrics, "mood": wrong.get(self.cfg.fault, 1.0)})

    @property
    def late(self) -> bool:
        return self.made >= 30

    def parts(self) -> Mapping[str, Stateful]:
        forgets = self.cfg.fault.removeprefix("forgets ")
        return {name: part for name, part in super().parts().items() if name != forgets}


@register("algo", "faulty-q")
class FaultyConfig(own.QConfig):
    """Q-learning with a fault."""

    fault: str = ""

    def build(self, spec: EnvSpec) -> Faulty:
        return Faulty(self, spec)


def train(fault: str, folder: Path) -> int:
    return main(["train", "algo=faulty-q", f"algo.fault={fault}", *REST, f"run.dir={folder}"])


@pytest.mark.parametrize("where", ["explore", "learn"])
def test_an_exception_is_told_after_all_was_saved(where: str, tmp_path: Path, capsys: Captured) -> None:
    assert train(where, tmp_path / "run") == 1
    told = capsys.readouterr().err
    last = told.strip().split("\n")[-1]
    assert "ValueError: no" in last and f"Saved as it was then: {tmp_path / 'run' / 'checkpoints'}" in last
    assert "ganglion resume" in last and f"in {where}\n" in told, "where, for its author"
    run = Run.open(tmp_path / "run", ["algo.fault=''"])
    assert run.trainer.at.opt_steps == (30 if where == "explore" else 29)
    for _ in run.stream():
        pass
    assert run.trainer.at.env_steps >= 400


@pytest.mark.parametrize(("fault", "method"), [("draws", "explore"), ("learn draws", "learn")])
def test_random_numbers_that_were_not_declared(fault: str, method: str, tmp_path: Path, capsys: Captured) -> None:
    assert train(fault, tmp_path / "run") == 2
    (told,) = capsys.readouterr().err.strip().split("\n")
    assert f"Faulty.{method} takes more random numbers than draws() declares (uniform=0, normal=0)" in told


def test_an_error_of_another_kind_is_not_blamed_on_random_numbers(tmp_path: Path, capsys: Captured) -> None:
    train("explore", tmp_path / "run")
    assert "draws()" not in capsys.readouterr().err


@pytest.mark.parametrize(("fault", "what"), [("words", "'high'"), ("vector", "a tensor [3]"), ("none", "None")])
def test_a_metric_that_is_no_number(fault: str, what: str, tmp_path: Path, capsys: Captured) -> None:
    assert train(fault, tmp_path / "run") == 2
    (told,) = capsys.readouterr().err.strip().split("\n")
    assert f"Faulty: metric learn/mood should be a number or a tensor without axes, got {what}." in told


@pytest.mark.parametrize("part", ["optim", "target"])
def test_a_part_that_was_forgotten(part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert train(f"forgets {part}", tmp_path / "run") == 0
    told = [record.message for record in caplog.records if "not saved" in record.message]
    assert [text.split()[0] for text in told] == [f"Faulty.{part}"], "once"


def test_parts_that_are_all_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert main(["train", "algo=slow-q", *REST, f"run.dir={tmp_path / 'run'}"]) == 0
    assert not [record.message for record in caplog.records if "not saved" in record.message]


FOUND = {
    "forgets optim": ("trains", "optim changes"),
    "counts": ("trains", "made changes"),
    "vector": ("trains", "metric 'mood'"),
    "random": ("random", "global random"),
    "forgets target": ("resumes", "goes on differently"),
    "coin": ("acts", "acted the same in all slots 60 times of 60"),
    "peek": ("reads", "explore() or exploit() reads parameters"),
    "acting": ("reads", "acting() does not name"),
    "host": ("waits", "read on the host"),
    "in place": ("pure", "changes what it is given"),
}


@pytest.mark.parametrize("fault", FOUND)
def test_a_check_finds_it(fault: str) -> None:
    name, text = FOUND[fault]
    cfg = FaultyConfig(fault=fault)
    told = why(PROPERTIES[name].check, partial(Bench, cfg, made_up(cfg)))
    assert text in told, told


def test_checked_by_its_name(capsys: Captured) -> None:
    assert main(["check", "--algo", "slow-q"]) == 0
    told = capsys.readouterr().out
    assert "slow-q passed: nothing to mend" in told and told.count("\npass  ") == len(PROPERTIES)
    assert main(["check", "--algo", "faulty-q", "algo.fault=draws", "--env", "torch:cartpole"]) == 1
    told = capsys.readouterr().out
    assert "fail  trains       Faulty.explore takes more random numbers than draws() declares" in told
    assert main(["check", "--env", "toy:identity"]) == 2
    assert "--env: it goes with --algo" in capsys.readouterr().err
    assert main(["check", "--algo", "slow"]) == 2
