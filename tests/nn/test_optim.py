"""Adam against its formula in float64, eagerly and compiled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ganglion.fast.compile import Compiled
from ganglion.nn import Adam


def slowly(grads: list[Tensor], lr: float, start: Tensor) -> Tensor:
    """Kingma and Ba's algorithm 1, a number at a time."""
    out = start.double().clone()
    for i in range(out.numel()):
        mean = square = 0.0
        for t, grad in enumerate(grads, 1):
            g = float(grad.flatten()[i])
            mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
            out.view(-1)[i] -= lr * (mean / (1 - 0.9**t)) / ((square / (1 - 0.999**t)) ** 0.5 + 1e-8)
    return out


@pytest.mark.parametrize("compiled", [False, True])
def test_adam_is_its_formula(compiled: bool):
    torch.manual_seed(0)
    layer = nn.Linear(5, 4, bias=False)
    optim, start = Adam(layer, lr=1e-2), layer.weight.detach().clone()
    grads = [torch.randn(4, 5) for _ in range(40)]

    def step(grad: Tensor) -> Tensor:
        return optim.step((layer.weight * grad).sum())

    whole = Compiled(step) if compiled else step
    for grad in grads:
        whole(grad)
    assert not compiled or whole.graph is not step, "it did compile"
    assert (layer.weight.double() - slowly(grads, 1e-2, start)).abs().max() < 2e-6
