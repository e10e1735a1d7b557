"""Batches are the same for any number of workers, on the disk as in memory, by weight, and beside an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ganglion
from ganglion import ops
from ganglion.buffers import ReplayConfig
from ganglion.core import Progress
from ganglion.data.dataset import returns_to_go
from ganglion.data.load import load, stored
from ganglion.data.loader import Loader, weighted
from ganglion.errors import UserError
from ganglion.mapped import Mapped
from ganglion.runtime.build import build
from ganglion.runtime.run import Run
from tests.contract.test_own_algorithms import close, trained
from tests.data.test_files import PLAIN, made, several
from tests.data.test_offline import DQN, ENV, REST, config, recorded


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("data") / "cartpole", ENV)


CPU, AT = torch.device("cpu"), Progress()


def full(workers: int, store: Any = None, seed: int = 3, weights: tuple[float, ...] = ()) -> Loader:
    """A loader of 14 rows, batches of 5."""
    rows = made().rows
    cfg = ReplayConfig(capacity=64, batch=5)
    replay = cfg.build(made().spec, CPU, cfg.fitted(cfg.folded(1, 0.9, False).fold))
    if store:
        replay.ring.zeros = store
    loader = Loader(replay, seed, CPU, workers, weights)
    loader.push(rows._replace(extras={}), (rows.obs[-1], None), AT)  # type: ignore[arg-type]
    loader.loaded([7, 7])
    return loader


def drawn(loader: Loader, count: int) -> list[Any]:
    return [ops.map_tree(torch.clone, loader.take(torch.empty(0), AT)) for _ in range(count)]


@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_gives_the_same_batches(workers: int, tmp_path: Path) -> None:
    alone, several_of_them = full(0), full(workers, Mapped("data.store", str(tmp_path)))
    for one, other in zip(drawn(alone, 40), drawn(several_of_them, 40), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(ops.leaves(one), ops.leaves(other), strict=True))
    several_of_them.close()
    assert 0 <= several_of_them.metrics()["wait"] <= 1 and not list(tmp_path.iterdir())


def test_a_batch_is_rows_and_those_that_follow() -> None:
    rows = made().rows
    for sample in drawn(full(2), 10):
        where = sample.index[0]
        assert torch.equal(sample.data.obs[0], rows.obs[where, 0])
        assert torch.equal(sample.data.next_obs[0], rows.obs[where + 1, 0])
        assert torch.equal(sample.weight[0] > 0, rows.valid[where, 0])


def test_a_restored_loader_goes_on() -> None:
    whole = drawn(full(2), 12)
    first = full(2)
    drawn(first, 5)
    again = full(3)
    again.restore(first.state())
    assert not first.state().rings, "rows are the dataset's"
    for one, other in zip(drawn(again, 7), whole[5:], strict=True):
        assert torch.equal(one.index, other.index) and torch.equal(one.data.obs, other.data.obs)


def test_what_fails_in_a_worker_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = full(1)
    monkeypatch.setattr(type(loader.places[0]), "gather", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        drawn(loader, 1)


def test_rows_are_drawn_by_weight() -> None:
    uniform = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    moved = weighted(uniform, [(100, 3.0), (300, 1.0)])
    assert float((moved < 0.25).double().mean()) == pytest.approx(0.75), "a quarter of the rows, three quarters drawn"
    first = moved[moved < 0.25]
    assert torch.histc(first, 5, 0, 0.25).std() < 2 and moved.max() < 1, "evenly in each"
    index = torch.cat([sample.index[0] for sample in drawn(full(0, weights=(1.0, 9.0)), 400)])
    assert 0.85 < float((index >= 7).double().mean()) < 0.95


def test_rewards_to_go() -> None:
    data = made()
    wanted = [
        part.reward[k:, 0][part.valid[k:, 0]].double().sum()
        for part in data.episodes()
        for k in range(len(part.reward))
    ]
    torch.testing.assert_close(returns_to_go(data.rows)[:, 0], torch.stack(wanted))


# ------------------------------------------------------------ runs


@pytest.mark.parametrize("how", ["data.workers=2", "data.store=disk", "data.store=memory"])
def test_runs_are_equal_wherever_rows_lie(how: str, data: Path) -> None:
    close(trained(build(config(data))), trained(build(config(data, how))))


def test_damaged_blocks_are_left_out_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several(tmp_path / "d", monkeypatch).write_bytes(b"short")
    with pytest.raises(UserError, match=r"block-000001\.safetensors is damaged"):
        list(stored(str(tmp_path / "d"), PLAIN).blocks())
    kept = stored(str(tmp_path / "d"), PLAIN, skip=True)
    assert sum(len(rows.reward) for rows in kept.blocks()) == 12 and "block-000001" in kept.lost[0]


BOTH = [DQN, ENV, "algo.limiter={opt_interval: 2, warmup: 20}", "train.budget=120 steps", "data.share=0.25", *REST[1:]]


def both(data: Path, *more: str) -> Any:
    return ganglion.load_config(None, [*BOTH, f"data.path={data}", *more])


def test_beside_an_environment_each_batch_has_its_share(data: Path) -> None:
    trainer: Any = build(both(data, "data.pretrain=7"))
    seen, firsts = [], []
    take = trainer.learner.buffer.take

    def noting(*given: Any) -> Any:
        sample = take(*given)
        firsts.append(trainer.learner.buffer.taken[0] is trainer.learner.buffer.own)
        seen.append(sample.index.shape)
        return sample

    trainer.learner.buffer.take = noting
    updates = [log.at.env_steps for log in trainer() if log.kind == "learn"]
    assert updates[:7] == [0] * 7 and updates[7] > 20, "updates before the first step, and then as the limiter says"
    assert set(seen) == {(1, 16)} and trainer.learner.buffer.taken[1] == 12
    assert firsts == [False] * 7 + [True] * (len(updates) - 7)
    assert len(updates) == 7 + (120 - 20) // 2


@pytest.mark.parametrize("more", [[], ["algo.replay={kind: prioritised, batch: 16}"]], ids=["uniform", "prioritised"])
def test_beside_an_environment_resumed_exactly(more: list[str], data: Path, tmp_path: Path) -> None:
    asked = ["data.pretrain=5", "save.every=40 steps", *more]
    whole = Run.create(both(data, *asked, f"run.dir={tmp_path / 'whole'}"))
    for _ in whole.stream():
        pass
    left = Run.create(both(data, *asked, f"run.dir={tmp_path / 'left'}"))
    for log in left.stream():
        if log.kind == "save" and log.at.env_steps >= 80:
            break
    left.close()
    again = Run.open(tmp_path / "left")
    for _ in again.stream():
        pass
    close(whole.state().tensors, again.state().tensors)
    assert again.trainer.at.env_steps == 120


def test_a_killed_run_goes_on_with_other_workers(data: Path, tmp_path: Path) -> None:
    """Saved where batches wait that were gathered and not yet taken."""
    whole = Run.create(config(data, "data.store=memory", "data.workers=1", f"run.dir={tmp_path / 'whole'}"))
    for _ in whole.stream():
        pass
    left = Run.create(config(data, "data.store=disk", "data.workers=3", f"run.dir={tmp_path / 'left'}"))
    for log in left.stream():
        if log.kind == "save" and log.at.opt_steps >= 40:
            break
    left.close()
    again = Run.open(tmp_path / "left", ["data.workers=2"])
    for _ in again.stream():
        pass
    close(whole.state().tensors, again.state().tensors)


GOAL = "env={kind: toy, id: goal, size: 4, slots: 4}"
HINDSIGHT = "algo.replay={batch: 64, relabel: {kind: hindsight, ends: true}}"


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_a_dataset_are_relabelled(workers: int, tmp_path: Path) -> None:
    goals = recorded(tmp_path / "goals", GOAL, episodes=40)
    missed = float((load(goals).rows.reward < 0).double().mean())

    def trainer(*more: str) -> Any:
        return build(config(goals, f"data.workers={workers}", HINDSIGHT, *more, env=GOAL))

    made, seen = trainer(), []
    take = made.learner.buffer.take
    made.learner.buffer.take = lambda *given: seen.append(take(*given)) or seen[-1]
    first = trained(made)
    close(first, trained(trainer()))
    rewards = torch.cat([sample.data.reward[0] for sample in seen])
    assert float((rewards == 0).double().mean()) > 0.3 > 1 - missed, "what was reached by chance counts as wanted"
    assert made.learner.buffer.metrics()


def test_refused_settings(data: Path) -> None:
    with pytest.raises(UserError, match=r"data\.weights: 2 for 1 datasets"):
        config(data, "data.weights=[1, 2]")
    with pytest.raises(UserError, match=r"sqil learns from demonstrations: data\.path should"):
        build(ganglion.load_config(None, ["algo=sqil", "env={kind: torch, id: pendulum}", *REST]))
    with pytest.raises(UserError, match=r"data\.weights: needs algo\.replay\.kind replay, not prioritised"):
        build(config(data, "data.weights=[1]", "algo.replay={kind: prioritised, batch: 16}"))
