"""How fast a config trains on this machine, where its time goes, and how far from the machine's limits it is."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import torch

from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import Env, Step
from ganglion.envs.check.slots_env import SlotsChooser
from ganglion.errors import UserError
from ganglion.fast.profile import Profile, Shares, named
from ganglion.fast.roofline import Arithmetic, arithmetic, bandwidth
from ganglion.runtime.agent import some
from ganglion.runtime.build import build, build_env
from ganglion.runtime.randomness import derive
from ganglion.runtime.trainer import Trainer

ADAM = (
    10  # times a parameter's bytes move in an update: read by both passes, with its gradient and moments, and written
)
PATIENCE = 60.0  # seconds for a warm-up at most


class Limit(NamedTuple):
    """One thing alone: the env steps per second it would allow, and what that rests on."""

    rate: float
    about: str


class BenchResult(NamedTuple):
    """What was measured."""

    steps: float  # per second
    updates: float
    shares: Shares
    seconds: float  # of measured training
    limits: dict[str, Limit]  # environment, arithmetic, memory, all of them
    advice: str  # the bottleneck, in a line


class LastCall:
    """The arguments an agent was last called with, so that its arithmetic can be repeated alone."""

    def __init__(self, trainer: Trainer) -> None:
        agent = trainer.learner.agent
        self.agent = agent
        self.learned: tuple[Any, ...] = ()
        self.acted: tuple[Any, ...] = ()
        learn, act = agent.learn, agent.act

        def keep_learn(*args: Any) -> Any:
            self.learned = args
            return learn(*args)

        def keep_act(*args: Any) -> Any:
            self.acted = args
            return act(*args)

        setattr(agent, "learn", keep_learn)  # noqa: B010
        setattr(agent, "act", keep_act)  # noqa: B010

    def minibatch(self) -> Any:
        """What the last update learned from."""
        return some(self.learned[0], self.learned[3])


def bench(cfg: RunConfig, seconds: float = 10.0) -> BenchResult:
    """Trains for a while without saving anything, then measures what the parts cost alone."""
    if cfg.fleet.learners > 1:
        raise UserError(f"fleet.learners: bench measures one learner, not {cfg.fleet.learners}.")
    if cfg.run.mode != "local":
        raise UserError(f"run.mode: bench measures a run in one process, not {cfg.run.mode}. Accepted: local.")
    trainer = build(cfg)
    kept = LastCall(trainer)
    profile = Profile(trainer, sync=trainer.learner.agent.device.type == "cuda")
    try:
        warm_up(trainer)
        profile.clear()
        ends = perf_counter() + seconds
        while perf_counter() < ends:
            turn(trainer)
        limits = measure(cfg, trainer, kept, profile)
    finally:
        trainer.close()
    return BenchResult(*profile.rates(), profile.shares(), profile.seconds, limits, advise(cfg, profile, limits))


def turn(trainer: Trainer) -> None:
    """What the Trainer would do next, whatever its budget says."""
    trainer.run_train() if trainer.learner.owes(trainer.at) else trainer.run_collect()


def warm_up(trainer: Trainer) -> None:
    """Until learning is under way: several phases of it, or a second after the first."""
    began, first = perf_counter(), 0.0
    while perf_counter() - began < PATIENCE:
        turn(trainer)
        if trainer.at.opt_steps and not first:
            first = perf_counter()
        if first and perf_counter() - first > 1.0 and trainer.learner.mini is None:
            return


# ------------------------------------------------------------ limits


def measure(cfg: RunConfig, trainer: Trainer, kept: LastCall, profile: Profile) -> dict[str, Limit]:
    """The env steps per second that the environment, the arithmetic and the memory would allow alone."""
    per_step = profile.updates / max(profile.steps, 1)  # updates
    slots = trainer.source.spec.slots
    alone = environment_alone(cfg)
    limits = {"environment": Limit(1 / alone, f"{alone * 1e6:.3g} us a step with random actions")}
    products = arithmetic_of(kept)
    if products is None:
        return limits
    update, act = products
    sums = update.seconds * per_step + act.seconds / slots
    rate = update.flops / max(update.seconds, 1e-12)
    about = f"{update.flops / 1e6:,.3g} MFLOP an update at {rate / 1e9:,.3g} GFLOP/s, {act.flops / 1e6:.3g} to act"
    moved, speed = traffic(kept)
    limits["arithmetic"] = Limit(1 / max(sums, 1e-12), about)
    memory = moved / speed * per_step
    limits["memory"] = Limit(1 / max(memory, 1e-12), f"{moved / 1e6:.3g} MB an update at {speed / 1e9:.3g} GB/s")
    whole = alone + max(sums, memory)
    limits["together"] = Limit(1 / whole, "the environment, then the slower of the other two")
    return limits


def environment_alone(cfg: RunConfig, seconds: float = 1.5) -> float:
    """Seconds per env step of the environment and nothing else, with random actions made beforehand."""
    env = build_env(cfg)
    step = env.reset(derive(cfg.run.seed, "bench"))
    actions = [random_actions(env, step, number) for number in range(64)]
    rounds: list[float] = []
    ends = perf_counter() + seconds
    while perf_counter() < ends or len(rounds) < 3:
        began, lived = perf_counter(), 0
        for action in actions:
            lived += int(step.valid.sum())
            step = env.step(action)
        rounds.append((perf_counter() - began) / max(lived, 1))
        env.episodes()
    env.close()
    return sorted(rounds)[len(rounds) // 2]


def random_actions(env: Env, step: Step, number: int) -> Any:
    """An action per slot, the same for the same number."""
    device = step.valid.device
    return ops.map_tree(lambda x: x.to(device), SlotsChooser(env.spec.action, env.spec.slots, number)(step))


def arithmetic_of(kept: LastCall) -> tuple[Arithmetic, Arithmetic] | None:
    """The products of an update and of acting once; None where no update was seen."""
    if not kept.learned or not kept.acted:
        return None
    algo, agent = kept.agent.algo, kept.agent
    mini, (noise, at) = kept.minibatch(), kept.learned[1:3]
    obs, past, knobs, dice = kept.acted
    update = arithmetic(lambda: algo.learn(mini, agent.knobs(at), noise))
    with torch.no_grad():
        act = arithmetic(lambda: agent.explore(agent.here(obs), past, knobs, dice))
    return update, act


def traffic(kept: LastCall) -> tuple[int, float]:
    """Bytes an update has to move at least, and the bytes per second that memory of that size gives."""
    weights = sum(p.numel() * p.element_size() for p in kept.agent.algo.model.parameters())
    batch = sum(x.numel() * x.element_size() for x in ops.leaves(kept.minibatch()))
    return ADAM * weights + 2 * batch, bandwidth(4 * weights + batch, kept.agent.device)


# ------------------------------------------------------------ advice


def advise(cfg: RunConfig, profile: Profile, limits: dict[str, Limit]) -> str:
    """The bottleneck in a line, with what would help."""
    shares = profile.shares()
    parts = named(shares)
    worst = max(parts, key=lambda name: parts[name])
    start = f"{parts[worst]:.0%} of the time is"
    if worst == "env":
        return f"{start} the environment: a vectorised or tensor-made version, or env.workers, would help most."
    if worst == "act":
        per = profile.timers["act"].seconds / max(profile.timers["act"].calls, 1)
        return f"{start} acting, {per * 1e6:.0f} us for all {cfg.env.slots} slots at once: more slots would share it."
    if worst == "other":
        inner = "storing rows" if shares.store > shares.sample else "sampling from the buffer"
        return f"{start} neither environment nor network; most of it {inner}."
    needed = profile.steps / limits["arithmetic"].rate / profile.seconds if "arithmetic" in limits else 0.0
    part = f"{start} learning, of which arithmetic needs {min(needed / max(shares.learn, 1e-9), 1):.0%}"
    if needed > 0.5 * shares.learn:
        return f"{part}: a smaller network or batch, more threads or a GPU would help."
    fast = (
        "the rest is overhead of operations: run.fast=compile"
        if cfg.run.fast in ("auto", "eager")
        else "the rest is overhead"
    )
    return f"{part}; {fast}."
