"""Neural fictitious self-play: its reservoir, who plays an episode, and where it goes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import ganglion
from ganglion.buffers.reservoir import Reservoir
from ganglion.core import Box, Composite, MultiBinary, Noise, Obs, Past
from ganglion.errors import UserError
from ganglion.league.exploitability import exploitability, levels, strategy
from ganglion.runtime.build import build

SPACE = Composite({"obs": Box((1,)), "action_mask": MultiBinary(2)})


def filled(capacity: int, rows: int, seed: int, most: int = 7) -> list[int]:
    """Rows 0, 1, 2, ... in blocks of any size, some of which do not count; those that are kept."""
    dice, reservoir, sent = random.Random(seed), Reservoir(capacity, SPACE), 0
    naive: list[int] = []
    while sent < rows:
        n = dice.randint(1, most)
        counts = torch.tensor([dice.random() < 0.7 for _ in range(n)])
        number = (torch.arange(n) + sent).float()
        uniform = torch.tensor([dice.random() for _ in range(n)], dtype=torch.float64)
        obs = {"obs": number[:, None], "action_mask": torch.ones(n, 2, dtype=torch.bool)}
        for k in range(n):  # Vitter's algorithm R, row by row
            if counts[k]:
                seen = int(reservoir.seen) + int(counts[:k].sum())
                place = seen if seen < capacity else int(float(uniform[k]) * (seen + 1))
                naive += [0] if seen < capacity else []
                if place < capacity:
                    naive[place] = sent + k
        reservoir.push(obs, number.long(), counts, uniform)
        sent += n
    kept = reservoir.rows["obs"][: min(capacity, int(reservoir.seen)), 0].long().tolist()
    assert kept == naive == reservoir.action[: len(kept)].tolist()
    return kept


def test_the_reservoir_is_vitters() -> None:
    for seed in range(20):
        filled(8, 60, seed)


def test_every_row_is_as_likely_to_be_kept() -> None:
    early = sum(number < 50 for seed in range(60) for number in filled(10, 100, seed))
    assert early == pytest.approx(300, abs=50)  # four deviations


def test_an_empty_reservoir_teaches_nothing_and_another_size_is_refused() -> None:
    reservoir = Reservoir(4, SPACE)
    _, _, weight = reservoir.draw(torch.rand(5))
    assert weight.sum() == 0 and weight.shape == (1, 5)
    with pytest.raises(UserError, match=r"algo.reservoir: the saved one has 4 places, this one 5"):
        Reservoir(5, SPACE).restore(reservoir.state())


def test_one_of_both_plays_an_episode_to_its_end() -> None:
    words = ["algo={kind: nfsp, anticipation: 0.3, net: {hidden: [8]}}", "env={kind: leduc, slots: 64}",
             "run.device=cpu", "run.fast=eager", "eval=never", "save=never"]  # fmt: skip
    made = build(ganglion.load_config(None, words))
    source: Any = made.source
    seat, told = source.seats[0], []
    made.run_collect()
    for _ in range(100):
        before, start = seat.past.carried[0].clone(), seat.past.start.clone()
        made.run_collect()
        after = seat.past.carried[0]
        assert (after[~start] == before[~start]).all()
        told.append(after[start].double())
    assert float(torch.cat(told).mean()) == pytest.approx(0.3, abs=0.06)


@pytest.mark.learning
def test_the_average_nears_an_equilibrium_of_kuhn_poker() -> None:
    """By chance it is 0.458 away."""
    nfsp = "{kind: nfsp, lr: 5e-3, lr_average: 5e-3, anticipation: 0.3, net: {hidden: [32]}, target_every: 100}"
    words = [f"algo={nfsp}", "algo.limiter.opt_interval=128", "env={kind: kuhn, slots: 128}", "run.device=cpu",
             "train.budget=250k steps", "run.fast=eager", "eval=never", "save=never"]  # fmt: skip
    made = build(ganglion.load_config(None, words))
    source: Any = made.source
    tree, algo = levels(source.env, 2), made.learner.agent.algo
    for _ in made():
        pass
    off = torch.zeros(1, 1, dtype=torch.bool)

    def average(obs: Obs) -> torch.Tensor:
        return algo.predict(obs, Past((), off), Noise(off, off)).dist.average.probs()[0]

    with torch.no_grad():
        assert exploitability(tree, strategy(tree, average)) < 0.2
