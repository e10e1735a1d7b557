"""Coloured noise of slots: autocorrelation, spectrum, where it starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from ganglion.config.files import load
from ganglion.nn.action_noise import ActionNoise
from ganglion.runtime.build import build


def drawn(noise: ActionNoise, steps: int, slots: int) -> Tensor:
    """[steps, slots, size]."""
    g = torch.Generator().manual_seed(0)
    carried, rows = noise.carry(slots), []
    for _ in range(steps):
        carried, row = noise.step(carried, torch.randn(1, slots, noise.draws, generator=g))
        rows.append(row[0])
    return torch.stack(rows)


def slope(x: np.ndarray) -> float:
    power = (np.abs(np.fft.rfft(x, axis=0)) ** 2).mean(1)
    f = np.fft.rfftfreq(len(x))
    keep = (f > 0.005) & (f < 0.1)
    return float(np.polyfit(np.log(f[keep]), np.log(power[keep]), 1)[0])


@pytest.mark.parametrize("theta", [0.15, 0.5])
def test_ornstein_uhlenbeck_forgets_geometrically(theta):
    x = drawn(ActionNoise("ou", 2, theta), 2_000, 100).flatten(1).double().numpy()
    assert abs(x[0].std() - np.sqrt(theta * (2 - theta))) < 0.1, "an episode starts at 0"
    late = x[200:]
    assert abs(late.std() - 1) < 0.03
    for lag in (1, 3, 8):
        assert abs((late[lag:] * late[:-lag]).mean() / late.var() - (1 - theta) ** lag) < 0.03


def test_pink_falls_as_one_over_f_and_starts_anywhere():
    x = drawn(ActionNoise("pink", 2), 1_024, 200).flatten(1).double().numpy()
    assert abs(slope(x) + 1) < 0.2
    assert abs(x[0].std() - 1) < 0.15 and abs(x.std() - 1) < 0.1
    assert np.abs(np.corrcoef(x[:, :10].T) - np.eye(10)).mean() < 0.3, "slots are independent"


def test_white_noise_is_what_was_drawn():
    noise, normal = ActionNoise("gaussian", 3), torch.randn(1, 4, 3)
    assert noise.carry(4) == () and noise.step((), normal)[1] is normal


def test_a_slot_starts_anew_with_its_episode():
    """Actions of an actor that always says 0, in episodes of 3 steps: the first noise of each is fresh."""
    cfg = ["algo=ddpg", "env={kind: toy, id: identity, continuous: true, limit: 3, slots: 400}", "algo.noise_kind=ou",
           "algo.limiter.warmup=0", "algo.noise=0.1", "train.budget=8000 steps", "algo.replay.batch=2",
           "algo.limiter.opt_interval=100000"]  # fmt: skip
    trainer = build(load(None, cfg))
    with torch.no_grad():
        for parameter in trainer.learner.agent.algo.model.actor.parameters():
            parameter.zero_()
    for _ in range(8):
        trainer.run_collect()
    rows = trainer.learner.buffer.ring.held
    action, start, valid = rows.action[:8, :, 0], rows.start[:8], rows.valid[:8]
    fresh, later = action[start], action[2][valid[2]]
    spread = 0.1 * np.sqrt(0.15 * 1.85)
    assert abs(fresh.std().item() - spread) < 0.2 * spread
    assert later.std().item() > 1.3 * spread
