"""An agent's function as a list of operations with fixed shapes: what a numpy file is made of."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from ganglion.errors import UserError
from ganglion.export.policy import PolicyModule

Array = NDArray[Any]
SKIPPED = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async")
SAME = ("alias", "detach", "clone", "lift_fresh_copy")  # copies: nothing is written in place here


class Op(NamedTuple):
    """One operation. Arguments are numbers, text, lists of these, or {"$": value}: a value by its number."""

    name: str
    args: list[Any]
    named: dict[str, Any]
    out: int
    shape: tuple[int, ...]
    dtype: str


class Program(NamedTuple):
    """Inputs, constants and operations; values are numbered."""

    inputs: list[int]
    constants: Mapping[int, Array]
    ops: list[Op]
    outputs: list[int]


def traced(policy: PolicyModule, rows: int) -> ExportedProgram:
    """The function as torch.export sees it, for a batch of so many rows."""
    given = tuple(port.zeros(rows) for port in policy.inputs)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return torch.export.export(policy.eval(), given)
    except Exception as error:  # torch's own kinds, of any code that cannot be traced
        why = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        kind = type(policy.algo).__name__
        raise UserError(
            f"RUN: {kind} cannot be exported: its actions are no fixed sequence of operations ({why})."
        ) from error


def program(exported: ExportedProgram) -> Program:
    """The same as core operations, what depends on weights alone computed once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = exported.run_decompositions()
    return Tracer(graph).made()


class Tracer:
    """Walks a graph of operations."""

    def __init__(self, exported: ExportedProgram) -> None:
        self.exported, self.number = exported, dict[Node, int]()
        self.constants: dict[int, Tensor] = {}
        self.ops: list[Op] = []
        self.inputs: list[int] = []

    def made(self) -> Program:
        held = dict(self.held())
        outputs: list[int] = []
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                place = self.place(node)
                if node.name in held:
                    self.constants[place] = held[node.name].detach()
                else:
                    self.inputs.append(place)
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "output":
                outputs = [self.number[one] for one in node.args[0]]
        used = {ref for op in self.ops for ref in references([op.args, op.named])} | {*outputs}
        constants = {k: v.numpy() for k, v in self.constants.items() if k in used}
        return Program(self.inputs, constants, self.ops, outputs)

    def held(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters, buffers and constants by the names of their placeholders."""
        signature = self.exported.graph_signature
        kept = {**self.exported.state_dict, **self.exported.constants}
        for names in (
            signature.inputs_to_parameters, signature.inputs_to_buffers, signature.inputs_to_lifted_tensor_constants,
        ):  # fmt: skip
            yield from ((placeholder, kept[target]) for placeholder, target in names.items())

    def place(self, node: Node) -> int:
        return self.number.setdefault(node, len(self.number))

    def call(self, node: Node) -> None:
        name = "getitem" if node.target is operator.getitem else str(node.target).split(".")[-2]
        if name in SKIPPED:
            return
        inputs = node.all_input_nodes
        if name in SAME:
            self.number[node] = self.number[inputs[0]]
        elif all(self.number[one] in self.constants for one in inputs) and name != "getitem":
            self.fold(node)
        else:
            value = node.meta["val"]
            one = torch.is_tensor(value)  # else several, of which `getitem` takes one
            shape, dtype = (tuple(value.shape), kind_of(value)) if one else ((), "")
            args, named = self.plain(list(node.args)), {k: self.plain(v) for k, v in node.kwargs.items()}
            named = {k: v for k, v in named.items() if k not in ("layout", "device", "pin_memory", "memory_format")}
            self.ops.append(Op(name, args, named, self.place(node), shape, dtype))

    def fold(self, node: Node) -> None:
        """What depends on constants alone."""
        args, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: self.constants[self.number[one]])
        with torch.no_grad():
            self.constants[self.place(node)] = node.target(*args, **named)  # type: ignore[operator]

    def plain(self, value: Any) -> Any:
        match value:
            case Node():
                return {"$": self.number[value]}
            case list() | tuple():
                return [self.plain(one) for one in value]
            case torch.dtype():
                return str(value).removeprefix("torch.")
            case bool() | int() | float() | str() | None:
                return value
        return None


def kind_of(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def references(value: Any) -> Iterator[int]:
    match value:
        case {"$": int(number)}:
            yield number
        case dict():
            for one in value.values():
                yield from references(one)
        case list():
            for one in value:
                yield from references(one)
