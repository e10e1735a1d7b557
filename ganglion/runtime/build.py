"""From a config to the parts it describes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import gcd
from typing import Any, ClassVar

import torch

from ganglion import registry
from ganglion.config import EnvConfig, RunConfig
from ganglion.core import Algorithm, Builder, Env, EnvSpec, Processor, Sink
from ganglion.errors import EnvError, UserError
from ganglion.fast import Compiled, Fused, can_compile
from ganglion.fast.compile import TOO_OLD, keep_pages
from ganglion.runtime.agent import PLAYER, Agent
from ganglion.runtime.engine import Engine
from ganglion.runtime.evaluator import Evaluator
from ganglion.runtime.explorer import STRIDE, Explorer, Nowhere, Seat
from ganglion.runtime.learner import Learner
from ganglion.runtime.players import Player, check_scored, players
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
    device, mode = pick_device(cfg.run.device), cfg.run.fast if cfg.algo.library == "torch" else "eager"
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


def build_agent(cfg: RunConfig, spec: EnvSpec, engine: Engine | None = None, player: str = PLAYER) -> Agent:
    """The agent, its parameters drawn from a stream of their own."""
    engine = engine or build_engine(cfg)
    return Agent(build_algo(cfg, spec, engine, player), engine, player)


def build_algo(cfg: RunConfig, spec: EnvSpec, engine: Engine, player: str) -> Algorithm[Any, Any]:
    keep_pages()  # updates make their tensors anew each time
    torch.backends.cudnn.deterministic = True  # else convolutions differ from run to run on a GPU
    torch.backends.cuda.matmul.allow_tf32 = getattr(getattr(cfg.algo, "net", None), "precision", "") == "tf32"
    with torch.random.fork_rng(), torch.device(engine.device):
        torch.manual_seed(derive(cfg.run.seed, "model" if player == PLAYER else f"model/{player}"))
        algo: Algorithm[Any, Any] = cfg.algo.whole(spec)
    return algo


def build_agents(cfg: RunConfig, spec: EnvSpec, engine: Engine | None = None) -> list[tuple[Player, Agent]]:
    """Those of all players, the first of which learns and is scored."""
    engine = engine or build_engine(cfg)
    made = [(player, build_agent(player.cfg, player.spec(spec), engine, player.name)) for player in players(cfg, spec)]
    return sorted(made, key=lambda both: not both[0].learns)


def light(env: EnvConfig) -> EnvConfig:
    """An environment's config without worker processes, unless they were asked for: explorers are processes."""
    return env.model_copy(update={"workers": 0}) if getattr(env, "workers", None) == "auto" else env


def build_env(cfg: RunConfig, slots: int | None = None) -> Env:
    try:
        env: Env = cfg.env.whole(slots=slots, device=str(pick_device(cfg.run.device)))
    except SystemExit as error:  # which would end this process, as if all were well
        raise EnvError(f"env: it called sys.exit({error.code!r}) while it was made.") from error
    return env


def build_evaluator(cfg: RunConfig, made: Sequence[tuple[Player, Agent]], episodes: int, seed: int) -> Evaluator:
    """Of all players, in `eval.env` where that is another environment."""
    if cfg.eval.env is not None:
        cfg = cfg.model_copy(update={"env": cfg.eval.env})
    agents = sum(len(player.agents) for player, _ in made)
    slots = cfg.eval.slots or agents * min(-(-episodes // agents), cfg.env.slots // agents)

    def seats(spec: EnvSpec) -> list[tuple[Agent, slice | None]]:
        check_scored(spec, made[0][0].world)
        return [(agent, player.place(spec)) for player, agent in made]

    evaluator = Evaluator(made[0][1], lambda: build_env(cfg, slots), episodes, seed, cfg.eval.max_steps, seats)
    if cfg.eval.env is not None:  # whether it fits is said before anything is trained
        evaluator.begin()
    return evaluator


def build_learner(cfg: RunConfig, agent: Agent, spec: EnvSpec) -> Learner:
    recipe = cfg.algo.recipe(spec)
    buffer, limiter = recipe.buffer.build(spec, agent.device), recipe.limiter.build(spec, agent.device)
    return Learner(agent, buffer, limiter, cfg.run.seed, spec.slots)


def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
    """A Trainer that has not begun, of the kind that `league` or `run.mode` names."""
    mode = "learners" if cfg.fleet.learners > 1 else cfg.run.mode
    if cfg.league is not None:
        return cfg.league.build(cfg, engine)
    if cfg.algo.imitates and not cfg.data.path:
        raise UserError(f"algo.kind: {cfg.algo.kind} learns from demonstrations: data.path should name a dataset.")
    if cfg.algo.offline and mode != "offline":
        raise UserError(f"run.mode: {cfg.algo.kind} learns from a dataset alone: run.mode=offline data.path=DATA.")
    mode = "with_data" if cfg.data.path and mode == "local" else mode
    trainer: Trainer = registry.lookup("mode", mode).build(cfg, engine)
    return trainer


@registry.register("mode", "local")
class LocalMode:
    """Explorer and learner in this process."""

    together: ClassVar[bool] = True  # several runs can be trained as one batched model

    @staticmethod
    def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        return build_local(cfg, engine)


def build_local(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
    """All in this process."""
    torch.set_num_threads(cfg.run.threads)
    env = build_env(cfg)
    made = build_agents(cfg, env.spec, engine)
    learners = [build_learner(player.cfg, agent, player.spec(env.spec)) for player, agent in made if player.learns]
    sinks: list[Sink] = [*learners, *(Nowhere() for _ in made[len(learners) :])]
    seats = [build_seat(*both, env.spec, sink, cfg.run.seed) for both, sink in zip(made, sinks, strict=True)]
    stride = min(stride_of(made[0][1].engine, learner) for learner in learners)
    explorer = Explorer(env, in_places(seats), cfg.run.seed, stride)
    seed = derive(cfg.run.seed, "eval") if cfg.eval.seed is None else cfg.eval.seed
    evaluator, frozen = build_evaluator(cfg, made, cfg.eval.episodes, seed), [a for p, a in made if not p.learns]
    return Trainer(explorer, learners[0], evaluator, cfg.train.budget, others=learners[1:], frozen=frozen)


def build_seat(player: Player, agent: Agent, spec: EnvSpec, sink: Sink, seed: int) -> Seat:
    own, cfg = player.spec(spec), player.cfg
    kind = cfg.algo.recipe(own).processor
    if cfg.data.record is not None:
        kind = recorded(player, kind)
    processor = kind.build(own, agent.device)
    return Seat(agent, processor, sink, seed, own.slots, player.place(spec))


def recorded(player: Player, processor: Builder[Processor]) -> Builder[Processor]:
    """A processor whose rows are written to the dataset that `data.record` names; each player has one of its own."""
    cfg = player.cfg
    about = {"env": cfg.env.plain(), "algo": cfg.algo.plain(), "seed": cfg.run.seed, "run": cfg.run.dir or cfg.title}
    path = f"{cfg.data.record}/{player.name}" if cfg.players else cfg.data.record
    made: Builder[Processor] = registry.lookup("processor", "recorded")(path=path, inner=processor, about=about)
    return made


def in_places(seats: Sequence[Seat]) -> list[Seat]:
    """In the order of their slots."""
    return sorted(seats, key=lambda seat: 0 if seat.slots is None else seat.slots.start)


def stride_of(engine: Engine, learner: Learner) -> int:
    """Steps of a pure world that are one function: whole rollouts where they are captured, parts of them else. Between
    updates from a replay few steps pass: on a CPU more than one would be compiled for longer than it saves."""
    if not learner.buffer.fresh:
        return STRIDE if engine.whole else 1
    horizon = learner.buffer.room()
    return horizon if engine.whole else gcd(horizon, STRIDE)
