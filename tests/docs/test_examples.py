"""The examples run, and what they claim is so."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import ganglion
from ganglion.config.files import cases
from tests.docs.blocks import ROOT

EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_two_losses_on_one_model() -> None:
    from examples import two_losses

    scores = two_losses.main()
    assert scores["both losses"] == 1.0
    assert scores["reinforcement alone"] < 0.5


def test_both_losses_move_the_same_parameters() -> None:
    """The supervised loss alone moves them, and so does the other: one optimiser, one step."""
    import torch

    from examples import two_losses  # noqa: F401
    from ganglion.core import Progress, SetKnob
    from ganglion.runtime.build import build

    def after_one_update(teach: float) -> torch.Tensor:
        overrides = ["algo={kind: taught-dqn, limiter: {warmup: 50}}", "env={kind: toy, id: chain, slots: 2}"]
        trainer = build(ganglion.load_config(None, overrides))
        trainer.learner.agent.pin(SetKnob("teach", teach))
        while trainer.at.opt_steps == 0:
            trainer.run_train() if trainer.learner.owes(trainer.at) else trainer.run_collect()
        assert trainer.learner.agent.knobs(Progress())["teach"] == teach
        return torch.cat([p.flatten() for p in trainer.learner.agent.algo.model.parameters()])

    assert not torch.equal(after_one_update(0.0), after_one_update(1.0))
    assert torch.equal(after_one_update(1.0), after_one_update(1.0))


def test_both_ways_of_stepping_several_agents_are_learned() -> None:
    from examples import from_xingtian_agents

    scores = from_xingtian_agents.main()
    assert scores["unified"] > 3.5 and scores["standalone"] > 3.5  # chance: 4 / 9


def test_custom_environments_are_learned() -> None:
    from examples import custom_env

    scores = custom_env.main()
    assert scores["TugOfWar-v0"] > 0.9
    assert scores["catch"] > 0.2  # chance: -0.6


@pytest.mark.filterwarnings("ignore:.*Overriding environment")  # the example is imported twice in one process
def test_custom_environments_keep_their_promises(tmp_path: Path) -> None:
    """A run on each, stopped in the middle of episodes and taken up by a new object, ends with the same parameters."""
    import torch

    from examples import custom_env  # noqa: F401

    for number, env in enumerate(("{kind: gym, id: TugOfWar-v0, slots: 3}", "{kind: catch, slots: 3, frame_stack: 2}")):
        settings = ["algo={kind: ppo, horizon: 16}", f"env={env}", "train.budget=400 steps", "eval=never", "log=[]"]
        states = []
        for stop in (None, 37):
            folder = tmp_path / f"{number}-{stop}"
            run = ganglion.Run.create(ganglion.load_config(None, [*settings, f"run.dir={folder}"]))
            if stop is not None:
                stream = run.stream()
                for _ in range(stop):
                    next(stream)
                run.save()
                stream.close()
                run = ganglion.Run.open(folder)
            for _ in run.stream():
                pass
            states.append(run.trainer.learner.agent.state().tensors)
        assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_train_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    from examples import train_from_python

    score = train_from_python.main()
    printed = capsys.readouterr().out
    assert score["mean"] > 30
    assert "left at 4" in printed and "10003 steps: mean return" in printed.replace(",", "")


def test_commands_are_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    from examples import send_commands

    seen = send_commands.main()
    kinds = [log.kind for log in seen]
    assert kinds[201] == "evaluate" and kinds[301] == "save"  # each the event after its command
    assert kinds.count("evaluate") == 1
    assert kinds[-1] == "save"  # a stopped run is saved
    assert "stopped: interrupted; epsilon is 0.5" in capsys.readouterr().out


def test_two_learners_are_one() -> None:
    from examples import two_learners

    one, two = two_learners.main()
    assert one.rsplit(", ", 1)[0] == two.rsplit(", ", 1)[0]  # steps, updates and weights; they played other episodes
    assert float(one.rsplit(", ", 1)[1]) > 7  # of 8


def test_the_sweep_is_six_runs() -> None:
    configs = cases(EXAMPLES / "sweep.yaml")
    assert len({config.title for config in configs}) == 6
    assert {(config.algo.lr.value, config.run.seed) for config in configs} == {  # type: ignore[attr-defined]
        (lr, seed) for lr in (1e-3, 3e-4) for seed in (0, 1, 2)
    }


def test_the_sweep_trains(tmp_path: Path) -> None:
    from ganglion.cli import main

    short = ["train.budget=120 steps", f"run.dir={tmp_path / 'sweep'}"]
    assert main(["train", str(EXAMPLES / "sweep.yaml"), *short, "sweep.algo.lr=[1e-3]"]) == 0
    assert len(list((tmp_path / "sweep").glob("*/metrics.jsonl"))) == 3


def test_an_engine_client_trains(tmp_path: Path) -> None:
    """The engine's side needs nothing but Python: no numpy, no torch."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = str(EXAMPLES / "engine_client.py")
    engines = [subprocess.Popen([sys.executable, "-S", "-I", script, f"127.0.0.1:{port}"]) for _ in range(3)]
    try:
        env = f"env={{kind: remote, port: {port}, slots: 2}}"
        rest = ["eval.slots=1", "eval.episodes=2", "train.budget=600", "algo.horizon=32", f"run.dir={tmp_path}/run"]
        command = [sys.executable, "-m", "ganglion", "train", "--algo", "ppo", env, *rest]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert "env steps" in done.stdout
        assert [engine.wait(10) for engine in engines] == [0, 0, 0]
    finally:
        for engine in engines:
            engine.kill()


def test_an_algorithm_of_numpy_learns() -> None:
    from examples import numpy_backend

    assert numpy_backend.main() > 7.5  # of 8


def test_every_example_is_run_here() -> None:
    """And listed in the index."""
    tests = "".join((ROOT / "tests" / "docs" / name).read_text() for name in ("test_examples.py", "test_sources.py"))
    index = (ROOT / "docs" / "README.md").read_text()
    for path in sorted(EXAMPLES.glob("*.*")):
        assert path.stem in tests, path.name
        assert f"examples/{path.name}" in index, path.name
