"""Several learners by a setting: started, lost, started again from the newest checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from time import monotonic
from typing import Any

import pytest
import torch

from ganglion.cli import main, training_loop
from ganglion.config import RunConfig
from ganglion.config.files import dump
from ganglion.core import LogData
from ganglion.errors import LearnerLostError
from ganglion.fleet.learner_processes import LeadTrainer, LearnerProcesses, interface
from ganglion.fleet.learner_worker import LearnerBrief, LearnerWorker
from ganglion.fleet.receiver import Receiver
from ganglion.runtime.run import Run
from tests.equal.runs import config, fingerprint

LOCAL = ["train", "env={kind: toy, id: identity, slots: 4}", "log=[jsonl]", "--learners", "2"]


def company(run: Run) -> LearnerProcesses:
    assert isinstance(run.trainer, LeadTrainer) and isinstance(run.trainer.company, LearnerProcesses)
    return run.trainer.company


def test_one_of_two_is_killed_and_both_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """From the newest checkpoint, in one command; the first alone writes the folder, counters are of both."""
    lives: list[Run] = []
    follow = training_loop.follow

    def watched(run: Run, asked: Any) -> None:
        lives.append(run)
        stream = run.stream

        def killing() -> Any:
            for log in stream():
                if len(lives) == 1 and log.kind == "save":
                    company(run).started[0].send_signal(signal.SIGKILL)
                yield log

        run.stream = killing  # type: ignore[method-assign, assignment]
        follow(run, asked)

    monkeypatch.setattr(training_loop, "follow", watched)
    more = ["algo={kind: ppo, horizon: 16, net: {hidden: [16]}}", "train.budget=1200 steps", "save.every=400 steps"]
    assert main([*LOCAL, *more, "eval={every: 800 steps, episodes: 4}", f"run.dir={tmp_path / 'run'}"]) == 0
    assert "learner 1 ended" in capsys.readouterr().err and len(lives) == 2
    pids = [process.pid for run in lives for process in company(run).started]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [record["env_steps"] for record in records]
    assert steps == sorted(steps) and 1_200 <= steps[-1] < 1_400
    assert lives[1].trainer.at.opt_steps > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["run.mode=threads"], "fleet.learners: several need run.mode local or ray, not 'threads'"),
        (["run.mode=ray", "fleet.explorers=1", "fleet.rule=divide"], "fleet.rule: divide needs at least as many"),
        (["fleet.rule=devide"], "fleet.rule"),
        (["run.fast=graph"], "fleet.learners: several run eagerly or compiled"),
        (["fleet.learners=0"], "fleet.learners"),
    ],
)
def test_what_does_not_fit_is_refused(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LOCAL, "algo=ppo", *given]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.soak
def test_a_learner_that_cannot_begin_says_why(tmp_path: Path) -> None:
    made = Run.create(config("ppo", tmp_path / "run"))
    given = RunConfig.model_validate({**made.cfg.plain(), "fleet": {"learners": 2}})
    broken = LearnerProcesses(given.model_copy(update={"env": given.env.model_copy(update={"id": "Nowhere-v0"})}))
    with pytest.raises(Exception, match="Nowhere"):
        broken.gather(made.trainer.learner.agent.device, "")
    broken.close()
    made.close()


def test_a_death_without_a_checkpoint_between_ends_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doomed:
        folder, checkpoints = Path("nowhere"), Path("nowhere")

        @classmethod
        def open(cls, folder: Path) -> Doomed:
            return cls()

    def dies(run: Any, imports: Any) -> int:
        raise LearnerLostError("learner 1 ended")

    monkeypatch.setattr(training_loop, "drive_once", dies)
    monkeypatch.setattr(Path, "newest", lambda self: None, raising=False)
    with pytest.raises(Exception, match="learner 1 ended, 5 times without a checkpoint between"):
        training_loop.drive(Doomed())  # type: ignore[arg-type]


def test_a_learner_worker_takes_over_the_replay_of_the_first(tmp_path: Path) -> None:
    """Where a run is resumed: rows, and the seam where its own items will be joined to them."""
    run = {"dir": str(tmp_path / "run"), "mode": "threads", "fast": "eager"}
    first = Run.create(config("dqn", tmp_path / "run", 300, run=run, fleet={"explorers": 1, "rows": 16}, eval="never"))
    for _ in first.stream():
        pass
    first.close()
    cfg = RunConfig.model_validate({**first.cfg.plain(), "run": {**run, "mode": "ray"}, "fleet": {"learners": 2}})
    learner_worker = LearnerWorker(LearnerBrief(dump(cfg), [], [], 1, True))
    learner_worker.ready(str(first.checkpoints.newest()))  # before it meets the others, who would wait for it
    learner, receiver = learner_worker.trainer.learner, learner_worker.trainer.source
    assert isinstance(receiver, Receiver)
    theirs = first.trainer.learner.buffer.state()
    assert fingerprint(learner.buffer.state()) == fingerprint(theirs) and learner.buffer.ready()
    assert receiver.seams.stream == first.trainer.source.seams.stream is not None


def test_the_network_of_an_address() -> None:
    assert interface("127.0.0.1") == "lo"


@pytest.mark.soak
def test_left_and_called_again(tmp_path: Path) -> None:
    """A stream that is left early goes on where it stood, with the same learner workers."""
    run = Run.create(config("ppo", tmp_path / "run", 600, fleet={"learners": 2}, eval="never"))
    seen: list[LogData] = []
    try:
        for log in run.stream():
            seen.append(log)
            if log.at.env_steps > 250:
                break
        pids = [process.pid for process in company(run).started]
        for log in run.stream():
            assert log.at.env_steps >= seen[-1].at.env_steps
        assert run.trainer.at.env_steps >= 600
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    finally:
        run.close()


def test_why_a_learner_failed_is_not_forgotten() -> None:
    """It is told once, and asked for again when all have ended."""
    made, told = LearnerProcesses.__new__(LearnerProcesses), '{"error": "ValueError: no world", "user": false}'
    command = [sys.executable, "-S", "-c", f"print({told!r})"]
    made.failed, made.started = {}, [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True)]
    with pytest.raises(RuntimeError, match="learner 1 failed: ValueError: no world") as caught:
        made.gather(torch.device("cpu"), "")
    assert "no world" in str(made.why(caught.value))
    made.started[0].communicate()


def test_what_an_environment_prints_is_no_answer() -> None:
    """Also where it is not Python that prints; and what an environment leaves running holds nobody up."""
    lines = ["import os, subprocess", "from ganglion.fleet import learner_worker", "class Noisy:"]
    lines += ["  def __init__(self, post):", "    os.write(1, b'hello\\n')", "    subprocess.Popen(['sleep', '8'])"]
    lines += ["  ready, learn = (lambda self: 7), (lambda self, meet: 1 / 0)"]
    lines += ["learner_worker.LearnerWorker = Noisy", "learner_worker.main()"]
    command = [sys.executable, "-c", "\n".join(lines)]
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write('[]\n"nowhere"\n')
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == {"ready": 7}
    assert "ZeroDivisionError" in json.loads(process.stdout.readline())["error"]
    began = monotonic()
    assert process.stdout.read() == "" and monotonic() - began < 5
    process.communicate()
