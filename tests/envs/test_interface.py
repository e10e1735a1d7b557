"""Environments that break gymnasium's interface: one line that names them and `ganglion check`, never a traceback."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

import ganglion
from ganglion.cli import main
from ganglion.envs import GymConfig

WORKERS = (0, 1, 3, "auto") if os.environ.get("GANGLION_SOAK") == "1" else (0,)  # one way of all, each way of some
Captured = pytest.CaptureFixture[str]
UNUSABLE = {  # what is said, wherever it is walked
    "make": "RuntimeError: no licence",
    "reset raises": "OSError: port 5005 is gone",
    "reset exits": "SystemExit: 0",
    "reset key": "'right'",
    "one value": "reset() does not do what gymnasium says",
    "none": "cannot unpack non-iterable NoneType",
    "info": "NoneType",
    "no seed": "unexpected keyword argument 'seed'",
    "four": "expected 5, got 4",
    "key": "'right'",
    "array": "TypeError",
    "text": "could not convert string to float",
    "flags": "ambiguous",
}
FEW = ("make", "reset exits", "no seed", "four", "key", "array")
RAISES = {"raises": "ZeroDivisionError: division by zero", "strange": "StrangeError: ", "long": r"ValueError: \x1b[31m"}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    names = ("Rude", "Unseeded", "Strict")
    for name in names:
        gymnasium.register(f"{name}-v0", f"tests.envs.rude:{name}")
    yield
    for name in names:
        gymnasium.registry.pop(f"{name}-v0")


def train(how: str, workers: int | str, folder: Path) -> int:
    name = "Unseeded" if how == "no seed" else "Rude"
    env = f"{{kind: gym, id: {name}-v0, options: {{how: {how}}}, slots: 2, workers: {workers}, max_failures: 3}}"
    words = ["algo=ppo", f"env={env}", "train.budget=64 steps", "eval=never", f"run.dir={folder}"]
    return main(["train", *words])


@pytest.mark.parametrize(
    ("how", "workers"), [*itertools.product(UNUSABLE, WORKERS), *itertools.product(FEW, (2, "auto"))]
)
def test_what_cannot_be_used_is_one_line(how: str, workers: int | str, tmp_path: Path, capfd: Captured) -> None:
    assert train(how, workers, tmp_path / "run") == 3
    name = "Unseeded-v0" if how == "no seed" else "Rude-v0"
    said = capfd.readouterr()
    assert "Traceback" not in said.err + said.out
    last = said.err.strip().splitlines()[-1]
    assert f"{name}: " in last and UNUSABLE[how] in last and f"ganglion check {name}" in last


@pytest.mark.parametrize(("how", "workers"), [*itertools.product(RAISES, WORKERS), ("raises", 2), ("strange", "auto")])
def test_what_raises_is_told_like_all_others(
    how: str, workers: int | str, tmp_path: Path, capfd: Captured, caplog: pytest.LogCaptureFixture
) -> None:
    assert train(how, workers, tmp_path / "run") == 3
    out, err = capfd.readouterr()
    assert "Traceback" not in err + out and len(caplog.text) < 10_000
    assert RAISES[how] in caplog.text and "its episode is cut" in caplog.text
    assert "Rude-v0 failed 4 times (4 raise), and 3 were allowed. Look it over: ganglion check Rude-v0" in err
    assert (workers != "auto") or "no workers, for a trial of it failed" in out


@pytest.mark.parametrize("where", ["obs", "info"])
def test_the_trial_makes_legal_moves(where: str) -> None:
    cfg, why = GymConfig(id="Strict-v0", options={"where": where}).settled()
    assert cfg.workers == 0 and "a step takes" in why


def test_what_workers_could_not_be_told_needs_none() -> None:
    cfg, why = GymConfig(id="Strict-v0", options={"where": object()}).settled()
    assert cfg.workers == 0 and "a worker could not" in why


def test_what_cannot_be_made_is_a_finding() -> None:
    report = ganglion.check_env(GymConfig(id="Rude-v0", options={"how": "make"}), steps=100)
    (finding,) = report.findings
    assert finding.name == "construct" and "no licence" in finding.seen and "rude.py, line" in finding.fix
