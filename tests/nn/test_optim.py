"""Optimisers against their formulas in float64, eagerly and compiled, and what they say of a missing gradient."""

from __future__ import annotations

from math import inf

import pytest
import torch
from torch import Tensor, nn

from ganglion.errors import UserError
from ganglion.fast.compile import Compiled
from ganglion.nn import Adam, OptimConfig, Optimiser, RMSprop, optimiser


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


def test_rmsprop_is_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 4), nn.Linear(5, 4)
    theirs.load_state_dict(ours.state_dict())
    optim, known = RMSprop(ours, lr=1e-2), torch.optim.RMSprop(theirs.parameters(), lr=1e-2)
    for k in range(30):
        x, lr = torch.randn(8, 5), 1e-2 / (1 + k)
        optim.step(ours(x).square().mean(), lr=torch.tensor(lr))
        known.param_groups[0]["lr"] = lr
        known.zero_grad()
        theirs(x).square().mean().backward()
        known.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


both = pytest.mark.parametrize("kind", [Adam, RMSprop])


@both
def test_an_optimiser_goes_on_from_its_state(kind: type[Optimiser]) -> None:
    torch.manual_seed(0)
    nets = [nn.Linear(5, 4), nn.Linear(5, 4)]
    optims = [kind(net, lr=1e-2, max_norm=0.1) for net in nets]
    x = torch.randn(8, 5)
    for _ in range(3):
        assert optims[0].step(nets[0](x).square().sum()) > 0.1, "the norm before clipping"
    nets[1].load_state_dict(nets[0].state_dict())
    optims[1].restore(optims[0].state())
    for net, optim in zip(nets, optims, strict=True):
        optim.step(net(x).square().sum())
    assert torch.equal(nets[0].weight, nets[1].weight) and optims[1].count == 4


@both
@pytest.mark.parametrize("compiled", [False, True])
def test_a_parameter_without_a_gradient_is_named(kind: type[Optimiser], compiled: bool) -> None:
    net = nn.ModuleDict({"used": nn.Linear(3, 1), "extra": nn.Linear(3, 3)})
    optim = kind(net, lr=1e-2)

    def step(x: Tensor) -> Tensor:
        return optim.step(net["used"](x).sum())

    with pytest.raises(UserError, match=r"parameter 'extra.weight' \(and 1 more\) has no gradient.*allow_unused=True"):
        (Compiled(step) if compiled else step)(torch.ones(2, 3))


@both
@pytest.mark.parametrize("compiled", [False, True])
def test_where_it_is_allowed_it_stays_as_it_is(kind: type[Optimiser], compiled: bool) -> None:
    net = nn.ModuleDict({"used": nn.Linear(3, 1), "extra": nn.Linear(3, 3), "frozen": nn.Linear(3, 3)})
    net["frozen"].requires_grad_(False)
    optim, before = kind(net, lr=1e-2, allow_unused=True), {k: v.clone() for k, v in net.state_dict().items()}

    def step(x: Tensor) -> Tensor:
        return optim.step(net["used"](x).sum())

    whole = Compiled(step) if compiled else step
    for _ in range(3):
        assert whole(torch.ones(2, 3)) > 0
    assert not compiled or whole.graph is not step, "it did compile"
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"used.weight", "used.bias"}
    assert not any("frozen" in name for name in optim.state().tensors)


CLIPS = ["norm", "value", "momentum", "momentum_norm"]


@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
@pytest.mark.parametrize(("clip", "ignore"), [*((c, "none") for c in CLIPS), *(("value", i) for i in CLIPS)])
def test_rules_of_gradients_number_by_number(name: str, clip: str, ignore: str):
    torch.manual_seed(0)
    layer = nn.Linear(3, 2).double()
    cfg = OptimConfig(name=name, clip=clip, clip_at=1.1, ignore=ignore, ignore_at=2.5, after=3)
    optim, out = optimiser(cfg, layer, lr=0.05), [float(x) for p in layer.parameters() for x in p.flatten()]
    mean, square, ignored = [0.0] * 8, [0.0] * 8, 0
    for t in range(12):
        loud = 10.0 if t % 5 == 4 else 1.0
        given = [torch.randn_like(p) * loud for p in layer.parameters()]
        optim.step(sum((p * g).sum() for p, g in zip(layer.parameters(), given, strict=True)))
        grads = [float(x) for g in given for x in g.flatten()]
        roots = [(s / (1 - 0.999**t if name == "adamw" and t else 1)) ** 0.5 if t > 3 else inf for s in square]
        norm, usual = sum(g * g for g in grads) ** 0.5, sum(r * r for r in roots) ** 0.5
        over = {"none": False, "norm": norm > 2.5, "value": max(map(abs, grads)) > 2.5,
                "momentum_norm": norm > 2.5 * usual,
                "momentum": any(abs(g) > 2.5 * r for g, r in zip(grads, roots, strict=True))}[ignore]  # fmt: skip
        limits = [1.1 * r for r in roots] if clip == "momentum" else [1.1 if clip == "value" else inf] * 8
        share = {"norm": 1.1, "momentum_norm": 1.1 * usual}.get(clip, inf) / (norm + 1e-6)
        ignored += over
        for i, (g, limit) in enumerate(zip(grads, limits, strict=True)):
            g = 0.0 if over else max(-limit, min(limit, g)) * min(1.0, share)
            if name == "rmsprop":
                square[i] = 0.99 * square[i] + 0.01 * g * g
                out[i] -= 0.05 * g / (square[i] ** 0.5 + 1e-8)
                continue
            mean[i], square[i] = 0.9 * mean[i] + 0.1 * g, 0.999 * square[i] + 0.001 * g * g
            size = mean[i] / (1 - 0.9 ** (t + 1)) / ((square[i] / (1 - 0.999 ** (t + 1))) ** 0.5 + 1e-8)
            out[i] = out[i] * (1 - 0.05 * 0.01) - 0.05 * size
    # in float32, what Adam corrects its means by is accurate to some 1e-5
    there = [float(x) for p in layer.parameters() for x in p.detach().flatten()]
    assert there == pytest.approx(out, abs=1e-4) and (0 < ignored < 12) == (ignore != "none")


@pytest.mark.parametrize("clip", [0.1, inf])
def test_one_operation_moves_what_the_formula_moves_however_gradients_lie_in_memory(clip: float) -> None:
    """float32 on a CPU is one operation, float64 the formula; the gradient of a transposed weight is a transposed view,
    that of a sum one number shown everywhere."""
    slope, moved = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), list[Tensor]()
    for dtype in (torch.float32, torch.float64):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layer = nn.Linear(3, 4).to(dtype)
        optim = Adam(layer, lr=0.1, max_norm=clip)
        for _ in range(5):
            optim.step((layer.weight.t() * slope.to(dtype)).sum() + layer.bias.sum(), lr=torch.tensor(0.05))
        moved.append(torch.cat([layer.weight.flatten(), layer.bias]).detach().double())
    torch.testing.assert_close(*moved, rtol=1e-4, atol=1e-5)
