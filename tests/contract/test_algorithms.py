"""What every registered algorithm must do, over observations and actions of every sort."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ganglion import registry
from ganglion.core import Box, EnvSpec, MultiDiscrete, SetKnob, Space
from ganglion.envs.board_games import rules_of
from ganglion.errors import UserError
from ganglion.fast import can_compile
from ganglion.runtime.check_algorithm import PROPERTIES
from tests.contract.worlds import ARM, CASES, DQN, HYBRID, PARAMETRISED, TWO, Bench, Case, over

each = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (TWO, "any discrete single"),
        (ARM, "any bounded single"),
        (HYBRID, "any"),
        (PARAMETRISED, "any hybrid"),
        (Box((2,)), "any"),
        (MultiDiscrete((2, 3)), "any"),
    ],
    ids=str,
)
def test_an_algorithm_that_cannot_act_names_those_that_can(space: Space, actions: str):
    """Those that imitate another are not named: it is the other one that acts."""
    spec, kinds = (
        EnvSpec(Box((4,)), space, 2, "world", rules=rules_of("tictactoe")),
        {name: registry.lookup("algo", name) for name in registry.TABLE["algo"]},
    )
    kinds = {name: kind for name, kind in kinds.items() if not kind.imitates}
    able = [name for name, kind in kinds.items() if kind.actions in actions and kind.accepts(space)]
    assert {"ppo", "impala"} <= set(able)
    for name, kind in kinds.items():
        if name in able:
            kind().build(spec)
            continue
        with pytest.raises(UserError, match=rf"algo\.kind: {name} needs a .*\. Try {' or '.join(able)}[.,]"):
            kind().build(spec)


def test_every_registered_algorithm_has_a_case():
    assert {c.algo for c in CASES} == set(registry.TABLE["algo"])


@pytest.mark.parametrize("name", [name for name in PROPERTIES if name != "memory"])
@each
def test_what_every_algorithm_promises(case: Case, name: str):
    PROPERTIES[name].check(partial(Bench, case))


@pytest.mark.skipif(not can_compile(), reason="this torch cannot compile an update")
@pytest.mark.parametrize("name", ["dqn-all", "ppo-all"])
def test_a_memory_goes_through_a_compiled_graph_again_and_again(name: str):
    case = next(case for case in CASES if case.name == name)
    PROPERTIES["memory"].check(partial(Bench, case))


def test_no_gradient_passes_through_a_burn_in():
    """What lies before it changes nothing but the memory: R2D2's burn-in."""
    settings = over(DQN, replay={"sequence": 6, "burn_in": 4}, net={"memory": "lstm", "memory_size": 8})
    bench = Bench(Case("dqn-burn", "dqn", TWO, settings=settings))
    mini, _, _ = bench.learnable()
    t = mini.data
    assert not mini.weight[:4].any() and mini.weight[4:].any()
    obs = t.obs.clone().requires_grad_()
    start = torch.zeros_like(t.past.start)  # no episode begins here, which would cut the gradient as well
    q, _ = bench.algo.model.value(obs, t.past._replace(start=start))
    q[4:].sum().backward()
    assert not obs.grad[:4].any() and obs.grad[4:].any()
    with torch.no_grad():
        whole, _ = bench.algo.model.encoder(t.obs, t.past)
        torch.testing.assert_close(bench.algo.model.encode(t.obs, t.past)[0], whole)


def test_a_knob_that_is_not_there():
    with pytest.raises(UserError, match="no knob 'nothing'"):
        Bench(CASES[0]).agent.pin(SetKnob("nothing", 1.0))
