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
from ganglion.runtime.run import Run, evaluate

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
    "bcq": {**FAST, "lr_generator": 3e-3, "reach": 0.5, "looks": 20, "n_step": 1},
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


@pytest.mark.parametrize("threshold", [0.3, 1.0])
def test_unusual_choices_are_left_alone(threshold: float, tmp_path: Path) -> None:
    """Where the data hardly ever does what is best, it is found; where nothing counts but the usual, it is copied."""
    data = files.read(dataset(tmp_path / "data", CHOICE))
    best = data.rows.obs.flatten(2).argmax(-1) if data.rows.obs.dim() > 2 else data.rows.obs.long()
    usual = (best + 1) % 4  # is done twice as often as anything else, and is never right
    often = (torch.arange(len(best)) % 5 < 1)[:, None] & data.rows.valid
    action = torch.where(often, usual, data.rows.action)
    reward = torch.where(data.rows.valid, (action == best).float(), 0.0)
    files.write(tmp_path / "skewed", data._replace(rows=data.rows._replace(action=action, reward=reward)))
    algo = {"kind": "discrete_bcq", **SMALL, "lr": 3e-3, "gamma": 0.5, "target_every": 50, "threshold": threshold}
    found = score(algo, CHOICE, tmp_path / "skewed", 800, 0)
    assert found <= 1 if threshold == 1.0 else found >= 0.95 * 8


def test_what_is_asked_for_is_brought(tmp_path: Path) -> None:
    """Episodes of which some do what is best always, some never, and most at times."""
    data = files.read(dataset(tmp_path / "data", CHOICE, episodes=400))
    best = data.rows.obs.flatten(2).argmax(-1) if data.rows.obs.dim() > 2 else data.rows.obs.long()
    number = data.rows.start[:, 0].cumsum(0) - 1
    right = torch.rand(len(best), generator=torch.Generator().manual_seed(0)) < (number % 5) / 4.0
    action = torch.where(data.rows.valid, torch.where(right[:, None], best, (best + 1) % 4), 0)
    reward = torch.where(data.rows.valid, (action == best).float(), 0.0)
    files.write(tmp_path / "mixed", data._replace(rows=data.rows._replace(action=action, reward=reward)))
    algo = {"kind": "decision_transformer", "lr": 3e-3, "window": 8, "size": 32, "layers": 1, "heads": 2,
            "net": {"hidden": [32]}, "replay": {"batch": 64}}  # fmt: skip
    cfg = {"algo": algo, "env": CHOICE, "run": {"mode": "offline", "device": "cpu", "dir": str(tmp_path / "run")},
           "data": str(tmp_path / "mixed"), "train": {"budget": "600 updates"}, "eval": "never"}  # fmt: skip
    run = Run.create(RunConfig.model_validate(cfg))
    for _ in run.stream():
        pass
    run.close()
    brought = [evaluate(tmp_path / "run", 64, 0, "last", [f"algo.asked={asked}"])["mean"] for asked in (0, 2, 4, 6, 8)]
    assert brought == sorted(brought) and brought[0] <= 0.5 and brought[-1] >= 7.5, brought
    assert evaluate(tmp_path / "run", 64, 0, "last")["mean"] == brought[-1], "by default it is asked for the best"


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
