"""Algorithms computed by JAX: equal to torch's, resumed exactly, the same in every mode."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import ganglion
from ganglion import registry
from ganglion.core import Box, Composite, Discrete, EnvSpec, MultiBinary, Noise, Progress, Sample, State, Transition
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.check_algorithm import PROPERTIES, Bench
from ganglion.runtime.run import Run

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'ganglion[jax]'")

REPLAY = "algo.replay={kind: replay, capacity: 500, batch: 16}"
SORTS = {
    "dqn_jax": ["algo=dqn_jax", "algo.hidden=[16]", REPLAY, "algo.limiter={warmup: 60, opt_interval: 4}"],
    "ppo_jax": ["algo=ppo_jax", "algo.hidden=[16]", "algo.horizon=16"],
}
NONE = Noise(torch.empty(0), torch.empty(0))


def config(sort: str, *more: str) -> Any:
    env = "env={id: CartPole-v1, slots: 3, workers: 0}"
    return ganglion.load_config(None, [*SORTS[sort], env, "train.budget=500 steps", "log=[]", "eval=never", *more])


def same(one: State, other: State) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )


# ------------------------------------------------------------ against torch


def laid_as(tensor: torch.Tensor, shape: Any) -> torch.Tensor | None:
    """One of torch's parameters as JAX has it, [in, out]; None where it is another."""
    plain = tensor.squeeze()
    return next(
        (form for form in (plain, plain.permute(*reversed(range(plain.dim())))) if form.shape == tuple(shape)), None
    )


def theirs_of(algo: Any, shape: Any) -> torch.Tensor:
    """The parameter of torch's model that has a shape."""
    found = [
        laid_as(tensor.detach(), shape) for tensor in algo.model.parameters() if tensor.squeeze().dim() == len(shape)
    ]
    return next(tensor for tensor in found if tensor is not None)


def test_an_update_is_that_of_torch() -> None:
    spec = EnvSpec(Box((5,)), Discrete(3), 4, "world")
    rest = ["env=toy:identity", "algo.max_norm=0.05"]
    cfgs = {
        kind: ganglion.load_config(None, [f"algo={kind}", hidden, *rest]).algo
        for kind, hidden in (("dqn", "algo.net.hidden=[7,6]"), ("dqn_jax", "algo.hidden=[7,6]"))
    }
    torch.manual_seed(0)
    theirs, ours = cfgs["dqn"].build(spec), cfgs["dqn_jax"].build(spec)
    ours.model.restore(State({own: theirs_of(theirs, array.shape) for own, array in ours.model.arrays.items()}))
    theirs.sync_target(), ours.sync_target()
    knobs = {"lr": torch.tensor(0.01), "epsilon": torch.tensor(0.1)}
    for _ in range(5):
        mini = sample(spec, 9)
        one, two = theirs.learn(mini, knobs, NONE), ours.learn(mini, knobs, NONE)
        for name, value in two.metrics.items():
            torch.testing.assert_close(value, one.metrics[name], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(two.priority, one.priority, rtol=1e-4, atol=1e-6)
    for tensor in ours.model.state().tensors.values():
        torch.testing.assert_close(tensor, theirs_of(theirs, tensor.shape), rtol=1e-3, atol=1e-5)


def sample(spec: EnvSpec, count: int) -> Sample[Transition]:
    from ganglion.core import Past

    obs, later = torch.randn(2, 1, count, 5)
    past = Past((), torch.zeros(1, count, dtype=torch.bool))
    action, ahead = torch.randint(0, 3, (1, count)), torch.zeros(1, count, dtype=torch.int64)
    reward, discount = torch.randn(1, count), 0.9 * (torch.rand(1, count) > 0.3)
    fields = {"obs": obs, "action": action, "reward": reward, "discount": discount, "next_obs": later, "past": past}
    fields |= {"next_past": past, "ahead": ahead, "extras": {}, "valid": torch.ones(1, count, dtype=torch.bool)}
    fields["cut"] = torch.zeros(1, count, dtype=torch.bool)
    data = Transition(**{name: fields[name] for name in Transition._fields})
    weight = torch.rand(1, count) * (torch.rand(1, count) > 0.2)
    return Sample(data, torch.arange(count)[None], weight)


@pytest.mark.parametrize("action", [Discrete(3), Box((2,), low=-1.0, high=1.0)], ids=["discrete", "box"])
def test_ppo_believes_what_it_acted_on(action: Any) -> None:
    """At the first update the ratio is 1: acting by torch's distribution and learning by JAX's agree."""
    spec = EnvSpec(Box((4,)), action, 6, "world")
    cfg = ganglion.load_config(None, ["algo=ppo_jax", "env=toy:identity", "algo.horizon=8", "algo.minibatches=1"]).algo
    bench = Bench(cfg, spec)
    at = Progress()
    while not bench.learner.owes(at):
        at = bench.collect(at)
    metrics = bench.learner.step(at).metrics
    assert abs(float(metrics["kl"])) < 1e-6 and float(metrics["clipped"]) == 0 and abs(float(metrics["policy"])) < 1e-5
    entropy = 1.0986 if isinstance(action, Discrete) else 2 * 1.4189
    assert float(metrics["entropy"]) == pytest.approx(entropy, abs=0.01)


def test_adam_is_torchs() -> None:
    from ganglion.backends.jax_arrays import Jax, adam, adam_start

    library, tensor = Jax(), torch.randn(4, 3)
    param = torch.nn.Parameter(tensor.clone())
    optim = torch.optim.Adam([param], lr=0.01)
    params = {"w": library.array(tensor)}
    state = adam_start(params)
    for _ in range(10):
        param.grad = torch.randn(4, 3)
        params, state, norm = adam(params, {"w": library.array(param.grad.clone())}, state, 0.01, 1.0, 1e-8)
        assert float(norm) == pytest.approx(float(param.grad.norm()), rel=1e-5)
        torch.nn.utils.clip_grad_norm_([param], 1.0)
        optim.step()
    torch.testing.assert_close(library.tensor(params["w"]), param.detach(), rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------ promises


@pytest.mark.parametrize("kind", SORTS)
@pytest.mark.parametrize("name", ["trains", "repeats", "random", "acts", "reads", "pure", "knobs", "travels"])
def test_what_every_algorithm_promises(kind: str, name: str) -> None:
    cfg = config(kind).algo
    spec = EnvSpec(Composite({"obs": Box((4,)), "action_mask": MultiBinary(3)}), Discrete(3), 6, "world")
    PROPERTIES[name].check(lambda **given: Bench(cfg, spec, **given))


@pytest.mark.parametrize("sort", SORTS)
def test_a_run_resumes_exactly(sort: str, tmp_path: Path) -> None:
    whole = Run.create(config(sort, f"run.dir={tmp_path}/a"))
    for _ in whole.stream():
        pass
    left = Run.create(config(sort, f"run.dir={tmp_path}/b"))
    stream = left.stream()
    for _ in range(150):
        next(stream)
    left.save()
    stream.close()
    again = Run.open(tmp_path / "b")
    for _ in again.stream():
        pass
    assert again.trainer.at[:3] == whole.trainer.at[:3] and again.trainer.at.opt_steps > 10
    assert same(again.trainer.learner.agent.state(), whole.trainer.learner.agent.state())
    assert same(again.trainer.learner.state(), whole.trainer.learner.state())
    agent = ganglion.load(tmp_path / "a")
    assert int(agent.act(torch.zeros(4).numpy())) in (0, 1)


@pytest.mark.parametrize("sort", SORTS)
def test_sync_equals_local(sort: str) -> None:
    local, sync = (build(config(sort, f"run.mode={mode}")) for mode in ("local", "sync"))
    for trainer in (local, sync):
        for _ in trainer():
            pass
        trainer.close()
    assert local.at[:3] == sync.at[:3] and local.at.opt_steps > 0
    assert same(local.learner.agent.state(), sync.learner.agent.state())


@pytest.mark.learning
@pytest.mark.parametrize("sort", SORTS)
def test_it_learns(sort: str) -> None:
    env, rest = "env={kind: toy, id: identity, slots: 8}", ["train.budget=4k steps", "algo.lr=3e-3", "algo.gamma=0.5"]
    trainer = build(config(sort, env, *rest))
    for _ in trainer():
        pass
    _, numbers = trainer.evaluator.run()
    trainer.close()
    first = build(config(sort, env))
    assert numbers["eval/return_mean"] > first.evaluator.run()[1]["eval/return_mean"]
    first.close()
    best = build(ganglion.load_config(None, ["algo=ppo", env]))  # for the length of an episode
    assert numbers["eval/return_mean"] > 0.9 * numbers["eval/length_mean"]
    best.close()


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize(
    ("setting", "message"),
    [("fleet.learners=2", "fleet.learners: .*cannot be averaged")],
)
def test_what_cannot_be_is_refused(sort: str, setting: str, message: str) -> None:
    more = ["run.mode=ray"] if "fleet" in setting else []
    with pytest.raises(UserError, match=message):
        build(config(sort, setting, *more))


def test_a_name_whose_package_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    for name in [name for name in sys.modules if name.startswith("ganglion.backends.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(registry._found, ("algo", "dqn_jax"), raising=False)
    with pytest.raises(UserError, match="algo 'dqn_jax' needs the package 'jax'"):
        registry.lookup("algo", "dqn_jax")


def test_names_are_listed() -> None:
    assert {"dqn_jax", "ppo_jax"} <= set(registry.names("algo"))
    assert registry.origin("algo", "ppo_jax").module == "ganglion.backends.ppo_jax"
