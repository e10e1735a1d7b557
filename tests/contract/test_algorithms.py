"""What every registered algorithm must do, over observations and actions of every sort."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ganglion import ops, registry
from ganglion.core import Progress, State
from ganglion.errors import UserError
from ganglion.runtime.agent import enter
from tests.contract.worlds import CASES, Bench, Case, one_graph

each = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_every_registered_algorithm_has_a_case():
    assert {c.algo for c in CASES} == set(registry.TABLE["algo"])


@each
def test_trains_on_its_spaces_with_finite_numbers(case: Case):
    bench = Bench(case)
    before = bench.parameters()
    at = bench.train(9, Progress())
    assert not equal(before, bench.parameters())
    assert all(v.isfinite().all() for v in bench.parameters().values() if v.is_floating_point())
    while not bench.learner.owes(at):
        at = bench.explorer.step(at).at
    assert all(v.dim() == 0 and not v.requires_grad for v in bench.learner.step(at).metrics.values())


@each
def test_same_seed_same_numbers(case: Case):
    one, two = Bench(case), Bench(case)
    one.train(7, Progress())
    two.train(7, Progress())
    assert equal(one.parameters(), two.parameters())


@each
def test_global_random_state_is_neither_used_nor_disturbed(case: Case):
    torch.manual_seed(1)
    one = Bench(case)
    one.train(5, Progress())
    state = torch.get_rng_state()
    torch.manual_seed(2)
    two = Bench(case)
    two.train(5, Progress())
    assert equal(one.parameters(), two.parameters())
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())


@each
def test_parts_round_trip_in_place(case: Case):
    one, two = Bench(case, seed=0), Bench(case, seed=1)
    at = one.train(5, Progress())
    where = {k: v.data_ptr() for k, v in two.agent.state().tensors.items()}
    two.agent.restore(one.agent.state())
    assert equal(one.parameters(), two.parameters())
    assert where == {k: v.data_ptr() for k, v in two.agent.state().tensors.items()}, (
        "captured graphs hold these tensors"
    )
    two.learner.restore(copied(one.learner.state()))
    two.explorer.restore(copied(one.explorer.state()))
    two.explorer.env.__dict__.update(reset_like(one))
    one.train(6, at)
    two.train(6, at)
    assert equal(one.parameters(), two.parameters()), "restored in the middle, it goes on the same"


def copied(state: State) -> State:
    """As from disk: sharing nothing."""
    rings = {k: r._replace(arrays={n: a.clone() for n, a in r.arrays.items()}) for k, r in state.rings.items()}
    return State({k: v.clone() for k, v in state.tensors.items()}, deepcopy(dict(state.scalars)), rings)


def reset_like(bench: Bench) -> dict[str, object]:
    world = bench.explorer.env
    g = torch.Generator()
    g.set_state(world.g.get_state())
    return {"g": g, "now": world.now}


@each
def test_exploit_is_deterministic_and_explore_differs_per_slot(case: Case):
    bench = Bench(case)
    bench.train(2, Progress())
    step, _ = bench.now
    slots = case.slots
    same = ops.map_tree(lambda x: x[:1].expand(slots, *x.shape[1:]), step.obs)  # every slot sees the same
    past = bench.agent.start(slots)
    one, two = bench.agent.predict(same, past), bench.agent.predict(same, past)
    for a, b in zip(ops.leaves(one.action), ops.leaves(two.action), strict=True):
        assert torch.equal(a, b) and torch.equal(a, a[:1].expand_as(a))
    at, different = Progress(), 0
    for _ in range(20):
        noise = bench.explorer.seats[0].noise.next()
        action = bench.agent.sample(same, past, noise, at).action
        different += any(not torch.equal(a, a[:1].expand_as(a)) for a in ops.leaves(action))
    assert different > 5, "one coin for all slots would never differ"


@each
def test_only_predict_reads_parameters_while_acting(case: Case):
    """Central inference predicts in one process and explores in another, whose own weights are not the learner's."""
    bench = Bench(case)
    step, past = bench.now
    first, second = bench.agent.parted(bench.explorer.seats[0].noise.next())
    knobs = bench.agent.knobs(Progress())
    with torch.no_grad():
        prediction = bench.algo.predict(enter(step.obs), past, first)
        prediction = ops.map_tree(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, prediction)
        right = bench.algo.explore(prediction, knobs, second), bench.algo.exploit(prediction)
        for part in bench.algo.parts().values():
            for tensor in part.state().tensors.values():
                tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
        poisoned = bench.algo.explore(prediction, knobs, second), bench.algo.exploit(prediction)
    for a, b in zip(ops.leaves(right), ops.leaves(poisoned), strict=True):
        assert torch.equal(a, b)


class NoSync(TorchDispatchMode):
    """Fails where a tensor is read on the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor was read on the host"
        return func(*args, **(kwargs or {}))


def learnable(case: Case) -> tuple[Bench, object, object, Progress]:
    """A bench with a minibatch in hand."""
    bench = Bench(case)
    at = bench.train(1, Progress())
    while not bench.learner.owes(at):
        at = bench.explorer.step(at).at
    learner = bench.learner
    if learner.mini is None:
        learner.begin(at)
    mini = learner.mini if learner.table is None else ops.take(learner.mini, learner.table[learner.position], dim=1)
    noise = learner.stream.noise(bench.agent.draws.learn, *ops.leaves(mini)[0].shape[:2])
    noise = noise._replace(update=learner.stream.noise(bench.agent.draws.update))
    return bench, mini, noise, at


@each
def test_act_and_learn_never_wait_for_the_device(case: Case):
    bench, mini, noise, at = learnable(case)
    knobs = bench.agent.knobs(at)
    step, past = bench.now
    obs = enter(step.obs)
    acting, still = bench.stream.noise(bench.agent.draws.explore, 1, case.slots), bench.algo.neutral(past.start)
    with NoSync():
        with torch.no_grad():
            bench.algo.explore(bench.algo.predict(obs, past, still), knobs, acting)
            bench.algo.exploit(bench.algo.predict(obs, past, still))
        bench.algo.learn(mini, knobs, noise)
        bench.algo.learn_late(mini, knobs, noise)


@each
def test_learn_leaves_its_inputs_alone(case: Case):
    bench, mini, noise, at = learnable(case)
    before = [x.clone() for x in ops.leaves(mini)]
    bench.algo.learn(mini, bench.agent.knobs(at), noise)
    bench.algo.learn_late(mini, bench.agent.knobs(at), noise)
    assert all(torch.equal(a, b) for a, b in zip(before, ops.leaves(mini), strict=True))


@each
def test_whole_act_and_learn_are_one_graph(case: Case):
    """Full-graph compilation of every act and learn, equal to eager. aot_eager traces all that inductor would."""
    torch._dynamo.reset()
    eager, compiled = Bench(case), Bench(case, wrap=one_graph)
    a, b = eager.train(4, Progress()), compiled.train(4, Progress())
    assert a == b
    for name, value in eager.parameters().items():
        assert torch.allclose(value, compiled.parameters()[name], rtol=1e-4, atol=1e-6), name


@each
def test_knobs_can_be_pinned_and_given_back(case: Case):
    from ganglion.core import SetKnob

    bench = Bench(case)
    at = Progress(fraction=0.3)
    for name in bench.algo.knobs(at):
        bench.agent.pin(SetKnob(name, 0.125))
        assert float(bench.agent.knobs(at)[name]) == 0.125
        bench.agent.pin(SetKnob(name, None))
        assert float(bench.agent.knobs(at)[name]) == pytest.approx(bench.algo.knobs(at)[name])
    with pytest.raises(UserError, match="no knob 'nothing'"):
        bench.agent.pin(SetKnob("nothing", 1.0))


@each
def test_weights_travel_by_command_and_obey(case: Case):
    one, two = Bench(case, seed=0), Bench(case, seed=1)
    at = one.train(3, Progress())
    weights = one.agent.command(at)
    assert weights.version == at.opt_steps
    two.agent.obey(weights)
    one.train(2, at)  # what was handed over does not move with the learner
    for name, value in two.algo.model.state().tensors.items():
        assert torch.equal(value, weights.tensors[f"model/{name}"])
