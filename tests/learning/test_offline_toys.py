"""Learning from datasets of toys: random rows teach what is best, shown actions are copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ganglion.config import RunConfig
from ganglion.data import files
from ganglion.data.record import record_random
from ganglion.runtime.build import build

SEEDS = (0, 1)
REAL = {"kind": "toy", "id": "identity", "continuous": True, "slots": 16}
CHOICE = {"kind": "toy", "id": "identity", "size": 4, "slots": 16}
SMALL: dict[str, Any] = {"net": {"hidden": [32]}, "replay": {"batch": 64}}
FAST = SMALL | {"lr": 3e-3, "lr_critic": 3e-3, "gamma": 0.5, "tau": 0.05}
CONTROL = {
    "iql": {**FAST, "beta": 10.0, "expectile": 0.9},
    "awac": {**FAST, "temperature": 0.1},
    "td3_bc": {**FAST, "alpha": 10.0},
    "rebrac": FAST,
    "edac": {**FAST, "critics": 4},
    "cql": {**FAST, "conservative": 0.1, "looks": 4},
}


def score(algo: dict[str, Any], env: dict[str, Any], data: Path, updates: int, seed: int) -> float:
    cfg = {"algo": algo, "env": env, "run": {"mode": "offline", "seed": seed, "device": "cpu"}, "data": str(data),
           "train": {"budget": f"{updates} updates"}, "eval": {"episodes": 64}}  # fmt: skip
    trainer = build(RunConfig.model_validate(cfg))
    for _ in trainer():
        pass
    return trainer.run_evaluate()[1]["eval/return_mean"]


def dataset(folder: Path, env: dict[str, Any], episodes: int = 200) -> Path:
    cfg = RunConfig.model_validate({"algo": "ppo", "env": env, "run": {"device": "cpu"}})
    files.write(folder, record_random(cfg, episodes, 0))
    return folder


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", CONTROL)
def test_random_rows_teach_real_actions(kind: str, seed: int, tmp_path: Path) -> None:
    data = dataset(tmp_path / "data", REAL)
    random = float(files.read(data).returns().mean())
    learned = score({"kind": kind, **CONTROL[kind]}, REAL, data, 800, seed)
    assert learned > 0.25 * random, (random, learned)  # returns are minus distances


@pytest.mark.parametrize("conservative", [0.0, 0.5])
def test_random_rows_teach_choices(conservative: float, tmp_path: Path) -> None:
    data = dataset(tmp_path / "data", CHOICE)
    algo = {"kind": "dqn", **SMALL, "lr": 3e-3, "gamma": 0.5, "target_every": 50, "conservative": conservative}
    assert score(algo, CHOICE, data, 600, 0) >= 0.95 * 8


def test_shown_actions_are_copied(tmp_path: Path) -> None:
    """Those of rows that were paid, which say what was seen; the others are left out by what they do."""
    data = files.read(dataset(tmp_path / "data", CHOICE))
    seen = data.rows.obs.flatten(2).argmax(-1) if data.rows.obs.dim() > 2 else data.rows.obs
    shown = data.rows._replace(action=torch.where(data.rows.valid, seen.long(), data.rows.action))
    files.write(tmp_path / "shown", data._replace(rows=shown))
    assert score({"kind": "bc", **SMALL, "lr": 3e-3}, CHOICE, tmp_path / "shown", 400, 0) >= 0.95 * 8


def test_random_rows_are_copied_as_random(tmp_path: Path) -> None:
    data = dataset(tmp_path / "data", REAL)
    copied = score({"kind": "bc", **SMALL, "lr": 3e-3}, REAL, data, 400, 0)
    learned = score({"kind": "iql", **CONTROL["iql"]}, REAL, data, 800, 0)
    assert learned > 0.5 * copied, (copied, learned)
