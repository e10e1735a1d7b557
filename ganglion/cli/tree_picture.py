"""The search tree of a position as a picture."""

from __future__ import annotations

import torch

from ganglion.analysis.pictures import TreeNode, search_tree
from ganglion.cli.human import SavedOpponent
from ganglion.errors import UserError

MOST = 40  # nodes that are drawn, those that were visited most


def picture(against: SavedOpponent, moves: str, out: str) -> str:
    """Draws what the agent searches after some actions; says what it thinks."""
    rules, agent = against.rules, against.agent
    board = rules.start()[None]
    for number in numbers(moves, rules.actions):
        if not bool(rules.legal(board)[0, number]):
            raise UserError(f"--moves: {number} is no legal move after those before it.")
        board, _, ended = rules.play(board, torch.tensor([number]))
        if bool(ended):
            raise UserError("--moves: the game is over after these.")
    noise = agent.algo.neutral(torch.zeros(1, 1, dtype=torch.bool))
    try:
        search = agent.algo.found
    except AttributeError:
        raise UserError("--tree: the agent of this run does not search with rules. Accepted: alphazero.") from None
    with torch.no_grad():
        found = search(rules.show(board), noise._replace(uniform=noise.uniform[0], normal=noise.normal[0]))
    search_tree(nodes(found.tree, rules.actions), rules.text(board[0]), out)
    said = f"the best action is {int(found.action)}, the position is worth {float(found.value):.2f}"
    return f"{out}: {int(found.tree.visits[0, 0])} visits; {said}"


def numbers(moves: str, actions: int) -> list[int]:
    parts = [part.strip() for part in moves.split(",")] if moves else []
    if not all(part.isdecimal() and len(part) < 6 and int(part) < actions for part in parts):
        raise UserError(f"--moves: {moves[:40]!r} should be numbers from 0 to {actions - 1}, as 4,0.")
    return [int(part) for part in parts]


def nodes(tree: object, actions: int) -> list[TreeNode]:
    """Those that were visited most; a node's parent was visited at least as often, and is older."""
    came, visits, value = (x[0].tolist() for x in (tree.came, tree.visits, tree.value))  # type: ignore[attr-defined]
    grown = [i for i in range(len(came)) if i == 0 or visits[i] > 0]
    kept = sorted(sorted(grown, key=lambda i: (-visits[i], i))[:MOST])
    place = {node: k for k, node in enumerate(kept)}
    return [
        TreeNode(
            place[came[i] // actions] if i else -1, came[i] % actions if i else -1, int(visits[i]), float(value[i])
        )
        for i in kept
    ]
