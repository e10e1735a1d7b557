"""The Adder facade against loops over one slot's list of transitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from ganglion.ops import Adder

GAMMA, LAM = 0.9, 0.8


def trajectory(length: int, terminated: bool = False, truncated: bool = False) -> list[dict[str, Any]]:
    g = torch.Generator().manual_seed(length)
    rows = []
    for i in range(length):
        last = i == length - 1
        reward, value = torch.randn(2, generator=g).unbind()
        row = {"obs": {"x": torch.tensor([i])}, "next_obs": {"x": torch.tensor([i + 1])}, "action": torch.tensor(i % 2)}
        row |= {"reward": reward, "value": value, "terminated": terminated and last, "truncated": truncated and last}
        rows.append(row)
    return rows


@pytest.mark.parametrize("terminated", [False, True])
def test_get_gae(terminated: bool) -> None:
    data, last = trajectory(6, terminated), torch.tensor(0.7)
    expected, later = [0.0] * 6, 0.0
    values = [float(t["value"]) for t in data] + [float(last)]
    for i in reversed(range(6)):
        g = 0.0 if terminated and i == 5 else GAMMA
        later = expected[i] = float(data[i]["reward"]) + g * values[i + 1] - values[i] + g * LAM * later
    ours = Adder.get_gae(data, last, GAMMA, LAM)
    assert_close(torch.stack([t["adv"] for t in ours]), torch.tensor(expected))
    assert "adv" not in data[0]


def test_get_gae_with_default_last_value() -> None:
    ended = Adder.get_gae_with_default_last_value(trajectory(4, terminated=True), GAMMA, LAM)
    assert len(ended) == 4
    assert_close(ended[-1]["adv"], ended[-1]["reward"] - ended[-1]["value"])
    data = trajectory(4)
    going_on = Adder.get_gae_with_default_last_value(data, GAMMA, LAM)
    assert len(going_on) == 3
    assert_close(going_on[-1]["adv"], data[2]["reward"] + GAMMA * data[3]["value"] - data[2]["value"])


def test_get_gae_needs_the_value_after_a_truncation() -> None:
    data = trajectory(2, truncated=True) + trajectory(3)
    with pytest.raises(ValueError, match="transition 1 was truncated"):
        Adder.get_gae(data, torch.tensor(0.0), GAMMA, LAM)
    data[1]["next_value"] = torch.tensor(5.0)
    ours = Adder.get_gae(data, torch.tensor(0.0), GAMMA, LAM)
    assert_close(ours[1]["adv"], data[1]["reward"] + GAMMA * 5.0 - data[1]["value"])


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("nstep", [1, 3, 10])
def test_get_nstep_return_data(terminated: bool, nstep: int) -> None:
    data = trajectory(5, terminated)
    for i, item in enumerate(Adder.get_nstep_return_data(data, nstep, GAMMA)):
        held = min(nstep, 5 - i)
        assert item["reward"].shape == (nstep,)
        assert_close(item["reward"][:held], torch.stack([t["reward"] for t in data[i : i + held]]))
        assert (item["reward"][held:] == 0).all()
        ends = terminated and i + held == 5
        assert_close(item["discount"].item(), 0.0 if ends else GAMMA**held)
        assert item["next_n_obs"]["x"].item() == i + held
        assert bool(item["terminated"]) == ends
    sums = Adder.get_nstep_return_data(data, nstep, GAMMA, cum_reward=True)
    held = min(nstep, 5)
    assert_close(sums[0]["reward"], sum(GAMMA**k * data[k]["reward"] for k in range(held)))


@pytest.mark.parametrize(
    ("length", "last", "expected"),
    [
        (7, "last", [[0, 1, 2], [3, 4, 5], [4, 5, 6]]),
        (7, "drop", [[0, 1, 2], [3, 4, 5]]),
        (7, "null_padding", [[0, 1, 2], [3, 4, 5], [6, 0, 0]]),
        (2, "last", [[0, 1, 0]]),
        (2, "drop", []),
        (6, "last", [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_get_train_sample(length: int, last: Any, expected: list[list[int]]) -> None:
    pieces = Adder.get_train_sample(trajectory(length), 3, last)
    assert [p["obs"]["x"].flatten().tolist() for p in pieces] == expected
    if last == "null_padding":
        assert pieces[-1]["terminated"].tolist() == [False, True, True]
        assert pieces[-1]["reward"][1:].tolist() == [0.0, 0.0]


def test_get_train_sample_of_one_and_of_a_wrong_name() -> None:
    data = trajectory(3)
    assert len(Adder.get_train_sample(data)) == 3
    with pytest.raises(ValueError, match="'null_padding', not 'first'"):
        Adder.get_train_sample(data, 2, "first")  # type: ignore[arg-type]


def test_get_traj() -> None:
    data = trajectory(5)
    taken, rest = Adder.get_traj(data, 3, return_num=1)
    assert [int(t["obs"]["x"]) for t in taken] == [0, 1, 2]
    assert [int(t["obs"]["x"]) for t in rest] == [2, 3, 4]
    assert Adder.get_traj(data, 6) == ([], data)


@pytest.mark.parametrize("kind", [int, float])
def test_whole_numbers_are_rewards_too(kind: type) -> None:
    """A discount of the rewards' own type would be 0 for integers."""
    row = {"obs": torch.zeros(1), "next_obs": torch.zeros(1), "reward": kind(1), "value": kind(2)}
    data = [{**row, "terminated": False, "truncated": False}] * 3
    assert_close(Adder.get_nstep_return_data(data, 2, GAMMA)[0]["discount"], torch.tensor(GAMMA**2))
    assert_close(Adder.get_gae(data, torch.tensor(2.0), GAMMA, 0.0)[0]["adv"], torch.tensor(1 + GAMMA * 2 - 2))


def test_discounts_are_as_precise_as_rewards() -> None:
    """0.9 of float32 differs from 0.9 in the eighth digit."""
    row = {"next_obs": torch.zeros(1), "reward": torch.tensor(1.0).double(), "terminated": False, "truncated": False}
    discount = Adder.get_nstep_return_data([row] * 3, 3, GAMMA)[0]["discount"]
    assert discount.dtype == torch.float64 and abs(discount.item() - GAMMA**3) < 1e-15
