"""Networks of one's own: what a forward says is what is learned from, eager and compiled, with every algorithm; kernels
stand in for shipped networks alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import ganglion
from ganglion import ops, registry
from ganglion.algos.hybrid_sac import HybridSAC
from ganglion.core import Box, Memory, Model, Obs, Past, Progress, Space
from ganglion.nn import MLP, Body, Ensemble, Lagged, LinearHead, MLPConfig, Net, flat_size, flatten
from ganglion.nn.actor_critics import ActorCritics
from ganglion.nn.inputs import Cells, Pixels
from ganglion.nn.kernels import cpu_mlp
from ganglion.nn.layers import Linears
from ganglion.runtime.build import build
from tests.contract.worlds import ARM, CASES, DQN, IMPALA, PPO, SAC, TWO, Bench, Case, one_graph, over

needs_kernel = pytest.mark.skipif(not cpu_mlp.loaded(), reason="needs a C++ compiler and AVX2")
BATCH = {"batch": 64}
ACTORS = {"sac": ARM, "td3": ARM, "dqn": TWO, "ppo": TWO, "impala": TWO}
SETTINGS = {
    "sac": over(SAC, replay=BATCH), "td3": over(SAC, replay=BATCH), "dqn": over(DQN, replay=BATCH),
    "ppo": over(PPO, horizon=24), "impala": over(IMPALA, horizon=24),
}  # fmt: skip
all_five = pytest.mark.parametrize("algo", SETTINGS)


def soak(*given: Any) -> Any:
    """A case of which others like it are enough for every day."""
    return pytest.param(*given, marks=pytest.mark.soak)


@pytest.fixture(autouse=True)
def names_of_its_own() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = set(registry._found)
    yield
    for family, name in set(registry._found) - before:
        if name not in registry.TABLE[family]:
            del registry._found[family, name]


def bench(algo: str, kind: str, mode: str = "eager", hidden: tuple[int, ...] = (64, 72)) -> Bench:
    torch._dynamo.reset()
    settings = over(SETTINGS[algo], net={"kind": kind, "hidden": hidden})
    return Bench(Case(kind, algo, ACTORS[algo], settings=settings), wrap=one_graph if mode == "compile" else None)


def register(name: str, made: Callable[..., nn.Module]) -> None:
    """A network whose body is made so, of count, inputs and the shipped one's settings."""

    class Config(MLPConfig):
        def body(self, inputs: int, count: int = 1) -> Body:
            body: Any = made(count, inputs, self.hidden, self.activation, self.init)
            return body

    registry.register("net", name)(Config)


# ------------------------------------------------------------ networks that users write


class Bent(MLP):
    """A forward of its own around the shipped one."""

    def forward(self, x: Tensor) -> Tensor:
        return 2.0 - 1.5 * torch.sin(super().forward(x))


class Foreign(nn.Module):
    """A body that has nothing of the shipped one."""

    def __init__(self, count: int, inputs: int, hidden: tuple[int, ...], *_: Any) -> None:
        super().__init__()
        self.count, self.out, self.dtype = count, hidden[-1], torch.float32
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(inputs, self.out), nn.GELU()) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([net(x) for net in self.nets])


class Thrice(nn.Module):
    """Something else while it learns, without a random number."""

    def forward(self, x: Tensor) -> Tensor:
        return 3.0 * x if self.training else x


class Moody(MLP):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.last: nn.Module = Thrice()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(super().forward(x))  # type: ignore[no-any-return]


class Dropping(Moody):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.last = nn.Dropout(0.5)


class Normed(Moody):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.last = nn.BatchNorm1d(self.out)

    def forward(self, x: Tensor) -> Tensor:
        y = MLP.forward(self, x)
        return self.last(y.flatten(0, -2)).view_as(y)  # type: ignore[no-any-return]


def learn_alike(algo: str, kind: str, hidden: tuple[int, ...] = (64, 72)) -> Bench:
    """Eagerly and compiled a network becomes the same."""
    eager, compiled = bench(algo, kind, hidden=hidden), bench(algo, kind, "compile", hidden)
    assert eager.train(4, Progress()) == compiled.train(4, Progress())
    own = compiled.parameters()
    for name, value in eager.parameters().items():
        torch.testing.assert_close(value, own[name], rtol=1e-3, atol=2e-5, msg=name)
    return eager


@pytest.mark.parametrize("algo", ["sac", "ppo", soak("td3"), soak("dqn"), soak("impala")])
@pytest.mark.parametrize("net", [soak(Bent), Foreign])
def test_compiled_it_learns_what_it_learns_eagerly(algo: str, net: type[nn.Module]) -> None:
    register("own", net)
    learn_alike(algo, "own")


@pytest.mark.parametrize("mode", ["eager", "compile"])
@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_losses_and_gradients_are_those_of_plain_autograd(algo: str, mode: str) -> None:
    """The first update of critics and actor from a body with a forward of its own, against float64."""
    register("own", Bent)
    own = bench(algo, "own", mode)
    at = Progress()
    while not own.learner.owes(at):
        at = own.explorer.step(at).at
    own.learner.begin(at)
    mini, knobs = own.learner.mini, own.agent.knobs(at)
    noise = own.learner.stream.noise(own.agent.draws.learn, 1, 64)
    exact: Any = deepcopy(own.algo)
    update = own.agent._updates["learn"](mini, (), knobs, noise)
    actor = (own.agent._late(mini, (), knobs, noise) if algo == "td3" else update.metrics)["actor"]
    critics, q, _ = plainly(exact, algo, mini, noise)
    same(update.metrics["critic"], critics)
    same(update.metrics["q"], q)
    same_gradients(own.algo.critic_optim, critics, exact.model.critics)
    exact.model.critics.load_state_dict(own.algo.model.critics.state_dict())  # the actor climbs those that have moved
    climbed = plainly(exact, algo, mini, noise)[2]
    same(actor, climbed)
    same_gradients(own.algo.actor_optim, climbed, exact.model.actor)


def same(found: Tensor, exact: Tensor) -> None:
    torch.testing.assert_close(found.double(), exact.detach(), rtol=1e-4, atol=1e-6)


def same_gradients(optim: Any, loss: Tensor, module: nn.Module) -> None:
    """After one step Adam's mean is a tenth of the gradient."""
    for mean, grad in zip(optim.mean, torch.autograd.grad(loss, list(module.parameters())), strict=True):
        same(mean, 0.1 * grad)


def plainly(algo: Any, name: str, mini: Any, noise: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The critics' loss, their mean value and the actor's loss, layer by layer in float64."""
    for part in (algo.model, algo.target):
        part.double()
    t, w = mini.data, mini.weight.double()
    obs, after, reward, discount = (x.double() for x in (t.obs, t.next_obs, t.reward, t.discount))

    def head(actor: Any, x: Tensor) -> Tensor:
        said = actor.net.head
        return bent(actor.net.body, x)[0] @ said.weight.t() + said.bias

    def values(nets: Any, x: Tensor, action: Tensor) -> Tensor:
        hidden, said = bent(nets.body, torch.cat([x, action], -1)), nets.head
        return torch.stack([(h @ w)[..., 0] + b[0, 0] for h, w, b in zip(hidden, said.weight, said.bias, strict=True)])

    def act(actor: Any, x: Tensor, normal: Tensor) -> tuple[Tensor, Any]:
        raw, (low, high) = head(actor, x), ops.bounds(ARM, x)
        if name == "td3":
            return torch.lerp(low.double(), high.double(), 0.5 * (torch.tanh(raw) + 1)), 0.0
        mean, spread = raw.chunk(2, -1)
        raw = torch.cat([mean, -5 + 3.5 * (torch.tanh(spread) + 1)], -1)
        return ops.dist(raw, ARM, squash=True).sample_and_log_prob(noise._replace(normal=normal))  # type: ignore[no-any-return]

    warmth = algo.model.warmth["log"].exp().detach() if name == "sac" else 0.0
    later, now = noise.normal.double().chunk(2, -1) if name == "sac" else (noise.normal.double(),) * 2
    with torch.no_grad():
        action, logp = act(algo.model.actor if name == "sac" else algo.target.net.actor, after, later)
        if name == "td3":
            low, high = (x.double() for x in ops.bounds(ARM, action))
            action = ops.gaussian(action, later, algo.cfg.smoothing, low, high, algo.cfg.smoothing_limit)
        lagged = algo.target.net.nets if name == "sac" else algo.target.net.critics.nets
        goal = reward + discount * (values(lagged, after, action).amin(0) - warmth * logp)
    q = values(algo.model.critics.nets, obs, t.action.double())
    critic = (w * (q - goal).square().sum(0)).sum() / (w > 0).sum()
    action, logp = act(algo.model.actor, obs, now)
    said = values(algo.model.critics.nets, obs, action)
    actor = warmth * logp - said.amin(0) if name == "sac" else -said[0]
    return critic, (w * q.mean(0)).sum() / (w > 0).sum(), (w * actor).sum() / (w > 0).sum()


def bent(body: Any, x: Tensor) -> Tensor:
    """What `Bent.forward` says, a layer and a member at a time."""
    members = []
    for k in range(body.count):
        y = x
        for layer in body.layers:
            y = torch.relu(y @ layer.weight[k] + layer.bias[k])
        members.append(2.0 - 1.5 * torch.sin(y))
    return torch.stack(members)


# ------------------------------------------------------------ what a kernel may stand in for


def shipped(net: nn.Module) -> None:
    """As it was made."""


def forward_of_its_own(net: Any) -> None:
    own = net.body.forward
    net.body.forward = lambda x: 2.0 * own(x)


def hook(net: Any) -> None:
    net.body.register_forward_hook(lambda module, given, gave: 2.0 * gave)


def hook_before_a_layer(net: Any) -> None:
    net.body.layers[1].register_forward_pre_hook(lambda module, given: (2.0 * given[0],))


def layer_of_another_kind(net: Any) -> None:
    class Doubled(Linears):
        def forward(self, x: Tensor) -> Tensor:
            return 2.0 * super().forward(x)

        def first(self, x: Tensor) -> Tensor:
            raise AssertionError("nobody said that this is right")

    net.body.layers[0].__class__ = Doubled


def one_layer_more(net: Any) -> None:
    net.body.layers.append(Linears(net.body.count, 72, 72))


def parametrised(net: Any) -> None:
    parametrizations.weight_norm(net.body.layers[0], "weight")


def activation(net: Any) -> None:
    net.body.activation = torch.sin


def head_with_a_hook(net: Any) -> None:
    net.head.register_forward_hook(lambda module, given, gave: 2.0 * gave)


def head_of_another_kind(net: Any) -> None:
    class Squared(type(net.head)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square()  # type: ignore[no-any-return]

    net.head.__class__ = Squared


TOUCHES = [
    shipped, forward_of_its_own, hook_before_a_layer, activation, head_of_another_kind,
    soak(hook), soak(layer_of_another_kind), soak(one_layer_more), soak(parametrised), soak(head_with_a_hook),
]  # fmt: skip


def read(net: Net, nets: Ensemble, x: Tensor, action: Tensor) -> list[Tensor]:
    """All that can be asked of both, and the gradients of its sum."""
    said = [net(x), net.body(x), nets(x, action), nets.first(x, action)]
    params = [p for module in (net, nets) for p in module.parameters()]
    grads = torch.autograd.grad(torch.stack([y.square().sum() for y in said]).sum(), [*params, action])
    return [*(y.detach() for y in said), *grads]


@needs_kernel
@pytest.mark.parametrize("touch", TOUCHES, ids=lambda touch: touch.__name__)
def test_a_kernel_stands_in_for_what_is_as_it_was_made_alone(touch: Callable[[Any], None]) -> None:
    torch.manual_seed(0)
    one, two = (MLP(count, inputs, (64, 72), "tanh", "uniform") for count, inputs in ((1, 5), (2, 8)))
    net, nets = Net(one, LinearHead(one, 3)), Ensemble(two)
    touch(net)
    touch(nets)
    x, action = torch.randn(2, 50, 5), torch.randn(2, 50, 3, requires_grad=True)
    with torch.no_grad():
        plain = [net.head(one(x)[0]), one(x), nets.head(two(torch.cat([x, action], -1)))]
    torch._dynamo.reset()
    with torch.profiler.profile() as seen:
        compiled = one_graph(read)(net, nets, x, action)
    eager = read(net, nets, x, action)
    for a, b in zip([*plain, plain[-1][0]], eager, strict=False):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    used = sum(event.name == "ganglion::cpu_mlp" for event in seen.events())
    body_alone = touch in (head_with_a_hook, head_of_another_kind, forward_of_its_own, hook)
    assert used >= (4 if touch is shipped else 3 if body_alone else 0)
    assert touch is shipped or body_alone or used == 0


@needs_kernel
@pytest.mark.parametrize("name", [soak("sac-wide"), "td3-wide", "ppo-wide"])
def test_shipped_networks_learn_through_the_kernel(name: str) -> None:
    torch._dynamo.reset()
    case = next(case for case in CASES if case.name == name)
    own = Bench(case, wrap=one_graph)
    at = own.train(4, Progress())
    with torch.profiler.profile() as seen:
        own.train(2, at)
    names = {event.name for event in seen.events()}
    assert {"ganglion::cpu_mlp", "ganglion::cpu_mlp_grad_weights"} <= names
    assert name == "ppo-wide" or {"ganglion::cpu_mlp_only", "ganglion::cpu_mlp_grad_inputs"} <= names


IMAGES = [lambda: Pixels((2, 36, 36)), lambda: Cells(Box((10, 10, 4), torch.uint8, (0.0,), (1.0,)))]


@pytest.mark.parametrize("made", IMAGES)
def test_convolutions_with_a_hook_are_called(made: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    see = made()
    image = torch.randint(2, (1, 3, 2, 36, 36) if isinstance(see, Pixels) else (1, 3, 10, 10, 4), dtype=torch.uint8)
    before = see(image)
    conv = see.convs[0] if isinstance(see, Pixels) else see.conv
    conv.register_forward_hook(lambda module, given, gave: -gave)
    assert not torch.allclose(before, see(image))
    conv._forward_hooks.clear()
    conv.register_forward_hook(lambda module, given, gave: gave)
    torch.testing.assert_close(before, see(image), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------ every algorithm


@all_five
def test_the_residual_network_of_the_examples_trains(algo: str) -> None:
    """Its forward takes the inputs alone; equal layers add to what they are given."""
    example = importlib.reload(importlib.import_module("examples.from_xingtian"))
    own = learn_alike(algo, "residual", (64, 64))
    assert any(isinstance(module, example.Residual) for module in own.algo.model.modules())


class Counting(nn.Module):
    """An encoder with nothing but what the protocol asks for: it remembers how many rows it has seen."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.space, self.out = space, flat_size(space) + 1

    def initial(self, slots: int) -> Memory:
        return (torch.zeros(1, slots, 1),)

    def forward(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        seen, count = [], past.memory[0][0]
        for start in past.start:
            count = torch.where(start[:, None], 0.0, count) + 1
            seen.append(count)
        return torch.cat([flatten(obs, self.space), torch.stack(seen)], -1), (count[None],)


@pytest.mark.parametrize("algo", ["dqn", soak("ppo"), soak("impala")])
def test_an_encoder_of_ones_own_needs_only_the_protocol(algo: str) -> None:
    class Config(MLPConfig):
        @property
        def recurrent(self) -> bool:
            return True

        def encoder(self, space: Space) -> Any:
            return Counting(space)

    registry.register("net", "counting")(Config)
    assert not learn_alike(algo, "counting").algo.model.watches


# What a model cannot say of one observation: a search and a dream act by a plan, a generator needs codes; policies
# alone, and critics of whole copies, have no value of a slot.
NO_ACTION = {"bcq", "decision_transformer", "discrete_bcq", "dreamer", "muzero", "sampled_muzero", "tdmpc2"}
NO_VALUE = {"atoc", "bc", "coma", "dagger", "decision_transformer", "dreamer", "maddpg", "mappo", "masac", "muzero",
            "sampled_muzero", "tdmpc2"}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_model_says_an_action_and_a_value(case: Case) -> None:
    own = Bench(case)
    model, (step, past) = own.algo.model, own.now
    obs, whole = ops.map_tree(lambda x: x[None], step.obs), [m.shape for m in past.memory]
    remembered = []  # by actor and critics: the whole memory each, or a part of it each
    with torch.no_grad():
        if case.algo in NO_ACTION:
            with pytest.raises(TypeError, match="no action network"):
                model.action(obs, past)
        else:
            raw, memory = model.action(obs, past)
            assert raw.shape[:2] == (1, case.slots) and raw.isfinite().all()
            remembered.append([m.shape for m in memory])
        action = own.algo.exploit(own.algo.predict(obs, past, own.algo.neutral(past.start))).action
        if case.algo in NO_VALUE:
            with pytest.raises(TypeError, match="no value network"):
                model.value(obs, past, action)
        else:
            if isinstance(own.algo, HybridSAC):  # its critics take the numbers of an action
                action = own.algo.flat(action)
            value, after = model.value(obs, past, action)
            assert (1, case.slots) in (value.shape[:2], value.shape[1:3]) and value.isfinite().all()
            remembered.append([m.shape for m in after])
    if isinstance(model, ActorCritics):
        parts = [shape for shapes in remembered for shape in shapes]
        assert whole[: len(parts)] == parts and (parts or not whole)
    else:
        assert all(said == whole for said in remembered)


# ------------------------------------------------------------ statistics


class Tallied(Model):
    """A model of one's own that counts rows in the shipped encoder's place."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def observe(self, obs: Obs, valid: Tensor) -> None:
        self.rows += int(valid.sum())


def test_rows_are_watched_where_something_asks_for_them_and_once() -> None:
    plain, normed = (MLPConfig(normalise=normalise).encoder(Box((3,))) for normalise in (False, True))
    assert isinstance(plain, Model) and isinstance(normed, Model)
    assert not plain.watches and normed.watches
    whole = Model()
    whole.one, whole.two = plain, nn.Identity()
    assert not whole.watches
    whole.two, whole.late = normed, Lagged(normed)
    assert whole.watches
    whole.observe(torch.randn(1, 5, 3), torch.ones(1, 5, dtype=torch.bool))
    assert normed.state_dict()["norm.moments.count"] == 5, "a lagged copy shares its statistics and moves none"
    whole.three = Tallied()
    whole.observe(torch.randn(1, 5, 3), torch.ones(1, 5, dtype=torch.bool))
    assert whole.three.rows == 5 and whole.three.watches


# ------------------------------------------------------------ dropout and batch norm


@pytest.fixture(params=[Dropping, Normed])
def moody(request: pytest.FixtureRequest) -> Iterator[str]:
    register("moody", request.param)
    yield "moody"


@pytest.mark.parametrize(("algo", "world"), [("dqn", "cartpole"), ("td3", "pendulum")])
def test_evaluating_twice_is_evaluating_once(algo: str, world: str, moody: str) -> None:
    algorithm = [f"algo={algo}", f"algo.net={{kind: {moody}, hidden: [16]}}", "algo.limiter.warmup=100"]
    rest = [
        f"env={{kind: torch, id: {world}, slots: 4}}",
        "eval={every: 1k steps, episodes: 4}",
        "train.budget=9k steps",
    ]
    trainer = build(ganglion.load_config(None, [*algorithm, *rest]))
    while trainer.at.opt_steps < 8:
        trainer.run_train() if trainer.learner.owes(trainer.at) else trainer.run_collect()
    one, two = trainer.run_evaluate(), trainer.run_evaluate()
    assert one == two and len(one[0]) == 4
    trainer.close()


@pytest.mark.parametrize("algo", ["ppo", "td3", soak("sac"), soak("dqn"), soak("impala")])
def test_acting_reads_eval_mode_and_learning_train_mode(algo: str) -> None:
    seen: list[tuple[bool, bool]] = []  # with a gradient, and in train mode

    class Watched(Moody):
        def forward(self, x: Tensor) -> Tensor:
            if not torch.compiler.is_compiling():
                seen.append((torch.is_grad_enabled(), self.last.training))
            return super().forward(x)

    register("watched", Watched)
    own = learn_alike(algo, "watched")
    assert {learns for grad, learns in seen if grad} == {True}
    assert not any(module.training for module in own.agent.modes.modules)
    seen.clear()
    step, past = own.now
    own.agent.predict(step.obs, past)
    own.agent.sample(step.obs, past, own.stream.noise(own.agent.draws.explore, 1, len(step.reward)), Progress())
    assert seen == [(False, False)] * 2
    assert bench(algo, "mlp").agent.modes.modules == [], "shipped networks have nothing to switch"
