"""`ganglion check` and training agree on action masks: what one refuses the other refuses, and both obey the rest."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import pytest

import ganglion
from ganglion.envs import GymConfig
from ganglion.errors import UserError
from ganglion.runtime.build import build

CASES = [  # the action, its mask, whether it fits, and where it is given
    ("discrete", "four", True, "obs"),
    ("discrete", "four", True, "info"),
    ("discrete", "three", False, "obs"),
    ("discrete", "three", False, "info"),
    ("discrete", "first", False, "obs"),
    ("discrete", "number", False, "obs"),
    ("multi", "five", True, "obs"),
    ("multi", "five", True, "info"),
    ("multi", "three", False, "obs"),
    ("tuple", "first", True, "obs"),
    ("tuple", "three", False, "obs"),
    ("tuple", "three", False, "info"),
    ("tuple", "pair", False, "obs"),
    ("tuple", "first", False, "info"),
    ("dict", "tool", True, "obs"),
    ("dict", "tool", False, "info"),
    ("dict", "other", False, "obs"),
    ("dict", "three", False, "obs"),
    ("box", "three", False, "obs"),
    ("bits", "three", False, "info"),
]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("Hybrid-v0", "tests.envs.masked:Hybrid")
    yield
    gymnasium.registry.pop("Hybrid-v0")


@pytest.mark.parametrize(("action", "form", "fits", "where"), CASES)
def test_check_and_training_agree(action: str, form: str, fits: bool, where: str) -> None:
    options = {"action": action, "form": form, "fits": fits, "where": where}
    env = {"kind": "gym", "id": "Hybrid-v0", "options": options, "slots": 2, "workers": 0}
    report = ganglion.check_env(GymConfig.model_validate(env), steps=100)
    assert report.passed == fits, report
    if not fits:
        assert [finding.name for finding in report.of("fail")] == ["spaces" if form == "number" else "mask"]
    algo = {"kind": "ppo", "horizon": 8, "net": {"hidden": [8]}}
    cfg = ganglion.RunConfig.model_validate({"algo": algo, "env": env, "train": {"budget": "64 steps"}})
    if not fits:
        with pytest.raises(UserError, match="action_mask"):
            build(cfg)
        return
    trainer = build(cfg)
    for _ in trainer():
        pass
    assert trainer.source.faults.count == 0
