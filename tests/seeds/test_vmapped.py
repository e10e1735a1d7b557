"""Several algorithms as one: the numbers of each are those it would have had alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ganglion
from ganglion import nn, ops
from ganglion.core import Algorithm, Noise, Past, Sample, Transition
from ganglion.errors import UserError
from ganglion.fast.trace import Traced
from ganglion.nn.vmapped import Stack, joined
from ganglion.runtime.build import build_agent, build_env

SEEDS = 3
ROWS = 16


def algos(name: str, *more: str) -> list[Algorithm[Any, Any]]:
    """One per seed, and one more."""
    base = [f"algo={name}", "env={kind: torch, id: cartpole, slots: 4}", "algo.net.hidden=[8, 8]", "run.fast=eager"]
    configs = [ganglion.load_config(None, [*base, *more, f"run.seed={seed}"]) for seed in range(SEEDS + 1)]
    spec = build_env(configs[0]).spec
    return [build_agent(cfg, spec).algo for cfg in configs]


def in_doubles(algo: Algorithm[Any, Any]) -> Algorithm[Any, Any]:
    for part in vars(algo).values():
        if isinstance(part, torch.nn.Module):
            for tensor in (*part.parameters(), *part.buffers()):
                tensor.data = tensor.data.double()
    optim: Any = algo.optim  # type: ignore[attr-defined]
    for tensor in (*optim.mean, *optim.square, optim.count):
        tensor.data = tensor.data.double()
    return algo


def batches(name: str, dtype: torch.dtype) -> Any:
    """Minibatches of all seeds, [K, 1, B, ...], without end."""
    g = torch.Generator().manual_seed(0)
    start = torch.zeros(SEEDS, 1, ROWS, dtype=torch.bool)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(SEEDS, 1, ROWS, *shape, generator=g, dtype=dtype)

    while True:
        live = torch.rand(SEEDS, 1, ROWS, generator=g) > 0.1
        action = torch.randint(2, (SEEDS, 1, ROWS), generator=g)
        past = Past((), start)
        if name == "ppo":
            from ganglion.algos.ppo import PPOMinibatch

            yield PPOMinibatch(normal(4), past, action, normal() * 0.1 - 0.7, normal(), normal(), normal(), live, live)
        else:
            ahead = torch.zeros(SEEDS, 1, ROWS, dtype=torch.int64)
            data = Transition(normal(4), action, normal(), live * 0.9, normal(4), ahead, past, past, live, start, {})
            yield Sample(data, ahead, live.to(dtype))


def knobs(name: str) -> dict[str, torch.Tensor]:
    values = {"lr": [1e-3, 3e-4, 1e-4], "entropy_weight": [0.0, 0.01, 0.1], "clip": [0.1, 0.2, 0.3]}
    own = values if name == "ppo" else {"lr": values["lr"], "epsilon": [1.0] * SEEDS}
    return {k: torch.tensor(v) for k, v in own.items()}


def state(algo: Algorithm[Any, Any]) -> dict[str, torch.Tensor]:
    return {f"{part}/{name}": x for part, own in algo.parts().items() for name, x in own.state().tensors.items()}


@pytest.mark.parametrize("name", ["ppo", "dqn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_learns_as_it_would_alone(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    more = ["algo.net.normalise=true"] if name == "ppo" else ["algo.double=false"]
    singles, many = algos(name, *more)[:-1], algos(name, *more)
    if dtype == torch.float64:
        monkeypatch.setattr("ganglion.nn.nets.flatten", lambda obs, *_: obs)  # it makes float32 of everything
        singles, many = [in_doubles(a) for a in singles], [in_doubles(a) for a in many]
    stack = Stack([[algo] for algo in many[:-1]], many[-1:])
    learn, none = stack.all(many[-1].learn), Noise(torch.empty(SEEDS, 0), torch.empty(SEEDS, 0))
    for count, mini in zip(range(300), batches(name, dtype)):
        update = learn(mini, knobs(name), none)
        for k, algo in enumerate(singles):
            alone = algo.learn(ops.select(mini, k), ops.select(knobs(name), k), ops.select(none, k))
            for metric, value in alone.metrics.items():
                torch.testing.assert_close(update.metrics[metric][k], value)
        if count % 100 == 50:
            for algo in (*singles, *many[:-1]):
                algo.sync_target()
    close = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-5}
    for one, other in zip(singles, many):
        before, after = state(one), state(other)
        assert before.keys() == after.keys()
        for key, value in before.items():
            torch.testing.assert_close(after[key], value, **close, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("name", ["crossq", "flashsac"])
def test_statistics_that_move_in_updates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64: float32 differs in last bits, of which Adam makes whole steps where a gradient is 0."""
    from tests.contract.worlds import CASES, Bench

    monkeypatch.setattr("ganglion.nn.nets.flatten", lambda obs, *_: obs)

    def made(seed: int) -> Any:
        algo: Any = Bench(case, seed=seed).algo
        for part in (algo.model, *([algo.target] if name == "flashsac" else [])):
            part.double()
        for optim in (algo.actor_optim, algo.critic_optim, algo.warmth_optim):
            optim.mean, optim.square = ([x.double() for x in own] for own in (optim.mean, optim.square))
            optim.count = optim.count.double()
        return algo

    case = next(case for case in CASES if case.name == name)
    bench = Bench(case)
    *given, at = bench.learnable()
    mini, noise = ops.map_tree(lambda x: x.double() if x.is_floating_point() else x, (given[0], given[1][:2]))
    singles, many, knobs = [made(k) for k in range(2)], [made(k) for k in range(3)], bench.agent.knobs(at)
    stack = Stack([[algo] for algo in many[:-1]], many[-1:])
    both = [ops.map_tree(lambda x: torch.stack([x, x]), x) for x in (mini, dict(knobs), Noise(*noise))]
    for _ in range(10):
        stack.all(many[-1].learn)(*both)
        stack.all(many[-1].learn_late)(*both)
        for one in singles:
            one.learn(mini, knobs, Noise(*noise))
            one.learn_late(mini, knobs, Noise(*noise))
    for one, other in zip(singles, many):
        for key, value in state(one).items():
            torch.testing.assert_close(state(other)[key], value, rtol=1e-9, atol=1e-10, msg=key)


def test_the_others_do_not_move() -> None:
    many = algos("ppo")
    stack = Stack([[algo] for algo in many[:-1]], many[-1:])
    before = [{k: v.clone() for k, v in state(algo).items()} for algo in many[:-1]]
    none = Noise(torch.empty(SEEDS, 0), torch.empty(SEEDS, 0))
    with stack.sparing([0, 2]):
        stack.all(many[-1].learn)(next(batches("ppo", torch.float32)), knobs("ppo"), none)
    moved = [any(not torch.equal(old[k], v) for k, v in state(algo).items()) for old, algo in zip(before, many)]
    assert moved == [False, True, False]


def test_a_row_is_the_tensor_itself() -> None:
    mine = [torch.zeros(2), torch.ones(2)]
    whole = joined(mine)
    mine[1].add_(1)
    whole[0, 0] = 5
    assert whole.tolist() == [[5, 0], [2, 2]] and mine[0].tolist() == [5, 0]


def test_traced_and_compiled_it_is_the_same() -> None:
    """One linear model per seed, gradients inside: the first call leaves nothing behind, and each call counts once."""
    import torch.nn.functional as fn

    def made(seed: int) -> Any:
        from types import SimpleNamespace

        torch.manual_seed(seed)
        model = torch.nn.Linear(3, 1)
        return SimpleNamespace(model=model, optim=ganglion.nn.Adam(model, lr=0.1 * (seed + 1), max_norm=1.0))

    singles, many = [made(k) for k in range(2)], [made(k) for k in range(3)]
    stack = Stack([[algo] for algo in many[:-1]], many[-1:])

    def learn(x: torch.Tensor) -> torch.Tensor:
        norm: torch.Tensor = many[-1].optim.step(fn.mse_loss(many[-1].model(x), x.sum(-1, keepdim=True)))
        return norm

    fast = Traced(stack.all(learn), lambda: stack.sparing(range(2)))
    for _ in range(5):
        x = torch.randn(2, 4, 3)
        norms = fast(x)
        for k, one in enumerate(singles):
            norm = one.optim.step(fn.mse_loss(one.model(x[k]), x[k].sum(-1, keepdim=True)))
            torch.testing.assert_close(norms[k], norm)
            torch.testing.assert_close(many[k].model.weight, one.model.weight)
    assert fast.graph is not fast.fn  # it did compile
    assert many[0].optim.count == 5


def test_gradients_of_narrow_ensembles_compile() -> None:
    """A product that is turned for speed is laid out as it was recorded: what follows may be a view of it."""
    from types import SimpleNamespace

    from ganglion.nn.layers import Linears

    made: list[Any] = [SimpleNamespace(model=Linears(1, 32, 3)) for _ in range(3)]
    for one in made:
        one.optim = ganglion.nn.Adam(one.model, lr=0.1)
    stack = Stack([[algo] for algo in made[:-1]], made[-1:])

    def learn(x: torch.Tensor) -> torch.Tensor:
        norm: torch.Tensor = made[-1].optim.step(made[-1].model(x).square().mean())
        return norm

    fast = Traced(stack.all(learn), lambda: stack.sparing(range(2)))
    assert fast(torch.randn(2, 1, 64, 32)).shape == (2,)
    assert fast.graph is not fast.fn


def test_memory_is_kept() -> None:
    import sys

    from ganglion.fast.compile import keep_pages

    assert keep_pages() or not sys.platform.startswith("linux")


class Plain(nn.Optimiser):
    """Gradient descent."""

    def apply(self, grads: list[torch.Tensor], lr: float | torch.Tensor) -> None:
        torch._foreach_sub_(self.params, torch._foreach_mul(grads, lr))

    def kept(self) -> dict[str, list[torch.Tensor]]:
        return {}


def test_an_optimiser_that_cannot_be_joined_is_refused() -> None:
    own: list[Any] = algos("dqn")
    for algo in own:
        algo.optim = Plain(algo.model, lr=1e-3)
    with pytest.raises(UserError, match=r"Plain cannot train several runs together. Accepted: Adam, RMSprop"):
        Stack([[algo] for algo in own[1:]], own[:1])
