"""Every public function against its reference, its gradient, and compiled and captured runs: none can be left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from ganglion import ops
from tests.ops.table import PARTS, TABLE
from tests.ops.world import World, each, same, tensors, worlds

few = settings(max_examples=10)

# Names that are no functions: types, and tuples of results whose fields the functions' own entries compare.
TYPES = {"Dist", "Grads", "Tree", "Transitions", "NStep", "VTrace"}
METHODS = {"Adder", "Bernoulli", "BranchGreedy", "Categorical", "Greedy", "Moments", "MultiCategorical", "Normal"}
METHODS |= {"Product", "Sure", "TanhNormal"}

# What no compiler or graph can hold, by nature.
LISTS = {name: "works on Python lists of one slot's transitions" for name in TABLE if name.startswith("Adder.")}
HOST = LISTS | {
    "to_numpy": "leaves the device for numpy",
    "to_list": "leaves the device for Python numbers",
    "to_tensor": "starts from numpy arrays",
    "alike": "its result is an exception",
}

# Where no gradient passes, by nature or on purpose.
INTEGERS = "gives integers, booleans, names or counts"
FIXED = "gives a target or a weight: detached on purpose"
TREES = dict.fromkeys(PARTS["trees"], "moves leaves about; gradients are torch's own")
WITHOUT_GRADIENT = TREES | {
    **dict.fromkeys(("td_goal", "counterfactual", "sequence_priority", "acer_weights"), FIXED),
    **dict.fromkeys(("alike", "mask", "best", "shuffled", "shuffle_draws", "above", "empty", "add_draws"), INTEGERS),
    **dict.fromkeys(("hash_bits", "hash_uniform", "hash_normal", "inverse_cdf", "uniform_legal"), INTEGERS),
    **dict.fromkeys(("dist_size", "dist_draws", "epsilon_distance", "decisions"), INTEGERS),
    **dict.fromkeys((n for n in TABLE if n.endswith((".draws", ".parts", ".inner", ".slices"))), INTEGERS),
    **dict.fromkeys(("Categorical.sample", "MultiCategorical.sample", "Bernoulli.sample"), INTEGERS),
    **dict.fromkeys(("Categorical.mode", "MultiCategorical.mode", "Bernoulli.mode", "Product.mode"), INTEGERS),
    **dict.fromkeys(("Greedy.mode", "Greedy.sample", "Greedy.epsilon"), INTEGERS),
    **dict.fromkeys(("BranchGreedy.mode", "BranchGreedy.sample", "BranchGreedy.epsilon"), INTEGERS),
    **dict.fromkeys(("atoms", "midpoints", "epsilon_ladder", "bounds"), "has no input but shapes and constants"),
    **dict.fromkeys(("dist",), "cuts its input into fields; the methods of each distribution are checked"),
    "acer_policy": "the policy is both fixed and moving: test_gradient_of_acer",
    "Product.sample": "its moving part is Normal.sample",
}


def public(kind: type) -> list[str]:
    """The methods and properties that a class defines itself."""
    fields = getattr(kind, "_fields", ())
    return [f"{kind.__name__}.{k}" for k in vars(kind) if not k.startswith("_") and k not in fields]


def test_nothing_public_is_missing() -> None:
    methods = {name for kind in METHODS for name in public(getattr(ops, kind))}
    functions = set(ops.__all__) - TYPES - METHODS
    assert functions | methods == set(TABLE)
    assert set(HOST) <= set(TABLE) and set(WITHOUT_GRADIENT) <= set(TABLE)
    checked = {name for name, entry in TABLE.items() if entry.grad}
    assert checked.isdisjoint(WITHOUT_GRADIENT)
    assert checked | set(WITHOUT_GRADIENT) == set(TABLE), (
        "neither checked by gradcheck nor listed as without a gradient"
    )


@pytest.mark.parametrize("name", TABLE)
def test_against_the_reference(name: str) -> None:
    entry = TABLE[name]

    @few
    @given(worlds())
    def check(w: World) -> None:
        arguments = entry.make(w)
        same(entry.call(*tensors(arguments)), entry.reference(*arguments))

    check()


# ------------------------------------------------------------ gradients


def floats(tree: Any) -> list[Tensor]:
    """The floating leaves of a result, as gradcheck takes them."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in floats(part)]
    return [tree] if isinstance(tree, Tensor) and tree.is_floating_point() and tree.requires_grad else []


@pytest.mark.parametrize("name", [name for name, entry in TABLE.items() if entry.grad])
def test_gradients(name: str) -> None:
    entry = TABLE[name]
    given_ = list(tensors(entry.make(World((3, 2, 4, 3), live=0.7, seed=1))))
    leaves = [leaf.requires_grad_() for i in entry.grad for leaf in floats_of(given_[i])]

    def run(*_: Tensor) -> tuple[Tensor, ...]:
        return tuple(floats(entry.call(*given_)))

    assert leaves and torch.autograd.gradcheck(run, leaves)


def floats_of(tree: Any) -> list[Tensor]:
    return [x for x in ops.leaves(tuple(tree) if isinstance(tree, list) else tree) if torch.is_floating_point(x)]


def test_gradient_of_acer() -> None:
    """Only the last factor log pi moves: the gradient is what stands before it, by the loop of the reference."""
    log_pi, log_mu, q, goal, action, clip = TABLE["acer_policy"].make(World((3, 2, 4, 3)))

    def row(log_pi: Any, log_mu: Any, q: Any, goal: float, a: int) -> Any:
        pi, rho = np.exp(log_pi), np.exp(log_pi - log_mu)
        value = sum(pi * q)
        slope = [-max(0.0, 1 - clip / rho[i]) * pi[i] * (q[i] - value) for i in range(len(q))]
        slope[a] -= min(clip, rho[a]) * (goal - value)
        return slope

    moving = torch.tensor(log_pi, requires_grad=True)
    loss = ops.acer_policy(moving, *tensors((log_mu, q, goal, action)), clip)
    same(torch.autograd.grad(loss.sum(), moving)[0], each(row, log_pi, log_mu, q, goal, action))


# ------------------------------------------------------------ compiled and captured


class Batch:
    """All functions of one part with inputs of float32, with or without masks and other options.

    Tensors are apart from the constants, which stay constants.
    """

    def __init__(self, part: str, masked: bool, device: str = "cpu") -> None:
        self.names = [name for name in PARTS[part] if name not in HOST]
        world = World((5, 3, 4, 3), live=0.6, flag=masked)
        given_ = [tensors(TABLE[name].make(world), torch.float32, device) for name in self.names]
        self.inputs = [[x if holds_tensor(x) else None for x in row] for row in given_]
        self.constants = [[None if holds_tensor(x) else x for x in row] for row in given_]
        self.calls = [TABLE[name].call for name in self.names]

    def run(self, inputs: list[list[Any]]) -> list[Any]:
        out = []
        for call, moving, fixed in zip(self.calls, inputs, self.constants, strict=True):
            out.append(call(*[y if x is None else x for x, y in zip(moving, fixed, strict=True)]))
        return out


def holds_tensor(tree: Any) -> bool:
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return any(holds_tensor(x) for x in tree) if isinstance(tree, (tuple, list)) else isinstance(tree, Tensor)


def agree(name: str, one: Any, two: Any, exact: bool) -> None:
    """Equal to the bit; or, where `exact` is not asked for, floats nearly."""
    if isinstance(one, dict):
        assert list(one) == list(two), name
        one, two = tuple(one.values()), tuple(two.values())
    if isinstance(one, (tuple, list)):
        assert len(one) == len(two), name
        for x, y in zip(one, two, strict=True):
            agree(name, x, y, exact)
    elif not isinstance(one, Tensor):
        assert one == two, name
    elif exact or not one.is_floating_point():
        assert one.dtype == two.dtype and torch.equal(one.isnan(), two.isnan()), name
        assert torch.equal(one.nan_to_num(), two.nan_to_num()), name
    else:
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_one_full_graph_equals_eager_to_the_bit(part: str, masked: bool) -> None:
    torch._dynamo.reset()
    batch = Batch(part, masked)
    compiled = torch.compile(batch.run, fullgraph=True, backend="aot_eager")(batch.inputs)
    for name, one, two in zip(batch.names, batch.run(batch.inputs), compiled, strict=True):
        agree(name, one, two, exact=True)


@pytest.mark.gpu
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("part", PARTS)
def test_captured_equals_eager(part: str, masked: bool) -> None:
    """Warm-up on a side stream, then a graph over static inputs that live on the device, replayed."""
    batch = Batch(part, masked, "cuda")
    eager = batch.run(batch.inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            batch.run(batch.inputs)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = batch.run(batch.inputs)
    graph.replay()
    torch.cuda.synchronize()
    for name, one, two in zip(batch.names, eager, captured, strict=True):
        agree(name, one, two, exact=False)


def on_cpu(tree: Any) -> Any:
    if isinstance(tree, list):
        return [on_cpu(x) for x in tree]
    return ops.map_tree(lambda x: x.cpu() if isinstance(x, Tensor) else on_cpu(x) if isinstance(x, list) else x, tree)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in TABLE if name not in HOST])
def test_against_the_reference_on_a_device(name: str) -> None:
    """Float64 on the device, with and without masks and other options."""
    for flag in (True, False):
        arguments = TABLE[name].make(World((9, 3, 4, 3), live=0.6, flag=flag))
        same(on_cpu(TABLE[name].call(*tensors(arguments, device="cuda"))), TABLE[name].reference(*arguments))
