"""K runs trained together against the same runs one after the other: PPO on CartPole, in turns A B B A.

    python benchmarks/seeds.py                                       # two cores: 16 runs together on two threads
    python benchmarks/seeds.py --device cuda --fast auto             # one GPU: aim 1.5x of one captured run

Each side is a process of its own and trains in steady state: functions are compiled or captured before the clock
starts, evaluations and checkpoints are off. One run is measured and stands for each of the K: they do the same work,
and starting each would cost what is not counted here. Rows are env steps per second over all runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import versus

SETTINGS = ["algo=ppo", "algo.horizon=128", "algo.epochs=4", "algo.minibatches=4", "train.budget=1000M steps",
            "eval=never", "save=never", "log={every: 1000M steps, writers: [jsonl]}"]  # fmt: skip
WORLDS = {
    "torch": "env={kind: torch, id: cartpole, slots: 8}",
    "gym": "env={kind: gym, id: CartPole-v1, slots: 8, workers: 0}",
}
ROLLOUT = 8 * 128


def side(asked: argparse.Namespace) -> None:
    """A worker: `run n` is n rollouts of each of its runs, and the updates that follow them."""
    from ganglion import load_config
    from ganglion.runtime.run import Run
    from ganglion.runtime.seeds import Seeds

    where = Path(tempfile.mkdtemp())
    own = [WORLDS[asked.world], f"run.device={asked.device}", f"run.fast={asked.fast}"]
    own += [f"run.threads={asked.threads if asked.side == 'together' else asked.threads_alone}", *asked.words]
    count = asked.seeds if asked.side == "together" else 1
    configs = [load_config(None, [*SETTINGS, *own, f"run.seed={k}", f"run.dir={where / str(k)}"]) for k in range(count)]
    seeds = Seeds(configs) if count > 1 else None
    runs = seeds.runs if seeds is not None else [Run.create(configs[0])]
    stream = seeds.stream() if seeds is not None else runs[0].stream()

    def counts() -> dict[str, float]:
        at = [run.trainer.at for run in runs]
        return {"env_steps": sum(one.env_steps for one in at), "updates": sum(one.opt_steps for one in at)}

    def work(rollouts: int) -> dict[str, float]:
        before, wanted = counts(), counts()["updates"] + rollouts * 16 * count
        while counts_updates() < wanted:
            next(stream)
        if asked.device != "cpu":
            import torch

            torch.cuda.synchronize()
        return {name: value - before[name] for name, value in counts().items()}

    def counts_updates() -> float:
        return runs[-1].trainer.at.opt_steps * count  # the last one moves last

    work(6)  # compiled, or captured: a function is recorded in its third call
    versus.serve(work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="path=value", help="settings of both sides")
    parser.add_argument("--seeds", type=int, default=16, metavar="K")
    parser.add_argument("--world", choices=WORLDS, default="torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--fast", default="compile", help="run.fast of both sides")
    parser.add_argument("--threads", type=int, default=2, help="of the runs together")
    parser.add_argument("--threads-alone", type=int, default=1)
    parser.add_argument("--rollouts", type=int, default=8, help="of each run, in one turn of the runs together")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument(
        "--aim", type=float, help="the most that all may take, in times of K runs (0.6), or of one (GPU: 1.5)"
    )
    parser.add_argument("--side", choices=["together", "alone"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        side(asked)
        return 0
    told = [argument for argument in sys.argv[1:] if argument not in ("--side",)]
    command = [sys.executable, __file__, *told, "--side"]
    with versus.Worker("together", [*command, "together"]) as a, versus.Worker("alone", [*command, "alone"]) as b:
        got = versus.compare(a, b, (asked.rollouts, asked.rollouts * (4 if asked.device == "cpu" else 1)), asked.pairs)
    each = asked.seeds / got.ratio.mean
    bounds = sorted((asked.seeds / got.ratio.low, asked.seeds / got.ratio.high))
    print(versus.machine("ganglion", "torch", "numpy"))
    print(f"PPO CartPole ({asked.world}, {asked.device}, {asked.fast}), {asked.seeds} runs, {got.ratio.pairs} pairs")
    print(f"together {versus.number(got.a)} env steps/s on {asked.threads} threads, alone {versus.number(got.b)}")
    print(f"all together take {each:.2f} [{bounds[0]:.2f}, {bounds[1]:.2f}] times one run,")
    share = asked.seeds
    print(f"that is {each / share:.2f} [{bounds[0] / share:.2f}, {bounds[1] / share:.2f}] times all of them in turn")
    print(f"by processor time: {asked.seeds / got.cpu.mean / share:.2f} times all of them in turn")
    of_one = asked.device != "cpu"
    aim, most = asked.aim or (1.5 if of_one else 0.6), bounds[1] if of_one else bounds[1] / share
    verdict = "reached" if most <= aim else "MISSED"
    print(f"aim: at most {aim:g} times {'one run' if of_one else 'all in turn'}: {verdict}")
    return 0 if most <= aim else 1


if __name__ == "__main__":
    sys.exit(main())
