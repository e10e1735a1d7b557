"""Trees of B slots as flat tensors: node 0 is the root, node i what simulation i found, for all slots at once.

As tensors no loop walks a tree. Every node knows the edge that would be taken there, and which nodes are above it: the
youngest with no stray edge above is where a simulation leaves the tree. And it knows what it is worth to each of those
above (the rewards between them, and by how much its value is discounted there), so that one product takes a value back
to all of them. Shapes never depend on what was found, and nothing waits for the device. On a CPU walk.c goes
the same ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.torch_private import is_batched


class Root(NamedTuple):
    """What a search starts from; `state` is whatever the dynamics take, a tree of tensors [B, ...]."""

    state: Any
    logits: Tensor  # [B, A] of the prior
    value: Tensor  # [B] for whoever moves there


class Outcome(NamedTuple):
    """What follows an action."""

    state: Any
    reward: Tensor  # [B]
    discount: Tensor  # [B]: 0 after an ending, negative where the other player moves next
    logits: Tensor  # [B, A]; illegal actions at the lowest finite number
    value: Tensor  # [B] for whoever moves there


Dynamics = Callable[[Any, Tensor], Outcome]  # of states [B, ...] and actions [B] int64


class Tree(NamedTuple):
    """N nodes and their A edges each, of every slot. An edge has the number node * A + action; N * A is none."""

    state: Any  # [B, N, ...]
    logits: Tensor  # [B, N, A]
    probs: Tensor  # [B, N, A]
    raw: Tensor  # [B, N] values as predicted
    value: Tensor  # [B, N] means over visits
    visits: Tensor  # [B, N]
    came: Tensor  # [B, N] int64: the edge that leads here
    reward: Tensor  # [B, N] of that edge
    discount: Tensor  # [B, N] of that edge
    child: Tensor  # [B, N * A + 1] int64: the node an edge leads to, 0 where it has not been taken
    edge_visits: Tensor  # [B, N * A + 1]
    edge_q: Tensor  # [B, N * A + 1] reward + discount * value of the child
    lines: Tensor  # [B, N, 3, N]: of ancestors m of n: 1; the rewards from m to n; the discount of n's value at m

    @property
    def actions(self) -> int:
        return self.logits.shape[-1]

    def edges(self, x: Tensor) -> Tensor:
        """Numbers of edges as [B, N, A]."""
        return x[:, :-1].unflatten(1, self.logits.shape[1:])

    @property
    def counts(self) -> Tensor:
        """How often each edge was taken, [B, N, A]."""
        return self.edges(self.edge_visits)

    @property
    def q(self) -> Tensor:
        """What each edge is worth, [B, N, A]; 0 where it was never taken."""
        return self.edges(self.edge_q)


class Found(NamedTuple):
    """What a search found at the root."""

    weights: Tensor  # [B, A] a better policy than the prior: what a network learns
    action: Tensor  # [B] the best action
    value: Tensor  # [B] of the root
    visits: Tensor  # [B, A]
    q: Tensor  # [B, A]
    tree: Tree


def planted(root: Root, nodes: int, lined: bool) -> Tree:
    """A tree of its root; `lined`: with what is needed to search it as tensors."""
    logits, actions = root.logits, root.logits.shape[-1]
    new = logits.new_zeros

    def room(x: Tensor) -> Tensor:
        kept = new(x.shape[0], nodes, *x.shape[1:], dtype=x.dtype)
        kept[:, 0] = x
        return kept

    slots = logits.shape[0]
    none = new(slots, nodes, dtype=torch.int64) + nodes * actions
    child = new(slots, nodes * actions + 1, dtype=torch.int64)
    counts, q = new(*child.shape), new(*child.shape)
    lines = new(slots, nodes, 3, nodes if lined else 0)
    if lined:
        lines[:, 0, 0, 0] = 1.0
        lines[:, 0, 2, 0] = 1.0
    raw, value, visits = room(root.value), room(root.value), room(torch.ones_like(root.value))
    reward, discount = new(slots, nodes), new(slots, nodes)
    state, probs = ops.map_tree(room, root.state), room(logits.softmax(-1))
    return Tree(state, room(logits), probs, raw, value, visits, none, reward, discount, child, counts, q, lines)


def row_of(x: Tensor, row: Tensor) -> Tensor:
    """Rows b * N + node of what nodes have: [B, N, ...], [B] -> [B, ...]."""
    return x.flatten(0, 1).index_select(0, row)


def leaf(tree: Tree, choice: Tensor) -> tuple[Tensor, Tensor]:
    """From the root along chosen edges to the first that was never taken: the row of its node, and its action."""
    (slots, nodes), actions = choice.shape, tree.actions
    own = torch.arange(nodes, device=choice.device)
    upper = (tree.came // actions).clamp(max=nodes - 1)
    chosen = (choice.gather(1, upper) + upper * actions == tree.came) | (own == 0)
    strayed = (tree.lines[:, :, 0] * (~chosen).to(tree.lines.dtype)[:, None]).sum(-1)  # ancestors nobody goes to
    node = torch.where(chosen & (strayed == 0), own, 0).amax(-1)  # a node is younger than those above it
    return node + torch.arange(slots, device=choice.device) * nodes, ops.pick(choice, node)


def backed_up(tree: Tree, number: int, row: Tensor, action: Tensor, out: Outcome) -> None:
    """Adds a node below a row, and takes its value back to all nodes above it."""
    slots, nodes = tree.value.shape
    edge = (row - torch.arange(slots, device=row.device) * nodes) * tree.actions + action
    kept = tree.came, tree.reward, tree.discount, tree.logits, tree.probs, tree.raw
    for to, x in zip(kept, (edge, *out[1:4], out.logits.softmax(-1), out.value), strict=True):
        to[:, number] = x
    put_at(tree.child, edge[:, None], torch.full_like(edge[:, None], number))
    reward, discount = out.reward[:, None], out.discount[:, None]
    above, gained, passed = row_of(tree.lines, row).unbind(1)
    line = torch.stack((above, gained + passed * reward, passed * discount), 1)
    line[:, 0, number] = 1.0
    line[:, 2, number] = 1.0
    tree.lines[:, number] = line
    above, gained, passed = line.unbind(1)
    tree.visits.add_(above)
    tree.value.add_(above * (gained + passed * out.value[:, None] - tree.value) / tree.visits.clamp(min=1))
    put_at(tree.edge_visits, tree.came, tree.visits)
    put_at(tree.edge_q, tree.came, tree.reward + tree.discount * tree.value)


def put_at(to: Tensor, where: Tensor, x: Tensor) -> None:
    """`to.scatter_`; that of several models at once would be computed one by one."""
    if is_batched(to):
        to.copy_(to.scatter(1, where, x))
    else:
        to.scatter_(1, where, x)
