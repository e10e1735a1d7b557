"""Environments by name: what is refused, and how it is said."""

from __future__ import annotations

import builtins
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from ganglion.core import Box
from ganglion.envs import GymConfig, GymEnv, TorchConfig
from ganglion.errors import UserError


def test_an_unknown_id_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"env\.id.*'CartPol-v1'.*'CartPole-v1'"):
        GymConfig(id="CartPol-v1").build()


def test_an_id_cannot_import_a_module() -> None:
    with pytest.raises(ValidationError, match="--import"):
        GymConfig(id="antigravity:CartPole-v1")


def test_options_reach_the_environment_and_wrong_ones_are_named() -> None:
    env = GymConfig(id="Pendulum-v1", options={"g": 5.0}, slots=1).build()
    assert isinstance(env, GymEnv) and env.slots.envs[0].unwrapped.g == 5.0  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"env\.options.*gravitas"):
        GymConfig(id="Pendulum-v1", options={"gravitas": 5.0}).build()
    with pytest.raises(ValidationError, match=r"env\.time_limit"):
        GymConfig(id="Pendulum-v1", options={"max_episode_steps": 5})


def test_vector_only_where_there_is_one() -> None:
    with pytest.raises(UserError, match=r"env\.vector"):
        GymConfig(id="Pendulum-v1", vector=True).build()


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("LunarLander-v3", "Box2D", "box2d"), ("ALE/Pong-v5", "ale_py", "atari")]
)
def test_a_missing_package_names_the_extra(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(module: str, *args: Any, **rest: Any) -> Any:
        if module.split(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(module, *args, **rest)

    import gymnasium

    if package == "ale_py":
        monkeypatch.setattr(gymnasium, "registry", {k: v for k, v in gymnasium.registry.items() if "ALE" not in k})
    for module in [m for m in sys.modules if m.split(".")[0] == package or "gymnasium.envs.box2d" in m]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=rf'env\.id.*pip install "ganglion\[{extra}\]"'):
        GymConfig(id=name).build()


def test_slots_and_device() -> None:
    assert TorchConfig(id="cartpole", slots=3).build().spec.slots == 3
    assert TorchConfig(id="cartpole", slots=3).build(slots=5).spec.slots == 5
    spec = GymConfig(id="MountainCarContinuous-v0", slots=2).build().spec
    assert spec.name == "MountainCarContinuous-v0" and spec.action == Box((1,), low=(-1.0,), high=(1.0,))


def test_the_numpy_parts_need_no_torch() -> None:
    code = "import sys, ganglion.envs.slots; from ganglion.envs import episode_seed; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
