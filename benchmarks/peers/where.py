"""Where the time of PPO on CartPole goes, compiled: `python -m benchmarks.peers.where [--results FILE]`.

For each kind of environment a table of parts: the time spent in each without that in the parts inside it, per 1,024 env
steps (one rollout of 8 slots x 128 and the 16 updates from it), and per call. Beside it, where there is one, the same
call made again and again with nothing between: what it costs when caches hold nothing else. Reading clocks adds about a
third of a microsecond to each call that is timed.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.side_ours import Side
from benchmarks.peers.workloads import WORKLOADS
from benchmarks.versus import machine

WORK = WORKLOADS["ppo-cartpole"]
PHASE = WORK.epochs * WORK.minibatches  # updates from one rollout
ENVS = {
    "torch-native": "env={kind: torch, id: cartpole, slots: 8}",
    "vector": "env={kind: gym, id: CartPole-v1, slots: 8, vector: true}",
    "in process": "env={kind: gym, id: CartPole-v1, slots: 8, workers: 0}",
}
PHASES, WARM = 60, 10
AGAIN = 300  # calls of one thing in a row
JAX = 180_000  # env steps a second of PureJaxRL on the same two cores, environment and training in one program


class Clocks:
    """Own times of methods that call each other."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.last: dict[str, tuple[Callable[..., Any], Any]] = {}
        self.inside: list[float] = []  # per call under way, the time of those in it

    def timed(self, call: Callable[..., Any], label: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            began = time.perf_counter()
            self.inside.append(0.0)
            try:
                return call(*args)
            finally:
                whole, inner = time.perf_counter() - began, self.inside.pop()
                self.spent[label] = self.spent.get(label, 0.0) + whole - inner
                self.calls[label] = self.calls.get(label, 0) + 1
                self.last[label] = call, args
                if self.inside:
                    self.inside[-1] += whole

        return run

    def watch(self, owner: Any, method: str, label: str) -> None:
        if hasattr(owner, method):
            setattr(owner, method, self.timed(getattr(owner, method), label))

    def again(self, label: str) -> float:
        """Seconds of the last call, made again and again."""
        call, args = self.last[label]
        laps = []
        for _ in range(AGAIN):
            began = time.perf_counter()
            call(*args)
            laps.append(time.perf_counter() - began)
        return median(laps)


def watched(side: Side, clocks: Clocks) -> None:
    """Puts clocks around the parts of a run."""
    explorer, learner = side.trainer.source, side.trainer.learner
    agent, env = learner.agent, explorer.env
    slots = getattr(env, "slots", None)
    if slots is not None:
        slots._steps[:] = [clocks.timed(step, "gymnasium's step") for step in slots._steps]
    elif hasattr(env, "env"):
        clocks.watch(env.env, "step", "gymnasium's step")
    for method in ("pace", "step"):
        clocks.watch(env, method, "around gymnasium's step")
    clocks.watch(explorer.noise, "next", "random numbers for acting")
    clocks.watch(explorer.noise, "stretch", "random numbers for acting")
    clocks.watch(agent, "_explore", "acting: a graph")
    clocks.watch(explorer, "fast_walk", "acting and the environment: a graph")
    clocks.watch(explorer, "step", "the walk, and rows of it")
    clocks.watch(agent, "_update", "update: a graph")
    clocks.watch(agent, "_prepare", "advantages: a graph")
    clocks.watch(agent.algo, "plan", "minibatches drawn")
    clocks.watch(learner, "begin", "a phase begun")
    clocks.watch(learner, "step", "around an update")


def table(name: str) -> str:
    side, clocks = Side(WORK, ["run.fast=compile", ENVS[name]]), Clocks()
    side.warm(WARM * PHASE)
    watched(side, clocks)
    side.advance(2 * PHASE)
    clocks.spent.clear()
    clocks.calls.clear()
    began = time.perf_counter()
    side.advance(PHASES * PHASE)
    whole = time.perf_counter() - began
    rest = {"trainer, records and loggers": whole - sum(clocks.spent.values())}
    steps = WORK.slots * WORK.horizon
    lines = [f"{name}: {1e3 * whole / PHASES:.2f} ms per {steps:,} env steps, {steps * PHASES / whole:,.0f} a second"]
    lines += [f"  {'part':<38} {'ms':>7} {'calls':>6} {'us each':>8} {'again and again':>16}"]
    for label, spent in sorted({**clocks.spent, **rest}.items(), key=lambda item: -item[1]):
        calls = clocks.calls.get(label, PHASES)
        alone = "" if "graph" not in label and not label.startswith("gymn") else f"{1e6 * clocks.again(label):.1f}"
        each = f"{calls / PHASES:6.0f} {1e6 * spent / calls:8.1f} {alone:>16}"
        lines.append(f"  {label:<38} {1e3 * spent / PHASES:7.2f} {each}")
    side.trainer.close()
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="a file to write the tables to")
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # one step again and again goes beyond its episode
    limit = 1e3 * WORK.slots * WORK.horizon / JAX
    text = f"{machine('torch', 'gymnasium')}\nPureJaxRL, {JAX:,} env steps a second on both cores: {limit:.1f} ms\n\n"
    text += "\n\n".join(map(table, ENVS)) + "\n"
    print(text, end="")
    if given.results:
        given.results.write_text(text)


if __name__ == "__main__":
    main()
