"""Imitation on toys whose rewards nobody sees: what was demonstrated is done, by rewards that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ganglion.config import RunConfig
from ganglion.data import files
from ganglion.runtime.build import build
from ganglion.runtime.run import Run
from tests.learning.test_offline_toys import CHOICE, REAL, dataset

SMALL: dict[str, Any] = {"net": {"hidden": [32]}, "replay": {"batch": 64}, "gamma": 0.5, "lr": 3e-3, "lr_critic": 3e-3}
SAC = {"kind": "sac", **SMALL, "temperature": 0.02, "limiter": {"opt_interval": 16, "warmup": 64}}
CHOOSING = {**SAC, "kind": "discrete_sac"}
JUDGED = {"lr_judge": 3e-3, "net": {"hidden": [32]}}


def demonstrated(folder: Path, env: dict[str, Any]) -> Path:
    """What is best in each row, as if someone had done it; the rewards say nothing."""
    data = files.read(dataset(folder / "random", env, episodes=20))
    seen = data.rows.obs if env is CHOICE else data.rows.obs.reshape(data.rows.action.shape)
    best = torch.where(data.rows.valid.reshape(seen.shape[:2] + (1,) * (seen.dim() - 2)), seen.to(data.rows.action), 0)
    files.write(folder / "shown", data._replace(rows=data.rows._replace(action=best, reward=0 * data.rows.reward)))
    return folder / "shown"


WARM = {**CHOOSING, "temperature": 1.0}  # the entropy bonus of AIRL
LEARNERS = {
    "sqil": ({"kind": "sqil", "inner": CHOOSING}, CHOICE),
    "gail": ({"kind": "gail", "inner": CHOOSING, **JUDGED}, CHOICE),
    "airl": ({"kind": "airl", "inner": WARM, **JUDGED}, CHOICE),
    "gail-real": ({"kind": "gail", "inner": SAC, **JUDGED}, REAL),
}


def test_an_expert_is_asked_where_the_learner_went(tmp_path: Path) -> None:
    """The expert saw rewards; who learns from it sees labels alone."""
    learns = {"kind": "dqn", **{k: v for k, v in SMALL.items() if k != "lr_critic"}, "n_step": 1, "target_every": 50}
    cfg = {"env": CHOICE, "run": {"device": "cpu"}, "eval": {"episodes": 64}, "log": ["jsonl"]}
    where = {"device": "cpu", "dir": str(tmp_path / "expert")}
    expert = Run.create(
        RunConfig.model_validate({**cfg, "algo": learns, "run": where, "train": {"budget": "4k steps"}})
    )
    for _ in expert.stream():
        pass
    expert.close()
    copies = {"kind": "bc", "net": {"hidden": [32]}, "lr": 3e-3, "limiter": {"opt_interval": 8, "warmup": 64}}
    algo = {"kind": "dagger", "expert": str(tmp_path / "expert"), "inner": copies}
    trainer = build(RunConfig.model_validate({**cfg, "algo": algo, "train": {"budget": "4k steps"}}))
    for _ in trainer():
        pass
    assert trainer.run_evaluate()[1]["eval/return_mean"] >= 0.95 * 8


@pytest.mark.parametrize("name", LEARNERS)
def test_what_was_shown_is_done(name: str, tmp_path: Path) -> None:
    algo, env = LEARNERS[name]
    cfg = RunConfig.model_validate({
        "algo": algo, "env": env, "run": {"device": "cpu"}, "data": str(demonstrated(tmp_path, env)),
        "train": {"budget": "6k steps"}, "eval": {"episodes": 64}})  # fmt: skip
    trainer = build(cfg)
    untrained = trainer.run_evaluate()[1]["eval/return_mean"]
    for _ in trainer():
        pass
    learned = trainer.run_evaluate()[1]["eval/return_mean"]
    assert learned >= (0.9 * 8 if env is CHOICE else 0.35 * untrained), (untrained, learned)
