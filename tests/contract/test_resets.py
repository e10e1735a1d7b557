"""Networks that begin anew: how far, from what, and what stays."""

from __future__ import annotations

from typing import Any

import torch

from tests.contract.worlds import DQN, MIXED, TWO, Bench, Case, over

SHRINK = {"kind": "shrink", "every": 1_000, "keep": 0.25, "until": 5_000}


def bench(seed: int = 0, **settings: Any) -> Any:
    case = Case("dqn", "dqn", TWO, MIXED, over(DQN, resets=SHRINK | settings, net={"normalise": True}))
    made = Bench(case, seed)
    made.train(3)
    return made


def weights(module: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def test_encoders_are_moved_part_of_the_way_and_all_else_the_whole_way() -> None:
    made, other = bench(), bench()
    algo = made.algo
    before, seen = weights(algo.model), float(algo.model.encoder.norm.moments.count)
    with torch.random.fork_rng():
        torch.manual_seed(algo.new.seed + 1_000)
        fresh = dict(algo.built.build(algo.spec).model.named_parameters())
    state = torch.random.get_rng_state()
    algo.reset(1_000)
    assert torch.equal(torch.random.get_rng_state(), state), "no other random number depends on it"
    after, inside = weights(algo.model), 0
    for name, weight in after.items():
        within = "encoder" in name
        inside += within
        keep = 0.25 if within else 0.0
        torch.testing.assert_close(weight, keep * before[name] + (1 - keep) * fresh[name].detach())
    assert 0 < inside < len(after)
    for name, weight in weights(algo.inner.target.net).items():
        assert torch.equal(weight, after[name]) or "encoder" in name
    assert float(algo.inner.optim.count) == 0 and not any(x.any() for x in algo.inner.optim.mean)
    assert float(algo.model.encoder.norm.moments.count) == seen > 0
    other.algo.reset(1_000)
    assert all(torch.equal(after[name], w) for name, w in weights(other.algo.model).items()), "as the seed says"
    other.algo.reset(2_000)
    assert not torch.equal(after["net.head.layer.weight"], weights(other.algo.model)["net.head.layer.weight"])


def test_they_happen_at_intervals_and_end() -> None:
    made = bench(every=2, until=None)
    counts: list[int] = []
    made.algo.reset = counts.append
    made.train(9)
    assert counts and counts == list(range(counts[0], counts[-1] + 1, 2)) and counts[0] % 2 == 0
    late = bench()
    before = weights(late.algo.model)
    late.algo.reset(6_000)
    assert all(torch.equal(before[name], w) for name, w in weights(late.algo.model).items())
