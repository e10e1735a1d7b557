"""Searches against mctx, against a slow reference, and for what they promise."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from ganglion import search
from ganglion.core import Noise
from ganglion.fast.capture import WARM, Captured
from ganglion.search import walk
from ganglion.search.gumbel import halving
from tests.search.reference import visits
from tests.search.with_mctx import FILE, by_mctx
from tests.search.world import CASES, Case, World

IDS = [f"{c.rule}-{c.actions}-{c.simulations}{'-masked' if c.masked else ''}" for c in CASES]


def agrees(case: Case, theirs: dict[str, Any]) -> None:
    ours = World(case).found(torch.tensor(theirs["shake"]))
    assert torch.equal(ours.visits, torch.tensor(theirs["visits"]).float())
    assert_close(ours.weights, torch.tensor(theirs["weights"]), atol=1e-5, rtol=0)
    assert_close(ours.value, torch.tensor(theirs["value"]), atol=1e-5, rtol=1e-5)
    if "action" in theirs:
        assert ours.action.tolist() == theirs["action"]


BOTH = list(zip(CASES, json.loads(FILE.read_text()), strict=True))


@pytest.fixture(params=["walked", "tensors"])
def body(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the two bodies of a search."""
    if request.param == "tensors":
        monkeypatch.setattr(walk, "by_code", lambda x: False)
    elif walk.code() is None:
        pytest.skip("no C compiler here")
    return str(request.param)


@pytest.mark.parametrize(("case", "theirs"), BOTH, ids=IDS)
@pytest.mark.usefixtures("body")
def test_visits_are_those_of_mctx(case: Case, theirs: dict[str, Any]) -> None:
    agrees(case, theirs)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_mctx_itself(case: Case) -> None:
    pytest.importorskip("mctx", reason="mctx and jax are compared with where they are installed")
    agrees(case, by_mctx(case))


# ------------------------------------------------------------ other references


@pytest.mark.parametrize("case", [c for c in CASES if c.rule == "puct"], ids=[i for i in IDS if "puct" in i])
@pytest.mark.usefixtures("body")
def test_visits_are_those_of_a_tree_of_objects(case: Case) -> None:
    ours = World(case).found(torch.zeros(case.slots, case.actions))
    assert ours.visits.tolist() == [visits(case, slot) for slot in range(case.slots)]


def test_sequential_halving_by_hand() -> None:
    """4 of 16 actions in 16 simulations: two visits each, then four more of the better two."""
    assert halving(4, 16) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert halving(4, 3) == [0, 0, 0]
    assert halving(1, 4) == [0, 1, 2, 3]
    assert len(halving(5, 33)) == 33


# ------------------------------------------------------------ what a search promises


def bandit(slots: int, actions: int) -> tuple[search.Root, search.Dynamics, Tensor]:
    """One choice, then the end; the prior knows nothing of what actions pay."""
    dice = torch.Generator().manual_seed(3)
    pays = torch.rand(slots, actions, generator=dice)
    root = search.Root(torch.arange(slots), torch.randn(slots, actions, generator=dice), pays.mean(-1))

    def dynamics(state: Tensor, action: Tensor) -> search.Outcome:
        zero = torch.zeros(slots)
        return search.Outcome(state, pays[torch.arange(slots), action], zero, torch.zeros(slots, actions), zero)

    return root, dynamics, pays


@pytest.mark.parametrize("simulations", [4, 16])
def test_the_improved_policy_is_better_than_the_prior(simulations: int) -> None:
    """Danihelka et al. 2022: with Gumbel's rule that holds in every single state, however few the simulations."""
    root, dynamics, pays = bandit(200, 20)
    prior = (root.logits.softmax(-1) * pays).sum(-1)
    rule = search.GumbelRule(simulations)
    best = search.gumbel(root, dynamics, None, torch.zeros_like(root.logits), rule)
    assert ((best.weights * pays).sum(-1) >= prior - 1e-6).all()
    dice = torch.Generator().manual_seed(0)
    shake = search.gumbel_from_uniform(torch.rand(root.logits.shape, generator=dice))
    acted = pays.gather(1, search.gumbel(root, dynamics, None, shake, rule).action[:, None]).mean()
    assert acted > prior.mean() + 0.1
    if simulations == 16:
        weighed = search.puct(root, dynamics, None, search.PuctRule(64)).weights
        assert (weighed * pays).sum(-1).mean() > prior.mean() + 0.05


@pytest.mark.parametrize("case", [c for c in CASES if c.masked], ids=[i for i in IDS if "masked" in i])
@pytest.mark.usefixtures("body")
def test_illegal_actions_are_never_taken(case: Case) -> None:
    """Neither at the root nor below it."""
    ours = World(case).found(torch.zeros(case.slots, case.actions))
    legal = ours.tree.logits > torch.finfo(torch.float32).min
    assert (ours.tree.counts[~legal] == 0).all() and (ours.weights[~legal[:, 0]] == 0).all()
    assert (ours.tree.counts.sum((1, 2)) > 0).all() and (ours.visits.sum(-1) == case.simulations).all()


@pytest.mark.parametrize(
    "case", [CASES[2]._replace(simulations=6), CASES[6]._replace(simulations=6)], ids=["puct", "gumbel"]
)
def test_a_search_is_one_graph(case: Case) -> None:
    torch._dynamo.reset()
    shake = torch.randn(case.slots, case.actions, generator=torch.Generator().manual_seed(1))
    world, legal = World(case), World(case).legal()

    def run(logits: Tensor, shake: Tensor) -> tuple[Tensor, ...]:
        root = world.root()._replace(logits=logits)
        if case.rule == "puct":
            return search.puct(root, world.dynamics, legal, search.PuctRule(case.simulations))[:5]
        return search.gumbel(root, world.dynamics, legal, shake, search.GumbelRule(case.simulations))[:5]

    given = world.root().logits, shake
    backend = "inductor" if case.rule == "gumbel" else "aot_eager"  # one real compilation is enough
    for mine, graph in zip(run(*given), torch.compile(run, fullgraph=True, backend=backend)(*given), strict=True):
        assert_close(graph, mine, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_captured_on_a_gpu_it_finds_the_same(case: Case) -> None:
    theirs = json.loads(FILE.read_text())[CASES.index(case)]
    world, shake = World(case, "cuda"), torch.tensor(theirs["shake"], device="cuda")
    captured = Captured(lambda shake: world.found(shake)[:5])
    for _ in range(WARM + 2):
        weights, _, value, visits, _ = captured(shake)
    assert all(captured.recordings.values())
    assert torch.equal(visits.cpu(), torch.tensor(theirs["visits"]).float())
    assert_close(weights.cpu(), torch.tensor(theirs["weights"]), atol=1e-5, rtol=0)
    assert_close(value.cpu(), torch.tensor(theirs["value"]), atol=1e-5, rtol=1e-5)


def test_several_runs_search_at_once() -> None:
    """Under vmap, as runs that are trained together are."""
    root, dynamics, _ = bandit(6, 5)
    logits = torch.stack((root.logits, root.logits.flip(-1)))
    rule = search.GumbelRule(8)

    def run(logits: Tensor) -> Tensor:
        return search.gumbel(root._replace(logits=logits), dynamics, None, torch.zeros_like(logits), rule).weights

    assert_close(torch.vmap(run)(logits), torch.stack([run(x) for x in logits]))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_dirichlet_numbers(alpha: float) -> None:
    """Each share of a Dirichlet over k actions is Beta(alpha, (k - 1) alpha)."""
    dice, rows, legal = torch.Generator().manual_seed(0), 20_000, torch.tensor([True, True, False, True])
    uniform, normal = search.dirichlet_draws(4)
    noise = Noise(torch.rand(rows, uniform, generator=dice), torch.randn(rows, normal, generator=dice))
    shares = search.dirichlet(alpha, legal.expand(rows, 4), noise)
    assert_close(shares.sum(-1), torch.ones(rows))
    assert (shares[:, 2] == 0).all()
    for action in (0, 1, 3):
        assert stats.kstest(shares[:, action].numpy(), stats.beta(alpha, 2 * alpha).cdf).pvalue > 1e-3
