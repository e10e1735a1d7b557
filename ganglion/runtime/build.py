"""From a config to the parts it describes."""

from __future__ import annotations

import logging
from math import gcd

import torch

from ganglion import registry
from ganglion.config import EnvConfig, RunConfig
from ganglion.core import Env, EnvSpec
from ganglion.errors import EnvError, UserError
from ganglion.fast import Compiled, Fused, can_compile
from ganglion.fast.compile import TOO_OLD, keep_pages
from ganglion.runtime.agent import Agent
from ganglion.runtime.engine import Engine
from ganglion.runtime.evaluator import Evaluator
from ganglion.runtime.explorer import STRIDE, Explorer, Seat
from ganglion.runtime.learner import Learner
from ganglion.runtime.randomness import derive
from ganglion.runtime.trainer import Trainer

log = logging.getLogger(__name__)
LEAST = 100_000  # updates of a run that is worth compiling: half a minute of it against a millisecond each


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available()}
    if name == "auto":
        name = "cuda" if there["cuda"] else "cpu"
    if not there[name.split(":")[0]]:
        usable = ", ".join(kind for kind, usable in there.items() if usable)
        raise UserError(f"run.device: {name} is not available here. Accepted: auto, {usable}.")
    return torch.device(name)


def build_engine(cfg: RunConfig) -> Engine:
    """How act and learn are run, and from which opt step on."""
    device, mode = pick_device(cfg.run.device), cfg.run.fast
    if mode == "graph" and device.type != "cuda":
        raise UserError("run.fast: graph needs run.device=cuda. Accepted here: auto, eager, compile.")
    if mode == "compile" and device.type == "cuda":
        raise UserError("run.fast: compile is for run.device=cpu. Accepted here: auto, eager, graph.")
    if mode == "eager":
        return Engine(device)
    if device.type == "cuda":
        from ganglion.fast.capture import Captured

        return Engine(device, Captured, fuse=Fused)
    able = can_compile()  # an older torch stays eager, and says so where it would have switched
    if mode == "compile":
        if not able:
            log.warning(TOO_OLD, torch.__version__)
        return Engine(device, Compiled if able else None)
    return Engine(device, Compiled, cfg.run.swap, LEAST, able)


def build_agent(cfg: RunConfig, spec: EnvSpec, engine: Engine | None = None) -> Agent:
    """The agent, its parameters drawn from a stream of their own."""
    engine = engine or build_engine(cfg)
    keep_pages()  # updates make their tensors anew each time
    torch.backends.cudnn.deterministic = True  # else convolutions differ from run to run on a GPU
    torch.backends.cuda.matmul.allow_tf32 = getattr(getattr(cfg.algo, "net", None), "precision", "") == "tf32"
    with torch.random.fork_rng(), torch.device(engine.device):
        torch.manual_seed(derive(cfg.run.seed, "model"))
        algo = cfg.algo.build(spec)
    return Agent(algo, engine)


def light(env: EnvConfig) -> EnvConfig:
    """An environment's config without worker processes, unless they were asked for: explorers are processes."""
    return env.model_copy(update={"workers": 0}) if getattr(env, "workers", None) == "auto" else env


def build_env(cfg: RunConfig, slots: int | None = None) -> Env:
    try:
        env: Env = cfg.env.build(slots=slots, device=str(pick_device(cfg.run.device)))
    except SystemExit as error:  # which would end this process, as if all were well
        raise EnvError(f"env: it called sys.exit({error.code!r}) while it was made.") from error
    return env


def build_evaluator(cfg: RunConfig, agent: Agent, episodes: int, seed: int) -> Evaluator:
    slots = cfg.eval.slots or min(episodes, cfg.env.slots)
    return Evaluator(agent, lambda: build_env(cfg, slots), episodes, seed, cfg.eval.max_steps)


def build_learner(cfg: RunConfig, agent: Agent, spec: EnvSpec) -> Learner:
    recipe = cfg.algo.recipe(spec)
    buffer, limiter = recipe.buffer.build(spec, agent.device), recipe.limiter.build(spec, agent.device)
    return Learner(agent, buffer, limiter, cfg.run.seed)


def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
    """A Trainer that has not begun, of the kind that `run.mode` names."""
    mode = "learners" if cfg.fleet.learners > 1 else cfg.run.mode
    trainer: Trainer = registry.lookup("mode", mode).build(cfg, engine)
    return trainer


@registry.register("mode", "local")
class LocalMode:
    """Explorer and learner in this process."""

    @staticmethod
    def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        return build_local(cfg, engine)


def build_local(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
    """All in this process."""
    torch.set_num_threads(cfg.run.threads)
    env = build_env(cfg)
    agent = build_agent(cfg, env.spec, engine)
    learner = build_learner(cfg, agent, env.spec)
    processor = cfg.algo.recipe(env.spec).processor.build(env.spec, agent.device)
    seat = Seat(agent, processor, learner, cfg.run.seed, env.spec.slots)
    explorer = Explorer(env, [seat], cfg.run.seed, stride_of(agent.engine, learner))
    seed = derive(cfg.run.seed, "eval") if cfg.eval.seed is None else cfg.eval.seed
    return Trainer(explorer, learner, build_evaluator(cfg, agent, cfg.eval.episodes, seed), cfg.train.budget)


def stride_of(engine: Engine, learner: Learner) -> int:
    """Steps of a pure world that are one function: whole rollouts where they are captured, parts of them else. Between
    updates from a replay few steps pass: on a CPU more than one would be compiled for longer than it saves."""
    if not learner.buffer.fresh:
        return STRIDE if engine.whole else 1
    horizon = learner.buffer.room()
    return horizon if engine.whole else gcd(horizon, STRIDE)
