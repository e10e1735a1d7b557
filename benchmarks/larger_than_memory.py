"""Updates per second from a dataset twice as large as the memory that the process may use, beside one in memory.

    python -m benchmarks.larger_than_memory FOLDER --gb 1.3

FOLDER holds the dataset, which is made where it is missing, and the file that rows are mapped from. The memory of the
process, its share of the system's page cache included, is limited by a control group (Linux, as root). The sides are
processes of one thread beside two that gather; they take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

OBS, ACTIONS, BATCH, LONG = 376, 17, 256, 1_000
GROUPS = Path("/sys/fs/cgroup")


def make(folder: Path, gigabytes: float) -> None:
    import torch

    from ganglion.core import Box, EnvSpec
    from ganglion.data import files
    from ganglion.data.dataset import Dataset, episode, joined

    torch.manual_seed(0)
    spec = EnvSpec(Box((OBS,)), Box((ACTIONS,), low=(-1.0,), high=(1.0,)))
    for _ in range(round(gigabytes * 1e9 / (LONG * 4 * (OBS + ACTIONS + 1)) / 40)):
        parts = [
            episode(torch.randn(LONG + 1, OBS), 2 * torch.rand(LONG, ACTIONS) - 1, torch.randn(LONG), False, {})
            for _ in range(40)
        ]
        files.write(folder, joined([Dataset(spec, part) for part in parts]))


def side(folder: Path, store: str, updates: int) -> dict[str, float]:
    """Updates per second after the rows were loaded, and the share of the time that the learner waited."""
    import torch

    from ganglion import registry
    from ganglion.buffers.limiter import Ready
    from ganglion.core import Progress
    from ganglion.data import files
    from ganglion.data.load import stored
    from ganglion.data.loader import Loader, Mapped
    from ganglion.data.offline import DatasetSource
    from ganglion.runtime.agent import Agent
    from ganglion.runtime.engine import Engine
    from ganglion.runtime.learner import Learner

    torch.set_num_threads(1)
    torch.manual_seed(0)
    device, contents = torch.device("cpu"), files.read_manifest(folder / "rows")
    data = stored(str(folder / "rows"), contents.spec)
    sizes = {"replay": {"capacity": data.rows + 4, "batch": BATCH}, "net": {"normalise": False}}
    cfg: Any = registry.lookup("algo", "td3_bc").model_validate(sizes)
    recipe = cfg.recipe(contents.spec)
    replay = recipe.buffer.build(contents.spec, device)
    if store == "disk":
        replay.ring.zeros = Mapped(str(folder))
    loader = Loader(replay, 0, device, 2)
    learner = Learner(Agent(cfg.build(contents.spec), Engine(device)), loader, Ready(), 0)
    source = DatasetSource([data], learner, loader, recipe.processor.build(contents.spec, device))
    at = source.step(Progress()).at
    for _ in range(updates // 4):
        at = learner.step(at).at
    loader.metrics()
    began = time.perf_counter()
    for _ in range(updates):
        at = learner.step(at).at
    found = {"updates_per_s": updates / (time.perf_counter() - began), "wait": loader.metrics()["wait"]}
    loader.close()
    return found


@contextmanager
def limited(size: int) -> Iterator[Path]:
    """The file that takes the number of a process which may use so many bytes."""
    second = (GROUPS / "cgroup.controllers").is_file()
    group = Path(tempfile.mkdtemp(prefix="ganglion-", dir=GROUPS if second else GROUPS / "memory"))
    try:
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(size))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def run(folder: Path, store: str, updates: int, group: Path | None) -> dict[str, float]:
    asked = [sys.executable, "-m", "benchmarks.larger_than_memory", str(folder), "--side", store, "--updates"]
    own = {**os.environ, "OMP_NUM_THREADS": "1"}

    def before() -> None:
        if group is not None:
            group.write_text(str(os.getpid()))

    out = subprocess.run([*asked, str(updates)], capture_output=True, text=True, env=own, preexec_fn=before)
    if out.returncode:
        raise SystemExit(f"{store}: ended with {out.returncode}\n{out.stderr[-2_000:]}")
    return dict(json.loads(out.stdout.strip().splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gb", type=float, default=1.3)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--side", choices=["memory", "disk"])
    args = parser.parse_args()
    if args.side:
        print(json.dumps(side(args.folder, args.side, args.updates)))
        return
    rows = args.folder / "rows"
    if not rows.is_dir():
        make(rows, args.gb)
    size = sum(path.stat().st_size for path in rows.iterdir())
    found: dict[str, list[dict[str, float]]] = {"memory": [], "disk": []}
    for _ in range(args.times):
        found["memory"].append(run(args.folder, "memory", args.updates, None))
        with limited(size // 2) as group:
            found["disk"].append(run(args.folder, "disk", args.updates, group))
        print(json.dumps({name: all_of[-1] for name, all_of in found.items()}), flush=True)
    ratios = [disk["updates_per_s"] / memory["updates_per_s"] for memory, disk in zip(*found.values(), strict=True)]
    waits = [disk["wait"] for disk in found["disk"]]
    print(
        f"{size / 1e9:.2f} GB of rows in {size / 2e9:.2f} GB of memory: {median(ratios):.2f} of the updates in memory"
    )
    print(f"ratios {min(ratios):.2f} to {max(ratios):.2f}; waited {100 * median(waits):.1f} % of the time")


if __name__ == "__main__":
    main()
