"""A tree as objects, searched in Python and float64: slow, and easy to compare with the papers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, log, sqrt

from tests.search.world import Case, tables


@dataclass
class Node:
    """A state of one slot, with what was found below it."""

    state: int
    logits: list[float]
    value: float
    reward: float = 0.0
    discount: float = 1.0
    returns: list[float] = field(default_factory=list)
    children: dict[int, Node] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return sum(self.returns) / len(self.returns)

    def q(self, action: int) -> float:
        child = self.children[action]
        return child.reward + child.discount * child.mean

    def count(self, action: int) -> int:
        return len(self.children[action].returns) if action in self.children else 0


def softmax(x: list[float]) -> list[float]:
    weights = [exp(max(a - max(x), -700.0)) for a in x]
    return [w / sum(weights) for w in weights]


def puct(node: Node, c_init: float = 1.25, c_base: float = 19_652.0) -> list[float]:
    """Schrittwieser et al. 2020, appendix B, values between the least and largest of the node and its children."""
    n, prior = len(node.returns), softmax(node.logits)
    known = [node.mean, *(node.q(a) for a in node.children)]
    width = max(max(known) - min(known), 1e-8)
    bonus = sqrt(n) * (c_init + log((n + c_base + 1) / c_base))
    scaled = [(node.q(a) - min(known)) / width if a in node.children else 0.0 for a in range(len(prior))]
    return [scaled[a] + prior[a] * bonus / (1 + node.count(a)) for a in range(len(prior))]


def visits(case: Case, slot: int) -> list[int]:
    """How often each action of the root is taken under PUCT."""
    t = tables(case)

    def node(state: int, reward: float = 0.0, discount: float = 1.0) -> Node:
        value = float(t.value[slot, state])
        return Node(state, t.logits[slot, state].tolist(), value, reward, discount, [value])

    root = node(0)
    for _ in range(case.simulations):
        path = [root]
        while True:
            at = path[-1]
            scores = puct(at)
            allowed = [a for a in range(case.actions) if at is not root or t.legal[slot, 0, a]]
            action = max(allowed, key=lambda a: scores[a])
            if action not in at.children:
                break
            path.append(at.children[action])
        edge = slot, at.state, action
        at.children[action] = new = node(int(t.after[edge]), float(t.reward[edge]), float(t.discount[edge]))
        worth = new.value
        for parent, child in zip(reversed(path), reversed([*path[1:], new]), strict=True):
            worth = child.reward + child.discount * worth
            parent.returns.append(worth)
    return [root.count(a) for a in range(case.actions)]
