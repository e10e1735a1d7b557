"""Exported agents: the same actions without Ganglion, for plain, recurrent, structured and image observations."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import ganglion
from ganglion.cli import main
from ganglion.export.files import READER

CLOSE = 1e-5
QUICK = ["log=[]", "eval=never", "save.every=100 steps", "train.budget=100 steps"]


class Parts(gym.Env[Any, Any]):
    """Observations and actions of several parts, choices that count from 3, numbers that are whole."""

    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (36, 36, 1), np.uint8),
            "place": gym.spaces.Box(-1, 1, (3,), np.float32),
            "phase": gym.spaces.Discrete(4, start=3),
        }
    )
    action_space = gym.spaces.Dict(
        {"turn": gym.spaces.Discrete(3, start=-1), "push": gym.spaces.Box(-2, 2, (2,), np.float32)}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 7
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.left -= 1
        return self.observation_space.sample(), 0.0, self.left == 0, False, {}


CASES = {
    "ppo": ["algo=ppo", "env=CartPole-v1", "algo.horizon=16", "env.slots=2", "algo.net.normalise=true"],
    "lstm": ["algo=ppo", "env=CartPole-v1", "algo.horizon=16", "env.slots=4", "algo.net.memory=lstm"],
    "parts": ["algo=ppo", "env=Parts-v0", "algo.horizon=16", "env.slots=2"],
    "sac": ["algo=sac", "env=Pendulum-v1", "algo.limiter.warmup=50", "algo.replay.batch=8", "env.slots=1"],
    "dueling": ["algo=dqn", "env=CartPole-v1", "algo.dueling=true", "algo.limiter.warmup=50", "algo.replay.batch=8"],
}


@pytest.fixture(scope="module", autouse=True)
def parts() -> Iterator[None]:
    gym.register("Parts-v0", Parts)
    yield
    del gym.registry["Parts-v0"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Trained when first asked for."""
    folder = tmp_path_factory.mktemp("export")

    class Trained(dict[str, Path]):
        def __missing__(self, name: str) -> Path:
            assert main(["train", *QUICK, *CASES[name], f"run.dir={folder / name}"]) == 0
            self[name] = folder / name
            return self[name]

    return Trained()


def exported(run: Path, to: str, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["export", str(run), "--to", to, "--out", str(out), "--compare", "200", "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_numpy_file_acts_alike(
    name: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parity = exported(runs[name], "numpy", tmp_path / "policy.npz", capsys)["parity"]
    assert parity["observations"] >= 200 and parity["difference"] < CLOSE and parity["unequal"] == 0


@pytest.mark.parametrize("name", ["lstm", "sac"])
def test_a_torch_program_acts_alike(
    name: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parity = exported(runs[name], "torch", tmp_path / "policy.pt2", capsys, "--batch", "4")["parity"]
    assert parity["difference"] < CLOSE and parity["unequal"] == 0


@pytest.mark.parametrize("name", ["lstm", "parts"])
def test_onnx_acts_alike(name: str, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    found = exported(runs[name], "onnx", tmp_path / "policy.onnx", capsys)
    assert found["parity"]["difference"] < CLOSE and found["parity"]["unequal"] == 0
    assert [port["name"] for port in found["inputs"]][:1] == ["obs" if name == "lstm" else "obs.image"]
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]  # weights inside


def test_the_reader_needs_numpy_alone(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process of its own: the file and its reader, step by step as the loaded agent, through two episodes."""
    exported(runs["lstm"], "numpy", tmp_path / "policy.npz", capsys)
    agent, rng = ganglion.load(runs["lstm"]), np.random.default_rng(0)
    seen = rng.normal(size=(2, 6, 4)).astype(np.float32)
    wanted = []
    for episode in seen:
        agent.reset()
        wanted.append([int(agent.act(obs)) for obs in episode])
    np.save(tmp_path / "seen.npy", seen)
    code = f"""
import json, sys, numpy
from {READER.removesuffix(".py")} import NumpyPolicy
policy, said = NumpyPolicy("policy.npz"), []
for episode in numpy.load("seen.npy"):
    policy.reset()
    said.append([int(policy(obs)) for obs in episode])
assert not any(name.split(".")[0] in ("torch", "ganglion") for name in sys.modules)
print(json.dumps(said))
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout) == wanted


def test_what_cannot_be_is_said(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["ppo"])
    for words, told in (
        ([run, "--to", "onx"], "Did you mean 'onnx'?"),
        ([run, "--to", "numpy", "--batch", "0"], "--batch"),
        ([run, "--to", "numpy", "--out", str(tmp_path / "no" / "x.npz")], "--out"),
        ([str(tmp_path), "--to", "numpy"], "is not the folder of a run"),
    ):
        capsys.readouterr()
        assert main(["export", *words]) == 2
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1


def test_arithmetic_of_the_reader() -> None:
    """Operations with rules of their own, against torch."""
    import torch

    from ganglion.export import reader

    torch.manual_seed(0)
    x, w, b = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3), torch.randn(4)
    ours = reader.conv(x.numpy(), w.numpy(), b.numpy(), [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    assert np.allclose(ours, torch.nn.functional.conv2d(x, w, b, 2, 1).numpy(), atol=1e-5)
    y = torch.randn(5, 7)
    assert np.allclose(reader.softmax(y.numpy(), -1), y.softmax(-1).numpy(), atol=1e-6)
    gain, shift = torch.randn(7), torch.randn(7)
    ours = reader.layer_norm(y.numpy(), [7], gain.numpy(), shift.numpy(), 1e-5)[0]
    assert np.allclose(ours, torch.nn.functional.layer_norm(y, [7], gain, shift).numpy(), atol=1e-5)
    assert np.allclose(reader.OPS["elu"](y.numpy()), torch.nn.functional.elu(y).numpy(), atol=1e-6)
    assert [len(part) for part in reader.OPS["split_with_sizes"](np.arange(7), [3, 4])] == [3, 4]
    assert reader.cut(np.arange(10), 0, 2, 9223372036854775807, 3).tolist() == [2, 5, 8]
