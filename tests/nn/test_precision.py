"""Networks that compute in bfloat16, and convolutions with channels last."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ganglion
from ganglion.core import Box, Past
from ganglion.nn import MLP, MLPConfig, ObsEncoder
from ganglion.nn.inputs import Cells, Pixels
from ganglion.nn.kernels.conv import MANY, laid
from ganglion.runtime.build import build

ATARI = Box((4, 84, 84), torch.uint8, (0.0,), (255.0,))
GRID = Box((10, 10, 4), torch.uint8, (0.0,), (1.0,))


def images(space: Box, rows: int, slots: int) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randint(int(max(space.high)) + 1, (rows, slots, *space.shape), generator=g, dtype=torch.uint8)


def plainly(see: Pixels | Cells, image: Tensor) -> Tensor:
    """The same convolutions as torch's own modules do them, channels first, one image at a time."""
    out = []
    for x in image.flatten(0, 1).split(1):
        x = x.movedim(-1, 1).contiguous() if see.turned else x
        x = x.float() / (see.most if isinstance(see, Cells) else 255)
        out.append((torch.relu(see.conv(x)) if isinstance(see, Cells) else see.convs(x)).flatten(1))
    return torch.cat(out).unflatten(0, image.shape[:2])


@pytest.mark.parametrize("made", [lambda: Pixels(ATARI.shape), lambda: Cells(GRID)])
@pytest.mark.parametrize("slots", [3, MANY])
def test_convolutions_are_those_of_torch_however_images_lie(made, slots):
    torch.manual_seed(0)
    see, image = made(), images(GRID if made().__class__ is Cells else ATARI, 1, slots)
    assert torch.allclose(see(image), plainly(see, image), rtol=1e-4, atol=1e-5)


def test_few_images_and_perceptrons_in_float32_are_what_they_were():
    """Bit by bit: nothing is cast, nothing lies otherwise."""
    torch.manual_seed(0)
    see, image = Pixels(ATARI.shape), images(ATARI, 2, 4)
    assert torch.equal(see(image), see.convs(image.flatten(0, 1).float() / 255).flatten(1).unflatten(0, (2, 4)))
    body, x = MLP(2, 5, (7, 3), "tanh", "uniform"), torch.randn(2, 4, 5)
    y = x.reshape(1, -1, 5).expand(2, -1, -1)
    for layer in body.layers:
        y = torch.tanh(torch.baddbmm(layer.bias, y, layer.weight))
    assert torch.equal(body(x), y.unflatten(1, (2, 4)))


def test_many_images_lie_with_channels_last_also_for_several_models_at_once():
    x = images(ATARI, 1, MANY)
    assert laid(x[0], torch.bfloat16).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(laid(x[0], torch.float32), x[0].float())
    see = Pixels(ATARI.shape)
    assert torch.allclose(torch.func.vmap(see)(x[None])[0], see(x), atol=1e-5)
    assert torch.allclose(torch.compile(see, fullgraph=True, backend="aot_eager")(x), see(x), atol=1e-5)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_bfloat16_stays_inside(memory):
    """What comes out and every gradient is float32, close to what float32 gives; parameters are the same ones."""
    outs, grads = {}, {}
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        net = MLPConfig(hidden=(32,), precision=precision, memory=memory, memory_size=16)
        encoder = ObsEncoder(net, ATARI)
        body = net.body(encoder.out)
        start = Past(encoder.initial(4), torch.zeros(1, 4, dtype=torch.bool))
        x = body(encoder(images(ATARI, 1, 4), start)[0])
        parameters = [*encoder.parameters(), *body.parameters()]
        assert {p.dtype for p in parameters} == {torch.float32} and x.dtype == torch.float32
        outs[precision], grads[precision] = x, torch.autograd.grad(x.square().mean(), parameters)
    assert not torch.equal(outs["float32"], outs["bfloat16"]), "it does compute otherwise"
    assert torch.allclose(outs["float32"], outs["bfloat16"], atol=0.02)
    for a, b in zip(grads["float32"], grads["bfloat16"], strict=True):
        assert b.dtype == torch.float32
        assert (a - b).norm() <= 0.2 * a.norm()


@pytest.mark.parametrize("precision", ["tf32", "float32"])
def test_a_gpu_may_round_products_only_where_it_is_allowed_to(precision: str):
    words = ["algo=ppo", "env={kind: torch, id: cartpole, slots: 2}", f"algo.net.precision={precision}"]
    build(ganglion.load_config(None, words))
    assert torch.backends.cuda.matmul.allow_tf32 == (precision == "tf32")


def test_the_first_alone_is_that_of_all_in_either_precision():
    for precision in ("float32", "bfloat16"):
        body, x = MLP(2, 5, (8,), "relu", "uniform", precision), torch.randn(1, 6, 5)
        assert torch.allclose(body.first(x), body(x)[0], atol=1e-2 if precision == "bfloat16" else 1e-6)
