"""Players of two runs of leagues against each other, and how well each plays where a solver knows.

python benchmarks/league_versus.py RUN_A RUN_B --games 400                 both first players
python benchmarks/league_versus.py RUN_A RUN_B --player main --against main-3

Both runs should have the same game and network. Who plays first alternates; both sample, as in training. In connect
four (env: board_turns) also the share of the positions of connect_four.txt where the most likely move keeps the value.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ganglion.core import Past, State, Weights
from ganglion.envs.board_games import rules_of
from ganglion.league.saved_league import SavedLeague
from ganglion.runtime.evaluator import deviation

POSITIONS = Path(__file__).with_name("connect_four.txt")


def keeps_value(saved: SavedLeague, weights: Weights) -> float:
    """The share of solved positions where the most likely move keeps the value."""
    rules, lines = rules_of("connect_four"), [line.split() for line in POSITIONS.read_text().splitlines()]
    boards = []
    for moves, _ in lines:
        board = rules.start()[None]
        for move in moves:
            board, _, _ = rules.play(board, torch.tensor([int(move)]))
        boards.append(board)
    obs: Any = {name: x[None] for name, x in rules.show(torch.cat(boards)).items()}
    algo = saved.source.players[0].agent.algo
    for name, part in algo.acting().items():
        part.restore(State({k.removeprefix(f"{name}/"): x for k, x in weights.tensors.items() if k.startswith(name)}))
    start = Past(algo.model.initial(len(lines)), torch.ones(1, len(lines), dtype=torch.bool))
    with torch.no_grad():
        chosen = algo.exploit(algo.predict(obs, start, algo.neutral(obs["obs"]))).action[0].tolist()
    return sum(str(move) in keep for move, (_, keep) in zip(chosen, lines, strict=True)) / len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, type=Path)
    parser.add_argument("--player", default=None)
    parser.add_argument("--against", default=None)
    parser.add_argument("--games", type=int, default=400)
    args = parser.parse_args()
    first, second = (SavedLeague(folder) for folder in args.runs)
    names = [args.player or first.source.names[0], args.against or second.source.names[0]]
    both = [saved.source.contender(name, saved.at) for saved, name in zip((first, second), names, strict=True)]
    for run, saved, name in zip(args.runs, (first, second), names, strict=True):
        print(f"{run.name} {name}: {saved.at.env_steps:,} env steps, {saved.at.opt_steps:,} updates")
    scores = [game.score for game in first.source.games.play(*both, args.games)]
    won, half = fmean(scores), 1.96 * deviation(scores, lost=1) / len(scores) ** 0.5
    print(
        f"{len(scores)} games: {won:.3f}, 95 % interval {won - half:.3f} to {won + half:.3f}, drawn {scores.count(0.5)}"
    )
    if getattr(first.cfg.env, "id", "") == "connect_four":
        for run, saved, one in zip(args.runs, (first, second), both, strict=True):
            print(f"{run.name}: {keeps_value(saved, one.weights):.1%} of moves keep the value")


if __name__ == "__main__":
    main()
