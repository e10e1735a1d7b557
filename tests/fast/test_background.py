"""When compiled functions take over: by counters alone, in the same place after a resume."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import ganglion
from ganglion.config.files import dump
from ganglion.core import Progress, State
from ganglion.errors import UserError
from ganglion.fast import Compiler
from ganglion.fast.compile import Compiled, can_compile
from ganglion.runtime.build import build
from ganglion.runtime.engine import Engine, as_it_is
from ganglion.runtime.run import Run

TINY = ["algo=dqn", "env={kind: toy, id: identity}", "train.budget=4k steps", "run.device=cpu",
        "algo.replay.capacity=2000", "algo.limiter={warmup: 100, opt_interval: 8}", "algo.net.hidden=[8]",
        "algo.replay.batch=16", "eval=never", "log=[]"]  # fmt: skip

compiling = pytest.mark.skipif(not can_compile(), reason=f"torch {torch.__version__} cannot compile an update")


def engine(since: int = 0, least: int = 0, able: bool = True) -> Engine:
    return Engine(torch.device("cpu"), as_it_is, since, least, able)


def looked(swap: Engine, updates: int, total: int) -> list[int]:
    """The opt steps at which the fast form was on, of a run of `total` updates."""
    on = []
    for done in range(updates):
        swap.look(Progress(opt_steps=done, fraction=max(done, 1) / total))
        if swap.on:
            on.append(done)
    return on


def test_takes_over_at_its_step_where_the_run_is_long_enough():
    assert looked(engine(10, 100), 14, total=100) == [10, 11, 12, 13]
    assert looked(engine(10, 101), 14, total=100) == []
    assert looked(engine(), 3, total=1) == [0, 1, 2]


def test_where_nothing_can_be_compiled_a_long_run_stays_eager_and_says_so_once(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        assert looked(engine(10, 101, able=False), 14, total=100) == []
        assert not caplog.records, "a short run would have stayed eager anyway"
        assert looked(engine(10, 100, able=False), 14, total=100) == []
    assert len(caplog.records) == 1 and "running eagerly" in caplog.records[0].message


def test_a_restored_swap_stays_in_the_form_it_was_in():
    swap = engine(10, 100)
    looked(swap, 12, total=100)
    again = engine(10, 100)
    again.restore(swap.state())
    assert again.on
    late = engine(10, 100)
    late.restore(State({}, {"on": False}))
    late.look(Progress(opt_steps=11, fraction=0.5))
    assert not late.on, "what was not worth it then is not started in the middle"


def test_the_compiler_is_started_ahead_and_waited_for(tmp_path: Path):
    told: list[str] = []

    class Fake(Compiler):
        def start(self) -> None:
            told.append(f"start {at}")

        def wait(self) -> None:
            told.append(f"wait {at}")

    swap = engine(8, 0)
    swap.attach(Fake(tmp_path / "config.yaml"))
    for at in range(12):
        swap.look(Progress(opt_steps=at, fraction=(at + 1) / 100))
    assert told == ["start 2", "wait 8"]


def test_what_cannot_be_compiled_runs_eagerly_and_says_so_once(caplog: pytest.LogCaptureFixture):
    def branches(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if float(x) > 0 else x - 1

    quick = Compiled(branches)
    with caplog.at_level(logging.WARNING):
        assert float(quick(torch.tensor(2.0))) == 3 and float(quick(torch.tensor(-2.0))) == -3
    assert [r.message for r in caplog.records if "running eagerly" in r.message].__len__() == 1


@compiling
def test_a_compiled_function_refuses_other_shapes():
    quick = Compiled(lambda x: (x * 2).sum(0))
    assert torch.equal(quick(torch.ones(3, 2)), torch.full((2,), 6.0))
    with pytest.raises((AssertionError, RuntimeError)):
        quick(torch.ones(4, 2))


def hashes(run: Run) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in run.trainer.state().tensors.items()}


def swapping(folder: Path) -> Run:
    """A run that goes over at its 20th update."""
    cfg = ganglion.load_config(None, [*TINY, f"run.dir={folder}", "run.fast=auto", "run.swap=20"])
    run = Run.create(cfg)
    run.trainer.learner.agent.engine.least = 0
    return run


@compiling
def test_a_run_that_compiles_repeats_and_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Compiler, "start", lambda self: None)  # as where it has failed: compiled in this process
    whole = swapping(tmp_path / "whole")
    for _ in whole:
        pass
    assert whole.trainer.learner.agent.engine.on
    cut = swapping(tmp_path / "cut")
    stream = cut.stream()
    for log in stream:
        if log.at.opt_steps >= 60:
            stream.close()
            break
    cut.save()
    resumed = Run.open(tmp_path / "cut")
    assert resumed.trainer.learner.agent.engine.on
    for _ in resumed:
        pass
    assert hashes(whole) == hashes(resumed)


@compiling
def test_the_other_process_compiles_what_the_config_says(tmp_path: Path):
    cfg = ganglion.load_config(None, TINY)
    (tmp_path / "config.yaml").write_text(dump(cfg))
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = Compiler(tmp_path / "config.yaml").command
    subprocess.run(command, check=True, env={**os.environ, **cache}, timeout=300)
    assert list((tmp_path / "cache").rglob("*.cpp")), "nothing was compiled"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_the_other_process_ends_with_this_one(tmp_path: Path):
    """Also in the middle of what takes minutes, such as compiling: here an import stands for it."""
    (tmp_path / "slow.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    script = (
        "import time, pathlib; from ganglion.fast import Compiler; "
        "Compiler(pathlib.Path('config.yaml'), ['slow']).start(); time.sleep(600)"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}
    ) as parent:
        pid, until = tmp_path / "pid", time.monotonic() + 60
        while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        compiler = Path(f"/proc/{pid.read_text()}/stat")
        assert compiler.exists()
        parent.kill()
    while (
        compiler.exists()
        and compiler.read_text().rpartition(")")[2].split()[0] not in "ZX"
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    assert not compiler.exists() or compiler.read_text().rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.skipif(torch.cuda.is_available(), reason="graphs need a GPU, and there is one")
def test_graphs_without_a_gpu_are_bad_input():
    with pytest.raises(UserError, match=r"run\.fast: graph needs run\.device=cuda"):
        build(ganglion.load_config(None, [*TINY, "run.fast=graph"]))
