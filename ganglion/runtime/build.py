"""From a config to the parts it describes."""

from __future__ import annotations

from math import gcd

import torch

from ganglion.config import RunConfig
from ganglion.core import Env, EnvSpec, Processor, Sink
from ganglion.envs.world import TorchEnv
from ganglion.errors import UserError
from ganglion.fast import Fused, Swap, Wrap, can_compile, wrapper
from ganglion.fast.memory import keep_pages
from ganglion.runtime.agent import Agent
from ganglion.runtime.evaluator import Evaluator
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.learner import Learner
from ganglion.runtime.stints import Stints
from ganglion.runtime.streams import derive
from ganglion.runtime.trainer import Trainer
from ganglion.runtime.whole import Phase, Strider

STRIDE = 8  # steps of a world of tensors in one compiled graph on a CPU
STINT = 64  # steps of other environments that are one event
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


def build_agent(cfg: RunConfig, spec: EnvSpec) -> Agent:
    """The agent, its parameters drawn from a stream of their own."""
    device = pick_device(cfg.run.device)
    keep_pages()  # updates make their tensors anew each time
    torch.backends.cudnn.deterministic = True  # else convolutions differ from run to run on a GPU
    torch.backends.cuda.matmul.allow_tf32 = getattr(getattr(cfg.algo, "net", None), "precision", "") == "tf32"
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(derive(cfg.run.seed, "model"))
        algo = cfg.algo.build(spec)
    return Agent(algo, device, *quicken(cfg, device))


def quicken(cfg: RunConfig, device: torch.device) -> tuple[Wrap, Swap]:
    """How act and learn are run, and from which opt step on."""
    mode = cfg.run.fast
    if mode == "graph" and device.type != "cuda":
        raise UserError("run.fast: graph needs run.device=cuda. Accepted here: auto, eager, compile.")
    if mode == "compile" and device.type == "cuda":
        raise UserError("run.fast: compile is for run.device=cpu. Accepted here: auto, eager, graph.")
    if mode == "auto" and device.type == "cuda":
        return wrapper("graph"), Swap()
    if mode == "auto":  # an older torch stays eager, and says so where it would have gone over
        able = can_compile()
        return wrapper("compile" if able else "eager"), Swap(cfg.run.swap, LEAST, able)
    return wrapper(mode), Swap()


def build_env(cfg: RunConfig, slots: int | None = None) -> Env:
    env: Env = cfg.env.build(slots=slots, device=str(pick_device(cfg.run.device)))
    return env


def build_evaluator(cfg: RunConfig, agent: Agent, episodes: int, seed: int) -> Evaluator:
    slots = cfg.eval.slots or min(episodes, 20)
    return Evaluator(agent, lambda: build_env(cfg, slots), episodes, seed)


def build(cfg: RunConfig) -> Trainer:
    """A Trainer that has not begun."""
    if cfg.fleet.learners > 1:
        from ganglion.runtime.fleet.several import build_several

        return build_several(cfg)
    if cfg.run.mode != "local":
        from ganglion.runtime.fleet.spread import build_spread

        return build_spread(cfg)
    torch.set_num_threads(cfg.run.threads)
    env = build_env(cfg)
    agent = build_agent(cfg, env.spec)
    explorer, learner = build_walkers(cfg, agent, env)
    seed = derive(cfg.run.seed, "eval") if cfg.eval.seed is None else cfg.eval.seed
    return Trainer(explorer, learner, build_evaluator(cfg, agent, cfg.eval.episodes, seed), cfg.train.budget)


def build_explorer(cfg: RunConfig, agent: Agent, env: Env, processor: Processor, sink: Sink) -> Explorer:
    """An Explorer of all slots at once, or of two halves in turn."""
    if not getattr(cfg.env, "halves", False):
        return Explorer(agent, env, processor, sink, cfg.run.seed)
    from ganglion.envs.pooled import PoolEnv
    from ganglion.runtime.halves import Halves

    if not isinstance(env, PoolEnv) or len(env.pool.shares) % 2 or env.spec.slots % 2:
        env.close()
        needs = "env.workers and env.slots, even numbers of both, and observations as they come (no env.frame_stack)"
        raise UserError(f"env.halves: needs {needs}.")
    return Halves(agent, env, processor, sink, cfg.run.seed)


def build_walkers(cfg: RunConfig, agent: Agent, env: Env) -> tuple[Explorer, Learner]:
    """An Explorer and the Learner it hands rows to; both in long strides where the world and the rows allow it."""
    recipe, seed, what = cfg.algo.recipe(env.spec), cfg.run.seed, (env.spec, agent.device)
    buffer, limiter, processor = recipe.buffer.build(*what), recipe.limiter.build(*what), recipe.processor.build(*what)
    gpu, halves = agent.device.type == "cuda", getattr(cfg.env, "halves", False)
    if not (isinstance(env, TorchEnv) and buffer.fresh) or cfg.run.fast == "eager":
        learner = Learner(agent, buffer, limiter, seed)
        if gpu or halves or cfg.run.fast == "eager":
            return build_explorer(cfg, agent, env, processor, learner), learner
        return Stints(agent, env, processor, learner, seed, STINT), learner
    wrap, stride = quicken(cfg, agent.device)[0], buffer.room() if gpu else gcd(buffer.room(), STRIDE)
    fused = Fused if gpu else None
    phase = Phase(agent, buffer, limiter, seed, wrap if gpu else None, fused)
    return Strider(agent, env, processor, phase, seed, stride, wrap, fused), phase
