"""A function traced to plain operations, for what a compiler cannot follow: gradients inside vmap."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten, tree_unflatten

from ganglion.fast.compile import OPTIONS, Compiled, can_compile
from ganglion.fast.direct import Direct, Fn


class Traced(Compiled):
    """A function whose operations are recorded in a first call, for the shapes of that call, and compiled as one graph;
    or run one by one (`plain`), without what vmap and gradients cost beside them.

    Gradients are operations like others then, on any torch. The recorded call must leave nothing behind: `sparing` puts
    back what it changed.
    """

    def __init__(self, fn: Fn, sparing: Callable[[], AbstractContextManager[None]], plain: bool = False) -> None:
        super().__init__(fn)
        self.sparing = sparing
        self.plain = plain

    def build(self, args: tuple[Any, ...]) -> Fn:
        from torch.fx.experimental.proxy_tensor import make_fx  # imported late: it takes a second

        leaves, tree = tree_flatten(args)
        shape: list[Any] = []

        def flat(*given: Any) -> list[Any]:
            gave, form = tree_flatten(self.fn(*tree_unflatten(list(given), tree)))
            shape.append(form)
            return gave

        with self.sparing():
            recorded = make_fx(flat)(*leaves)
        turn_products(recorded)
        held = [tensor.detach() for tensor in lifted(recorded)]
        graph = self.compiled(recorded, [*leaves, *held])

        def run(*given: Any) -> Any:
            with torch.no_grad():
                return tree_unflatten(list(graph(*tree_flatten(given)[0], *held)), shape[-1])

        return run if leaves[0].is_cuda else Direct(run)

    def compiled(self, recorded: GraphModule, given: list[Any]) -> Fn:
        if self.plain:
            return recorded
        if given[0].device.type == "cuda":  # what a call costs is not paid again where it is captured
            graph: Fn = torch.compile(recorded, dynamic=False)
            return graph
        if not can_compile():  # an older torch forgets what such a graph changes
            return recorded
        from torch._inductor import compile as once

        with torch.no_grad():  # the gradients are in the graph
            quick: Fn = once(recorded, given, options=OPTIONS)
        return quick


AS_ROWS: dict[str, Any] = {"memory_format": torch.contiguous_format}
NARROW = 8  # columns of a product that are better its rows


def turn_products(plain: GraphModule) -> None:
    """Products of many rows by few columns, along rows that lie apart, as their transposes: ten times as quick."""
    graph, bmm, turned = plain.graph, torch.ops.aten.bmm.default, torch.ops.aten.transpose.int
    for node in graph.find_nodes(op="call_function", target=bmm):
        a, b = node.args
        apart, columns = a.meta["val"].stride(-1) != 1, b.meta["val"].shape[-1]
        if apart and columns <= NARROW < a.meta["val"].shape[1]:
            with graph.inserting_before(node):
                flipped = [graph.call_function(turned, (x, 1, 2)) for x in (b, a)]
                product = graph.call_function(bmm, tuple(flipped))
                back = graph.call_function(turned, (product, 1, 2))
                # laid out as it was: what was recorded after it may be views of it
                node.replace_all_uses_with(graph.call_function(torch.ops.aten.clone.default, (back,), AS_ROWS))
            graph.erase_node(node)


def lifted(plain: GraphModule) -> list[Tensor]:
    """The tensors a graph holds, which it is given from now on: it changes them, and a compiler copies what is held."""
    graph = plain.graph
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    given: dict[int, Any] = {}
    tensors: list[Tensor] = []
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        tensor = getattr(plain, node.target)
        if id(tensor) not in given:
            with graph.inserting_after(last):
                last = given[id(tensor)] = graph.placeholder(f"held_{len(tensors)}")
            tensors.append(tensor)
        node.replace_all_uses_with(given[id(tensor)])
        graph.erase_node(node)
    for node in graph.nodes:
        node.meta = {}  # each knows of a make-believe world of its own, which the compiler refuses
    plain.recompile()
    return tensors
