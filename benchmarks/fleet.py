"""Explorers elsewhere, measured: start-up, throughput, waiting, weights, bytes, and death.

    python benchmarks/fleet.py                     everything, a few minutes
    python benchmarks/fleet.py start slow          some of it
    python benchmarks/fleet.py chaos --seconds 300 an explorer is killed every 10 s, for five minutes; as long without
    python benchmarks/fleet.py still full          explorers that stand still; a disk without room

Sides that are compared take turns, and medians are told. `--explorers` is 2 by default.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

RAY_ALONE = """
import time; began = time.time()
from ganglion.fleet.ray_cluster import ClusterSettings, join_ray, leave_ray
join_ray(ClusterSettings(processes={processes})); print("took", time.time() - began); leave_ray()
"""
QUIET = ["log=[]", "save=never", "eval=never"]


def told(name: str, value: str) -> None:
    print(f"{name:<58} {value}", flush=True)


# ------------------------------------------------------------ start


def start(args: argparse.Namespace) -> None:
    """From the command to the first update, beside Ray's own start."""
    alone, whole = [], []
    for _ in range(args.turns):
        alone.append(ray_alone(args.explorers))
        whole.append(first_update(args.explorers))
    told("ray.init, with its import", f"{median(alone):.2f} s")
    told("command to first update (cartpole/ppo)", f"{median(whole):.2f} s")
    told("  beyond ray.init (aim: at most 3 s)", f"{median(w - a for w, a in zip(whole, alone)):.2f} s")


def ray_alone(processes: int) -> float:
    """Seconds until Ray is there, its import included."""
    code = RAY_ALONE.format(processes=processes)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return float(out.split("took ")[1])


def first_update(explorers: int, preset: str = "cartpole/ppo") -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", preset, "--mode", "ray", "--explorers", str(explorers)]
        settings = [f"run.dir={folder}/run", "log={every: 1 opts, writers: [jsonl]}", "eval=never", "save=never"]
        began = time.time()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process: Any = subprocess.Popen([sys.executable, "-m", "ganglion", *command, *settings], **quiet)  # type: ignore[call-overload]
        metrics = Path(folder, "run", "metrics.jsonl")
        while not (metrics.exists() and '"learn/' in metrics.read_text()) and process.poll() is None:
            time.sleep(0.02)
        took = time.time() - began
        process.send_signal(signal.SIGINT)
        process.wait(60)
    return took


# ------------------------------------------------------------ throughput


def trainer(mode: str, explorers: int, *settings: str) -> Any:
    from ganglion.config.files import load
    from ganglion.runtime.build import build

    fleet = [f"run.mode={mode}", f"fleet.explorers={explorers}"]
    given = [*QUIET, *fleet, "train.budget=100M steps", "run.fast=eager", *settings]
    return build(load("cartpole/ppo", given, ["benchmarks.slow_env"]))


def rate(made: Any, seconds: float, during: Callable[[], None] = lambda: None) -> tuple[float, float]:
    """Env steps per second from now on, and the share of the time that was waited for items."""
    stream, began, first, wait = made(), time.perf_counter(), made.at.env_steps, 0.0
    while time.perf_counter() - began < seconds:
        wait += next(stream).metrics.get("wait", 0.0)
        during()
    took = time.perf_counter() - began
    return (made.at.env_steps - first) / took, wait / took


def warm(made: Any, explorers: int) -> None:
    """Until every explorer has brought an item and the learner has learned from one."""
    stream = made()
    seen = made.source.fleet.account.next if hasattr(made.source, "fleet") else range(explorers)
    while made.at.opt_steps < 20 or len(seen) < explorers:
        next(stream)


def compare(args: argparse.Namespace, name: str, aim: str, *settings: str) -> None:
    sides = {"local": trainer("local", 1, *settings), "ray": trainer("ray", args.explorers, *settings)}
    seen: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for made in sides.values():
        warm(made, args.explorers)
    for _ in range(args.turns):
        for side, made in sides.items():
            rate(made, 1.0)  # what was made ahead while the other side ran
            seen[side].append(rate(made, args.seconds / args.turns / 2))
    for side, rates in seen.items():
        wait = f", waiting {median(w for _, w in rates):.0%} of the time" if side == "ray" else ""
        told(f"{name}: {side}", f"{median(r for r, _ in rates):,.0f} env steps/s{wait}")
    told(f"  ratio ({aim})", f"{median(r[0] / s[0] for r, s in zip(seen['ray'], seen['local'])):.2f}")
    for made in sides.values():
        made.close()


def slow(args: argparse.Namespace) -> None:
    """An environment that sleeps 1 ms a step."""
    env = "env={kind: gym, id: 'SlowCartPole-v0', slots: 8, workers: 0}"
    compare(args, "1 ms a step", "aim: 1.5", env, "algo.horizon=32")


def quick(args: argparse.Namespace) -> None:
    """CartPole as it is, with short work for the learner."""
    compare(args, "cartpole", "no aim", "algo.epochs=1", "algo.minibatches=1", "env.slots=16")


# ------------------------------------------------------------ weights and bytes


def weights(args: argparse.Namespace) -> None:
    """A million parameters, from publication to an explorer that acts with them: published, found, copied, obeyed."""
    import torch

    from ganglion.core import Weights
    from ganglion.fleet.shared_memory import SharedBoard
    from ganglion.fleet.temporary_folders import make_folder

    folder = make_folder()
    writer, reader = SharedBoard(folder / "weights"), SharedBoard(folder / "weights")
    own = {f"{k}": torch.zeros(100_000) for k in range(10)}
    publish, obey = [], []
    for version in range(50):
        began = time.perf_counter()
        writer.publish(Weights(version, {}, own))
        between = time.perf_counter()
        got = reader.latest("main", version - 1)
        assert got is not None
        for name, tensor in got.tensors.items():
            own[name].copy_(tensor)
        publish.append(between - began)
        obey.append(time.perf_counter() - between)
    (folder / "weights").unlink()
    folder.rmdir()
    told("1M parameters: publish", f"{median(publish) * 1e3:.2f} ms")
    told("1M parameters: find, copy, obey (aim: 50 ms in all)", f"{median(obey) * 1e3:.2f} ms, before the next step")


class Carrier:
    """Makes items of a size, one way or the other."""

    def __init__(self, folder: str) -> None:
        from ganglion.fleet.shared_memory import ItemMemory

        self.slots = ItemMemory(Path(folder), "0-0", 2)

    def shared(self, size: int) -> tuple[str, int, int]:
        self.slots.room(size)[:] = 1
        return tuple(self.slots.slip)

    def object(self, size: int) -> Any:
        import numpy as np

        return np.ones(size, np.uint8)


def carry(args: argparse.Namespace) -> None:
    """An item from an actor into a buffer: through Ray's objects, and through shared memory."""
    import numpy as np

    from ganglion.fleet.ray_cluster import ClusterSettings, join_ray, leave_ray
    from ganglion.fleet.shared_memory import Reader, SegmentName
    from ganglion.fleet.temporary_folders import make_folder

    ray, _ = join_ray(ClusterSettings())
    folder = make_folder()
    actor, reader = ray.remote(num_cpus=0)(Carrier).remote(str(folder)), Reader(folder)
    for size in (1 << 16, 1 << 20, 1 << 22):
        buffer, took = np.empty(size, np.uint8), {"shared": [], "object": []}
        for turn in range(60):
            for way, times in took.items():
                began = time.perf_counter()
                got = ray.get(getattr(actor, way).remote(size))
                buffer[:] = reader.read(SegmentName(*got)) if way == "shared" else got
                times += [time.perf_counter() - began] if turn >= 10 else []
        ways = {way: median(times) * 1e3 for way, times in took.items()}
        told(f"{size >> 10} KiB from an actor", f"object {ways['object']:.2f} ms, shared {ways['shared']:.2f} ms")
    reader.forget("0-0")
    folder.rmdir()
    leave_ray()


# ------------------------------------------------------------ death


def chaos(args: argparse.Namespace) -> None:
    """A random explorer is killed every 10 s, one time in four with the actor above it; turns with and without."""
    made, dice = trainer("ray", args.explorers, "algo.epochs=1"), random.Random(0)
    fleet, next_kill = made.source.fleet, [0.0]
    warm(made, args.explorers)

    def kill() -> None:
        if time.perf_counter() >= next_kill[0]:
            next_kill[0] = time.perf_counter() + 10
            running = [m for m in fleet.members.values() if m.starting is None]
            if running:
                member = dice.choice(running)
                os.kill(member.home if dice.random() < 0.25 else member.pid, signal.SIGKILL)

    calm, disturbed, turn = [], [], min(args.seconds, 20.0)
    for _ in range(max(int(args.seconds // turn), 1)):
        calm.append(rate(made, turn)[0])
        disturbed.append(rate(made, turn, kill)[0])
    times = sorted(fleet.recoveries)
    account = fleet.account
    made.close()
    told("killed explorers", f"{account.restarts} in {args.seconds:.0f} s; {account.line()}")
    if times:
        at = times[min(int(len(times) * 0.95), len(times) - 1)]
        told("recovery, dead to first item (aim: 3 s at the 95th)", f"median {median(times):.2f} s, 95th {at:.2f} s")
    told("throughput, disturbed / calm (aim: 0.85)", f"{median(d / c for c, d in zip(calm, disturbed)):.2f}")


def still(args: argparse.Namespace) -> None:
    """An explorer stands still (SIGSTOP) for 10 s, then all of them for as long."""
    made = trainer("ray", args.explorers, "algo.epochs=1")
    warm(made, args.explorers)
    pids = [m.pid for m in made.source.fleet.members.values()]
    before = rate(made, 10)[0]
    for pid in pids[:1]:
        os.kill(pid, signal.SIGSTOP)
    during = rate(made, 10)[0]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    none = rate(made, 10)[0]
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    after, account = rate(made, 10)[0], made.source.fleet.account
    made.close()
    rates = ", ".join(f"{rate / before:.2f}" for rate in (during, none, after))
    told("one stopped for 10 s, all stopped for 10 s, all again", f"{rates} of the rate before; {account.line()}")


def full(args: argparse.Namespace) -> None:
    """No room on the disk for 30 s: a small one of its own where this may be mounted, else by injected errors."""
    from ganglion.config.files import load
    from ganglion.record import atomic_write
    from ganglion.record.checkpoint import load as load_checkpoint
    from ganglion.runtime.run import Run

    with tempfile.TemporaryDirectory() as folder:
        small = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True)
        mounted = small.returncode == 0
        given = [f"run.dir={folder}/run", "train.budget=100M steps", "eval=never", "save={every: 2k steps, keep: 1}"]
        given += ["log={every: 500 steps, writers: [jsonl]}", "run.mode=ray", "run.fast=eager"]
        run = Run.create(load("cartpole/dqn", [*given, "algo.replay.capacity=10k"]))
        stream, saves = run.stream(), {"before": 0, "during": 0, "after": 0}
        for phase, seconds in (("before", 15.0), ("during", 30.0), ("after", 20.0)):
            fill(mounted, Path(folder), phase == "during", atomic_write)
            ends, first = time.perf_counter() + seconds, run.trainer.at.env_steps
            while time.perf_counter() < ends:
                saves[phase] += next(stream).kind == "save"
            newest = run.checkpoints.newest()
            assert newest is not None
            load_checkpoint(newest)  # whole: every byte is checked
            told(f"disk full: {phase}", f"{run.trainer.at.env_steps - first:,} env steps, {saves[phase]} saves")
        stream.close()
        run.close()
        told("  a disk of its own" if mounted else "  injected errors", "the newest checkpoint was whole in all three")
        if mounted:
            subprocess.run(["umount", folder], check=True)


def fill(mounted: bool, folder: Path, on: bool, atomic_write: Any) -> None:
    """Takes all the room there is, or gives it back."""
    if not mounted:
        atomic_write.disk.free = (lambda _: 0) if on else type(atomic_write.disk).free.__get__(atomic_write.disk)
        return
    filler = folder / "filler"
    filler.unlink(missing_ok=True)
    if on:
        with suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass


PARTS = {"start": start, "slow": slow, "quick": quick, "weights": weights, "carry": carry, "chaos": chaos}
PARTS |= {"still": still, "full": full}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--explorers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    print(json.dumps({"cpus": os.cpu_count(), "load": os.getloadavg()[0]}))
    for part in args.parts or PARTS:
        PARTS[part](args)


if __name__ == "__main__":
    main()
