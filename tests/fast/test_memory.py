"""Memory that updates free and ask for again stays with the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COUNT = """
import resource
import ganglion
from ganglion.runtime import build

words = ["algo=dqn", "env={kind: torch, id: cartpole, slots: 8}", "algo.net.hidden=[256, 256]", "run.device=cpu"]
words += ["algo.replay={capacity: 10000, batch: 2048}", "algo.limiter={opt_interval: 8, warmup: 8}", "run.fast=eager"]
if not KEPT:
    build.keep_pages = lambda: None
trainer = build.build(ganglion.load_config(None, words))
def learn(updates):
    goal = trainer.at.opt_steps + updates
    for log in trainer():
        if log.at.opt_steps >= goal:
            return
learn(40)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
learn(40)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 40)
"""


def faults(kept: bool) -> float:
    """Fresh pages per update of a new process, in steady state, where glibc begins with its own thresholds and does not
    learn others: what it would learn hangs on where its memory happens to lie."""
    around = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    command = [sys.executable, "-c", COUNT.replace("KEPT", str(kept))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=around).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_updates_do_not_lie_in_fresh_pages():
    assert faults(kept=False) > 1_000, "else this test says nothing"
    assert faults(kept=True) < 100
