"""Faults of earlier systems that concern mathematics, each by name."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.testing import assert_close

from ganglion import ops
from ganglion.core import Noise
from tests.ops import reference

GAMMA, LAM = 0.9, 0.95


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def flags(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.bool).unsqueeze(1)


def test_truncation_is_not_termination() -> None:
    """nerveX merges them, XingTian and Border only know one: the bootstrap must stay where time ran out."""
    reward, value, after = column(1.0), column(0.0), column(10.0)
    truncated = ops.gae(reward, value, after, column(GAMMA), flags(1), LAM)
    terminated = ops.gae(reward, value, after, column(0.0), flags(1), LAM)
    assert_close(truncated, column(10.0)), assert_close(terminated, column(1.0))


def test_no_double_bootstrap_and_no_leak_across_a_truncation() -> None:
    """abcdrl's PPO adds gamma V(final) to the reward and still bootstraps through the next episode."""
    value = column(1.0, 2.0, 5.0, 7.0)  # row 2 is dead: it carries the value of the true last observation
    after = column(2.0, 5.0, 7.0, 0.0)
    out = ops.gae(column(1.0, 1.0, 0.0, 100.0), value, after, column(*[GAMMA] * 4), flags(0, 1, 0, 0), LAM)
    last = 1 + GAMMA * 5.0 - 2.0
    assert_close(out[1, 0].item(), last)
    assert_close(out[0, 0].item(), 1 + GAMMA * 2.0 - 1.0 + GAMMA * LAM * last)


def test_n_step_tails_hold_as_many_discounts_as_rewards() -> None:
    """nerveX's get_nstep_return_data is one power short on the last items of a fragment."""
    fold = ops.n_step(column(1, 1, 1, 1), column(*[GAMMA] * 4), flags(0, 0, 0, 0), 3)
    assert_close(fold.discount, column(GAMMA**3, GAMMA**3, GAMMA**2, GAMMA))
    assert fold.ahead.flatten().tolist() == [3, 4, 4, 4]
    row = {"reward": torch.tensor(1.0), "terminated": False, "truncated": False, "next_obs": torch.zeros(1)}
    items = ops.Adder.get_nstep_return_data([row] * 4, 3, GAMMA)
    assert_close(torch.stack([t["discount"] for t in items]), torch.tensor([GAMMA**3, GAMMA**3, GAMMA**2, GAMMA]))


@pytest.mark.parametrize("terminated", [True, False])
def test_traces_are_cut_where_an_episode_ends(terminated: bool) -> None:
    """nerveX's V-trace has no discounts; XingTian's takes discount and rho of the wrong row."""
    discount = column(GAMMA, 0.0 if terminated else GAMMA, GAMMA, GAMMA)
    cut, zero, value = flags(0, 1, 0, 0), column(0, 0, 0, 0), column(1.0, 2.0, 3.0, 4.0)
    after = column(2.0, 3.0, 4.0, 5.0)
    low, high = (column(1.0, 1.0, 0.0, r) for r in (0.0, 1000.0))  # the reward of the next episode
    for reward in (low, high):
        tail = reward, value, after, discount, cut
        results = [
            ops.gae(*tail, LAM),
            ops.lambda_returns(reward, after, discount, cut, LAM),
            *ops.vtrace(zero, *tail),
            ops.upgo_returns(*tail),
            ops.retrace(zero, *tail),
            ops.n_step(reward, discount, cut, 4).reward,
        ]
        if reward is low:
            expected = results
    for a, b in zip(results, expected, strict=True):
        assert_close(a[:2], b[:2])


def test_vtrace_uses_each_row_s_own_discount_and_ratio() -> None:
    """XingTian multiplies by discount[j + 1] rho[j + 1] where j is meant."""
    numbers = (1, 2), (0.5, 0.1), (0.1, 0.3), (0.9, 0.5)
    c = reference.Case(*[column(*x).numpy() for x in numbers], flags(0, 0).numpy(), column(-0.7, -0.1).numpy())
    t = c.tensors()
    ours = ops.vtrace(t[5], *t[:5])
    rho = torch.exp(t[5])
    delta = rho * (t[0] + t[3] * t[2] - t[1])
    assert_close(ours.goal[0], t[1][0] + delta[0] + t[3][0] * rho[0] * delta[1])


def test_weights_of_another_shape_are_refused() -> None:
    """abcdrl's importance weights [B, 1] against losses [B] broadcast to [B, B] and cancel out."""
    with pytest.raises(ValueError, match="weighted_mean: all tensors need one shape"):
        ops.weighted_mean(torch.ones(1, 4), torch.ones(4, 1))
    with pytest.raises(ValueError, match="masked_mean"):
        ops.masked_mean(torch.ones(4), torch.ones(4, 1, dtype=torch.bool))


def test_every_slot_has_its_own_coin() -> None:
    """One coin for all environments in nerveX, abcdrl and others: here half of the slots explore at epsilon 1/2."""
    q = torch.zeros(1, 1000, 4)
    q[..., 0] = 1
    g = torch.Generator().manual_seed(0)
    action = ops.Greedy(q).epsilon(0.5, Noise(torch.rand(1, 1000, 2, generator=g), torch.zeros(1, 1000, 0)))
    assert 300 < (action != 0).sum() < 450  # 3/8 of 1000


def test_evaluation_is_deterministic() -> None:
    """abcdrl's SAC and PPO, and Border's DQN, explore while they are scored: mode() takes no random number."""
    for kind in (
        ops.Categorical,
        ops.MultiCategorical,
        ops.Bernoulli,
        ops.Normal,
        ops.TanhNormal,
        ops.Greedy,
        ops.Product,
    ):
        assert list(inspect.signature(kind.mode).parameters) == ["self"]


def test_dual_clip_holds_only_for_negative_advantages() -> None:
    """nerveX's continuous PPO applies it to positive ones too and so kills their gradient."""
    log_ratio = torch.tensor([1.5, 1.5], requires_grad=True)
    loss = ops.clipped_surrogate(log_ratio, torch.tensor([1.0, -1.0]), 10.0, dual=3.0)
    assert_close(loss.detach(), torch.tensor([-torch.exp(torch.tensor(1.5)).item(), 3.0]))
    (grad,) = torch.autograd.grad(loss.sum(), log_ratio)
    assert grad[0] < 0 and grad[1] == 0


def test_functions_do_not_change_their_inputs() -> None:
    """nerveX's gae writes into next_value."""
    c = [torch.randn(5, 3) for _ in range(4)] + [torch.rand(5, 3), torch.rand(5, 3) < 0.5]
    kept = [x.clone() for x in c]
    _, reward, value, after, discount, cut = c
    ops.gae(reward, value, after, discount, cut, LAM)
    ops.lambda_returns(reward, after, discount, cut, LAM)
    ops.vtrace(*c)
    ops.upgo_returns(*c[1:])
    ops.retrace(*c)
    ops.n_step(reward, discount, cut, 3)
    ops.normalise(reward, cut)
    ops.two_hot(reward, torch.linspace(-1, 1, 5))
    ops.clip_norm([reward], 0.1)
    ops.clip_value([reward], 0.1)
    assert all(torch.equal(a, b) for a, b in zip(c, kept, strict=True))


def test_td_lambda_and_coma_respect_termination() -> None:
    """nerveX's td_lambda_error and coma_error run through episode ends."""
    out = ops.lambda_returns(column(1, 1, 1), column(9, 9, 9), column(GAMMA, 0.0, GAMMA), flags(0, 1, 0), 1.0)
    assert_close(out, column(1 + GAMMA, 1, 1 + GAMMA * 9))


def test_ppg_clones_probabilities_not_log_probabilities() -> None:
    """nerveX's ppg_joint_error gives log-probabilities to kl_div as a target: equal policies must cost exactly 0."""
    logits = torch.randn(4, 5)
    old, new = ops.Categorical(logits), ops.Categorical(logits.clone().requires_grad_())
    loss = ops.ppg_joint(old.kl(new), torch.zeros(4), torch.zeros(4), torch.zeros(4))
    assert_close(loss.detach(), torch.zeros(4))
    (grad,) = torch.autograd.grad(loss.sum(), new.logits)
    assert_close(grad, torch.zeros(4, 5), atol=1e-6, rtol=0)


def test_levenshtein_border() -> None:
    """nerveX's table lacks its extra row and column: wrong when the first symbols differ."""
    assert ops.levenshtein(torch.tensor([[1, 2]]), torch.tensor([[3, 2]])).item() == 1
    assert ops.levenshtein(torch.tensor([[1]]), torch.tensor([[2, 3]])).item() == 2


def test_projection_keeps_the_mass_of_atoms_hit_exactly() -> None:
    """Where a target falls on an atom, lower and upper neighbour are one: its mass must not vanish."""
    support = torch.linspace(-1, 1, 3)
    probs = torch.tensor([[[0.2, 0.3, 0.5]]])
    one = torch.ones(1, 1)
    assert_close(ops.project(0 * one, one, support, probs), probs)
    assert_close(ops.project(one, one, support, probs), torch.tensor([[[0.0, 0.2, 0.8]]]))


def test_weight_counts_once_whatever_the_loss() -> None:
    """Tianshou's DQN drops the importance weights under the Huber loss."""
    error, weight = torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.25]])
    for kind in ("mse", "huber"):
        each = ops.penalty(error, kind)
        assert_close(ops.weighted_mean(each, weight), (each * weight).sum() / 2)


def test_means_divide_by_valid_rows() -> None:
    assert_close(ops.masked_mean(torch.tensor([[2.0, 4.0, 99.0]]), torch.tensor([[True, True, False]])).item(), 3.0)


def test_every_row_has_its_own_action_noise() -> None:
    """abcdrl's DDPG and TD3 add one noise vector to the whole batch, for acting and in the target."""
    action, low, high = torch.zeros(1, 4, 2), torch.tensor([-9.0, -9.0]), torch.tensor([9.0, 9.0])
    normal = torch.arange(8.0).reshape(1, 4, 2) / 8
    for limit in (None, 5.0):
        noisy = ops.gaussian(action, normal, 0.1, low, high, limit)
        assert len(set(noisy.flatten().tolist())) == 8
    moved = ops.gaussian(action, normal + (torch.arange(4) == 2).reshape(1, 4, 1), 0.1, low, high)
    changed = (moved != ops.gaussian(action, normal, 0.1, low, high)).any(-1)
    assert changed.tolist() == [[False, False, True, False]]


def test_only_the_action_taken_is_regressed() -> None:
    """XingTian's DQN regresses every output of the network."""
    q = torch.randn(3, 2, 4, requires_grad=True)
    action = torch.tensor([[0, 1], [2, 3], [3, 3]])
    error = ops.q_td(q, action, torch.ones(3, 2), torch.ones(3, 2), torch.zeros(3, 2, 4), action)
    (grad,) = torch.autograd.grad(error.square().sum(), q)
    taken = torch.nn.functional.one_hot(action, 4).bool()
    assert (grad[~taken] == 0).all() and (grad[taken] != 0).all()


def test_actions_of_another_rank_are_refused() -> None:
    """Border's double DQN gathers with indices of the wrong rank: [T, B, 1] must not pass for [T, B]."""
    q, row = torch.randn(3, 2, 4), torch.ones(3, 2)
    with pytest.raises((ValueError, RuntimeError)):
        ops.q_td(q, torch.zeros(3, 2, 1, dtype=torch.int64), row, row, q, torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises((ValueError, RuntimeError)):
        ops.q_td(q, torch.zeros(3, 2, dtype=torch.int64), row, row, q, torch.zeros(3, 2, 1, dtype=torch.int64))


def test_a_time_limit_bootstraps_from_the_last_observation_not_from_the_row_before_it() -> None:
    """Sample Factory takes V(s_t) for V(s_{t+1}) where time runs out; gymnasium shows the next episode's first one."""
    value, last, reset = 2.0, 5.0, 100.0
    next_step = ops.gae(
        column(1.0, 0.0, 0.0),
        column(value, last, reset),
        column(last, reset, 0.0),
        column(*[GAMMA] * 3),
        flags(1, 0, 0),
        LAM,
    )
    same_step = ops.gae(column(1.0), column(value), column(last), column(GAMMA), flags(1), LAM)
    assert_close(next_step[:1], same_step)
    assert_close(same_step, column(1.0 + GAMMA * last - value))
