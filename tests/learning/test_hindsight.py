"""A goal that is hardly ever reached: solved with hindsight, and not without."""

from __future__ import annotations

from typing import Any

import pytest

from ganglion.config import RunConfig
from ganglion.runtime.build import build

pytestmark = pytest.mark.learning

DQN = {"kind": "dqn", "net": {"hidden": [128]}, "lr": 1e-3, "gamma": 0.98, "epsilon": 0.2, "target_every": 100,
       "limiter": {"warmup": 500, "opt_interval": 4}}  # fmt: skip


def learned(algo: dict[str, Any], hindsight: dict[str, Any] | None, env: dict[str, Any], steps: int) -> float:
    """The mean return of evaluation episodes after so many steps."""
    replay = {**algo.get("replay", {}), "relabel": hindsight}
    raw = {"algo": {**algo, "replay": replay}, "env": {"kind": "toy", "id": "goal", "slots": 8, **env},
           "train": {"budget": f"{steps} steps"}, "eval": {"episodes": 40}, "run": {"fast": "eager"}}  # fmt: skip
    trainer = build(RunConfig.model_validate(raw))
    for _ in trainer():
        pass
    played = trainer.run_evaluate()[0]
    return sum(episode.total for episode in played) / len(played)


def test_bits():
    """At best -4.0, at random -10.0 nearly always."""
    assert learned(DQN, {"kind": "hindsight", "ends": True}, {"size": 10}, 9_000) > -5.0
    assert learned(DQN, None, {"size": 10}, 9_000) < -9.0
