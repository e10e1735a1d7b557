"""Distributions: against torch.distributions, by enumeration, by quadrature, and at the edges."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as td
from torch.testing import assert_close

from ganglion import ops
from ganglion.core import Box, Composite, Discrete, Draw, MultiBinary, MultiDiscrete, Noise, Space

few = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)
T, B, A = 2, 3, 5

SPACES: dict[str, Space] = {
    "discrete": Discrete(4),
    "multi": MultiDiscrete((2, 3, 1)),
    "bits": MultiBinary(3),
    "box": Box((2,), low=(-1.0, -2.0), high=(1.0, 3.0)),
    "matrix": Box((2, 3), low=(-1.0,), high=(1.0,)),
    "number": Box((), low=(0.0,), high=(1.0,)),
}
SPACES["composite"] = Composite(
    {"b": SPACES["box"], "a": Discrete(3), "c": Composite({"d": MultiBinary(2), "e": Box((1,))})}
)


def some(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def noise(draw: Draw, *rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Noise:
    g = torch.Generator().manual_seed(seed)
    uniform = torch.rand(*rows, draw.uniform, generator=g, dtype=dtype)
    return Noise(uniform, torch.randn(*rows, draw.normal, generator=g, dtype=dtype))


def legal(seed: int, *shape: int) -> torch.Tensor:
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[..., 0] |= ~mask.any(-1)
    return mask


# ------------------------------------------------------------ every space


@pytest.mark.parametrize("name", SPACES)
def test_shapes_types_and_counts(name: str) -> None:
    space = SPACES[name]
    dist = ops.dist(torch.randn(T, B, ops.dist_size(space)), space)
    assert dist.draws == ops.dist_draws(space)
    action = dist.sample(noise(dist.draws, T, B))
    for tree in (action, dist.mode()):
        check_action(tree, space)
    for number in (dist.log_prob(action), dist.entropy(), dist.kl(dist)):
        assert number.shape == (T, B) and torch.isfinite(number).all()
    assert_close(dist.kl(dist), torch.zeros(T, B))


def check_action(action: Any, space: Space) -> None:
    if isinstance(space, Composite):
        assert list(action) == list(space.items)
        for key, part in space.items.items():
            check_action(action[key], part)
    elif isinstance(space, Box):
        assert action.shape == (T, B, *space.shape) and action.dtype == torch.float32
    else:
        size = {Discrete: (), MultiDiscrete: (3,)}.get(type(space), (getattr(space, "n", 0),))
        assert action.shape == (T, B, *size) and action.dtype == torch.int64


@pytest.mark.parametrize("name", [n for n in SPACES if n not in ("composite",)])
def test_samples_do_not_depend_on_other_rows(name: str) -> None:
    """Each slot has its own random numbers: change one row's, and only its action changes."""
    space = SPACES[name]
    raw = torch.randn(T, B, ops.dist_size(space), generator=torch.Generator().manual_seed(1))
    dist = ops.dist(raw, space)
    one = noise(dist.draws, T, B)
    other = Noise(one.uniform.clone(), one.normal.clone())
    for x in (other.uniform, other.normal):
        x[0, 0] = 1 - x[0, 0]
    a, b = dist.sample(one).clone(), dist.sample(other)
    a[0, 0] = b[0, 0]
    assert torch.equal(a, b)


def test_product_hands_each_part_its_own_numbers() -> None:
    space = Composite({"x": Discrete(3), "y": Discrete(3), "z": Box((2,)), "w": Box((1,))})
    dist = ops.dist(torch.randn(T, B, ops.dist_size(space)), space)
    whole = noise(dist.draws, T, B)
    action = dist.sample(whole)
    assert torch.equal(action["y"], dist.parts["y"].sample(Noise(whole.uniform[..., 1:2], whole.normal[..., :0])))
    assert torch.equal(action["w"], dist.parts["w"].sample(Noise(whole.uniform[..., :0], whole.normal[..., 2:3])))
    expected = torch.stack([p.log_prob(action[k]) for k, p in dist.parts.items()]).sum(0)
    assert_close(dist.log_prob(action), expected)


def test_product_masks_by_name() -> None:
    space = Composite({"x": Discrete(3), "y": Discrete(2)})
    dist = ops.dist(torch.zeros(1, 1, 5), space, {"x": torch.tensor([[[False, False, True]]])})
    for seed in range(5):
        assert dist.sample(noise(dist.draws, 1, 1, seed=seed))["x"].item() == 2


# ------------------------------------------------------------ categorical


@settings(max_examples=60)
@given(seeds, st.sampled_from([0.0, 2.0**-24, 0.5, 1 - 2.0**-24]))
def test_masked_actions_are_never_sampled(seed: int, u: float) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(50, 9, generator=g) * 30
    mask = legal(seed, 50, 9)
    action = ops.Categorical(logits, mask).sample(Noise(torch.full((50, 1), u), torch.zeros(50, 0)))
    assert mask.gather(-1, action.unsqueeze(-1)).all()


def test_sampling_follows_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    grid = (torch.arange(100_000) + 0.5) / 100_000
    action = ops.Categorical(logits.expand(100_000, 4)).sample(Noise(grid.unsqueeze(-1), torch.zeros(100_000, 0)))
    share = action.bincount(minlength=4) / 100_000
    assert_close(share, logits.softmax(-1), atol=2e-5, rtol=0)


def test_masked_gradients_are_finite_and_stay_away_from_illegal_actions() -> None:
    logits = torch.randn(6, A, requires_grad=True)
    mask = legal(3, 6, A)
    dist = ops.Categorical(logits, mask)
    loss = (
        dist.entropy().sum()
        + dist.log_prob(dist.mode()).sum()
        + dist.kl(ops.Categorical(torch.zeros(6, A), mask)).sum()
    )
    loss.backward()
    assert torch.isfinite(logits.grad).all() and (logits.grad[~mask] == 0).all()


def test_a_row_without_legal_actions_is_finite() -> None:
    """Dead rows may carry an empty mask; whatever comes out must not be NaN, nor out of range."""
    dist = ops.Categorical(torch.randn(1, 2, A), torch.zeros(1, 2, A, dtype=torch.bool))
    action = dist.sample(noise(dist.draws, 1, 2))
    assert ((action >= 0) & (action < A)).all() and torch.isfinite(dist.log_prob(action)).all()
    greedy = ops.Greedy(torch.randn(1, 2, A), torch.zeros(1, 2, A, dtype=torch.bool))
    random = greedy.epsilon(1.0, noise(greedy.draws, 1, 2))
    assert ((random >= 0) & (random < A)).all()


# ------------------------------------------------------------ against torch.distributions


@few
@given(seeds)
def test_bernoulli(seed: int) -> None:
    dist, other = ops.Bernoulli(some(seed, T, B, 4)), ops.Bernoulli(some(seed + 1, T, B, 4))
    theirs, second = (td.Independent(td.Bernoulli(logits=d.logits), 1) for d in (dist, other))
    action = dist.sample(noise(dist.draws, T, B, seed=seed))
    assert_close(dist.log_prob(action), theirs.log_prob(action.double()))
    assert_close(dist.entropy(), theirs.entropy())
    assert_close(dist.kl(other), td.kl_divergence(theirs, second))


@few
@given(seeds, st.sampled_from([(), (3,), (2, 3)]))
def test_normal(seed: int, shape: tuple[int, ...]) -> None:
    pairs = [(some(seed + i, T, B, *shape), some(seed + 9 + i, T, B, *shape) * 0.3) for i in range(2)]
    dist, other = (ops.Normal(mean, log_std, len(shape)) for mean, log_std in pairs)
    theirs, second = (td.Independent(td.Normal(m, s.exp()), len(shape)) for m, s in pairs)
    action = dist.sample(noise(dist.draws, T, B, seed=seed, dtype=torch.float64))
    assert_close(dist.log_prob(action), theirs.log_prob(action))
    assert_close(dist.entropy(), theirs.entropy())
    assert_close(dist.kl(other), td.kl_divergence(theirs, second))


def test_normal_with_one_scale_for_all_rows() -> None:
    mean, log_std = some(0, T, B, 3), some(1, 3)
    shared, full = ops.Normal(mean, log_std), ops.Normal(mean, log_std.expand(T, B, 3))
    assert_close(shared.entropy(), full.entropy())
    assert_close(shared.log_prob(mean + 1), full.log_prob(mean + 1))
    assert_close(shared.kl(full), torch.zeros(T, B, dtype=torch.float64))


@few
@given(seeds)
def test_tanh_normal(seed: int) -> None:
    mean, log_std = some(seed, T, B, 2), some(seed + 1, T, B, 2) * 0.3
    low, high = torch.tensor([-1.0, -2.0]).double(), torch.tensor([1.0, 5.0]).double()
    dist = ops.TanhNormal(mean, log_std, low, high)
    loc, scale = (low + high) / 2, (high - low) / 2
    parts = [td.TanhTransform(cache_size=1), td.AffineTransform(loc, scale)]
    theirs = td.TransformedDistribution(td.Normal(mean, log_std.exp()), parts)
    action, logp = dist.sample_and_log_prob(noise(dist.draws, T, B, seed=seed, dtype=torch.float64))
    assert ((action >= low) & (action <= high)).all()
    assert_close(dist.sample(noise(dist.draws, T, B, seed=seed, dtype=torch.float64)), action)
    assert_close(logp, theirs.log_prob(action).sum(-1))
    assert_close(dist.log_prob(action), logp)
    assert_close(dist.mode(), loc + scale * torch.tanh(mean))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.5, 1.0), (-2.0, 0.5), (0.0, 2.0)])
def test_tanh_normal_is_a_density_with_this_entropy_and_kl(mean: float, std: float) -> None:
    """Integrals over the action, on a fine grid before tanh."""

    def dist(m: float, s: float) -> ops.TanhNormal:
        one = torch.ones(1, dtype=torch.float64)
        return ops.TanhNormal(m * one, log(s) * one, -2 * one, 4 * one)

    ours, other = dist(mean, std), dist(mean + 0.3, std * 1.5)
    x = torch.linspace(mean - 8 * std, mean + 8 * std, 20_001, dtype=torch.float64).unsqueeze(-1)
    x = x[x.abs().squeeze(-1) < 8]
    action = ours.stretch(x)
    p = ours.log_prob(action).exp()
    width = action.squeeze(-1)
    assert_close(torch.trapezoid(p, width).item(), 1.0, atol=1e-4, rtol=0)
    entropy = torch.trapezoid(-p * p.clamp(min=1e-300).log(), width)
    assert_close(ours.entropy().item(), entropy.item(), atol=0.01, rtol=0)
    kl = torch.trapezoid(p * (ours.log_prob(action) - other.log_prob(action)), width)
    assert_close(ours.kl(other).item(), kl.item(), atol=1e-3, rtol=0)


def test_tanh_normal_is_stable_far_out() -> None:
    """Saturated means, as early SAC has them: float32 log-densities and gradients stay finite and right."""
    mean = torch.tensor([[-50.0], [-10.0], [0.0], [10.0], [50.0]], requires_grad=True)
    one = torch.ones(1)
    dist = ops.TanhNormal(mean, torch.zeros(5, 1), -one, one)
    action, logp = dist.sample_and_log_prob(Noise(torch.zeros(5, 0), torch.full((5, 1), 0.5)))
    logp.sum().backward()
    assert torch.isfinite(logp).all() and torch.isfinite(mean.grad).all() and (action.abs() <= 1).all()
    x = mean.detach().double() + 0.5
    exact = -0.125 - 0.5 * log(2 * np.pi) - 2 * (log(2) - x.abs() - torch.log1p(torch.exp(-2 * x.abs())))
    assert_close(logp.detach().double(), exact.squeeze(-1), rtol=1e-5, atol=1e-5)
    assert torch.isfinite(dist.log_prob(torch.tensor([[-1.0], [-1.0], [0.0], [1.0], [1.0]]))).all()


# ------------------------------------------------------------ greedy


def test_epsilon_greedy_takes_a_coin_per_slot() -> None:
    q = torch.zeros(1, 4, A)
    q[..., 2] = 1
    u = torch.tensor([[[0.05, 0.0], [0.5, 0.0], [0.05, 0.99], [0.0, 0.5]]])
    action = ops.Greedy(q).epsilon(torch.tensor(0.1), Noise(u, torch.zeros(1, 4, 0)))
    assert action.tolist() == [[0, 2, 4, 2]]


@pytest.mark.parametrize("actions", [1, 2, 3, 5, 7, 18, 1_000])
def test_epsilon_without_a_mask_is_that_of_a_mask_of_ones(actions: int) -> None:
    u = torch.rand(1, 4_096, 2, generator=torch.Generator().manual_seed(actions))
    u[0, :2, 1] = torch.tensor([0.0, 1 - 2**-24])  # the least and the most that torch draws
    q, given = torch.zeros(1, 4_096, actions), Noise(u, torch.zeros(1, 4_096, 0))
    plain = ops.Greedy(q).epsilon(0.9, given)
    assert torch.equal(plain, ops.Greedy(q, torch.ones_like(q, dtype=torch.bool)).epsilon(0.9, given))
    assert plain.max() == actions - 1


def test_epsilon_may_differ_by_slot() -> None:
    q = torch.zeros(1, 3, A)
    q[..., 4] = 1
    u = torch.full((1, 3, 2), 0.3)
    action = ops.Greedy(q).epsilon(torch.tensor([0.0, 0.29, 0.31]), Noise(u, torch.zeros(1, 3, 0)))
    assert action.tolist() == [[4, 4, 1]]


@few
@given(seeds)
def test_random_legal_actions_are_even(seed: int) -> None:
    mask = legal(seed, A)
    rows = 1000
    grid = (torch.arange(rows) + 0.5) / rows
    noise_ = Noise(torch.stack([torch.zeros(rows), grid], -1), torch.zeros(rows, 0))
    action = ops.Greedy(torch.randn(rows, A), mask.expand(rows, A)).epsilon(1.0, noise_)
    count = action.bincount(minlength=A)
    assert (count[~mask] == 0).all()
    assert (count[mask] - rows / mask.sum()).abs().max() <= 1


def test_boltzmann() -> None:
    q = torch.tensor([[1.0, 2.0, 3.0]])
    assert_close(ops.Greedy(q).boltzmann(0.5).probs(), (q / 0.5).softmax(-1))
    assert ops.Greedy(q).sample(noise(Draw(), 1)).item() == 2


def test_squashed_scales_are_bounded() -> None:
    """A box with `squash`: log_std within [-20, 2], the mean as it comes, every element onto its own bounds."""
    space = Box((2,), low=(-1.0, -2.0), high=(1.0, 3.0))
    raw = torch.tensor([[[7.0, -7.0, -99.0, 99.0]]])
    dist = ops.dist(raw, space, squash=True)
    assert dist.mean.tolist() == [[[7.0, -7.0]]] and dist.log_std.tolist() == [[[-20.0, 2.0]]]
    assert dist.low.tolist() == [-1.0, -2.0] and dist.high.tolist() == [1.0, 3.0]
    plain = ops.dist(raw, space)
    assert plain.log_std.tolist() == [[[-99.0, 99.0]]]


def test_branches_have_their_own_coins() -> None:
    q = torch.zeros(1, 2, 2, 3)
    q[..., 1] = 1
    u = torch.tensor([[[0.0, 0.99, 0.9, 0.99], [0.9, 0.0, 0.0, 0.0]]])
    action = ops.BranchGreedy(q).epsilon(0.5, Noise(u, torch.zeros(1, 2, 0)))
    assert action.tolist() == [[[2, 1], [1, 0]]]
    per_slot = ops.BranchGreedy(q).epsilon(torch.tensor([0.0, 1.0]), Noise(u, torch.zeros(1, 2, 0)))
    assert per_slot.tolist() == [[[1, 1], [0, 0]]]
    masked = ops.BranchGreedy(q, torch.tensor([[True, True, False], [True, True, True]]).expand(1, 2, 2, 3))
    assert masked.epsilon(1.0, Noise(u, torch.zeros(1, 2, 0))).tolist() == [[[1, 2], [0, 0]]]
