"""Ejected files: whole, alone, and refusing what they would not do."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ganglion
from ganglion.cli import main
from ganglion.eject.write import KNOWN, NEEDED, levels, one_file

PRESETS = {"dqn": "cartpole/dqn", "ppo": "cartpole/ppo-quick", "sac": "pendulum/sac", "td3": "pendulum/td3"}
SHORT = {
    "dqn": ["train.budget=400 steps", "algo.limiter.warmup=200", "algo.tau=0.01"],
    "ppo": ["train.budget=256 steps", "env={kind: gym, id: Pendulum-v1, slots: 2}", "algo.net.normalise=true"],
    "sac": ["train.budget=300 steps", "algo.limiter.warmup=260"],
    "td3": ["train.budget=300 steps", "algo.limiter.warmup=260"],
}


def ejected(kind: str, *words: str) -> str:
    return one_file(ganglion.load_config(PRESETS[kind], words))


def curve(text: str, folder: Path, timeout: int = 120) -> list[list[float]]:
    """What the file prints, run where Ganglion cannot be found."""
    (folder / "one.py").write_text(text)
    blocked = "import sys; sys.modules['ganglion'] = None; import runpy; runpy.run_path('one.py', run_name='__main__')"
    out = subprocess.run([sys.executable, "-c", blocked], cwd=folder, capture_output=True, text=True, timeout=timeout)
    assert out.returncode == 0, out.stderr
    return [[float(x) for x in line.split(",")] for line in out.stdout.splitlines()]


@pytest.mark.parametrize("kind", PRESETS)
def test_a_file_runs_alone(kind: str, tmp_path: Path) -> None:
    points = curve(ejected(kind, *SHORT[kind], "eval={every: 10k steps, episodes: 1}"), tmp_path)
    assert len(points) == 1 and points[0][0] >= int(SHORT[kind][0].split("=")[1].split()[0])


@pytest.mark.parametrize("kind", PRESETS)
def test_settings_are_those_of_the_run(kind: str) -> None:
    """Every name that a file reads is set, and with the value of the run."""
    text = ejected(kind, "algo.gamma=0.321")
    tree = ast.parse(text)
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    read = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert {name for name in read if name.isupper()} - {"F"} <= stored
    assert "GAMMA = 0.321" in text and "import ganglion" not in text
    assert set(KNOWN[kind].values()) <= read  # none is written and not used


def test_known_settings_exist() -> None:
    for kind in KNOWN:
        flat = levels(ganglion.load_config(PRESETS[kind]).algo.plain())
        assert {*KNOWN[kind], *NEEDED[kind]} <= flat.keys(), kind


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cartpole/dqn", "algo.dueling=true"], "algo.dueling"),
        (["cartpole/dqn", "algo.net.memory=lstm"], "algo.net.memory"),
        (["cartpole/dqn", "algo.replay.kind=prioritised"], "algo.replay.kind"),
        (["cartpole/ppo", "algo.clip={kind: cosine, start: 0.2, end: 0}"], "algo.clip"),
        (["pendulum/td3", "algo.noise_kind=pink"], "algo.noise_kind"),
        (["cartpole/ppo", "env.frame_stack=2"], "env.frame_stack"),
        (["cartpole/ppo", "train.budget=5 min"], "train.budget"),
        (["cartpole/c51"], "dqn, ppo, sac, td3"),
    ],
)
def test_what_a_file_would_not_do_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eject", *words]) == 2
    error = capsys.readouterr().err
    assert told in error and "Accepted" in error and error.count("\n") == 1


@pytest.mark.learning
def test_ppo_learns(tmp_path: Path) -> None:
    points = curve(ejected("ppo", "train.budget=21k steps"), tmp_path)
    assert max(score for _, score in points) > 150  # at random: 22


def test_a_run_is_ejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", "cartpole/ppo-quick", "train.budget=1k steps", "log=[]", f"run.dir={run}"]) == 0
    capsys.readouterr()
    assert main(["eject", str(run)]) == 0
    out = capsys.readouterr().out
    assert "BUDGET = 1_000" in out
    assert compile(out, "one.py", "exec")
