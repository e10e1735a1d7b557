"""Compiled graphs called straight: the same numbers as through torch, or no short way."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ganglion.fast.compile import Compiled, can_compile
from ganglion.fast.direct import TRIES, Direct

pytestmark = pytest.mark.skipif(not can_compile(), reason="this torch cannot compile an update")


class Given(NamedTuple):
    x: Tensor
    more: dict[str, Tensor]
    unused: tuple[Tensor, ...]


class Gave(NamedTuple):
    y: Tensor
    more: dict[str, Tensor]
    passed: Tensor
    name: str
    nothing: tuple[()]
    empty: dict[str, Tensor]


class Line:
    """A layer that counts its calls in place."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 2)
        self.calls = torch.zeros(())
        self.last = torch.zeros(())

    def both(self, given: Given, scale: Tensor) -> Gave:
        self.calls.add_(1)
        y = self.layer(given.x) * scale + given.more["shift"]
        more = {"calls": self.calls.clone(), "flat": y.detach().flatten()}
        return Gave(y.detach(), more, given.more["shift"], "line", (), {})

    def sloped(self, x: Tensor, target: Tensor) -> Tensor:
        loss = (self.layer(x) - target).square().mean()
        with torch.no_grad():
            for param, grad in zip(self.layer.parameters(), torch.autograd.grad(loss, list(self.layer.parameters()))):
                param.sub_(0.1 * grad)
        return loss.detach()

    def kept(self, x: Tensor) -> Tensor:
        self.last = x.sum()  # outside of what a graph returns
        return x * 2


def straight(compiled: Compiled) -> bool:
    assert isinstance(compiled.graph, Direct)
    return compiled.graph.straight is not None


def given(i: int) -> tuple[Given, Tensor]:
    torch.manual_seed(i)
    none = torch.empty(0)
    return Given(torch.rand(4, 3), {"shift": torch.rand(4, 2)}, (none, none)), torch.rand(())


def test_the_same_numbers_from_other_arguments_and_parameters() -> None:
    eager, line = Line(), Line()
    compiled = Compiled(line.both)
    for i in range(6):
        one, two = eager.both(*given(i)), compiled(*given(i))
        assert type(two) is Gave and two[3:] == ("line", (), {}) and torch.equal(two.passed, given(i)[0].more["shift"])
        assert torch.allclose(one.y, two.y, atol=1e-6) and torch.equal(one.more["calls"], two.more["calls"])
        assert torch.allclose(one.more["flat"], two.more["flat"], atol=1e-6)
        for changed in (eager, line):
            with torch.no_grad():
                changed.layer.weight.mul_(1.1)
    assert straight(compiled)


def test_gradients_and_parameters_that_the_graph_changes() -> None:
    eager, line = Line(), Line()
    compiled = Compiled(line.sloped)
    for i in range(6):
        torch.manual_seed(i)
        x, target = torch.rand(8, 3), torch.rand(8, 2)
        assert torch.allclose(eager.sloped(x, target), compiled(x, target), atol=1e-6)
    assert straight(compiled)
    assert torch.allclose(eager.layer.weight, line.layer.weight, atol=1e-6)


def test_no_short_way_where_the_function_keeps_something() -> None:
    line = Line()
    compiled = Compiled(line.kept)
    for i in range(TRIES + 2):
        x = torch.full((3,), float(i))
        assert torch.equal(compiled(x), 2 * x) and line.last == 3 * i
    assert not straight(compiled)


def test_one_tensor_for_two_arguments_leaves_a_doubt() -> None:
    """Whichever of the two was meant, it is another one later."""
    compiled = Compiled(lambda a, b: a - 2 * b)
    a, b = torch.rand(3), torch.rand(3)
    assert torch.equal(compiled(a, b), a - 2 * b)
    for _ in range(3):
        assert torch.allclose(compiled(a, a), -a)
    assert not straight(compiled)
    for _ in range(3):
        assert torch.allclose(compiled(a, b), a - 2 * b)
    assert straight(compiled)


@pytest.mark.parametrize("odd", [[torch.ones(3)], object()])
def test_what_cannot_be_looked_into_is_not_guessed_at(odd: Any) -> None:
    direct = Direct(lambda x, y: x + 1)
    for _ in range(TRIES + 1):
        assert torch.equal(direct(torch.ones(3), odd), torch.full((3,), 2.0))
    assert direct.straight is None
