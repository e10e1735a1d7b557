"""How well a run plays connect four: the share of its moves that keep the value of solved positions.

python benchmarks/connect_four.py RUN                       positions of connect_four.txt
python benchmarks/connect_four.py --make                    writes them anew; needs the package bitbully
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch

from ganglion.envs.board_games import rules_of
from ganglion.runtime.run import load_agents

FILE = Path(__file__).with_name("connect_four.txt")


def make(count: int = 1_000) -> None:
    """Positions of random games after 8 to 30 moves where some move loses value, and the moves that keep it."""
    from bitbully import BitBully, Board  # type: ignore[import-not-found]

    solver, dice, found = BitBully(), random.Random(0), dict[str, str]()
    while len(found) < count:
        board, moves = Board(), ""
        for _ in range(dice.randint(8, 30)):
            legal = [c for c in board.legal_moves() if not board.can_win_next(c)]
            if not legal or board.is_game_over():
                break
            move = dice.choice(legal)
            board.play(move)
            moves += str(move)
        if len(moves) < 8 or board.is_game_over():
            continue
        signs = {move: (score > 0) - (score < 0) for move, score in solver.score_all_moves(board).items()}
        keep = [move for move, sign in signs.items() if sign == max(signs.values())]
        if len(keep) < len(signs):
            found[moves] = "".join(map(str, sorted(keep)))
    FILE.write_text("".join(f"{moves} {keep}\n" for moves, keep in found.items()))


def score(folder: str) -> float:
    """The share of positions where its move keeps the value."""
    rules, lines = rules_of("connect_four"), [line.split() for line in FILE.read_text().splitlines()]
    boards = []
    for moves, _ in lines:
        board = rules.start()[None]
        for move in moves:
            board, _, _ = rules.play(board, torch.tensor([int(move)]))
        boards.append(board)
    agent = load_agents(folder, "last")[1][0][1]
    obs = {name: x.to(agent.device) for name, x in rules.show(torch.cat(boards)).items()}
    chosen = agent.predict(obs, agent.start(len(lines))).action.tolist()
    return sum(str(move) in keep for move, (_, keep) in zip(chosen, lines, strict=True)) / len(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["--make"]:
        make()
    else:
        print(f"{sys.argv[1]}: {score(sys.argv[1]):.1%} of moves keep the value")
