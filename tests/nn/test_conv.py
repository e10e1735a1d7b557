"""Convolutions said in tiles: the same numbers as strided ones, wherever they are used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ganglion.nn.inputs import Pixels
from ganglion.nn.kernels.conv import MANY, PIXELS, PLANES, convolved, in_tiles, tiles

SHAPES = [(8, 4, 4, 84, 84), (4, 2, 32, 20, 20), (6, 3, 3, 12, 18), (6, 2, 5, 20, 8)]  # kernel, stride, channels, image


def atari(count: int) -> Tensor:
    return torch.randint(256, (count, 4, 84, 84), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("order", [PLANES, PIXELS], ids=["planes", "pixels"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_strided_convolution_is_one_of_tiles_and_so_are_its_gradients(shape: tuple[int, ...], order):
    kernel, stride, channels, *image = shape
    conv = nn.Conv2d(channels, 7, kernel, stride).double()
    x = torch.randn(3, channels, *image, dtype=torch.float64, requires_grad=True)
    weight = conv.weight
    mine = nn.functional.conv2d(tiles(x, stride, order), tiles(weight, stride, order), conv.bias)
    assert torch.allclose(mine, conv(x), rtol=0, atol=1e-12)
    wanted = torch.autograd.grad(conv(x).square().sum(), [x, weight])
    for a, b in zip(torch.autograd.grad(mine.square().sum(), [x, weight]), wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-10)


def test_bytes_that_move_four_at_a_time_are_the_tiles_of_other_types():
    x = atari(3)
    assert torch.equal(tiles(x, 4, PLANES).double(), tiles(x.double(), 4, PLANES))
    apart = torch.stack([x, x.flip(0)], -1)[..., 0]  # not contiguous
    assert torch.equal(tiles(apart, 4, PLANES), tiles(x, 4, PLANES))
    assert tiles(x, 4, PLANES).is_contiguous(memory_format=torch.channels_last)


def test_tiles_are_taken_where_they_fit_and_are_faster():
    conv, many = nn.Conv2d(4, 32, 8, 4), atari(MANY)
    assert in_tiles(conv, many, torch.bfloat16)
    assert not in_tiles(conv, many[:-1], torch.bfloat16), "few images"
    assert not in_tiles(conv, many, torch.float32)
    assert not in_tiles(conv, many[..., :82], torch.bfloat16), "no whole tiles"
    assert not in_tiles(nn.Conv2d(4, 32, 3, 2), many, torch.bfloat16), "a kernel of no whole tiles"
    assert not in_tiles(nn.Conv2d(4, 32, 3, 1), many, torch.bfloat16)


@pytest.mark.parametrize("turned", [False, True], ids=["channels first", "channels last"])
def test_images_in_bfloat16_are_seen_alike_few_or_many_and_as_the_networks_of_several_seeds(turned: bool):
    torch.manual_seed(0)
    image = atari(2 * MANY)
    image = image.movedim(1, -1).contiguous() if turned else image
    see, exact = Pixels(image.shape[1:], torch.bfloat16), Pixels(image.shape[1:])
    exact.load_state_dict(see.state_dict())
    many = see(image[None])[0]
    few = torch.cat([see(part[None])[0] for part in image.split(MANY // 2)])
    wanted = exact(image[None])[0]
    assert not torch.equal(many, wanted), "it does compute otherwise"
    assert (many - few).norm() < 0.01 * wanted.norm()
    assert (many - wanted).norm() < 0.01 * wanted.norm()
    pairs = image.unflatten(0, (2, 1, MANY))
    assert torch.allclose(torch.func.vmap(see)(pairs).flatten(0, 2), many, atol=1e-3)
    whole = torch.compile(see, fullgraph=True, backend="aot_eager")
    assert torch.equal(whole(image[None])[0], many)


def test_bytes_are_divided_by_their_most_in_tiles_as_elsewhere():
    conv, x = nn.Conv2d(4, 32, 8, 4), atari(MANY)
    tiled, plain = convolved(conv, x, torch.bfloat16), torch.relu(conv(x / 255))
    assert (tiled.float() - plain).norm() < 0.01 * plain.norm()
