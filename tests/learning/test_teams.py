"""Agents that learn together find what they can only do together."""

from __future__ import annotations

from typing import Any

import pytest

from ganglion.config import RunConfig
from ganglion.config.files import load
from ganglion.registry import presets
from ganglion.runtime.build import build

pytestmark = pytest.mark.learning
EPSILON = {"kind": "linear", "start": 1.0, "end": 0.05, "until": 0.6}
REPLAY = {"gamma": 0.5, "lr": 2e-3, "net": {"hidden": [32]}, "replay": {"capacity": 4_000, "batch": 64}, "epsilon":
          EPSILON, "limiter": {"opt_interval": 16, "warmup": 200}, "target_every": 30}  # fmt: skip
ROLLOUT = {"gamma": 0.5, "lr": 5e-3, "horizon": 8, "net": {"hidden": [32]}}
CENTRE = {"gamma": 0.5, "lr": 2e-3, "lr_critic": 5e-3, "net": {"hidden": [32]}, "critic": {"hidden": [32]},
          "replay": {"capacity": 4_000, "batch": 64}, "limiter": {"opt_interval": 16, "warmup": 500}}  # fmt: skip
ALGOS: list[dict[str, Any]] = [
    {"kind": "vdn", **REPLAY},
    {"kind": "qmix", **REPLAY, "mixer": {"hidden": [16]}},
    {"kind": "pqn_vdn", **ROLLOUT, "epsilon": EPSILON, "net": {"hidden": [32], "norm": "layer"}},
    {"kind": "mappo", **ROLLOUT, "critic": {"hidden": [32]}, "entropy": 0.02},
    {"kind": "coma", **ROLLOUT, "critic": {"hidden": [32]}, "entropy": 0.02, "target_every": 5},
    {"kind": "maddpg", **CENTRE, "noise": {"kind": "linear", "start": 1.0, "end": 0.05, "until": 0.6}},
    {"kind": "masac", **CENTRE, "entropy": 0.1},
]


def score(cfg: RunConfig, agents: int = 2) -> float:
    trainer = build(cfg)
    for _ in trainer():
        pass
    numbers = trainer.run_evaluate()[1]
    assert numbers["eval/team_return_mean"] == pytest.approx(agents * numbers["eval/return_mean"])
    return numbers["eval/return_mean"]


@pytest.mark.parametrize("algo", ALGOS, ids=lambda algo: algo["kind"])
def test_penalty_without_a_penalty(algo: dict[str, Any]) -> None:
    """Both have to choose the same of two equal pairs: 10 in each of 25 rounds."""
    env = {"kind": "matrix", "id": "penalty", "k": 0.0, "slots": 16}
    cfg = {"algo": {**algo, "processor": {"reward_scale": 0.1}}, "env": env, "train": {"budget": "10k steps"}}
    assert score(RunConfig.model_validate({**cfg, "run": {"device": "cpu"}})) == 250.0


@pytest.mark.parametrize("game", ["climbing", "penalty"])
def test_the_optimum_behind_a_penalty(game: str) -> None:
    """What miscoordination costs does not hide it from optimists."""
    best = {"climbing": 275.0, "penalty": 250.0}[game]
    assert score(load(presets()[f"{game}/vdn"], ["run.device=cpu", "run.fast=eager"])) == best


def test_what_has_to_be_said() -> None:
    """Three players of two colours name what only the next one sees: each episode 10 / 3 each, and half by guessing."""
    settings = ["env.colours=2", "env.slots=24", "train.budget=10k steps", "run.device=cpu", "run.fast=eager"]
    settings += ["algo.limiter.warmup=500", "algo.limiter.opt_interval=24", "algo.replay.batch=64"]
    preset = presets()["colours/atoc"]
    heard, unheard = (score(load(preset, [*settings, f"algo.communicate={on}"]), agents=3) for on in ("true", "false"))
    assert heard > 2.6 and unheard < 1.9
