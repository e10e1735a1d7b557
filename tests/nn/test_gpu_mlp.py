"""Small perceptrons in one kernel: the same numbers and gradients as layer by layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ganglion.nn.kernels import gpu_mlp
from ganglion.nn.layers import MLP

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SHAPES = [
    (2, 4, (64, 64), 300, "tanh"),
    (1, 17, (50, 33), 65, "relu"),
    (3, 64, (16, 64), 1, "tanh"),
    (2, 1, (32, 8), 20_000, "relu"),
]


def slowly(net: MLP, x: Tensor) -> Tensor:
    """Layer by layer, in float64."""
    act, y = torch.tanh if net.kind == "tanh" else torch.relu, x.double()[0].expand(net.count, -1, -1)
    for layer in net.layers:
        y = act(y @ layer.weight.double() + layer.bias.double())
    return y[:, None]


def net_and_rows(count: int, inputs: int, hidden: tuple[int, int], rows: int, kind: str) -> tuple[MLP, Tensor]:
    torch.manual_seed(0)
    with torch.device("cuda"):
        return MLP(count, inputs, hidden, kind, "uniform"), torch.randn(1, rows, inputs)  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "inputs", "hidden", "rows", "kind"), SHAPES)
def test_equals_layer_by_layer(count: int, inputs: int, hidden: tuple[int, int], rows: int, kind: str) -> None:
    net, x = net_and_rows(count, inputs, hidden, rows, kind)
    assert gpu_mlp.fits(x, net.sizes, net.kind)
    x.requires_grad_()
    for wanted in (False, True):  # with and without the gradient of the rows
        given = [*net.parameters(), x] if wanted else list(net.parameters())
        quick, slow = net(x if wanted else x.detach()), slowly(net, x)
        assert quick.shape == slow.shape
        torch.testing.assert_close(quick.double(), slow, rtol=1e-5, atol=1e-6)
        weight = torch.randn_like(slow)
        got = torch.autograd.grad((quick * weight).sum(), given)
        expected = torch.autograd.grad((slow * weight).sum(), given)
        for one, two in zip(got, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4 * float(two.abs().max()))


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_gradients_of_gradients(kind: str) -> None:
    """As natural gradients need them: by plain operations."""
    net, x = net_and_rows(2, 4, (32, 16), 50, kind)
    found = []
    for out in (net(x), slowly(net, x)):
        grads = torch.autograd.grad(out.square().mean(), list(net.parameters()), create_graph=True)
        slope = sum(g.square().sum() for g in grads)
        found.append(torch.autograd.grad(slope, list(net.parameters())))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one.float(), two.float(), rtol=1e-3, atol=1e-5)


def test_same_bits_again_and_captured() -> None:
    net, x = net_and_rows(2, 4, (64, 64), 5_000, "tanh")
    grads = [torch.autograd.grad(net(x).square().sum(), list(net.parameters())) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_models_side_by_side() -> None:
    """Under vmap each model sees its own rows and parameters."""
    net, x = net_and_rows(2, 4, (64, 64), 100, "tanh")
    params = [torch.stack([p.detach(), p.detach() * 0.5, -p.detach()]) for p in net.parameters()]
    rows = torch.stack([x, x + 1, x * 2])

    def one(own: list[Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(net, dict(zip(dict(net.named_parameters()), own, strict=True)), x)

    together = torch.func.vmap(one)(params, rows)
    for k in range(3):
        torch.testing.assert_close(together[k], one([p[k] for p in params], rows[k]), rtol=0, atol=0)


def test_what_does_not_fit_is_computed_layer_by_layer() -> None:
    assert not gpu_mlp.fits(torch.zeros(1, 4), (4, 64, 64), "tanh")  # on a CPU
    x = torch.zeros(1, 4, device="cuda")
    assert not gpu_mlp.fits(x, (4, 256, 256), "tanh")
    assert not gpu_mlp.fits(x, (4, 64), "tanh")
    assert not gpu_mlp.fits(x, (4, 64, 64), "elu")
    assert not gpu_mlp.fits(x.double(), (4, 64, 64), "tanh")
