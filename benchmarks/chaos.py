"""Kills workers of a pool while PPO trains on them, and accounts for every row.

    python benchmarks/chaos.py                     two minutes of kills, then half a minute of each other fault
    python benchmarks/chaos.py --seconds 10        the same, shorter

Two runs of the same config take turns of a few seconds, so that whatever else the machine does meets both: one is
disturbed (a random worker of four is killed every 5 s), one is not. Afterwards every row that training was given is
compared with CartPole simulated anew from its seed and the actions taken: a row that was lost, doubled or out of place
would not match. The other faults happen inside an environment, on demand: it hangs, returns NaN or a wrong shape, or
leaks.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

SLOTS, WORKERS = 8, 4
KINDS = ("kill", "hang", "nan", "shape", "leak")
HOARD: list[bytearray] = []


class Chaotic(CartPoleEnv):
    """CartPole that does what a file says, once."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.trigger = os.path.join(folder, "trigger")

    def step(self, action: Any) -> Any:
        taken = super().step(action)
        if not os.access(self.trigger, os.F_OK):
            return taken
        try:
            with open(self.trigger) as file:
                kind = file.read()
            os.unlink(self.trigger)
        except OSError:  # another was quicker
            return taken
        if kind == "hang":
            time.sleep(3600)
        if kind == "leak":
            HOARD.append(bytearray(b"x") * 400_000_000)
        obs = {"nan": taken[0] * np.nan, "shape": taken[0][:2]}.get(kind, taken[0])
        return obs, *taken[1:]


@dataclass
class Trial:
    """A run that is advanced a few seconds at a time, and all the rows it was given."""

    folder: Path
    disturbed: bool
    timeout: float
    rows: list[Any] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        from ganglion import ops
        from ganglion.config import RunConfig
        from ganglion.runtime.run import Run

        self.folder.mkdir(parents=True)
        env = {
            "kind": "gym", "id": "Chaotic-v0", "slots": SLOTS, "workers": WORKERS, "time_limit": 500,
            "options": {"folder": str(self.folder)}, "timeout": self.timeout, "max_memory": 300.0, "max_failures": 1000,
        }  # fmt: skip
        never = {"eval": "never", "save": "never", "log": {"every": "1000k steps", "writers": []}}
        raw = {"algo": {"kind": "ppo"}, "env": env, "train": {"budget": "1000M steps"}, **never}
        self.run = Run.create(
            RunConfig.model_validate({**raw, "run": {"dir": str(self.folder / "run"), "device": "cpu"}})
        )
        self.stream = self.run.stream()
        buffer = self.run.trainer.learner.buffer
        push = buffer.push
        buffer.push = lambda rows, *rest: (self.rows.extend(ops.unstack(rows)), push(rows, *rest))[1]
        next(self.stream)  # the first reset

    @property
    def pool(self) -> Any:
        return self.run.trainer.source.env.pool  # type: ignore[attr-defined]

    def advance(self, seconds: float, kind: str, dice: random.Random) -> None:
        """Trains for so long; somewhere in the middle something happens, if it is to."""
        began, before = time.perf_counter(), self.run.trainer.at.env_steps
        if self.disturbed:  # by a thread, so that it may happen inside a step
            threading.Timer(seconds * dice.uniform(0.1, 0.6), self.disturb, (kind, dice)).start()
        while time.perf_counter() < began + seconds:
            next(self.stream)
        self.rates.append((self.run.trainer.at.env_steps - before) / (time.perf_counter() - began))

    def disturb(self, kind: str, dice: random.Random) -> None:
        if kind == "kill":
            os.kill(dice.choice(self.pool.worker_processes.pids()), signal.SIGKILL)
            return
        (self.folder / "written").write_text(kind)
        (self.folder / "written").rename(self.folder / "trigger")

    def settle(self) -> None:
        """Trains on until what was asked for has happened, then ends."""
        until = time.perf_counter() + 30
        while (self.folder / "trigger").exists() and time.perf_counter() < until:
            next(self.stream)
        self.stream.close()


def account(trial: Trial) -> dict[str, int]:
    """Compares every row with a simulation of its own; counts what does not match, and what was lost on the way."""
    from ganglion.envs.seeds import episode_seed
    from ganglion.runtime.randomness import derive

    obs = np.stack([row.obs.numpy() for row in trial.rows])
    action = np.stack([row.action.numpy() for row in trial.rows])
    valid, ended, truncated = (
        np.stack([getattr(row, name).numpy() for row in trial.rows]) for name in ("valid", "terminated", "truncated")
    )
    seed = derive(trial.run.cfg.run.seed, "env")
    wrong = episodes = cut = lost = 0
    for slot in range(SLOTS):
        world, episode, t, length = CartPoleEnv(), 0, 0, 0
        seen = world.reset(seed=episode_seed(seed, slot, 0))[0]
        while t < len(obs):
            wrong += not np.array_equal(obs[t, slot], seen)
            over = ended[t, slot] or truncated[t, slot]
            if truncated[t, slot] and not valid[t, slot]:  # the action in flight was lost with its episode
                lost += 1
                cut += 1
            else:
                wrong += not valid[t, slot]
                seen, _, fell, _, _ = world.step(int(action[t, slot]))
                length += 1
                wrong += bool(fell) != bool(ended[t, slot])
            t += 1
            if over:  # a dead row with the last observation, then the next episode
                again = True
                while again:  # once more where the worker was lost while it began an episode, which is then left out
                    if t < len(obs):
                        wrong += bool(valid[t, slot]) or not np.array_equal(obs[t, slot], seen)
                    again = t < len(obs) and bool(truncated[t, slot])
                    t, episode, episodes, cut = t + 1, episode + 1, episodes + 1, cut + again
                length = 0
                seen = world.reset(seed=episode_seed(seed, slot, episode))[0]
    return {"rows": len(obs) * SLOTS, "wrong": wrong, "episodes": episodes, "cut": cut, "lost": lost}


def chaos(kind: str, seconds: float, turn: float, folder: Path, timeout: float = 60.0) -> dict[str, Any]:
    """One sort of disturbance for so long, against a run without any; the two take turns."""
    gymnasium.register("Chaotic-v0", "benchmarks.chaos:Chaotic")
    dice = random.Random(kind)
    trials = [Trial(folder / f"{kind}-{name}", name == "disturbed", timeout) for name in ("disturbed", "calm")]
    try:
        for _ in range(max(round(seconds / turn), 1)):
            for trial in trials:
                trial.advance(turn, kind, dice)
        for trial in trials:
            trial.settle()
        return result(*trials)
    finally:
        for trial in trials:
            trial.run.close()
        gymnasium.registry.pop("Chaotic-v0")


def result(disturbed: Trial, calm: Trial) -> dict[str, Any]:
    pool, faults = disturbed.pool, disturbed.run.trainer.source.faults
    return {
        **account(disturbed),
        "acknowledged": pool.rows_acknowledged,
        "failures": faults.count,
        "kinds": dict(faults.kinds),
        "replaced": sorted(pool.replaced),
        "in_flight": pool.rows_in_flight,
        "reported_lost": faults.rows_lost,
        "calm_wrong": account(calm)["wrong"],
        "calm_failures": calm.run.trainer.source.faults.count,
        "rate": sum(disturbed.rates) / len(disturbed.rates),
        "calm_rate": sum(calm.rates) / len(calm.rates),
        "ratio": median(a / b for a, b in zip(disturbed.rates, calm.rates, strict=True)),
    }


def told(kind: str, result: dict[str, Any], turn: float) -> list[str]:
    replaced, flight, lost = result["replaced"], result["in_flight"], result["lost"]
    quick = f"median {median(replaced):.3f} s, 95th percentile {np.percentile(replaced, 95):.3f} s" if replaced else "-"
    share = f"{result['rate'] / result['calm_rate']:.3f} of it (median of turns {result['ratio']:.3f})"
    lines = {
        "rows acknowledged": f"{result['acknowledged']:,}; given to training {result['rows']:,}",
        "rows not as simulated": f"{result['wrong']} (lost, doubled or out of place)",
        "failures": f"{result['failures']}; episodes cut {result['cut']} of {result['episodes']:,}",
        "rows in flight": f"{flight}; lost with their episode {lost} (reported {result['reported_lost']})",
        "workers replaced": f"{len(replaced)}; {quick}",
        "env steps per second": f"{result['rate']:,.0f}; undisturbed {result['calm_rate']:,.0f}: {share}",
    }
    return [f"{kind}: one every {turn:g} s", *(f"  {name:<22} {line}" for name, line in lines.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of kills; other faults take a quarter of it")
    parser.add_argument("--turn", type=float, default=5.0, help="seconds between two faults")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--alone", action="store_true", help="real-time priority: as if nothing else ran (needs root)")
    args = parser.parse_args()
    if args.alone:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    logging.disable(logging.WARNING)
    load = os.getloadavg()[0]
    how = ", at real-time priority" if args.alone else ""
    print(
        f"PPO on CartPole, {SLOTS} slots, {WORKERS} workers, {os.cpu_count()} cores, load {load:.1f} at the start{how}"
    )
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            seconds = args.seconds if kind == "kill" else args.seconds / 4
            result = chaos(kind, seconds, args.turn, Path(folder), timeout=0.1 if kind == "hang" else 60.0)
        print("\n".join(told(kind, result, args.turn)), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
