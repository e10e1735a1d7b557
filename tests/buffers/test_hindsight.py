"""Hindsight: goals, rewards and endings of relabelled rows, against walking the episodes row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ganglion.buffers import PrioritisedConfig, ReplayConfig
from ganglion.buffers.replay import Replay
from ganglion.config import Fold
from ganglion.core import Box, Composite, Discrete, EnvSpec, Past, Progress, Row
from ganglion.errors import UserError

CPU, SLOTS, GAMMA = torch.device("cpu"), 3, 0.9
PARTS = Composite({name: Box((2,)) for name in ("observation", "achieved_goal", "desired_goal")})
WIDE = Composite({**PARTS.items, "observation": Box((200,))})  # has arrays of its own
SPEC, WIDE_SPEC = (EnvSpec(parts, Discrete(2), SLOTS, "world") for parts in (PARTS, WIDE))


def walk(count: int, size: int = 2, seed: int = 0) -> list[Row]:
    """Rows of random walks on a line, whose goals are reached now and then; endings of both sorts."""
    g = torch.Generator().manual_seed(seed)
    place, goal = torch.zeros(SLOTS, 2), torch.ones(SLOTS, 2)
    start, dead, rows = torch.ones(SLOTS, dtype=torch.bool), torch.zeros(SLOTS, dtype=torch.bool), []
    for t in range(count):
        place = torch.where(start[:, None], torch.zeros(2), place)
        goal = torch.where(start[:, None], torch.randint(-2, 3, (SLOTS, 2), generator=g).float(), goal)
        after = place + torch.randint(-1, 2, (SLOTS, 2), generator=g)
        ends = torch.rand(SLOTS, generator=g)
        there = (after == goal).all(-1)
        terminated, truncated = (ends < 0.1) & ~dead, (ends > 0.9) & ~dead
        reward = torch.where(there, 0.0, -1.0) * ~dead
        seen = torch.full((SLOTS, size), float(t))
        obs = {"observation": seen, "achieved_goal": place.clone(), "desired_goal": goal.clone()}
        row = Row(obs, torch.full((SLOTS,), t), reward, terminated, truncated, ~dead, start, {}, ())
        rows.append(row)
        start, dead = dead, terminated | truncated
        place = after
    return rows


def filled(asked: dict[str, Any], rows: list[Row], n: int = 1, size: int = 2, **more: Any) -> Replay:
    kind = PrioritisedConfig if more.pop("kind", "") == "prioritised" else ReplayConfig
    relabel = {"kind": "hindsight", "share": 1.0, "threshold": 0.1, **asked}
    cfg = kind.model_validate({"capacity": 120, "batch": 64, "relabel": relabel, **more})
    spec = SPEC if size == 2 else WIDE_SPEC
    made = cfg.build(spec, CPU, cfg.fitted(Fold(GAMMA, n)))
    add = lambda x: x[None] if isinstance(x, torch.Tensor) else {k: v[None] for k, v in x.items()}  # noqa: E731
    for row in rows:
        made.push(
            Row(*(add(x) if not isinstance(x, tuple) else x for x in row)), (None, Past((), row.start)), Progress()
        )
    return made


def sampled(made: Replay, seed: int = 0) -> Any:
    uniform = torch.rand(made.wants, generator=torch.Generator().manual_seed(seed))
    return made.take(uniform, Progress())


def last_of(rows: list[Row], t: int, slot: int) -> int:
    """The row that shows what came of the last action of the episode of row t."""
    while bool(rows[t].valid[slot]) and t + 1 < len(rows):
        t += 1
    return t


def value(reward: list[float], ends: list[bool], cuts: list[bool], n: int) -> tuple[float, float]:
    """The n-step sum and what its bootstrap is multiplied by."""
    total, factor = 0.0, 1.0
    for k in range(n):
        total += factor * reward[k]
        factor *= 0.0 if ends[k] else GAMMA
        if ends[k] or cuts[k]:
            break
    return total, factor


@pytest.mark.parametrize("size", [2, 200])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
def test_relabelled_rows_are_those_of_the_paper(strategy: str, ends: bool, n: int, size: int):
    rows = walk(100, size)  # the ring holds the last 40
    made = filled({"strategy": strategy, "ends": ends}, rows, n, size)
    sample, met = sampled(made), set()
    t, length = sample.data, made.ring.length
    for k, where in enumerate(sample.index[0].tolist()):
        slot, place = where % SLOTS, where // SLOTS
        now = 99 - (99 - place) % length
        if not rows[now].valid[slot]:
            assert sample.weight[0, k] == 0
            continue
        last, goal = last_of(rows, now, slot), t.obs["desired_goal"][0, k]
        first = now
        while not rows[first].start[slot] and first > 60:
            first -= 1
        later = {"future": range(now + 1, last + 1), "final": [last], "episode": range(first + 1, last + 1)}
        if strategy == "random":
            options = [rows[m].obs["achieved_goal"][b] for m in range(60, 100) for b in range(SLOTS)]
        else:
            options = [rows[m].obs["achieved_goal"][slot] for m in later[strategy]]
        assert any(torch.equal(goal, option) for option in options)
        assert torch.equal(goal, t.next_obs["desired_goal"][0, k])
        span = range(now, min(now + n, len(rows) - 1))
        there = [bool((rows[m + 1].obs["achieved_goal"][slot] == goal).all()) for m in span]
        over = [reached if ends else bool(rows[m].terminated[slot]) for m, reached in zip(span, there, strict=True)]
        cuts = [bool(rows[m].terminated[slot] or rows[m].truncated[slot]) for m in span]
        alive = [m for m in span if m < last]
        want = value([0.0 if there[m - now] else -1.0 for m in alive], over, cuts, len(alive))
        assert float(t.reward[0, k]) == pytest.approx(want[0])
        assert float(t.discount[0, k]) == pytest.approx(want[1])
        met.add((now, slot))
    assert len(met) > 20


def test_rows_that_are_not_chosen_stay_as_they_were():
    rows = walk(30)
    made, plain = filled({"share": 0.0}, rows), filled({"share": 1.0}, rows)
    sample = sampled(made)
    for k, where in enumerate(sample.index[0].tolist()):
        slot, now = where % SLOTS, where // SLOTS
        assert torch.equal(sample.data.obs["desired_goal"][0, k], rows[now].obs["desired_goal"][slot])
        assert float(sample.data.reward[0, k]) == float(rows[now].reward[slot])
    changed = sampled(plain).data.obs["desired_goal"]
    assert not torch.equal(changed, sample.data.obs["desired_goal"])


@pytest.mark.parametrize("kind", ["replay", "prioritised"])
def test_restored_it_goes_on_as_before(kind: str):
    made = filled({"strategy": "episode"}, walk(100), 3, kind=kind)
    other = filled({"strategy": "episode"}, [], 3, kind=kind)
    other.restore(made.state())
    one, two = sampled(made, 3), sampled(other, 3)
    assert torch.equal(one.data.obs["desired_goal"], two.data.obs["desired_goal"])
    assert torch.equal(one.data.reward, two.data.reward) and torch.equal(one.index, two.index)


def test_a_rule_that_is_not_the_environments_is_refused():
    made = filled({"missed": -2.0}, walk(30))
    with pytest.raises(UserError, match=r"relabel.*worth -2, and the environment gave -1"):
        sampled(made)


def test_an_environment_without_goals_is_refused():
    cfg = ReplayConfig.model_validate({"relabel": "hindsight"})
    with pytest.raises(UserError, match=r"relabel.*desired_goal"):
        cfg.build(EnvSpec(Box((2,)), Discrete(2), 2, "world"), CPU, cfg.fitted(Fold(GAMMA)))
    with pytest.raises(UserError, match="rollouts"):
        cfg.rollouts(GAMMA, 5)
