"""Feature functions against plain loops, number by number; elements around an environment, their specs and state."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import ganglion
from ganglion.core import Box, Composite, Discrete, MultiBinary, MultiDiscrete, State
from ganglion.envs import GymConfig, ToyConfig
from ganglion.envs import encodings as f
from ganglion.envs.transforms import Apply, Choices, Delta, Each, Element, Join, Processed, Rescale, Series, zeros
from ganglion.errors import UserError
from tests.envs.worlds import copied, random_action, same_step

whole = st.integers(-5, 400)
lists = st.lists(whole, min_size=1, max_size=12)


def hot(place: int, n: int) -> list[float]:
    return [float(i == place) for i in range(n)]


def same(got: Tensor, want: list[Any]) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float32), rtol=0, atol=1e-6)


# ------------------------------------------------------------ functions


@given(lists, st.integers(1, 30))
def test_one_hots(values: list[int], n: int) -> None:
    x = torch.tensor(values)
    same(f.one_hot(x, n), [hot(v, n) for v in values])
    same(f.clip_one_hot(x, n), [hot(min(max(v, 0), n - 1), n) for v in values])


@given(lists, st.integers(1, 300))
def test_sqrt_one_hot(values: list[int], largest: int) -> None:
    want = [hot(math.isqrt(min(max(v, 0), largest)), math.isqrt(largest) + 1) for v in values]
    same(f.sqrt_one_hot(torch.tensor(values), largest), want)


def test_sqrt_one_hot_is_exact_where_float32_is_not() -> None:
    largest = 5_000**2
    x = torch.tensor([largest - 1, largest, 4_999**2 - 1, 4_999**2])
    assert f.sqrt_one_hot(x, largest).argmax(-1).tolist() == [4_999, 5_000, 4_998, 4_999]


@given(lists, st.integers(1, 300), st.integers(1, 20))
def test_div_one_hot(values: list[int], largest: int, ratio: int) -> None:
    want = [hot(min(max(v, 0), largest) // ratio, largest // ratio + 1) for v in values]
    same(f.div_one_hot(torch.tensor(values), largest, ratio), want)
    same(f.div_one_hot(torch.tensor(values, dtype=torch.float64), largest, ratio), want)


@given(st.lists(st.floats(-1, 3), min_size=1, max_size=9), st.floats(0.05, 2), st.floats(0.05, 1))
def test_div_one_hot_of_reals_always_has_a_place(values: list[float], largest: float, ratio: float) -> None:
    """The largest value divided in another precision must not fall out of the row."""
    got = f.div_one_hot(torch.tensor([*values, largest]), largest, ratio)
    assert got.shape[-1] == int(largest // ratio) + 1
    assert got.sum(-1).eq(1).all()


def test_the_new_axis_can_be_planes_of_an_image() -> None:
    x = torch.tensor([[[0, 1], [2, 1]]])
    planes = f.one_hot(x, 3, dim=-3)
    assert planes.shape == (1, 3, 2, 2)
    for kind in range(3):
        assert torch.equal(planes[0, kind], (x[0] == kind).float())


ORDERS = st.dictionaries(st.integers(0, 20), st.integers(0, 6), min_size=1)


@given(lists, ORDERS)
def test_reorder_one_hot(values: list[int], order: dict[int, int]) -> None:
    want = [hot(order.get(v, -1), 7) for v in values]
    same(f.reorder_one_hot(torch.tensor(values), f.table(order), 7), want)


@given(st.lists(st.integers(0, 9), min_size=1), st.permutations(range(10)), st.permutations(range(10)))
def test_an_order_may_be_an_array_and_follow_another(values: list[int], order: list[int], before: list[int]) -> None:
    """nerveX's `transform`: a first table whose answers the second is asked about."""
    x = torch.tensor(values)
    want = [hot(order[before[v]], 10) for v in values]
    same(f.reorder_one_hot(f.reorder(x, f.table(before)), f.table(order), 10), want)


@given(st.lists(st.lists(st.integers(-1, 20), min_size=3, max_size=3), min_size=1, max_size=5), ORDERS)
def test_reorder_multi_hot(rows: list[list[int]], order: dict[int, int]) -> None:
    want = [[float(any(order.get(v, -1) == i for v in row)) for i in range(7)] for row in rows]
    same(f.reorder_multi_hot(torch.tensor(rows), f.table(order), 7), want)


def test_orders_count_from_zero() -> None:
    with pytest.raises(ValueError, match="values from 0 on"):
        f.table({-1: 2})


@given(lists, st.integers(1, 12))
def test_binary(values: list[int], bits: int) -> None:
    cut = [min(max(v, 0), 2**bits - 1) for v in values]
    same(f.binary(torch.tensor(values), bits), [[float(c) for c in format(v, f"0{bits}b")] for v in cut])


def test_binary_of_known_numbers() -> None:
    same(f.binary(torch.tensor([131, 71]), 10), [[0, 0, 1, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 0, 0, 1, 1, 1]])
    assert f.binary(torch.zeros(2, 3, dtype=torch.int64), 4).shape == (2, 3, 4)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8), st.floats(-5, 0), st.floats(0.5, 5))
def test_affine_maps(values: list[float], low: float, high: float) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    half, middle = (high - low) / 2, (high + low) / 2
    assert f.affine(x, half, middle).tolist() == pytest.approx([v * half + middle for v in values])
    assert f.rescale(x, low, high).tolist() == pytest.approx([v * half + middle for v in values])
    clipped = f.rescale(x, low, high, clip=True)
    assert clipped.tolist() == pytest.approx([max(min(v, 1), -1) * half + middle for v in values])
    assert clipped.min() >= low and clipped.max() <= high
    assert f.unscale(f.rescale(x, low, high), low, high).tolist() == pytest.approx(values, abs=1e-9)


def test_bounds_may_differ_by_element() -> None:
    low, high = torch.tensor([0.0, -2.0]), torch.tensor([1.0, 4.0])
    assert f.rescale(torch.tensor([[-1.0, 0.0], [1.0, 1.0]]), low, high).tolist() == [[0.0, 1.0], [1.0, 4.0]]


def test_divide() -> None:
    assert f.divide(torch.tensor([3, 6]), 4.0).tolist() == [0.75, 1.5]
    assert f.divide(torch.tensor([3, 6]), 4.0, dim=1).shape == (2, 1)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=5), st.sampled_from([2, 8, 64]))
def test_position(values: list[float], size: int) -> None:
    def one(x: float) -> list[float]:
        angles = [x / 10_000 ** (2 * (i // 2) / size) for i in range(size)]
        return [math.sin(a) if i % 2 == 0 else math.cos(a) for i, a in enumerate(angles)]

    same(f.position(torch.tensor(values, dtype=torch.float64), size), [one(v) for v in values])


def test_waves_pair_each_element_with_its_own_frequency() -> None:
    x = torch.arange(32.0)
    got = f.waves(x)
    for i in range(32):
        angle = i / 10_000 ** (2 * i / 64)
        assert got[2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
        assert got[2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_functions_are_batched_and_captured_as_one_graph() -> None:
    order = f.table({0: 1, 2: 0})

    def all_of_them(x: Tensor) -> Tensor:
        parts = [f.one_hot(x, 5), f.sqrt_one_hot(x, 50), f.div_one_hot(x, 50, 7), f.clip_one_hot(x, 4)]
        parts += [f.reorder_one_hot(x, order, 3), f.binary(x, 6), f.position(x, 8), f.divide(x, 3.0, -1)]
        return torch.cat(parts, -1)

    x = torch.arange(24).reshape(2, 3, 4)
    whole = all_of_them(x)
    assert torch.equal(whole[1, 2], all_of_them(x[1, 2]))
    assert torch.equal(torch.compile(all_of_them, fullgraph=True, backend="eager")(x), whole)


# ------------------------------------------------------------ elements


def walk(env: ganglion.core.Env, steps: int, first: int = 0) -> list[Any]:
    return [env.step(random_action(env.spec.action, env.spec.slots, first + t)) for t in range(steps)]


def pendulum() -> Processed:
    env = GymConfig(id="Pendulum-v1", slots=3, time_limit=7).build()
    return Processed(env, Series(Delta(), Apply(lambda x: x.clamp(-1, 1), -1, 1)), Rescale(), Apply(lambda r: r / 16))


def test_specs_follow_the_elements() -> None:
    env = pendulum()
    assert env.spec.obs == Box((3,), torch.float32, (-1.0,), (1.0,))
    assert env.spec.action == Box((1,), torch.float32, (-1.0,), (1.0,))
    step = env.reset(0)
    assert step.obs.shape == (3, 3)


def test_observation_action_and_reward_are_changed() -> None:
    env, plain = pendulum(), GymConfig(id="Pendulum-v1", slots=3, time_limit=7).build()
    before, now = plain.reset(5), env.reset(5)
    assert not now.obs.any()
    for t in range(20):
        action = torch.linspace(-1.5, 1.5, 3).unsqueeze(-1) + 0.1 * t
        fresh = ~before.valid
        after, now = plain.step(action.clamp(-1, 1) * 2), env.step(action)
        want = torch.where(fresh.unsqueeze(-1), torch.zeros(3, 3), (after.obs - before.obs).clamp(-1, 1))
        torch.testing.assert_close(now.obs, want)
        torch.testing.assert_close(now.reward, after.reward / 16)
        before = after
    assert [e.total for e in env.episodes()] == [e.total for e in plain.episodes()]  # the world's own score


def test_elements_resume_exactly() -> None:
    env = pendulum()
    env.reset(3)
    walk(env, 10)
    saved = copied(env.state())
    rest = walk(env, 12, 50)
    again = pendulum()
    again.restore(saved)
    for a, b in zip(walk(again, 12, 50), rest):
        assert same_step(a, b)


def test_parts_of_a_tree() -> None:
    space = Composite(
        {
            "unit": Discrete(5),
            "xy": Box((2,)),
            "bits": MultiBinary(3),
            "noise": Box((1,)),
            "action_mask": Box((4,), torch.bool),
        }
    )
    kinds = Each({"unit": Apply(lambda x: f.one_hot(x, 5), 0, 1), "noise": None})
    element = Series(kinds, Join())
    bound = element.bind(space)
    assert isinstance(bound, Composite) and bound.items["obs"] == Box((10,)) and "action_mask" in bound.items
    obs = zeros(space, 2)
    obs["unit"] = torch.tensor([1, 4])
    got = element(obs, torch.ones(2, dtype=torch.bool))
    assert got["obs"][:, :5].tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    assert torch.equal(got["action_mask"], obs["action_mask"])


def test_the_specs_tell_what_comes() -> None:
    for space in (Discrete(4), MultiDiscrete((2, 3)), MultiBinary(3), Box((2, 2))):
        element = Apply(lambda x: f.divide(x, 2.0))
        bound = element.bind(space)
        assert isinstance(bound, Box)
        out = element(zeros(space, 5), torch.ones(5, dtype=torch.bool))
        assert tuple(out.shape[1:]) == bound.shape and out.dtype == bound.dtype


def test_choices_make_a_real_action_discrete() -> None:
    env = Processed(GymConfig(id="Pendulum-v1", slots=2).build(), action=Choices([[-2.0], [0.0], [2.0]]))
    assert env.spec.action == Discrete(3)
    plain = GymConfig(id="Pendulum-v1", slots=2).build()
    env.reset(0), plain.reset(0)
    assert same_step(env.step(torch.tensor([0, 2])), plain.step(torch.tensor([[-2.0], [2.0]])))


class Last(Element):
    """Repeats the action before at every second step: state of its own, told where episodes begin."""

    def __init__(self) -> None:
        self.count = torch.zeros(2)

    def __call__(self, x: Tensor, start: Tensor) -> Tensor:
        self.count = torch.where(start, torch.ones(2), self.count + 1)
        return x

    def state(self) -> State:
        return State({"count": self.count})

    def restore(self, state: State) -> None:
        self.count = state.tensors["count"]


def test_an_action_element_is_told_which_is_the_first() -> None:
    element = Last()
    env = Processed(ToyConfig(id="identity", limit=3, slots=2).build(), action=element)
    env.reset(0)
    counts = []
    for _ in range(9):
        env.step(torch.zeros(2, dtype=torch.int64))
        counts.append(int(element.count[0]))
    assert counts == [1, 2, 3, 4, 1, 2, 3, 4, 1]  # the fourth is ignored: its row is dead


def test_a_chain_of_actions_is_bound_from_the_environment() -> None:
    chain = Series(Choices([[-1.0], [1.0]]), Rescale(), outward=True)
    assert chain.bind(Box((1,), low=(-2.0,), high=(4.0,))) == Discrete(2)
    assert chain(torch.tensor([0, 1]), torch.zeros(2, dtype=torch.bool)).tolist() == [[-2.0], [4.0]]


@pytest.mark.parametrize(
    ("element", "space", "message"),
    [
        (Rescale(), Box((1,)), "finite bounds"),
        (Delta(), Discrete(3), "real numbers"),
        (Choices([[0.0]]), Discrete(3), "Choices are of the shape"),
        (Each({"x": Delta()}), Composite({"y": Box((1,))}), "should be parts"),
        (Each({"x": Delta()}), Box((1,)), "no named parts"),
    ],
)
def test_what_does_not_fit_is_refused(element: Element, space: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        element.bind(space)


def test_a_reward_is_one_number() -> None:
    with pytest.raises(UserError, match="one real number"):
        Processed(ToyConfig(id="chain").build(), reward=Apply(lambda r: torch.stack((r, r), -1)))


def test_processed_environments_pass_the_check() -> None:
    report = ganglion.check_env(pendulum, steps=500)
    assert report.passed and not report.of("warn"), report
