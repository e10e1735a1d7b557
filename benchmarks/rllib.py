"""Explorers elsewhere against RLlib: the same network, fragments, environments and number of explorers, in turns.

    python -m benchmarks.peers.install rllib                   once, in an environment of its own
    python -m benchmarks.rllib                                 IMPALA and APPO on CartPole, and the start
    python -m benchmarks.rllib impala-pong --seconds 20        one of them
    python -m benchmarks.rllib start --turns 5                 from the command to the first update, beside ray.init

Both sides are warm and take turns A B B A of some seconds; while one is measured the other waits, its explorers with
it. A ratio above 1 says that Ganglion is faster; `cpu` is that by processor time, of all processes of a side.
Asynchronous PPO is `ppo` with explorers elsewhere and one pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.fleet import first_update, ray_alone
from benchmarks.peers.install import DEFAULT, ROOT
from benchmarks.versus import Desk, Worker, compare, machine, median, number, spent_by_all

SIZES: dict[str, dict[str, Any]] = {
    "impala-cartpole": {"slots": 16, "horizon": 32, "hidden": [64, 64], "explorers": 2},
    "appo-cartpole": {"slots": 16, "horizon": 32, "hidden": [64, 64], "explorers": 2},
    "impala-pong": {"slots": 8, "horizon": 32, "hidden": [512], "explorers": 2},
}
AROUND = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


# ------------------------------------------------------------ our side


def settings(name: str) -> list[str]:
    size, (algo, env) = SIZES[name], name.split("-")
    kind = {"impala": "impala", "appo": "ppo"}[algo]
    world = {"cartpole": "{kind: gym, id: CartPole-v1", "pong": "{kind: atari, id: pong"}[env]
    given = [f"algo={kind}", f"env={world}, slots: {size['slots']}}}", f"algo.horizon={size['horizon']}"]
    given += ["algo.epochs=1", "algo.minibatches=1", "run.mode=ray", f"fleet.explorers={size['explorers']}"]
    given += ["train.budget=1000M steps", "eval=never", "save=never", "log=[]", "run.device=cpu"]
    given += ["run.swap=300"]  # what is compiled is so before anything is measured
    if env == "pong":
        return [*given, "algo.shared=true", "algo.net.activation=relu", "algo.processor.reward=sign"]
    return [*given, f"algo.net.hidden={size['hidden']}", "algo.shared=false"]


def serve(name: str, more: list[str]) -> None:
    """The child of our side: goes on for as many seconds as it is asked to."""
    from ganglion.config.files import load
    from ganglion.runtime.build import build

    desk, made = Desk(spent_by_all), build(load(None, [*settings(name), *more]))
    stream = made()

    def go_on(seconds: float) -> float:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            next(stream)
        return time.perf_counter() - began

    while not made.learner.agent.engine.on:
        next(stream)
    go_on(20)
    desk.ready()
    while (seconds := desk.request()) is not None:
        go_on(0.5)  # what was made ahead while the other side ran
        before = made.at.env_steps
        took = go_on(seconds)
        desk.answer(took, {"env_steps": made.at.env_steps - before})
    made.close()


# ------------------------------------------------------------ in turns


def theirs(name: str, peers: Path, *more: str) -> list[str]:
    algo, env = name.split("-")
    python = str(peers / "rllib" / "bin" / "python")
    return [python, "-m", "benchmarks.peers.side_rllib", algo, env, json.dumps(SIZES[name]), *more]


def measure(name: str, args: argparse.Namespace) -> None:
    ours = [sys.executable, "-m", "benchmarks.rllib", "serve", name, *args.ours]
    with Worker("ganglion", ours, AROUND) as a, Worker("rllib", theirs(name, args.peers), AROUND) as b:
        got = compare(a, b, args.seconds, pairs=args.turns)
    print(f"{name}: {number(got.a)} against {number(got.b)} env steps/s, ratio {got.ratio}, cpu {got.cpu}", flush=True)


def start(args: argparse.Namespace) -> None:
    """From the command to the first update."""
    alone, ours, rllib = [], [], []
    for _ in range(args.turns):
        alone.append(ray_alone(2))
        ours.append(first_update(2, "cartpole/impala"))
        began = time.time()
        with Worker("rllib", theirs("impala-cartpole", args.peers, "first"), AROUND):
            rllib.append(time.time() - began)
    line = f"start: ray.init {median(alone):.2f} s, Ganglion's first update {median(ours):.2f} s, "
    print(f"{line}RLlib's {median(rllib):.2f} s", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*SIZES, "start", []], default=[])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--peers", type=Path, default=DEFAULT)
    parser.add_argument("--ours", nargs="*", default=[], metavar="PATH=VALUE")
    args = parser.parse_args()
    args.peers = args.peers.resolve()
    print(machine("torch", "ray", "gymnasium"), flush=True)
    for part in args.parts or ["impala-cartpole", "appo-cartpole", "start"]:
        start(args) if part == "start" else measure(part, args)


if __name__ == "__main__":
    main()
