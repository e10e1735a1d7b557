"""Linear maps side by side: many rows are learned from in chunks, with the numbers of one product."""

from __future__ import annotations

import torch

from ganglion.nn.layers import CHUNK, MANY, MLP, Linears
from ganglion.nn.nets import Ensemble


def test_rows_in_chunks_give_the_numbers_of_one_product():
    torch.manual_seed(0)
    maps = Linears(2, 5, 3).double()
    x = torch.randn(2, MANY, 5, dtype=torch.float64)
    parameters = list(maps.parameters())
    weigh = torch.randn(2, MANY, 3, dtype=torch.float64)
    chunked = maps(x)
    plain = torch.baddbmm(maps.bias, x, maps.weight)
    assert torch.allclose(chunked, plain, rtol=1e-12, atol=1e-12)
    grads = [torch.autograd.grad((y * weigh).sum(), parameters) for y in (chunked, plain)]
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-9)


def test_other_counts_of_rows_are_one_product():
    maps = Linears(2, 5, 3)
    for rows in (1, CHUNK, MANY + 1):
        x = torch.randn(2, rows, 5)
        assert torch.equal(maps(x), torch.baddbmm(maps.bias, x, maps.weight))


def test_inputs_in_two_parts_are_inputs_in_one() -> None:
    torch.manual_seed(0)
    body = MLP(2, 7, (16, 16), "relu", "uniform")
    x, action = torch.randn(3, 5, 4), torch.randn(3, 5, 3)
    nets, whole = Ensemble(body), torch.cat([x, action], -1)
    assert torch.equal(nets(x, action), nets.head(body(whole)))
    assert torch.equal(nets.first(x, action), nets.head.first(body.first(whole)).squeeze(-1))
