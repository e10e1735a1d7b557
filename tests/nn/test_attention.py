"""Transformer memories, sets of entities, residual networks, norms and weights against plain ones in float64."""

from __future__ import annotations

from math import exp, sqrt

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from ganglion.core import Box, Composite, MultiBinary, Past
from ganglion.errors import UserError
from ganglion.nn import MLPConfig, ObsEncoder
from ganglion.nn.attention import Entities, GRUGate, GTrXL, GTrXLLayer
from ganglion.nn.layers import MLP, LinearHead, Linears, RMSNorm, SpectralLinears
from ganglion.nn.resnet import ResNet

WINDOW, SIZE, HEADS, SLOTS = 3, 8, 2, 4


@pytest.fixture
def memory() -> GTrXL:
    torch.manual_seed(0)
    made = GTrXL(5, SIZE, 2, HEADS, WINDOW).double()
    for parameter in made.parameters():  # those that start at zero would hide mistakes
        nn.init.normal_(parameter, std=0.5)
    return made


def shown(rows: int) -> tuple[Tensor, Tensor]:
    start = torch.zeros(rows, SLOTS, dtype=torch.bool)
    start[0, 0] = start[4, 1] = start[2, 2] = start[3, 2] = True
    return torch.randn(rows, SLOTS, 5, dtype=torch.float64), start


def gated(gate: GRUGate, x: Tensor, y: Tensor) -> Tensor:
    w_r, w_z, w_g = gate.from_layer.weight.chunk(3)
    u_r, u_z = gate.from_stream.weight.chunk(2)
    r, z = torch.sigmoid(w_r @ y + u_r @ x), torch.sigmoid(w_z @ y + u_z @ x - gate.bias)
    return (1 - z) * x + z * torch.tanh(w_g @ y + gate.inner.weight @ (r * x))


def plain_layer(layer: GTrXLLayer, history: list[Tensor]) -> Tensor:
    """The last of an episode's rows, which sees as many before it as the window is long."""
    x, dim = history[-1], SIZE // HEADS
    rows = [layer.before(row) for row in history[-WINDOW - 1 :]]
    query, said = layer.query.weight @ rows[-1], []
    for h in range(HEADS):
        part = slice(h * dim, (h + 1) * dim)
        q, scores, values = query[part], [], []
        for back, row in enumerate(reversed(rows)):
            key, value = (layer.key_value.weight @ row).chunk(2)
            by_content = (q + layer.content[h, 0]) @ key[part]
            scores.append(float(by_content + (q + layer.position[h, 0]) @ layer.distance[h, back]) / sqrt(dim))
            values.append(value[part])
        total = sum(exp(s) for s in scores)
        said.append(sum((exp(s) / total * v for s, v in zip(scores, values, strict=True)), torch.zeros(dim)))
    y = gated(layer.gate, x, torch.relu(layer.merge(torch.cat(said).double())))
    return gated(layer.last_gate, y, torch.relu(layer.narrow(torch.relu(layer.widen(layer.between(y))))))


@torch.no_grad()
def test_a_transformer_remembers_what_the_paper_says(memory: GTrXL):
    x, start = shown(9)
    out, _ = memory(x, Past(memory.initial(SLOTS), start))
    for slot in range(SLOTS):
        history: list[list[Tensor]] = []
        for t in range(9):
            if start[t, slot]:
                history = []
            row = memory.embed(x[t, slot])
            for depth, layer in enumerate(memory.layers):
                if len(history) <= depth:
                    history.append([])
                history[depth].append(row)
                row = plain_layer(layer, history[depth])
            torch.testing.assert_close(out[t, slot], row, rtol=1e-9, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_side_by_side_are_rows_one_after_the_other(memory: GTrXL, rows: int):
    x, start = shown(10)
    whole, after = memory(x, Past(memory.initial(SLOTS), start))
    said, kept = [], memory.initial(SLOTS)
    for t in range(0, 10, rows):
        part, kept = memory(x[t : t + rows], Past(kept, start[t : t + rows]))
        said.append(part)
    torch.testing.assert_close(torch.cat(said), whole, rtol=1e-10, atol=1e-10)
    assert torch.equal(kept[-1], after[-1])
    seen = torch.arange(WINDOW) >= WINDOW - after[-1][0]  # what lies further back is of another episode
    for a, b in zip(kept[:-1], after[:-1], strict=True):
        one, two = (m[0].unflatten(-1, (WINDOW, SIZE)) * seen[..., None] for m in (a, b))
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_entities_are_a_set_whose_absent_members_do_not_count():
    torch.manual_seed(0)
    net = Entities(3, SIZE, HEADS).double()
    x, there = torch.randn(2, 3, 5, 3, dtype=torch.float64), torch.rand(2, 3, 5) < 0.6
    there[0, 0], there[1, 1] = False, True
    out, order = net(x, there), torch.randperm(5)
    torch.testing.assert_close(net(x[:, :, order], there[:, :, order]), out)
    torch.testing.assert_close(net(torch.where(there[..., None], x, 100.0), there), out)
    torch.testing.assert_close(net(x, torch.ones_like(there)), net(x))
    assert not out[0, 0].any()
    mine = nn.MultiheadAttention(SIZE, HEADS, bias=False, batch_first=True).double()
    mine.in_proj_weight.copy_(net.query_key_value.weight)
    mine.out_proj.weight.copy_(net.merge.weight)
    for t, b in ((0, 1), (1, 1), (1, 2)):
        rows = net.embed(x[t, b][there[t, b]])[None]
        given = net.before(rows)
        y = net.after(rows + mine(given, given, given)[0] + net.merge.bias)
        torch.testing.assert_close(out[t, b], y[0].mean(0))


def test_masks_of_entities_are_found_beside_them():
    units = Box((5, 3))
    net = MLPConfig(entities="attention", entity_size=8)
    made = ObsEncoder(net, Composite({"units": units, "units_mask": MultiBinary(5), "speed": Box((2,))}))
    assert made.entities == [(("units",), ("units_mask",))] and made.out == 8 + 2
    assert ObsEncoder(net, units).entities == [((), None)]
    assert ObsEncoder(MLPConfig(), units).out == 15
    with pytest.raises(UserError, match=r"units_mask masks 5 entities and should be MultiBinary\(5\)"):
        ObsEncoder(net, Composite({"units": units, "units_mask": MultiBinary(4)}))
    with pytest.raises(ValidationError, match="memory_size should be a multiple of heads = 4, not 6"):
        MLPConfig(memory="gtrxl", memory_size=6)


@torch.no_grad()
def test_the_residual_network_for_images():
    torch.manual_seed(0)
    image = torch.randint(256, (2, 3, 40, 44, 2), dtype=torch.uint8)
    net = ResNet((40, 44, 2), 2, torch.float32)
    y = image.flatten(0, 1).movedim(-1, 1) / 255.0
    for i, wide in enumerate((32, 64, 64)):
        conv, _, *blocks = net.stages[4 * i : 4 * i + 4]
        y = nn.functional.max_pool2d(nn.functional.conv2d(y, conv.weight, conv.bias, padding=1), 3, 2, 1)
        for block in blocks:
            z = nn.functional.conv2d(y.relu(), block.first.weight, block.first.bias, padding=1).relu()
            y = y + nn.functional.conv2d(z, block.second.weight, block.second.bias, padding=1)
        assert y.shape[1] == wide
    y = (y.relu().flatten(1) @ net.last.weight.t() + net.last.bias).relu()
    torch.testing.assert_close(net(image), y.unflatten(0, (2, 3)), rtol=1e-4, atol=1e-5)
    assert net.out == 256


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (64, 64)])
def test_spectral_norm_is_one(shape: tuple[int, int]):
    torch.manual_seed(0)
    maps = SpectralLinears(3, *shape).double()
    x = torch.randn(3, 6, shape[0], dtype=torch.float64)
    sigma = torch.linalg.matrix_norm(maps.weight, 2)[:, None, None]
    wanted = torch.baddbmm(maps.bias, x, maps.weight / sigma)
    near = 1e-3 if max(shape) < 64 else 3e-2  # singular values that lie close together are told apart less well
    torch.testing.assert_close(maps(x), wanted, rtol=near, atol=near)
    if max(shape) < 64:
        ours, theirs = (torch.autograd.grad(y.square().sum(), maps.weight)[0] for y in (maps(x), wanted))
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_rms_norm_in_a_perceptron():
    torch.manual_seed(0)
    body = MLP(2, 3, (4,), "tanh", "he", norm="rms").double()
    assert type(body.norms[0]) is RMSNorm
    x = torch.randn(2, 3, 3, dtype=torch.float64)
    layer, gain = body.layers[0], body.norms[0].gain
    y = x.flatten(0, 1)[None] @ layer.weight + layer.bias
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain
    torch.testing.assert_close(body(x), torch.tanh(y).unflatten(1, (2, 3)))


@pytest.mark.parametrize(("init", "deviation"), [("he", sqrt(2 / 200)), ("xavier", sqrt(2 * 2 / 500))])
def test_weights_start_with_the_published_deviation(init: str, deviation: float):
    torch.manual_seed(0)
    maps = Linears(2, 200, 300, init, 2**0.5)
    assert float(maps.weight.detach().std()) == pytest.approx(deviation, rel=0.02) and not maps.bias.any()
    body = MLP(1, 4, (200,), "relu", "uniform")
    head = LinearHead(body, 300, init, 2**0.5)
    assert float(head.weight.detach().std()) == pytest.approx(deviation, rel=0.02) and not head.bias.any()
