"""Training that diverges: ended at the first number that is not finite, and nothing that is lost is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import ganglion
from ganglion.cli import main
from ganglion.config import every
from ganglion.core import LogData, Progress, State
from ganglion.errors import DivergedError
from ganglion.record.checkpoint import Checkpoints, load, not_finite
from ganglion.record.checkpoint_files import counted
from ganglion.record.stages import Recorded
from ganglion.runtime.run import Run

Captured = pytest.CaptureFixture[str]
NAN = float("nan")
SMALL = ["algo.net.hidden=[8]", "env.slots=4", "eval={every: 400 steps, episodes: 2}",
         "save={every: 200 steps, keep: 2}", "log={every: 300 steps, writers: [jsonl]}", "run.fast=eager",
         "run.device=cpu"]  # fmt: skip
PPO = ["algo=ppo", "algo.horizon=16", "env={kind: torch, id: cartpole}"]
DQN = ["algo=dqn", "algo.limiter.warmup=100", "env={kind: torch, id: cartpole}"]
LATER = "algo.lr={kind: piecewise, points: [[0.5, 1e-3], [0.51, 1e30]]}"  # the weights overflow in the middle of a run
HALF = "train.budget=2k steps"


def checkpoints(folder: Path) -> list[str]:
    """Their names, oldest first."""
    return sorted((path.name for path in folder.glob("checkpoints/*") if counted(path.name)), key=counted)


def steps(name: str) -> int:
    return int(name.split("-")[0])


def agent(path: Path) -> State:
    return State({name: x for name, x in load(path)[0].tensors.items() if name.startswith("trainer/agent")})


def test_a_run_ends_at_the_first_number_that_is_not_finite(tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "run"
    assert main(["train", *PPO, *SMALL, LATER, HALF, f"run.dir={folder}"]) == 4
    told = capsys.readouterr().err
    assert "training diverged: learn/value is inf at update 2" in told and "train.on_nan" in told, told
    saved = checkpoints(folder)
    assert len(saved) == 2 and steps(saved[-1]) < 1200, "half of the budget, and not a save more"
    for name in (*saved, "best"):
        assert not_finite(agent(folder / "checkpoints" / name)) is None
    assert '"learn/value": "inf"' in (folder / "metrics.jsonl").read_text(), "the numbers that ended it are on record"

    assert main(["resume", str(folder)]) == 4, "the same again"
    assert checkpoints(folder) == saved
    assert main(["resume", str(folder), "algo.lr=1e-3", "train.budget=1300 steps"]) == 0


def test_a_run_that_is_to_go_on_keeps_its_last_finite_checkpoint(tmp_path: Path, capsys: Captured) -> None:
    folder = tmp_path / "run"
    assert main(["train", *PPO, *SMALL, LATER, HALF, "train.on_nan=go", f"run.dir={folder}"]) == 0
    first, *rest = checkpoints(folder)
    found = [not_finite(agent(folder / "checkpoints" / name)) for name in (first, *rest)]
    assert steps(first) < 1200 and len(rest) == 2 and found[0] is None and all(found[1:]), "beyond save.keep"
    assert not_finite(agent(folder / "checkpoints/best")) is None

    store = Checkpoints(folder / "checkpoints", keep=2)
    assert store.newest(finite=True) == folder / f"checkpoints/{first}"
    changed = ["train.on_nan=stop", "algo.lr=1e-3", f"train.budget={steps(first) + 300} steps"]
    assert main(["resume", str(folder), *changed]) == 0, "from the finite one"
    assert all(not_finite(agent(folder / f"checkpoints/{step}")) is None for step in checkpoints(folder))


@pytest.mark.parametrize(
    "words",
    [
        [*DQN, "run.mode=sync"],
        [*DQN, "algo.replay.kind=prioritised"],
        ["algo=impala", "algo.horizon=16", "env={kind: torch, id: cartpole}"],
        ["algo=sac", "algo.limiter.warmup=100", "env={kind: gym, id: Pendulum-v1, workers: 0}"],
        ["algo=td3", "algo.limiter.warmup=100", "env={kind: gym, id: Pendulum-v1, workers: 0}"],
    ],
    ids=lambda words: words[0],
)
def test_every_algorithm(words: list[str], tmp_path: Path, capsys: Captured) -> None:
    """SAC's and TD3's actions are lost before a loss is: the environment is not blamed for it."""
    folder = tmp_path / "run"
    assert main(["train", *words, *SMALL, "algo.lr=1e30", "train.budget=600 steps", f"run.dir={folder}"]) == 4
    assert "training diverged" in capsys.readouterr().err
    assert all(not_finite(agent(folder / f"checkpoints/{step}")) is None for step in checkpoints(folder))


def test_weights_are_looked_at_before_they_are_kept(tmp_path: Path) -> None:
    """An update's numbers may be finite and the weights after it not."""
    run = Run.create(ganglion.load_config(None, [*PPO, *SMALL, f"run.dir={tmp_path / 'run'}"]))
    next(iter(run.trainer.learner.agent.algo.model.parameters())).data.view(-1)[0] = NAN
    for attempt in (run.save, run.evaluated.evaluate):
        with pytest.raises(DivergedError, match=r"model/.* is not finite after update 0"):
            attempt()
    assert checkpoints(run.folder) == [] and run.evaluated.best is None
    run.close()


def test_of_runs_that_train_together_the_others_go_on(tmp_path: Path, capsys: Captured) -> None:
    words = [*DQN, *SMALL, "sweep.algo.lr=[1e-3, 1e30]", "train.budget=600 steps", f"run.dir={tmp_path}"]
    assert main(["train", *words, "--together"]) == 4
    told = capsys.readouterr()
    assert told.err.count("training diverged") == 1 and "lr=1e+30: training diverged" in told.err
    assert "95 % interval" in told.out
    assert steps(checkpoints(tmp_path / "lr=0.001")[-1]) >= 600


# ------------------------------------------------------------ numbers that are left on a device until they are read


class Away(Tensor):
    """Stands for a tensor of a GPU: nobody may read it before the others."""

    is_cpu = False


def away(value: float) -> Tensor:
    return torch.tensor(value).as_subclass(Away)


def stage(stops: bool) -> Recorded:
    recorded = Recorded([], every("10 steps"), Progress, dict, stops)
    for update, (loss, norm) in enumerate([(1.0, 1.0), (1.0, NAN), (NAN, NAN), (1.0, 1.0)]):
        recorded.seen(LogData("learn", Progress(opt_steps=update), {"loss": away(loss), "norm": away(norm)}))
    return recorded


@pytest.mark.parametrize("read", [Recorded.record, Recorded.state])
def test_numbers_of_a_device_are_found_when_they_are_read(read: object) -> None:
    assert callable(read)
    recorded = stage(stops=True)
    with pytest.raises(DivergedError, match="learn/norm is nan at update 1"):
        read(recorded)


def test_or_not_at_all() -> None:
    recorded = stage(stops=False)
    recorded.record()
    assert recorded.lost is None


def test_only_updates_count() -> None:
    recorded = Recorded([], every("10 steps"), Progress, dict, stops=True)
    recorded.seen(LogData("collect", Progress(), {"wait": NAN}))
    recorded.record()
