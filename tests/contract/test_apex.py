"""Rates of exploration that differ by slot, and priorities that whoever explores computes (Ape-X)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ganglion import ops, registry
from ganglion.core import Noise, Past, Progress
from ganglion.errors import UserError
from tests.contract.worlds import ARM, CASES, DQN, SAC, TWO, Bench, Case, over

CASE = {case.name: case for case in CASES}
RATED = {"kind": "prioritised", "initial": "error", "alpha": 1.0, "capacity": 240}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("name", ["dqn", "dqn-all", "dqn-mixed"])
def test_new_rows_are_as_urgent_as_learning_would_find_them(name: str, double: bool):
    """Of rows, of sequences after a burn-in with a memory and masks; also after the ring has gone round."""
    case = CASE[name]
    burn_in = {"burn_in": 1} if "sequence" in case.settings["replay"] else {}
    settings = over(case.settings, replay={**RATED, **burn_in}, limiter={"warmup": 10**6}, double=double)
    settings = over(settings, net={"normalise": False})  # statistics move between acting and learning
    bench, at = Bench(replace(case, settings=settings)), Progress()
    for _ in range(70):
        at = bench.explorer.step(at).at
    buffer = bench.learner.buffer
    assert buffer.ring.pushed > buffer.ring.length
    index = buffer.tree.mass.nonzero().squeeze(-1)
    assert 60 < len(index) < len(buffer.tree.mass)
    sample = buffer.gather(index[None], None, at)
    learned = bench.algo.learn(sample, bench.agent.knobs(at), Noise(torch.empty(0), torch.empty(0))).priority
    torch.testing.assert_close(buffer.tree.mass[index].float(), learned + buffer.cfg.floor, rtol=2e-5, atol=2e-5)


def test_only_those_who_say_what_they_expect_can_be_rated():
    bench = Bench(Case("sac-rated", "sac", ARM, settings=over(SAC, replay=RATED)))
    with pytest.raises(UserError, match=r"algo\.replay\.initial: error needs"):
        bench.train(1, Progress())


def test_every_slot_of_every_explorer_has_its_own_rate():
    """Two explorers of four slots are the halves of one of eight."""
    cfg = registry.lookup("algo", "dqn").model_validate(over(DQN, ladder=3.0, epsilon=0.5))
    rates = []
    for slots, share in ((8, (0, 1)), (4, (0, 2)), (4, (1, 2))):
        algo, coins = cfg.build(Case("ladder", "dqn", TWO, slots=slots).spec()), 400
        algo.share = share
        knobs = {"epsilon": torch.tensor(algo.knobs(Progress())["epsilon"])}
        start = torch.ones(1, slots, dtype=torch.bool)
        prediction = algo.predict(torch.zeros(1, slots, 4), Past((), start), algo.neutral(start))
        greedy, strayed = prediction.dist.mode(), torch.zeros(slots)
        for k in range(coins):  # a coin that falls from 0 to 1, and always the other action
            uniform = torch.stack([torch.full((1, slots), k / coins), 0.75 - 0.5 * greedy], -1)
            strayed += (algo.explore(prediction, knobs, Noise(uniform, uniform[..., :0])).action != greedy)[0]
        rates.append(strayed / coins)
    torch.testing.assert_close(rates[0], torch.cat(rates[1:]))
    torch.testing.assert_close(rates[0], ops.epsilon_ladder(8, 0.5, 3.0), rtol=0, atol=2 / 400)


def test_a_ladder_moves_with_its_schedule():
    eps = torch.tensor(0.25)
    assert torch.equal(ops.epsilon_ladder(3, eps, 1.0), torch.tensor([0.25, 0.125, 0.0625]))
    assert torch.equal(ops.epsilon_ladder(3, torch.tensor(0.0), 1.0), torch.zeros(3))
