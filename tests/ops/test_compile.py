"""What test_table.py does not cover of compilers: inductor, gradients through a graph, a second device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ganglion import ops
from ganglion.core import Noise

T, B, A = 9, 4, 5


def inputs() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    named = {k: torch.randn(T, B, generator=g) for k in ("reward", "value", "after", "log_ratio")}
    named["q"] = torch.randn(T, B, A, generator=g)
    named["cut"] = torch.rand(T, B, generator=g) < 0.2
    named["discount"] = torch.where(torch.rand(T, B, generator=g) < 0.1, 0.0, 0.99)
    named["action"] = torch.randint(0, A, (T, B), generator=g)
    named["mask"] = (torch.rand(T, B, A, generator=g) < 0.7) | (torch.arange(A) == 0)
    named["uniform"] = torch.rand(T, B, 1, generator=g)
    return named


def test_inductor_agrees_with_eager() -> None:
    torch._dynamo.reset()

    def both(d: dict[str, Tensor]) -> Any:
        tail = d["reward"], d["value"], d["after"], d["discount"], d["cut"]
        dist = ops.Categorical(d["q"], d["mask"])
        action = dist.sample(Noise(d["uniform"], d["uniform"]))
        traces = *ops.vtrace(d["log_ratio"], *tail), ops.retrace(d["log_ratio"], *tail)
        recursions = ops.gae(*tail, 0.95), ops.lambda_returns(d["reward"], *tail[2:], 0.9), ops.upgo_returns(*tail)
        return *traces, *recursions, action, dist.log_prob(action), ops.hash_bits(7, d["action"])

    for eager, graph in zip(both(inputs()), torch.compile(both, fullgraph=True)(inputs()), strict=True):
        assert_close(graph, eager, rtol=1e-5, atol=1e-5)


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
def test_hashes_are_equal_on_every_device() -> None:
    action = inputs()["action"]
    assert torch.equal(ops.hash_bits(3, action), ops.hash_bits(3, action.cuda()).cpu())
