"""Values whose scale follows that of goals, against the formulas in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from ganglion.nn.heads import ValueHead
from ganglion.nn.layers import MLP
from ganglion.nn.popart import PopArtHead


def test_what_it_says_stays_while_its_scale_moves() -> None:
    torch.manual_seed(0)
    body = MLP(1, 3, (8,), "tanh", "orthogonal")
    head = PopArtHead(body, "orthogonal", 0.25)
    x = torch.randn(4, 5, 8)
    said, mean, square = head(x), 0.0, 1.0
    for k in range(6):
        goal, valid = 100.0 + 30.0 * torch.randn(4, 5), torch.rand(4, 5) < 0.7
        head.follow(goal, valid)
        live = goal[valid].double()
        rate = max(1 / (k + 1), 0.25)
        mean += rate * (float(live.mean()) - mean)
        square += rate * (float(live.square().mean()) - square)
        assert abs(float(head.mean) - mean) < 1e-3 and abs(float(head.variance) - (square - mean**2)) < 0.1
        torch.testing.assert_close(head(x), said, rtol=1e-4, atol=1e-3)
    assert 10 < float(head.variance) ** 0.5 < 60


def left(scale: float, kind: type[ValueHead]) -> float:
    """Of the squared error, in units of the goals, after some steps."""
    torch.manual_seed(1)
    body = MLP(1, 2, (16,), "tanh", "orthogonal")
    head = PopArtHead(body, "orthogonal", 0.05) if kind is PopArtHead else ValueHead(body, "orthogonal")
    optim = torch.optim.Adam([*body.parameters(), *head.parameters()], 3e-3)
    x = torch.randn(1, 64, 2)
    goal, valid = scale * (3.0 + x[..., 0]), torch.ones(1, 64, dtype=torch.bool)
    for _ in range(300):
        loss: Tensor = (head(body(x)[0]) - goal).square().mean() / head.variance
        optim.zero_grad()
        loss.backward()
        optim.step()
        head.follow(goal, valid)
    return float((head(body(x)[0]) - goal).detach().square().mean()) / scale**2


def test_it_learns_what_is_far_away_as_fast_as_what_is_near() -> None:
    assert left(1.0, PopArtHead) < 0.05 and left(1_000.0, PopArtHead) < 0.05
    assert left(1_000.0, ValueHead) > 5.0
