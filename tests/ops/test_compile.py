"""Eager, compiled and captured runs agree; every function traces as one full graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ganglion import ops
from ganglion.core import Box, Composite, Discrete, MultiBinary, MultiDiscrete, Noise

T, B, A = 9, 4, 5
SPACE = Composite(
    {
        "a": Discrete(3),
        "b": Box((2,), low=(-1.0, -2.0), high=(1.0, 2.0)),
        "c": MultiDiscrete((2, 3)),
        "d": Composite({"e": MultiBinary(2), "f": Box((1,), low=(0.0,), high=(1.0,))}),
    }
)


def inputs(device: str = "cpu") -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    named = {k: torch.randn(T, B, generator=g) for k in ("reward", "value", "after", "log_ratio", "advantage", "goal")}
    named |= {k: torch.randn(T, B, A, generator=g) for k in ("q", "next_q", "chooser")}
    named["cut"] = torch.rand(T, B, generator=g) < 0.2
    named["discount"] = torch.where(torch.rand(T, B, generator=g) < 0.1, 0.0, 0.99)
    named["action"] = torch.randint(0, A, (T, B), generator=g)
    named["mask"] = (torch.rand(T, B, A, generator=g) < 0.7) | (torch.arange(A) == 0)
    named["uniform"] = torch.rand(T, B, 8, generator=g)
    named["normal"] = torch.randn(T, B, 8, generator=g)
    named["raw"] = torch.randn(T, B, ops.dist_size(SPACE), generator=g)
    return {k: v.to(device) for k, v in named.items()}


def noise(d: dict[str, Tensor]) -> Noise:
    return Noise(d["uniform"], d["normal"])


def returns(d: dict[str, Tensor]) -> Any:
    tail = d["reward"], d["value"], d["after"], d["discount"], d["cut"]
    fold = ops.n_step(d["reward"], d["discount"], d["cut"], 3)
    return (
        ops.gae(*tail, 0.95),
        ops.lambda_returns(d["reward"], d["after"], d["discount"], d["cut"], 0.9),
        ops.vtrace(d["log_ratio"], *tail),
        ops.upgo_returns(*tail),
        ops.retrace(d["log_ratio"], *tail),
        fold,
        ops.at(torch.cat([d["value"], d["after"][-1:]]), fold.ahead),
        ops.discounted_sum(d["reward"], d["discount"], d["after"][-1]),
    )


def temporal_differences(d: dict[str, Tensor]) -> Any:
    q, next_q, action, legal = d["q"], d["next_q"], d["action"], d["mask"]
    best = ops.best(d["chooser"], legal)
    support = ops.atoms(-2.0, 2.0, A, q)
    tau, middle = ops.fractions(q)
    return (
        ops.q_td(q, action, d["reward"], d["discount"], next_q, best),
        ops.q_td_rescaled(q, action, d["reward"], d["discount"], next_q, best),
        ops.soft_value(q, 0.1, legal),
        ops.munchausen_bonus(q, action, 0.1, legal=legal),
        ops.margin(q, action),
        ops.categorical_td(q, ops.project(d["reward"], d["discount"], support, next_q.softmax(-1))),
        ops.quantile_huber(q, ops.midpoints(A, q), next_q),
        ops.fraction_loss(tau, q[..., 1:], middle),
        ops.two_hot(d["value"], support),
    )


def losses(d: dict[str, Tensor]) -> Any:
    valid = ~d["cut"]
    surrogate = ops.clipped_surrogate(d["log_ratio"], ops.normalise(d["advantage"], valid), 0.2, 3.0)
    logp = ops.Categorical(d["q"], d["mask"]).log_probs()
    return (
        ops.masked_mean(surrogate, valid),
        ops.weighted_mean(ops.penalty(d["value"] - d["goal"], "huber"), d["discount"]),
        ops.value_loss(d["value"], d["after"], d["goal"], 0.2),
        ops.kl_k3(d["log_ratio"]),
        ops.sequence_priority(d["advantage"], d["discount"]),
        ops.counterfactual(d["q"], d["action"], d["next_q"].softmax(-1)),
        ops.acer_policy(logp, d["next_q"].log_softmax(-1), d["q"], d["goal"], d["action"], 1.0),
        ops.multi_logits(d["q"][:, :3], d["action"][:, :3]),
        ops.info_nce(d["q"][0], d["next_q"][0]),
        ops.clip_norm([d["q"], d["value"]], 1.0),
        ops.pcgrad(d["q"].reshape(3, -1), d["uniform"][0, :3, :3]),
    )


def distributions(d: dict[str, Tensor]) -> Any:
    out = []
    for squash in (False, True):
        dist = ops.dist(d["raw"], SPACE, {"a": d["mask"][..., :3]}, squash)
        other = ops.dist(d["raw"] * 0.5, SPACE, {"a": d["mask"][..., :3]}, squash)
        action = dist.sample(noise(d))
        out.append((action, dist.mode(), dist.log_prob(action), dist.entropy(), dist.kl(other)))
    greedy = ops.Greedy(d["q"], d["mask"])
    branches = ops.BranchGreedy(d["q"].unsqueeze(-2).expand(T, B, 2, A))
    random = greedy.epsilon(0.3, noise(d)), branches.epsilon(0.3, noise(d))
    return out[0], out[1], random, greedy.boltzmann(0.5).sample(noise(d))


def others(d: dict[str, Tensor]) -> Any:
    obs = {"x": d["q"], "action_mask": d["mask"]}
    slot = torch.arange(B, device=d["q"].device)
    return (
        ops.best(d["q"], ops.mask(obs)),
        ops.fold(obs),
        ops.take(obs, slot, 1),
        ops.shuffled(T, 2, 3, Noise(d["uniform"][:, 0], d["normal"][:, 0])),
        ops.ou_step(d["value"], d["normal"][..., 0]),
        ops.pink_step(d["q"].unsqueeze(-2), d["next_q"]),
        ops.unrescale(ops.rescale(d["value"])),
        ops.merge_moments(ops.moments(d["q"], ~d["cut"]), ops.moments(d["next_q"], ~d["cut"])),
        ops.hash_bits(7, slot, d["action"]),
        ops.hash_normal(slot, d["action"]),
        ops.levenshtein(d["action"], d["action"].flip(0)),
    )


GROUPS: list[Callable[[dict[str, Tensor]], Any]] = [returns, temporal_differences, losses, distributions, others]


def check(a: Any, b: Any, exact: bool) -> None:
    x, y = (ops.leaves(tuple(t) if isinstance(t, list) else t) for t in (a, b))
    for left, right in zip(flat(x), flat(y), strict=True):
        if exact or not left.is_floating_point():
            assert torch.equal(left, right)
        else:
            assert_close(left, right, rtol=1e-5, atol=1e-5)


def flat(xs: list[Any]) -> list[Tensor]:
    return [leaf for x in xs for leaf in (flat(x) if isinstance(x, list) else [x])]


@pytest.mark.parametrize("group", GROUPS, ids=lambda f: f.__name__)
def test_full_graphs_equal_eager_to_the_bit(group: Callable[[dict[str, Tensor]], Any]) -> None:
    torch._dynamo.reset()
    d = inputs()
    check(group(d), torch.compile(group, fullgraph=True, backend="aot_eager")(d), exact=True)


def test_inductor_agrees_with_eager() -> None:
    torch._dynamo.reset()
    d = inputs()

    def both(d: dict[str, Tensor]) -> Any:
        dist = ops.Categorical(d["q"], d["mask"])
        action = dist.sample(noise(d))
        return returns(d)[:4], action, dist.log_prob(action), ops.hash_bits(7, d["action"])

    check(both(d), torch.compile(both, fullgraph=True)(d), exact=False)


def test_gradients_through_a_compiled_scan() -> None:
    torch._dynamo.reset()
    d = inputs()
    value = d["value"].clone().requires_grad_()

    def loss(value: Tensor) -> Tensor:
        return ops.gae(d["reward"], value, d["after"] * value, d["discount"], d["cut"], 0.9).square().sum()

    (eager,) = torch.autograd.grad(loss(value), value)
    (graph,) = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(value), value)
    assert_close(graph, eager)


@pytest.mark.gpu
@pytest.mark.parametrize("group", GROUPS, ids=lambda f: f.__name__)
def test_captured_equals_eager(group: Callable[[dict[str, Tensor]], Any]) -> None:
    d = inputs("cuda")
    eager = group(d)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        group(d)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = group(d)
    graph.replay()
    torch.cuda.synchronize()
    check(eager, captured, exact=True)


@pytest.mark.gpu
def test_hashes_are_equal_on_every_device() -> None:
    d = inputs()
    assert torch.equal(ops.hash_bits(3, d["action"]), ops.hash_bits(3, d["action"].cuda()).cpu())
