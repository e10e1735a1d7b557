"""Each cell of docs/support.md: what it promises works, and what it refuses is refused in a line that helps."""

from __future__ import annotations

import os
import re

import pytest
import torch

from ganglion import registry
from ganglion.core import Box, Composite, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Progress
from ganglion.envs.joint_actions import Joint
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.check_algorithm import Bench
from ganglion.runtime.random_world import RandomWorld
from tests.contract.support import (
    BEGIN,
    END,
    FEATURES,
    PAGE,
    ROWS,
    attempt,
    line,
    reason,
    resolved,
    run_config,
    world_of,
)  # fmt: skip
from tests.contract.worlds import ARM, HYBRID, THREE


def test_every_algorithm_has_a_row():
    assert list(ROWS) == list(registry.TABLE["algo"]), "one line in ROWS of tests/contract/support.py"


@pytest.mark.parametrize("algo", ROWS)
def test_the_row_of_an_algorithm(algo: str):
    cells = {name: attempt(algo, name) for name in FEATURES}
    told = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert line(algo, cells) in told.splitlines(), "make the table anew: python -m tests.contract.support"
    for name, cell in cells.items():
        if cell.mark == "no":
            assert reason(cell.why) in told, "make the table anew: python -m tests.contract.support"
            helps = ("Algorithms with it", "Try ", "ecurrent", "Accepted", "such as")
            assert any(words in cell.why for words in helps), f"{name}: {cell.why}"


def section(algo: str) -> str:
    """What docs/algorithms.md says of an algorithm."""
    page = (PAGE.parent / "algorithms.md").read_text(encoding="utf-8")
    return " ".join(page.partition(f"\n## {algo}\n")[2].partition("\n## ")[0].split())


def explained(algo: str) -> set[str]:
    """Names in its section, and in those of algorithms whose metrics it has, too."""
    others = re.findall(r"Metrics: those of \[(\w+)\]", section(algo))
    others += ["sac"] if "Metrics: those of `inner`" in section(algo) else []
    return set(re.findall(r"`(\w+)`", section(algo))).union(*map(explained, others))


@pytest.mark.parametrize("algo", ROWS)
def test_every_metric_of_an_algorithm_is_explained(algo: str):
    bench = Bench(resolved(algo).algo, world_of(algo))
    at, names = Progress(), set[str]()
    while at.opt_steps < 9:
        log = bench.learner.step(at) if bench.learner.owes(at) else None
        at = bench.collect(at) if log is None else log.at
        names |= set() if log is None else set(log.metrics)
    assert names <= explained(algo)
    assert re.search(r"\b(19|20)\d\d\b", section(algo)), "its paper"


@pytest.mark.skipif(os.environ.get("GANGLION_SOAK") != "1", reason="starts a Ray cluster for each algorithm")
@pytest.mark.parametrize("algo", ROWS)
def test_with_ray_itself(algo: str):
    kind = registry.lookup("algo", algo)
    spec = world_of(algo)
    trainer = build(run_config(kind.model_validate(ROWS[algo]), spec, mode="ray"))
    for _ in trainer():
        if trainer.at.opt_steps >= 2:
            break
    trainer.close()


# ------------------------------------------------------------ one choice of all


def test_each_combination_is_one_choice():
    space = Composite({"gear": THREE, "keys": MultiDiscrete((2, 2)), "lamps": MultiBinary(1), "steer": ARM})
    env = Joint(RandomWorld(EnvSpec(Box((4,)), space, 3 * 4 * 2 * 9, "world")), bins=3)
    assert env.spec.action == Discrete(3 * 4 * 2 * 9)
    acted = env.act(torch.arange(3 * 4 * 2 * 9))
    rows = torch.cat([acted["gear"][:, None], acted["keys"], acted["lamps"], acted["steer"]], -1)
    assert len(rows.unique(dim=0)) == len(rows)
    assert acted["steer"][:, 0].unique().tolist() == [-1.0, 0.0, 1.0]
    assert acted["steer"][:, 1].unique().tolist() == [-2.0, 0.0, 2.0]
    env.reset(0)
    env.step(torch.arange(len(rows)))  # RandomWorld refuses what does not fit


def test_masks_become_masks_of_combinations():
    masks = Composite({"keys": MultiBinary(5), "gear": MultiBinary(3)})
    obs = Composite({"obs": Box((3,)), "action_mask": masks})
    spec = EnvSpec(obs, Composite({"keys": MultiDiscrete((2, 3)), "gear": THREE, "lamps": MultiBinary(1)}), 7, "world")
    inner = RandomWorld(spec)
    env = Joint(inner)
    shown = env.reset(0).obs["action_mask"]
    assert shown.shape == (7, 36) and shown.dtype == torch.bool
    acted, mask = env.act(torch.arange(36)), inner.now.obs["action_mask"]
    for slot in range(7):
        first, second = mask["keys"][slot].split((2, 3))
        legal = first[acted["keys"][:, 0]] * second[acted["keys"][:, 1]] * mask["gear"][slot][acted["gear"]]
        assert torch.equal(shown[slot], legal.bool())


def test_what_cannot_be_one_choice():
    with pytest.raises(UserError, match="bins"):
        Joint(RandomWorld(EnvSpec(Box((4,)), HYBRID, 1, "world")))
    with pytest.raises(UserError, match="at most 65,536"):
        Joint(RandomWorld(EnvSpec(Box((4,)), MultiBinary(40), 1, "world")))


def test_dqn_learns_with_several_choices():
    """Of an observation in [-1, 1) the same number is to be said, from 9 evenly spaced ones."""
    from ganglion import load_config

    words = ["algo={kind: dqn, net: {hidden: [32]}, limiter: {warmup: 100, opt_interval: 2}, gamma: 0}",
             "env={kind: toy, id: identity, continuous: true, slots: 4, wrap: [{kind: joint, bins: 9}]}",
             "train.budget=2k steps", "eval.episodes=20", "run.fast=eager"]  # fmt: skip
    trainer = build(load_config(None, words))
    for _ in trainer():
        pass
    mean = sum(episode.total for episode in trainer.run_evaluate()[0]) / 20
    assert mean > -0.5, "of at best -0.05 and at random -5.3"
