"""Wide perceptrons in one operation: the same numbers and gradients as layer by layer."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ganglion.nn.kernels import cpu_mlp
from ganglion.nn.layers import ACTIVATIONS, MLP, Activation, LinearHead
from ganglion.nn.nets import Ensemble, Net

needs_it = pytest.mark.skipif(not cpu_mlp.loaded(), reason="needs a C++ compiler and AVX2")
SHAPES = [  # nets, inputs, layers, rows: none of them need fit the tiles
    (2, 23, (256, 256), 256),
    (1, 17, (256, 256), 250),
    (3, 300, (70, 33), 37),
    (2, 5, (64, 31), 700),
    (2, 4, (64, 64), 256),
    (3, 3, (65, 84), 129),
    (1, 1, (1, 1), 1),
]
either = pytest.mark.parametrize("activation", ["relu", "tanh"])


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def slowly(activation: Activation, x: Tensor, *params: Tensor) -> Tensor:
    """Layer by layer, in float64."""
    act = ACTIVATIONS[activation]
    w1, b1, w2, b2, *last = (p.double() for p in params)
    y = x.double().flatten(0, 1).expand(len(w1), -1, -1)
    y = act(act(y @ w1 + b1) @ w2 + b2)
    return y @ last[0].transpose(1, 2) + last[1] if last else y


def layers(net: MLP, outputs: int | None, which: slice = slice(None)) -> list[Tensor]:
    """The parameters of two layers, and of a last one of so many outputs."""
    pair = [p[which] for p in net.weights()]
    if outputs is None:
        return list(pair)
    count, width = len(pair[0]), net.out
    last = torch.randn(count, outputs, width) / width**0.5, torch.randn(count, 1, outputs)
    return [*pair, *(p.requires_grad_() for p in last)]


def near(found: Tensor, exact: Tensor) -> None:
    """Within some last bits of the largest."""
    assert found.shape == exact.shape
    assert (found - exact).abs().max() <= 2e-6 * exact.abs().max()


def check(activation: Activation, net: MLP, rows: int, outputs: int | None) -> None:
    """Numbers and gradients, with and without the gradient of the rows."""
    x, params = torch.randn(1, rows, net.sizes[0]), layers(net, outputs)
    weigh = torch.randn(net.count, rows, outputs or net.out)

    def fast() -> Tensor:
        return cpu_mlp.mlp(x, None, *params, activation=activation)

    for wanted in (False, True):
        x.requires_grad_(wanted)
        asked = [*params, x] if wanted else list(params)
        found, exact = fast(), slowly(activation, x, *params)
        near(found, exact)
        with torch.no_grad():
            assert torch.equal(fast(), found), "whether or not it is kept for a gradient"
        grads = torch.autograd.grad((found * weigh).sum(), asked)
        for a, b in zip(grads, torch.autograd.grad((exact * weigh).sum(), asked), strict=True):
            near(a, b.double())
        again = torch.autograd.grad((fast() * weigh).sum(), asked)
        assert all(torch.equal(a, b) for a, b in zip(grads, again, strict=True)), "the same bits every time"


@needs_it
@either
@pytest.mark.parametrize("outputs", [None, 1, 6, 40])  # of a last layer, if any
@pytest.mark.parametrize(("count", "inputs", "hidden", "rows"), SHAPES)
def test_equals_layer_by_layer(
    count: int, inputs: int, hidden: tuple[int, int], rows: int, outputs: int | None, activation: Activation,
    threads: int,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    check(activation, MLP(count, inputs, hidden, activation, "uniform"), rows, outputs)


@needs_it
@pytest.mark.parametrize("inputs", range(1, 8))
def test_few_inputs_and_narrow_layers(inputs: int, threads: int) -> None:
    torch.manual_seed(0)
    for hidden in ((64, 64), (70, 65)):
        check("tanh", MLP(2, inputs, hidden, "tanh", "orthogonal"), 100, None)


def tanh(x: Tensor) -> Tensor:
    """What a layer makes of these numbers [N], in whole vectors and in what is left of them: [N, units]."""
    units = 37
    one, none = x.new_ones(1, 1, units), x.new_zeros(1, 1, units)
    rest = one.expand(1, units, units).contiguous(), none, none[:, :0], none[:, :, :0]
    hidden: Tensor = torch.ops.ganglion.cpu_mlp(x.view(1, -1, 1), one, none, *rest, True)[1][0]
    return hidden


@needs_it
def test_tanh_is_that_of_float64_but_for_some_last_bits() -> None:
    x = torch.cat([torch.linspace(0, 12, 100_001), torch.logspace(-30, 0, 10_001)])
    exact, found = x.double().tanh()[:, None], tanh(x)
    assert (found - exact).abs().max() < 2e-7 and found.max() == 1
    torch.testing.assert_close(found.double(), exact.expand_as(found), rtol=1e-6, atol=0)
    assert torch.equal(tanh(-x), -found)


@needs_it
def test_tanh_of_what_is_large_or_nothing_or_not_a_number() -> None:
    inf, nan = torch.inf, torch.nan
    found = tanh(torch.tensor([0.0, -0.0, 1e-38, 9.5, -9.5, 89.0, 1e38, -1e38, inf, -inf, nan, -nan, 0.0]))
    wanted = torch.tensor([0.0, 0.0, 1e-38, 1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, nan, nan, 0.0])
    torch.testing.assert_close(found, wanted[:, None].expand_as(found), rtol=0, atol=0, equal_nan=True)


@needs_it
@pytest.mark.parametrize("outputs", [0, 3])
def test_only_what_comes_out_has_a_gradient(outputs: int) -> None:
    net = MLP(1, 5, (20, 30), "tanh", "uniform")
    last = torch.randn(1, outputs, 30), torch.randn(1, 1, outputs)
    found = cpu_mlp.FusedMLP.apply(torch.randn(1, 9, 5), None, *net.weights(), *last, True)
    assert [part.requires_grad for part in found] == [outputs > 0, False, outputs == 0]


@needs_it
@pytest.mark.parametrize("outputs", [None, 1])
@pytest.mark.parametrize("which", [slice(None), slice(1, 2)])
@either
def test_a_gradient_of_the_second_part_alone(
    activation: Activation, which: slice, outputs: int | None, threads: int
) -> None:
    torch.manual_seed(0)
    net = MLP(2, 23, (64, 48), activation, "uniform")
    obs, action = torch.randn(2, 50, 17), torch.randn(2, 50, 6, requires_grad=True)
    params = layers(net, outputs, which)
    fast = cpu_mlp.mlp(obs, action, *params, activation=activation)
    exact = slowly(activation, torch.cat([obs, action], -1), *params)
    near(fast, exact)
    weigh = torch.randn_like(fast)
    (a,), (b,) = (torch.autograd.grad((y * weigh).sum(), action) for y in (fast, exact))
    near(a, b.double())


@needs_it
@pytest.mark.parametrize("outputs", [None, 1])
@either
def test_what_is_not_a_number_is_not_hidden(activation: Activation, outputs: int | None) -> None:
    net, x = MLP(2, 9, (40, 24), activation, "uniform"), torch.randn(1, 70, 9)
    x[0, 33, 4] = torch.nan
    params = layers(net, outputs)
    found = cpu_mlp.mlp(x, None, *params, activation=activation)
    assert found[:, 33].isnan().all() and not found[:, :33].isnan().any() and not found[:, 34:].isnan().any()
    one, two = torch.autograd.grad(found.sum(), [params[0], params[2]])
    assert one[:, 4].isnan().all() and two.isnan().all()
    assert one[:, :4].isnan().all() if activation == "tanh" else not one[:, :4].isnan().any()  # the slope is one, too


@needs_it
@pytest.mark.parametrize("outputs", [None, 3])
@either
def test_several_models_are_computed_as_one(activation: Activation, outputs: int | None) -> None:
    torch.manual_seed(0)
    models, rows = 3, torch.randn(3, 1, 70, 9)
    stacked = [torch.randn(models, *p.shape) for p in layers(MLP(2, 9, (40, 24), activation, "uniform"), outputs)]

    def loss(params: list[Tensor], x: Tensor) -> Tensor:
        return cpu_mlp.mlp(x, None, *params, activation=activation).square().sum()

    @torch.no_grad()
    def alone(params: list[Tensor], x: Tensor) -> tuple[Tensor]:
        return (loss(params, x),)

    for fn in (torch.func.grad(loss), alone):
        together = torch.vmap(fn)(stacked, rows)
        for i in range(models):
            torch.testing.assert_close([a[i] for a in together], [*fn([p[i] for p in stacked], rows[i])])


@needs_it
@either
def test_a_compiled_graph_has_it_and_gives_what_eager_gives(activation: Activation) -> None:
    torch.manual_seed(0)
    net, x = MLP(2, 9, (64, 130), activation, "uniform"), torch.randn(1, 100, 9)
    with torch.profiler.profile() as seen:
        found = torch.compile(net, backend="aot_eager", fullgraph=True)(x)
    assert "ganglion::cpu_mlp" in {event.name for event in seen.events()}
    torch.testing.assert_close(found, net(x), rtol=1e-5, atol=1e-6)


@needs_it
@pytest.mark.parametrize("grad", [False, True])
@either
def test_a_last_layer_over_a_body_is_in_the_same_operation(activation: Activation, grad: bool) -> None:
    torch.manual_seed(0)
    one, two = MLP(1, 9, (128, 130), activation, "uniform"), MLP(2, 12, (128, 130), activation, "uniform")
    policy, values = Net(one, LinearHead(one, 3)), Ensemble(two)
    x, action = torch.randn(2, 50, 9), torch.randn(2, 50, 3)

    def run(x: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(grad):
            return policy(x), values(x, action), values.first(x, action)

    with torch.profiler.profile() as seen:
        found = torch.compile(run, backend="aot_eager", fullgraph=True)(x, action)
    names = [event.name for event in seen.events()]
    assert names.count("ganglion::cpu_mlp" if grad else "ganglion::cpu_mlp_only") >= 3 and "aten::bmm" not in names
    eager = run(x, action)
    both = values.head(two(torch.cat([x, action], -1)))
    slow = policy.head(one(x)[0]), both, both[0]
    for a, b, c in zip(found, eager, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(b, c, rtol=1e-5, atol=1e-6)


def test_it_is_for_compiled_float32_of_two_wide_layers_and_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, sizes = torch.zeros(1, cpu_mlp.LEAST, 8), (8, cpu_mlp.NARROW, cpu_mlp.NARROW)
    assert not cpu_mlp.fits(x, sizes, "relu"), "eager numbers are a library's"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert cpu_mlp.fits(x, sizes, "relu") == cpu_mlp.loaded()
    assert cpu_mlp.fits(x, sizes, "tanh") == cpu_mlp.loaded()
    assert not cpu_mlp.fits(x, sizes, "elu")
    assert not cpu_mlp.fits(x, (*sizes, cpu_mlp.NARROW), "relu")
    assert not cpu_mlp.fits(x, (8, cpu_mlp.NARROW, cpu_mlp.NARROW - 1), "relu")
    assert not cpu_mlp.fits(x[:, 1:], sizes, "relu")
    assert not cpu_mlp.fits(x.double(), sizes, "relu")


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_graphs_go_without(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.INFO):
        assert cpu_mlp.loaded.__wrapped__() is False
    assert "go without" in caplog.text


@needs_it
def test_a_processor_with_narrower_vectors_gives_the_same() -> None:
    """All of the above for AVX2, in a process that may use no more."""
    if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":
        pytest.skip("this is that process")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(tests, env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}, capture_output=True, text=True)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-2_000:]
