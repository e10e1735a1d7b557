"""Clients of an environment server killed again and again: is any row lost or doubled?

    python -m benchmarks.remote_soak --seconds 120 --every 5 --out docs/results/remote-soak.txt

Every client counts: its observation is (client, episode, step). It writes down each step before and after it sends the
answer, so that what reached the replay buffer can be held against what was played.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import ganglion
from ganglion.runtime.build import build

ROOT = Path(__file__).resolve().parent.parent
CLIENT = """
import os, struct, sys, time
sys.path.insert(0, sys.argv[1])
import engine_client

class Counted:
    obs = {"shape": [3], "dtype": "float32"}
    action = {"n": 2}
    episode = 0
    def __init__(self, name, log):
        self.name, self.log = name, log
    def reset(self, seed):
        self.episode, self.step_count, self.length = self.episode + 1, 0, 5 + seed % 40
        return self.seen()
    def step(self, action):
        time.sleep(0.001)
        self.step_count += 1
        os.write(self.log, f"{self.episode} {self.step_count}\\n".encode())  # played: what follows may be sent
        return self.seen(), float(self.step_count), self.step_count >= self.length, False
    def seen(self):
        return struct.pack("<3f", self.name, self.episode, self.step_count)

game = Counted(int(sys.argv[3]), os.open(sys.argv[4], os.O_WRONLY | os.O_CREAT | os.O_APPEND))
over = False
while not over:
    try:
        over = engine_client.serve("127.0.0.1", int(sys.argv[2]), game)
    except OSError:
        time.sleep(0.1)
"""

Place = tuple[int, int, int]  # client, episode, step


class Clients:
    """Processes that play; each gets a new number."""

    def __init__(self, port: int, folder: Path) -> None:
        self.port, self.folder, self.started = port, folder, 0
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.started += 1
        log = str(self.folder / f"{self.started}.txt")
        command = [sys.executable, "-c", CLIENT, str(ROOT / "examples"), str(self.port), str(self.started), log]
        self.running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

    def kill(self, dice: random.Random) -> None:
        victim = self.running.pop(dice.randrange(len(self.running)))
        victim.send_signal(signal.SIGKILL)
        victim.wait()

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()

    def played(self) -> dict[tuple[int, int], int]:
        """The steps that each episode of each client came to."""
        most: dict[tuple[int, int], int] = {}
        for number in range(1, self.started + 1):
            path = self.folder / f"{number}.txt"
            for line in path.read_text().splitlines() if path.exists() else ():
                episode, step = map(int, line.split())
                most[number, episode] = step
        return most


def soak(seconds: float, every: float, slots: int = 4, seed: int = 0) -> dict[str, Any]:
    """Trains for so long, kills a client now and then, and compares both sides."""
    from ganglion.envs.remote_server import server_at

    server, dice = server_at("127.0.0.1", 0), random.Random(seed)
    clients = Clients(server.port, Path(tempfile.mkdtemp()))
    for _ in range(slots):
        clients.start()
    env = f"env={{kind: remote, port: {server.port}, slots: {slots}, timeout: 20}}"
    limiter = "algo.limiter={kind: ratio, opt_interval: 16, warmup: 500}"
    cfg = ganglion.load_config(None, ["algo=dqn", env, limiter, "train.budget=100M steps"])
    trainer = build(cfg)
    got: Counter[Place] = Counter()
    keep, push = trainer.learner.buffer, trainer.learner.buffer.push

    def record(rows: Any, ahead: Any, at: Any) -> None:
        for obs, valid, reward in zip(rows.obs[0].tolist(), rows.valid[0].tolist(), rows.reward[0].tolist()):
            if valid:
                got[int(obs[0]), int(obs[1]), int(obs[2])] += 1
                assert reward == obs[2] + 1, f"the row {obs} has the reward {reward}: it is of another step"
        push(rows, ahead, at)

    keep.push = record  # type: ignore[method-assign]
    began, kills = time.monotonic(), 0
    try:
        for _ in trainer():
            now = time.monotonic() - began
            if now > (kills + 1) * every:
                clients.kill(dice)
                clients.start()
                kills += 1
            if now > seconds:
                break
        faults = trainer.source.faults
        steps, updates = trainer.at.env_steps, trainer.at.opt_steps
        told = {"failures": faults.count, "in_flight": faults.pool.rows_in_flight, "rows_lost": faults.rows_lost}
        waited = max(faults.pool.replaced, default=0.0)
    finally:
        clients.end()
        trainer.source.close()
    return {
        "seconds": seconds, "kills": kills, "env_steps": steps, "updates": updates, **told, "waited": waited,
        **compared(got, clients.played(), steps),
    }  # fmt: skip


def compared(got: Counter[Place], played: dict[tuple[int, int], int], steps: int) -> dict[str, int]:
    """Rows that came twice, rows of an episode that are missing, and steps played whose row was in flight at a kill."""
    lengths: Counter[tuple[int, int]] = Counter((client, episode) for client, episode, _ in got)
    last: dict[tuple[int, int], int] = {}
    for client, episode, step in got:
        last[client, episode] = max(step, last.get((client, episode), 0))
    gaps = sum(last[key] + 1 - count for key, count in lengths.items())
    short = {key: most - lengths[key] for key, most in played.items()}
    return {
        "doubled": sum(count - 1 for count in got.values()),
        "gaps": gaps,
        "unplayed": sum(-missing for missing in short.values() if missing < 0),
        "unlearned": sum(missing for missing in short.values() if missing > 0),
        "miscounted": steps - sum(got.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = soak(options.seconds, options.every)
    text = "\n".join(f"{name:<12}{value:g}" for name, value in found.items())
    print(text)
    if options.out is not None:
        command = f"python -m benchmarks.remote_soak --seconds {options.seconds:g} --every {options.every:g}"
        options.out.write_text(f"# {command}, {os.cpu_count()} cores\n{text}\n")
    lost = found["unlearned"] - found["in_flight"]
    if found["doubled"] or found["gaps"] or found["unplayed"] or found["miscounted"] or lost > 0:
        raise SystemExit("rows were lost or doubled")


if __name__ == "__main__":
    main()
