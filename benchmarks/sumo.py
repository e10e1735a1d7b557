"""Traffic lights: agents beside a fixed programme and the longest queue first, and how fast libsumo is stepped.

python -m benchmarks.sumo score single RUN RUN RUN --out docs/results/sumo-single.txt
python -m benchmarks.sumo speed --out docs/results/sumo-speed.txt
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

from ganglion.envs.sumo import SumoConfig, SumoGame, libsumo, yellow
from ganglion.envs.sumo_controllers import CONTROLLERS, mean_waiting

SEEDS = range(1_000, 1_010)  # none of which training has seen


def of_agent(run: str) -> Any:
    """A controller that asks a trained agent."""
    import ganglion

    agent = ganglion.load(run)

    def choose(game: SumoGame) -> dict[str, int]:
        shown = game.shown()
        return {name: int(agent.act(obs)) for name, obs in shown.items()}

    return choose


def interval(values: list[float]) -> str:
    """Mean and 95 % interval (normal)."""
    half = 1.96 * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):8.2f} ± {half:.2f}"


def score(network: str, runs: list[str], out: Path) -> None:
    cfg = SumoConfig(id=network)
    lines = [f"# {network}: seconds that a car stands in an hour of traffic, mean of {len(SEEDS)} seeds, 95 % interval"]
    for name, controller in CONTROLLERS.items():
        lines.append(f"{name:<16}{interval([mean_waiting(cfg, controller, seed) for seed in SEEDS])}")
    for number, run in enumerate(runs):
        controller = of_agent(run)
        lines.append(f"agent, seed {number:<4}{interval([mean_waiting(cfg, controller, seed) for seed in SEEDS])}")
    print("\n".join(lines))
    out.write_text("\n".join(lines) + "\n")


def speed(out: Path, seconds: int = 1_800) -> None:
    """Processor time of half an hour by the game, and by a bare loop that sets the same colours, in turns."""
    game = SumoGame(SumoConfig(id="single", seconds=seconds))
    took: dict[str, list[float]] = {"game": [], "bare loop": []}
    for seed in range(9):
        dice, colours = np.random.default_rng(seed), []
        game.reset(seed)
        began = time.process_time()
        for _ in range(seconds // 5):
            was = game.phase[0]
            game.step({"t": dice.integers(4)})
            colours.append((was, game.phase[0]))
        took["game"].append(time.process_time() - began)
        game.start(seed)
        took["bare loop"].append(bare_loop(libsumo(), game.network.lights[0].greens, colours))
    game.close()
    ratio = median(b / a for a, b in zip(*took.values(), strict=True))
    lines = [f"# {seconds} simulated seconds of one intersection, seconds of processor time, median of 9, in turns"]
    for name, times in took.items():
        lines.append(f"{name:<12}{median(times):.3f}   {seconds / median(times):,.0f} simulated seconds a second")
    lines.append(f"bare loop / game, paired: {ratio:.2f}")
    print("\n".join(lines))
    out.write_text("\n".join(lines) + "\n")


def bare_loop(sim: Any, greens: tuple[str, ...], colours: list[tuple[int, int]]) -> float:
    """Processor time of the same traffic without anybody who looks at it."""
    set_colours = sim.trafficlight.setRedYellowGreenState
    set_colours("t", greens[0])
    began = time.process_time()
    for was, now in colours:
        if was != now:
            set_colours("t", yellow(greens[was], greens[now]))
        sim.simulationStep()
        sim.simulationStep()
        set_colours("t", greens[now])
        for _ in range(3):
            sim.simulationStep()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("score", "speed"))
    parser.add_argument("network", nargs="?", default="single")
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.what == "score":
        score(options.network, options.runs, options.out)
    else:
        speed(options.out)


if __name__ == "__main__":
    main()
