"""Step processors: rewards are shaped on their way into storage, and nowhere else."""

from __future__ import annotations

import torch

from ganglion.buffers import RowsConfig
from ganglion.core import Acted, Box, Discrete, EnvSpec, Past, Step


def row(**settings):
    off = torch.zeros(1, 3, dtype=torch.bool)
    before = Step(torch.zeros(1, 3, 2), torch.zeros(1, 3), off, off, torch.tensor([[True, True, False]]))
    after = Step(torch.ones(1, 3, 2), torch.tensor([[-3.0, 0.5, 0.0]]), torch.tensor([[True, False, False]]), off, ~off)
    past = Past((torch.full((1, 3, 4), 7.0),), torch.tensor([[True, False, False]]))
    acted = Acted(torch.tensor([[0, 1, 0]]), {"value": torch.ones(1, 3)}, (torch.full((1, 3, 4), 8.0),))
    processor = RowsConfig(**settings).build(EnvSpec(Box((2,)), Discrete(2), 3), torch.device("cpu"))
    return processor(before, past, acted, after)


def test_a_row_is_what_was_seen_done_and_got():
    made = row()
    assert torch.equal(made.obs, torch.zeros(1, 3, 2)) and made.reward.tolist() == [[-3.0, 0.5, 0.0]]
    assert made.terminated.tolist() == [[True, False, False]] and made.valid.tolist() == [[True, True, False]]
    assert made.start.tolist() == [[True, False, False]]
    assert made.memory[0].shape == (1, 3, 4) and made.memory[0].eq(7).all(), "the memory before the row, not after it"


def test_rewards_by_sign_scale_and_clip():
    assert row(reward="sign").reward.tolist() == [[-1.0, 1.0, 0.0]]
    assert row(reward_scale=0.5).reward.tolist() == [[-1.5, 0.25, 0.0]]
    assert row(reward_scale=0.5, reward_clip=1.0).reward.tolist() == [[-1.0, 0.25, 0.0]]
