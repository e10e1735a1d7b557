"""Explorers through a broker: in lockstep a run equals a local one; in threads every item is accounted for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ganglion.config import RunConfig
from ganglion.config.files import dump, load
from ganglion.core import LogData, Origin, Progress
from ganglion.errors import UserError
from ganglion.fleet.in_process import LocalBroker, ThreadFleet
from ganglion.fleet.receiver import Receiver
from ganglion.fleet.remote_explorer import ExplorerPlace, Item, ItemSize, RemoteExplorer
from ganglion.fleet.wire import unpack
from ganglion.runtime import precompile
from ganglion.runtime.bench import bench
from ganglion.runtime.build import build
from ganglion.runtime.failures import Failed
from ganglion.runtime.run import Run
from ganglion.runtime.trainer import Trainer
from tests.equal.runs import SORTS, config, fingerprint, finish

EAGER = {"log": {"writers": []}, "eval": "never", "save": "never"}


def trainer(sort: str, mode: str, steps: int, **fleet: Any) -> Trainer:
    run = {"mode": mode, "fast": "eager"}
    given = {**SORTS[sort], **EAGER, "train": {"budget": f"{steps} steps"}, "run": run, "fleet": fleet}
    return build(RunConfig.model_validate(given))


def trained(sort: str, mode: str, steps: int = 500, **fleet: Any) -> Trainer:
    made = trainer(sort, mode, steps, **fleet)
    for _ in made():
        pass
    made.close()
    return made


@pytest.mark.parametrize("sort", sorted(SORTS.keys() - {"league"}))  # which is of one process
def test_sync_equals_local(sort: str) -> None:
    local, sync = trained(sort, "local"), trained(sort, "sync")
    assert sync.at[:3] == local.at[:3] and sync.at.opt_steps > 0
    assert fingerprint(sync.learner.agent.state()) == fingerprint(local.learner.agent.state())
    assert fingerprint(sync.learner.state()) == fingerprint(local.learner.state())


def test_a_sync_run_resumes_exactly(tmp_path: Path) -> None:
    sync = {"mode": "sync", "fast": "eager"}
    whole = finish(Run.create(config("dqn", tmp_path / "a", run={**sync, "dir": str(tmp_path / "a")})))
    left = Run.create(config("dqn", tmp_path / "b", run={**sync, "dir": str(tmp_path / "b")}))
    for log in left.stream():
        if log.kind == "save" and log.at.env_steps > 400:
            break
    again = finish(Run.open(tmp_path / "b"))
    assert fingerprint(again.trainer.learner.state()) == fingerprint(whole.trainer.learner.state())
    assert again.trainer.source.fleet.account.line().startswith(
        f"{whole.trainer.source.numbers()['fleet/received']:.0f} items: 0 lost, 0 dup"
    )


@pytest.mark.parametrize("sort", ["dqn", "frames", "ppo", "recurrent", "sac"])
def test_threads_learn_and_account_for_every_item(sort: str) -> None:
    made = trained(sort, "threads", 1_000, explorers=3, rows=10)
    told = made.source.numbers()
    assert made.at.env_steps >= 1_000 and made.at.opt_steps > 0 and made.at.episodes >= 0
    assert told["fleet/received"] > 0 and told["fleet/lost"] == told["fleet/duplicated"] == 0
    assert told["fleet/explorers"] == 3 and 0 <= told["fleet/wait_share"] <= 1


def test_more_and_fewer_explorers_while_it_runs() -> None:
    made = trainer("dqn", "threads", 3_000, explorers=1, rows=8)
    assert isinstance(made.source, Receiver) and isinstance(made.source.fleet, ThreadFleet)
    seen: dict[int, int] = {}
    for log in made():
        if log.at.env_steps > 800 and made.source.fleet.wanted == 1:
            made.source.fleet.resize(3)
    seen = {source.explorer: count for source, count in made.source.fleet.account.next.items()}
    made.source.fleet.resize(1)
    assert set(seen) == {0, 1, 2} and made.source.numbers()["fleet/explorers"] == 1
    made.close()
    assert made.source.numbers()["fleet/lost"] == 0


def test_items_that_are_too_old_are_dropped_and_counted() -> None:
    made = trained("sac", "threads", 1_500, explorers=2, rows=4, max_lag=0)
    told = made.source.numbers()
    assert told["fleet/stale"] > 0 and told["fleet/rows_dropped"] > 0 and told["fleet/lost"] == 0


def spoiled(body: Any) -> Any:
    """An item whose actions there are not."""
    unpack(body)[1]["rows/action"].fill_(10**6)  # a view of its bytes
    return body


def test_items_that_are_not_what_the_spaces_say_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends them, and however they come: the run goes on with those of others."""
    push = LocalBroker.push

    def spoil(broker: LocalBroker, body: Any, origin: Origin) -> bool:
        return push(broker, spoiled(body) if origin.explorer == 1 else body, origin)

    made = trainer("dqn", "threads", 1_000, explorers=2, rows=8)
    monkeypatch.setattr(LocalBroker, "push", spoil)
    for _ in made():
        pass
    made.close()
    told = made.source.numbers()
    assert told["fleet/refused"] > 0 and told["fleet/received"] > 0 and told["fleet/lost"] == 0
    assert {source.explorer for source in made.source.fleet.account.next} == {0, 1}


def test_in_lockstep_they_end_the_run_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    push = LocalBroker.push
    monkeypatch.setattr(LocalBroker, "push", lambda self, body, at: push(self, spoiled(body), at))
    made = trainer("dqn", "sync", 1_000)
    with pytest.raises(UserError, match=r"env: .*rows/action should be from 0 to 1"):
        for _ in made():
            pass
    made.close()


def test_what_goes_wrong_in_a_thread_is_told_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(remote_explorer: RemoteExplorer) -> None:
        raise RuntimeError("the world is flat")

    monkeypatch.setattr(RemoteExplorer, "item", broken)
    made = trainer("dqn", "threads", 500, explorers=1)
    with pytest.raises(RuntimeError, match="the world is flat"):
        next(made())
    made.close()


def test_what_goes_wrong_in_one_of_two_threads_is_told_while_the_other_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    item = RemoteExplorer.item

    def broken(remote_explorer: RemoteExplorer) -> Any:
        if remote_explorer.sender.origin.explorer == 1:
            raise RuntimeError("the world is flat")
        return item(remote_explorer)

    monkeypatch.setattr(RemoteExplorer, "item", broken)
    made = trainer("dqn", "threads", 100_000, explorers=2)
    with pytest.raises(RuntimeError, match="the world is flat"):
        for _ in zip(range(2_000), made()):
            pass
    made.close()


def test_explorers_go_over_to_compiled_functions_with_the_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights say when; and an explorer that has just begun its life waits, for it costs seconds."""
    called: list[str] = []

    def wrap(fn: Any) -> Any:
        return lambda *args: (called.append(fn.__name__), fn(*args))[1]

    monkeypatch.setattr("ganglion.runtime.build.Compiled", wrap)
    cfg = RunConfig.model_validate({**SORTS["dqn"], **EAGER, "run": {"swap": 5_000}})
    broker = LocalBroker(1)
    remote_explorer = RemoteExplorer(cfg, ItemSize(4), broker)
    remote_explorer.begin(ExplorerPlace(0, 0))
    remote_explorer.settled = 2
    learner = build(cfg).learner.agent
    for version, (fast, acts) in enumerate([(False, 0), (True, 0), (True, 0), (True, 4), (True, 8)]):
        learner.engine.switch(fast)
        broker.publish(learner.command(Progress(opt_steps=version)), "main")
        remote_explorer.item()
        assert called.count("explore") == acts
    assert not {"optim", "target"} & vars(remote_explorer.agent.algo).keys()  # of no use to whoever acts
    remote_explorer.close()


def test_what_is_for_one_process_says_so() -> None:
    with pytest.raises(UserError, match=r"run\.mode: bench measures a run in one process, not threads"):
        bench(load("cartpole/ppo", ["run.mode=threads"]))


def test_compiling_beforehand_starts_no_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def build(cfg: RunConfig) -> None:
        asked.append(cfg.run.mode)
        raise KeyboardInterrupt

    monkeypatch.setattr("ganglion.runtime.build.build", build)
    monkeypatch.setattr("os.nice", lambda by: 0)
    (tmp_path / "config.yaml").write_text(dump(load("cartpole/ppo", ["run.mode=ray"])))
    with pytest.raises(KeyboardInterrupt):
        precompile.main(str(tmp_path / "config.yaml"), [], [], os.getppid())
    assert asked == ["local"]


def test_failures_of_two_explorers_are_two_files(tmp_path: Path) -> None:
    """Each counts slots and episodes by itself."""
    made = trainer("ppo", "threads", 100, explorers=2)
    receiver = made.source
    assert isinstance(receiver, Receiver)
    for explorer in range(2):
        failure = {"slot": 3, "episode": 17, "step": 5, "kind": "raise", "error": f"of {explorer}"}
        about = {"failures": [failure], "logged": [failure]}
        receiver.note(Item(Origin("main", explorer, 0, 0, 0), None, None, (), about))  # type: ignore[arg-type]
    Failed(made, tmp_path, "run").seen(LogData("collect", Progress(), {}))
    made.close()
    for sort in ("failures", "episodes"):
        files = sorted((tmp_path / sort).iterdir())
        assert [path.name for path in files] == ["0.0-3-17.json", "1.0-3-17.json"]
        assert [json.loads(path.read_text())["error"] for path in files] == ["of 0", "of 1"]
