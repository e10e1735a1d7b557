"""What every algorithm promises, as properties that are checked by `ganglion check --algo NAME` and the contract tests.

Each is checked in a made-up world over the spaces of an environment, with everything around the algorithm as a run has
it: explorer, processor, buffer, learner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.config import AlgoConfig
from ganglion.core import Box, Discrete, EnvSpec, Noise, Past, Progress, SetKnob, State, Step
from ganglion.envs.check.findings import CheckReport, Finding
from ganglion.errors import UserError
from ganglion.fast import Compiled, Wrap, can_compile, one_graph
from ganglion.runtime.agent import Agent, carrying, enter
from ganglion.runtime.algorithm_errors import Forgotten, beyond_draws, told
from ganglion.runtime.engine import Engine
from ganglion.runtime.explorer import Explorer, Seat
from ganglion.runtime.learner import Learner
from ganglion.runtime.random_world import CPU, BrokenError, RandomWorld, all_legal, hold
from ganglion.torch_private import TorchDispatchMode, read_on_the_host

START = Progress()
SLOTS = 6
MOST = 20_000  # rows that are collected for one update
TRIES, DIFFERENT = 60, 3  # how often slots that see the same act, and how often they should differ, at least


class Bench:
    """An algorithm with everything around it, in a made-up world."""

    def __init__(
        self, cfg: AlgoConfig, spec: EnvSpec, seed: int = 0, wrap: Wrap | None = None, device: torch.device = CPU
    ) -> None:
        with torch.random.fork_rng(), device:
            torch.manual_seed(seed)
            self.algo = cfg.whole(spec)
        self.agent = Agent(self.algo, Engine(device, wrap))
        recipe = cfg.recipe(spec)
        buffer, limiter = recipe.buffer.build(spec, device), recipe.limiter.build(spec, device)
        self.learner = Learner(self.agent, buffer, limiter, seed)
        self.seat = Seat(self.agent, recipe.processor.build(spec, device), self.learner, seed, spec.slots)
        self.explorer = Explorer(RandomWorld(spec), [self.seat], seed)

    @property
    def now(self) -> tuple[Step, Past]:
        """What the slots see and remember."""
        return self.explorer.begin(), self.seat.past

    def train(self, updates: int, at: Progress = START) -> Progress:
        """Runs in turn until so many more updates are made."""
        goal = at.opt_steps + updates
        while at.opt_steps < goal:
            at = self.learner.step(at).at if self.learner.owes(at) else self.collect(at)
        return at

    def collect(self, at: Progress) -> Progress:
        hold(at.env_steps < (at.opt_steps + 1) * MOST, f"no update within {MOST:,} env steps: is warmup too long?")
        return self.explorer.step(at).at

    def learnable(self) -> tuple[Any, Noise, Progress]:
        """A minibatch, its random numbers and the counters, after an update."""
        at, learner = self.train(1), self.learner
        while not learner.owes(at):
            at = self.collect(at)
        if learner.mini is None:
            learner.begin(at)
        mini = learner.mini if learner.table is None else ops.take(learner.mini, learner.table[learner.position], dim=1)
        noise = learner.stream.noise(self.agent.draws.learn, *ops.first(mini).shape[:2])
        return mini, noise._replace(update=learner.stream.noise(self.agent.draws.update)), at

    def parameters(self) -> dict[str, Tensor]:
        return {k: v.clone() for k, v in self.agent.state().tensors.items()}


Make = Callable[..., Bench]  # of a seed and a compiler


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def same_leaves(one: Any, other: Any) -> bool:
    return all(map(torch.equal, ops.leaves(one), ops.leaves(other)))


# ------------------------------------------------------------ properties


def trains(make: Make) -> None:
    bench = make()
    before, forgotten = bench.parameters(), Forgotten(bench.algo)
    at = bench.train(9)
    after = bench.parameters()
    hold(not equal(before, after), "nine updates have changed no parameter")
    lost = [k for k, v in after.items() if v.is_floating_point() and not v.isfinite().all()]
    hold(not lost, f"{', '.join(lost[:3])} is not finite after nine updates")
    hold(not forgotten.names(), f"{', '.join(forgotten.names())} changes, and parts() does not name it")
    while not bench.learner.owes(at):
        at = bench.collect(at)
    for name, value in bench.learner.step(at).metrics.items():
        hold(torch.is_tensor(value) and value.dim() == 0, f"the metric {name!r} is no tensor without axes")
        hold(not value.requires_grad, f"the metric {name!r} holds on to its graph: detach it")


def repeats(make: Make) -> None:
    one, two = make(), make()
    one.train(7), two.train(7)
    hold(equal(one.parameters(), two.parameters()), "two runs with the same seed have other parameters")


def random_calls(make: Make) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        one = make()
        one.train(5)
        state = torch.get_rng_state()
        torch.manual_seed(2)
        two = make()
        two.train(5)
        hold(equal(one.parameters(), two.parameters()), "torch's global random state changes what is learned")
        torch.manual_seed(1)
        hold(torch.equal(state, torch.get_rng_state()), "torch's global random numbers are used up")


def resumes(make: Make) -> None:
    one, two = make(seed=0), make(seed=1)
    at = one.train(5)
    where = {k: v.data_ptr() for k, v in two.agent.state().tensors.items()}
    two.agent.restore(one.agent.state())
    hold(equal(one.parameters(), two.parameters()), "what was restored is not what was saved")
    moved = [k for k, v in two.agent.state().tensors.items() if where[k] != v.data_ptr()]
    hold(not moved, f"restore() replaces {', '.join(moved[:3])} instead of changing it in place")
    two.learner.restore(copied(one.learner.state()))
    two.explorer.restore(copied(one.explorer.state()))
    one.train(6, at), two.train(6, at)
    hold(equal(one.parameters(), two.parameters()), "restored in the middle, it goes on differently")


def copied(state: State) -> State:
    """As from disk: sharing nothing."""
    rings = {k: r._replace(arrays={n: a.clone() for n, a in r.arrays.items()}) for k, r in state.rings.items()}
    return State({k: v.clone() for k, v in state.tensors.items()}, deepcopy(dict(state.scalars)), rings)


def acts(make: Make) -> None:
    """Exploiting is deterministic; exploring is independent per slot, where there is a choice."""
    bench = make()
    bench.train(2)
    slots = bench.seat.count
    # every slot sees the same, and may do anything
    seen = ops.map_tree(lambda x: x[:1].expand(slots, *x.shape[1:]), all_legal(bench.now[0].obs))
    past = bench.agent.start(slots)
    one, two = bench.agent.predict(seen, past).action, bench.agent.predict(seen, past).action
    hold(same_leaves(one, two), "exploit() acts differently the second time")
    alike = all(torch.equal(a, a[:1].expand_as(a)) for a in ops.leaves(one))
    hold(alike, "exploit() acts differently in slots that see the same")
    if bench.explorer.spec.action == Discrete(1):
        return
    different = 0
    for _ in range(TRIES):
        noise = bench.seat.stream.noise(bench.seat.noise.draw, 1, slots)
        action = bench.agent.sample(seen, past, noise, Progress()).action
        different += any(not torch.equal(a, a[:1].expand_as(a)) for a in ops.leaves(action))
    hold(different >= DIFFERENT, f"explore() acted the same in all slots {TRIES - different} times of {TRIES}")


def reads(make: Make) -> None:
    """Central inference predicts in one process and explores in another, whose own weights are not the learner's."""
    bench = make()
    algo, step, past = bench.algo, bench.now[0], bench.agent.begun(bench.now[1])
    first, second = bench.agent.parted(bench.seat.noise.next())
    knobs, obs = bench.agent.knobs(Progress()), enter(step.obs)
    with torch.no_grad():
        said = carrying(algo.predict(obs, past, first), past)
        prediction = ops.map_tree(lambda x: x.clone() if torch.is_tensor(x) else x, said)
        right = algo.explore(prediction, knobs, second), algo.exploit(prediction)
        poison(bench, set(algo.parts()) - set(algo.acting()))
        again = algo.predict(obs, past, first)
        hold(same_leaves(prediction.value, again.value), "predict() reads a part that acting() does not name")
        hold(same_leaves(right[1].action, algo.exploit(again).action), "predict() reads what acting() does not name")
        poison(bench, set(algo.parts()))
        poisoned = algo.explore(prediction, knobs, second), algo.exploit(prediction)
    hold(same_leaves(right, poisoned), "explore() or exploit() reads parameters: only predict() should")


def poison(bench: Bench, names: set[str]) -> None:
    """Numbers that would be noticed, in place of those of some parts, unless other parts share them."""
    parts = bench.algo.parts()
    kept = {x.data_ptr() for name in parts.keys() - names for x in parts[name].state().tensors.values()}
    for name in names:
        for tensor in parts[name].state().tensors.values():
            if tensor.data_ptr() not in kept:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 0)


class NoSync(TorchDispatchMode):
    """Fails where a tensor is read on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = func is read_on_the_host
        hold(not read, "a tensor is read on the host (.item(), float(), a branch): it waits for the device")
        return func(*args, **(kwargs or {}))


def waits(make: Make) -> None:
    bench = make()
    mini, noise, at = bench.learnable()
    algo, knobs, step, past = bench.algo, bench.agent.knobs(at), bench.now[0], bench.agent.begun(bench.now[1])
    obs, still = enter(step.obs), algo.neutral(past.start)
    acting = bench.seat.stream.noise(bench.agent.draws.explore, 1, bench.seat.count)
    with NoSync():  # type: ignore[no-untyped-call]
        with torch.no_grad():
            algo.explore(carrying(algo.predict(obs, past, still), past), knobs, acting)
            algo.exploit(carrying(algo.predict(obs, past, still), past))
        algo.learn(mini, knobs, noise)
        algo.learn_late(mini, knobs, noise)


def pure(make: Make) -> None:
    bench = make()
    mini, noise, at = bench.learnable()
    before = [x.clone() for x in ops.leaves(mini)]
    bench.algo.learn(mini, bench.agent.knobs(at), noise)
    bench.algo.learn_late(mini, bench.agent.knobs(at), noise)
    hold(same_leaves(tuple(before), tuple(ops.leaves(mini))), "learn() changes what it is given")


def compiles(make: Make) -> None:
    """Full-graph compilation of act and learn, equal to eager. aot_eager traces all that inductor would."""
    torch.compiler.reset()
    eager, compiled = make(), make(wrap=one_graph)
    a, b = eager.train(4), compiled.train(4)
    hold(a == b, f"compiled, it is at {b[:2]} where it was at {a[:2]}")
    there = compiled.parameters()
    for name, value in eager.parameters().items():
        hold(torch.allclose(value, there[name], rtol=1e-4, atol=1e-6), f"compiled, {name} comes out differently")


def remembers(make: Make) -> None:
    """By inductor, whose graphs refuse other strides than those of the first call."""
    memories = []
    for bench in (make(), make(wrap=Compiled)):
        step, past = bench.now
        for _ in range(6):
            acted = bench.agent.sample(step.obs, past, bench.seat.noise.next(), Progress())
            past = Past(acted.memory, ~step.valid[None], acted.carried)
        memories.append(past.memory)
    for a, b in zip(*memories, strict=True):
        hold(a.shape == b.shape and a.stride() == b.stride(), "compiled, the memory has another shape")
        hold(torch.allclose(a, b, rtol=1e-3, atol=1e-4), "compiled, the memory comes out differently")


def knobs(make: Make) -> None:
    bench, at = make(), Progress(fraction=0.3)
    for name, value in bench.algo.knobs(at).items():
        bench.agent.pin(SetKnob(name, 0.125))
        hold(float(bench.agent.knobs(at)[name]) == 0.125, f"the knob {name!r} cannot be pinned")
        bench.agent.pin(SetKnob(name, None))
        now = float(bench.agent.knobs(at)[name])
        hold(abs(now - value) <= 1e-6 * max(1.0, abs(value)), f"the knob {name!r} does not return to its schedule")


def travels(make: Make) -> None:
    one, two = make(seed=0), make(seed=1)
    at = one.train(3)
    weights = one.agent.command(at)
    hold(weights.version == at.opt_steps, "weights have another version than their update")
    two.agent.obey(weights)
    one.train(2, at)  # what was handed over does not move with the learner
    there = two.agent.command(at).tensors
    hold(equal(dict(weights.tensors), dict(there)), "weights that were sent are not those that arrive")


class Property(NamedTuple):
    """A promise: what is said where it is kept, and what to do where it is not."""

    check: Callable[[Make], None]
    kept: str
    fix: str = ""


PROPERTIES = {
    "trains": Property(trains, "parameters change and stay finite, metrics are single numbers, all of it is saved"),
    "repeats": Property(repeats, "the same seed gives the same numbers", "draw from `noise` alone"),
    "random": Property(random_calls, "no random calls", "declare numbers in draws(), and take them from `noise`"),
    "resumes": Property(resumes, "it resumes exactly", "name all that changes in parts()"),
    "acts": Property(acts, "it exploits deterministically and explores per slot", "use the `noise` of each slot"),
    "reads": Property(reads, "only predict reads parameters", "put into the Prediction what explore needs"),
    "waits": Property(waits, "it never waits for the device", "leave numbers on the device; torch.where for branches"),
    "pure": Property(pure, "learn leaves its inputs alone", "no operations in place on what it is given"),
    "compiles": Property(compiles, "compiled as one graph it equals eager", "no branch on a tensor, no side effects"),
    "memory": Property(remembers, "its memory keeps its shape when compiled"),
    "knobs": Property(knobs, "knobs can be pinned and given back"),
    "travels": Property(travels, "weights travel to explorers", "name what acts in acting()"),
}


def check_algorithm(cfg: AlgoConfig, spec: EnvSpec) -> CheckReport:
    """All properties of an algorithm over the spaces of an environment."""
    spec = EnvSpec(spec.obs, spec.action, SLOTS * len(spec.agents), spec.name, spec.agents)
    make = partial(Bench, cfg, spec)
    findings = []
    for name, promise in PROPERTIES.items():
        if name in ("compiles", "memory") and not can_compile():
            findings.append(Finding("warn", name, "not checked: this torch cannot compile an update"))
            continue
        broken = why(promise.check, make)
        fix = promise.fix if broken else ""
        findings.append(Finding("fail" if broken else "pass", name, broken or promise.kept, fix))
        if broken and name == "trains":  # nothing of the rest would say more
            break
    return CheckReport(cfg.kind, f"obs {spec.obs}, action {spec.action}", tuple(findings))


def why(check: Callable[[Make], None], make: Make) -> str:
    """What broke, in a line; nothing where all holds."""
    try:
        check(make)
    except (BrokenError, UserError) as error:
        return str(error)
    except Exception as error:  # of the algorithm's own code
        beyond = beyond_draws(error)
        return f"{beyond}: {told(error)}" if beyond else told(error)
    return ""


def made_up(cfg: AlgoConfig) -> EnvSpec:
    """Spaces that an algorithm accepts."""
    spaces = Discrete(3), Box((2,), low=(-1.0, -2.0), high=(1.0, 2.0))
    able = [space for space in spaces if cfg.accepts(space)]
    return EnvSpec(Box((4,)), (able or spaces)[0], SLOTS, "a made-up world")
