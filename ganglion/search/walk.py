"""How trees grow: by operations on all nodes at once (tree.py), or walked one by one by compiled code (walk.c), which
on a CPU costs as little as one of those. Inside compiled graphs either is one operation that a compiler does not look
into: fused, hundreds of gathers of each other take minutes to compile."""

from __future__ import annotations

import ctypes
import functools
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import cpp_extension, ops
from ganglion.search.gumbel import Shaken, gumbel_choice
from ganglion.search.puct import puct_choice
from ganglion.search.tree import Dynamics, Outcome, Root, Tree, backed_up, leaf, planted, row_of
from ganglion.torch_private import is_batched

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("walk.c")
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fPIC", "-shared", "-lm")
P, N, D = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
LIBRARY = torch.library.Library("ganglion", "FRAGMENT")


class Way(NamedTuple):
    """A rule as it is followed down a tree."""

    gumbel: bool
    one: float  # c_init, value_scale
    two: float  # c_base, visit_base
    root: list[Tensor]  # which actions are legal; for Gumbel's, all of Shaken


def grow(root: Root, dynamics: Dynamics, simulations: int, way: Way) -> Tree:
    """A tree of so many simulations."""
    tree = planted(root, simulations + 1, lined=not by_code(root.logits))
    descend, backup = bodies(tree, way)
    for number in range(1, simulations + 1):
        row, action = descend(number)
        out = dynamics(ops.map_tree(lambda x, at=row: row_of(x, at), tree.state), action)
        ops.map_tree(lambda kept, x, at=number: kept[:, at].copy_(x), tree.state, out.state)
        backup(number, row, action, out)
    return tree


Descend = Callable[[int], tuple[Tensor, Tensor]]  # of simulation i: where it leaves the tree, and by which action
Backup = Callable[[int, Tensor, Tensor, Outcome], None]


def bodies(tree: Tree, way: Way) -> tuple[Descend, Backup]:
    """The two halves of a simulation, around what the dynamics say."""
    if torch.compiler.is_compiling():
        numbers = [*tree[1:]]
        rule = way.root, way.gumbel, way.one, way.two
        return (
            lambda number: torch.ops.ganglion.search_descend(numbers, *rule, number),
            lambda number, row, action, out: torch.ops.ganglion.search_backup(*numbers, number, row, action, *out[1:]),
        )
    if not tree.lines.shape[-1]:
        walk = TreeWalk(tree, way)
        return walk.descend, walk.backup
    return (
        lambda number: leaf(tree, choice(tree, way, number)),
        lambda number, row, action, out: backed_up(tree, number, row, action, out),
    )


def choice(tree: Tree, way: Way, number: int) -> Tensor:
    """Which action a simulation would take at every node, [B, N]."""
    if way.gumbel:
        return gumbel_choice(tree, number, way.one, way.two, Shaken(*way.root))
    return puct_choice(tree, way.one, way.two, *way.root)


# ------------------------------------------------------------ as operations of graphs


def search_descend(
    tree: list[Tensor], root: list[Tensor], gumbel: bool, one: float, two: float, number: int
) -> tuple[Tensor, Tensor]:
    return bodies(Tree((), *tree), Way(gumbel, one, two, root))[0](number)


def search_backup(*given: Any) -> None:
    fields = len(Tree._fields) - 1
    number, row, action, *out = given[fields:]
    tree = Tree((), *given[:fields])
    bodies(tree, Way(False, 0.0, 0.0, []))[1](number, row, action, Outcome((), *out))


def defined() -> None:
    """Tells torch of them."""
    names = zip("abcdefghijkl", Tree._fields[1:], strict=True)
    changed = ", ".join(f"Tensor({letter}!) {name}" for letter, name in names)
    given = "int number, Tensor row, Tensor action, Tensor pays, Tensor fades, Tensor prior, Tensor worth"
    way = "Tensor[] tree, Tensor[] root, bool gumbel, float one, float two, int number"
    LIBRARY.define(f"search_descend({way}) -> (Tensor, Tensor)")
    LIBRARY.define(f"search_backup({changed}, {given}) -> ()")
    for name, body, shapes in (
        ("search_descend", search_descend, lambda tree, *_: tuple(tree[5].new_empty(len(tree[5])) for _ in range(2))),
        ("search_backup", search_backup, lambda *_: None),
    ):
        LIBRARY.impl(name, body, "CompositeExplicitAutograd")
        torch.library.register_fake(f"ganglion::{name}", shapes, lib=LIBRARY)


defined()


# ------------------------------------------------------------ by compiled code


@functools.cache
def code() -> Any:
    """The functions of walk.c, or None where they cannot be had."""
    try:
        library = ctypes.CDLL(str(cpp_extension.built(SOURCE, FLAGS, cpp_extension.folder())))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        log.info("a search goes without compiled walks: %s", error)
        return None
    library.descend.argtypes, library.descend.restype = [P, N, N, N, N, N, N, D, D, P, P, P], None
    library.backup.argtypes, library.backup.restype = [P, N, N, N, N, P, P, P, P, P, P], None
    return library


def there() -> bool:
    """Whether there is compiled code: one answer for a whole graph."""
    return code() is not None


there._dynamo_marked_constant = True  # type: ignore[attr-defined]


def by_code(x: Tensor) -> bool:
    """Whether a search of such numbers is walked by compiled code."""
    single = torch.compiler.is_compiling() or not is_batched(x)
    return single and not x.is_cuda and x.dtype == torch.float32 and there()


class TreeWalk:
    """One search, as walk.c's Search has it."""

    def __init__(self, tree: Tree, way: Way) -> None:
        self.kept = [x.contiguous() for x in (*tree[1:-1], *way.root)]  # as long as their addresses are used
        self.search = (ctypes.c_void_p * 14)(*(x.data_ptr() for x in self.kept))
        self.sizes = tree.logits.shape
        self.rule = int(way.gumbel), way.root[2].shape[1] if way.gumbel else 0, way.one, way.two
        self.score = torch.empty(self.sizes[2])

    def descend(self, number: int) -> tuple[Tensor, Tensor]:
        """Where simulation `number` leaves the tree: rows b * N + node, and actions, [B] each."""
        row = torch.empty(self.sizes[0], dtype=torch.int64)
        action, (gumbel, simulations, one, two) = torch.empty_like(row), self.rule
        made = self.score.data_ptr(), row.data_ptr(), action.data_ptr()
        code().descend(self.search, *self.sizes, gumbel, number, simulations, one, two, *made)
        return row, action

    def backup(self, number: int, row: Tensor, action: Tensor, out: Outcome) -> None:
        """Adds a node below each row, and takes its value to the root."""
        lying = [x.contiguous() for x in (row, action, *out[1:])]
        code().backup(self.search, *self.sizes, number, *(x.data_ptr() for x in lying))
