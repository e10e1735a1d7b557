"""Parts of one's own, from a user's module: used by settings, checkpointed, resumed to the bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import ganglion
from ganglion import ops, registry
from ganglion.config import RunConfig
from ganglion.core import Progress, Stop
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.engine import Engine
from ganglion.runtime.run import Run
from ganglion.runtime.seeds import Seeds
from ganglion.runtime.trainer import Trainer
from tests.contract import plugs
from tests.contract.test_own_algorithms import close
from tests.contract.test_own_algorithms import trained as learned
from tests.contract.worlds import one_graph
from tests.equal.runs import fingerprint, finish, metrics, saved

SMALL = ["algo.net.hidden=[16]", "eval.every=300 steps", "eval.episodes=3", "save.every=170 steps",
         "log={every: 100 steps, writers: [jsonl]}", "train.budget=700 steps", "run.fast=eager"]  # fmt: skip
CARTPOLE = "env={kind: gym, id: CartPole-v1, slots: 3, workers: 0}"
PENDULUM = "env={kind: gym, id: Pendulum-v1, slots: 2, workers: 0}"
OFTEN = "algo.limiter={warmup: 60, opt_interval: 4}"
OWN: dict[str, list[str]] = {
    "buffer dqn": ["algo=dqn", "algo.replay=newest", "algo.n_step=1", OFTEN, CARTPOLE],
    "buffer sac": ["algo=sac", "algo.replay={kind: newest, length: 100}", OFTEN, PENDULUM],
    "buffer td3": ["algo=td3", "algo.replay={kind: newest, length: 100}", OFTEN, PENDULUM],
    "processor dqn": ["algo=dqn", "algo.processor=centred", OFTEN, CARTPOLE],
    "processor ppo": ["algo=ppo", "algo.processor=centred", "algo.horizon=24", PENDULUM],
    "extras": ["algo={kind: retrace, replay: {capacity: 300, batch: 8}}", OFTEN, CARTPOLE],
    "extras by parts": ["algo={kind: retrace, minibatches: 4, replay: {kind: prioritised, capacity: 300, batch: 8}}",
                        OFTEN, CARTPOLE],
    "extras, memory": ["algo={kind: retrace, net: {memory: gru, memory_size: 4}, replay: {capacity: 300, batch: 8}}",
                       OFTEN, CARTPOLE],
}  # fmt: skip


def configured(name: str, folder: Path, *more: str) -> RunConfig:
    return ganglion.load_config(None, [*OWN[name], *SMALL, f"run.dir={folder}", *more], ["tests.contract.plugs"])


@pytest.mark.parametrize("name", OWN)
def test_stopped_and_resumed_it_is_the_same(name: str, tmp_path: Path) -> None:
    whole = finish(Run.create(configured(name, tmp_path / "whole")))
    assert whole.trainer.at.opt_steps > 50
    run, dice = Run.create(configured(name, tmp_path / "stopped")), random.Random(name)
    for _ in range(3):
        stream = run.stream()
        for _ in range(dice.randint(20, 150)):
            next(stream)
        with pytest.raises(StopIteration):
            while True:
                stream.send(Stop())
        run = Run.open(tmp_path / "stopped")
    finish(run)
    assert metrics(tmp_path / "stopped") == metrics(tmp_path / "whole")
    assert saved(tmp_path / "stopped") == saved(tmp_path / "whole")


def trained(words: list[str], *more: str) -> Trainer:
    trainer = build(ganglion.load_config(None, [*words, *SMALL, *more], ["tests.contract.plugs"]))
    for _ in trainer():
        pass
    trainer.close()
    return trainer


@pytest.mark.parametrize("name", ["buffer dqn", "processor dqn", "extras"])
def test_through_a_broker_it_is_the_same(name: str) -> None:
    local, sync = trained(OWN[name]), trained(OWN[name], "run.mode=sync")
    assert local.at[:3] == sync.at[:3]
    assert fingerprint(local.learner.state()) == fingerprint(sync.learner.state())
    assert fingerprint(local.learner.agent.state()) == fingerprint(sync.learner.agent.state())


BOTH = [*SMALL, "train.budget=260 steps", "eval=never", "save=never"]


@pytest.mark.parametrize("name", ["buffer dqn", "processor ppo", "extras by parts"])
def test_as_one_graph(name: str) -> None:
    torch._dynamo.reset()
    still = [] if "ppo" in name else ["algo.epsilon=0.2"]  # a block is acted with the knobs of its first step
    config = ganglion.load_config(
        None, [*OWN[name], *BOTH, "train.budget=30 updates", *still], ["tests.contract.plugs"]
    )
    close(learned(build(config)), learned(build(config, Engine(torch.device("cpu"), one_graph))), exactly=False)


@pytest.mark.parametrize("name", ["buffer dqn", "processor dqn", "processor ppo", "extras"])
def test_batched_over_runs(name: str, tmp_path: Path) -> None:
    def config(k: int) -> RunConfig:
        own = [f"run.dir={tmp_path / str(k)}", f"run.seed={k}"]
        return ganglion.load_config(None, [*OWN[name], *BOTH, *own], ["tests.contract.plugs"])

    seeds = Seeds([config(k) for k in range(2)])
    for _ in seeds.stream():
        pass
    for k, run in enumerate(seeds.runs):
        own = dict(run.trainer.learner.agent.state().tensors)
        close(learned(build(config(k))), own, exactly=False)


def test_a_whole_trace_is_learned_from() -> None:
    """The reward of a corridor comes at its end, and traces bring it to the first place in a few updates."""
    words = ["algo={kind: retrace, length: 8, lr: 3e-3, target_every: 20, replay: {capacity: 2000, batch: 32}}",
             "env={kind: toy, id: chain, slots: 4}", "algo.limiter={warmup: 100, opt_interval: 2}"]  # fmt: skip
    trainer = trained(words, "train.budget=2k steps", "algo.net.hidden=[32]")
    assert [episode.total for episode in trainer.run_evaluate()[0]] == [1.0] * 3


def test_a_processor_gives_the_same_rows_one_by_one() -> None:
    """Of the same steps, a block at once."""
    g = torch.Generator().manual_seed(0)
    steps = [torch.rand(5, 3, generator=g) for _ in range(2)]
    flags = torch.rand(5, 3, generator=g) > 0.5

    def rows(first: int, last: int, processor: Any) -> Any:
        part = lambda x: x[first:last]  # noqa: E731
        before = plugs.Step(part(steps[0])[..., None], part(steps[0]), part(flags), part(flags), part(~flags))
        after = before._replace(reward=part(steps[1]))
        return processor(before, plugs.Past((), part(flags)), plugs.Acted(part(steps[0]), {}, ()), after)

    one, many = plugs.Centred(), plugs.Centred()
    single = ops.concat([rows(t, t + 1, one) for t in range(5)])
    assert all(torch.equal(a, b) for a, b in zip(ops.leaves(single), ops.leaves(rows(0, 5, many)), strict=True))
    assert one.count == many.count


def test_what_a_buffer_cannot_give_is_refused() -> None:
    words = [*OWN["buffer dqn"], *SMALL]
    for more, why in (
        ("algo.n_step=3", "newest has transitions of one step"),
        ("algo.replay=rollout", "rollout keeps"),
    ):
        with pytest.raises(UserError, match=why):
            build(ganglion.load_config(None, [*words, more], ["tests.contract.plugs"]))


def test_families_of_limiters_and_buffers() -> None:
    assert registry.names("limiter")[:3] == ["ratio", "ready", "always"]
    assert {"replay", "prioritised", "rollout", "newest"} <= set(registry.names("buffer"))
    with pytest.raises(UserError, match=r"algo\.limiter.*unknown limiter 'redy'.*ready"):
        ganglion.load_config(None, ["algo={kind: dqn, limiter: redy}", CARTPOLE])


def test_always_learns_without_a_step() -> None:
    """From what is in the buffer; a run whose budget is in updates takes no step more."""
    words = [*OWN["buffer dqn"][:3], CARTPOLE, *SMALL, "algo.limiter=always", "train.budget=40 updates"]
    trainer = build(ganglion.load_config(None, words, ["tests.contract.plugs"]))
    kinds = [log.kind for log in trainer()]
    assert kinds == ["collect"] * 2 + ["learn"] * 40, "two rows are the least that make a transition"
    assert trainer.learner.limiter.owes(Progress(), ready=True)


def test_random_actions_last_until_the_first_update() -> None:
    """SAC and TD3 ask the limiter, whichever it is."""
    for limiter, begins in (("{warmup: 60}", 60), ("always", 0)):
        cfg = ganglion.load_config(None, ["algo=sac", f"algo.limiter={limiter}", PENDULUM])
        assert cfg.algo.limiter.begins == begins  # type: ignore[attr-defined]
