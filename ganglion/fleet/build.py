"""From a config to the Trainer of a distributed run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ganglion import registry
from ganglion.config import Every, RunConfig
from ganglion.errors import UserError
from ganglion.fleet.files_fleet import FilesFleet
from ganglion.fleet.fork_server import begin_fork_server
from ganglion.fleet.in_process import SyncFleet, ThreadFleet
from ganglion.fleet.items import expect
from ganglion.fleet.ray_cluster import begin_ray
from ganglion.fleet.ray_fleet import RayFleet, site
from ganglion.fleet.receiver import Fleet, Receiver
from ganglion.fleet.remote_evaluator import EvaluatedRemotely
from ganglion.fleet.remote_explorer import ItemSize
from ganglion.fleet.wire import Codec, check_codec
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_agent, build_env, build_evaluator, build_learner, light
from ganglion.runtime.engine import Engine
from ganglion.runtime.learner import Learner
from ganglion.runtime.randomness import derive
from ganglion.runtime.trainer import Scored, Trainer

UPDATES = 16  # that an item allows
LEAST, LED_IN, USUAL = 8, 32, 32  # rows


Make = Callable[[RunConfig, ItemSize], Fleet]


@registry.register("mode", "sync")
@registry.register("mode", "threads")
@registry.register("mode", "ray")
@registry.register("mode", "files")
class DistributedMode:
    """Explorers in lockstep, in threads, as actors of Ray, or wherever the same storage is seen."""

    @staticmethod
    def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        return build_distributed(cfg)


def build_distributed(cfg: RunConfig, make: Make | None = None) -> Trainer:
    """A Trainer that has not begun: the same roles, with a Receiver where a local run has its Explorer."""
    torch.set_num_threads(cfg.run.threads)
    check_codec(cfg.fleet.compress)
    if cfg.run.mode == "ray" and make is None:
        begin_cluster(cfg)
    cfg = cfg.model_copy(update={"env": light(cfg.env)})
    env = build_env(cfg)
    agent = build_agent(cfg, env.spec)
    learner = build_learner(cfg, agent, env.spec)
    rows = cfg.fleet.rows if cfg.fleet.rows and not learner.buffer.fresh else fitting(learner, env.spec.slots)
    lot = ItemSize(1 if cfg.run.mode == "sync" else rows, Codec(cfg.fleet.compress, cfg.fleet.compress_above))
    recipe = cfg.algo.recipe(env.spec)
    expected = expect(agent, recipe.processor.build(env.spec, agent.device), env.spec, lot)
    lot = lot._replace(most=expected.form.most)
    max_lag = recipe.max_lag if cfg.fleet.max_lag is None else cfg.fleet.max_lag
    fleet = (make or make_fleet)(cfg, lot)
    receiver = Receiver(learner, fleet, env, max_lag, expected)
    env.close()
    seed = derive(cfg.run.seed, "eval") if cfg.eval.seed is None else cfg.eval.seed
    evaluator = build_evaluator(cfg, agent, cfg.eval.episodes, seed)
    return Trainer(receiver, learner, evaluator, cfg.train.budget, scored(fleet, agent, cfg.eval.every))


def scored(fleet: Fleet, agent: Agent, every: Every) -> Scored | None:
    """With Ray the agent is evaluated by an actor, beside training."""
    if not isinstance(fleet, RayFleet):
        return None
    return lambda now, sound: EvaluatedRemotely(fleet, agent, every, now, sound)


def begin_cluster(cfg: RunConfig) -> None:
    """What takes seconds, and needs nothing that is built meanwhile."""
    if not cfg.fleet.address:
        begin_fork_server()
    begin_ray(site(cfg))


def fitting(learner: Learner, slots: int) -> int:
    """The rows of an item: a rollout; or as many as allow a few updates. Everything that waits is behind by all that
    waits before it, and replay learns badly from what is far behind: an item is no larger than it must be."""
    buffer, limiter = learner.buffer, learner.limiter
    if buffer.fresh:
        return buffer.room()
    least = LED_IN if buffer.history else LEAST  # a seam costs a row, or several
    return max(int(UPDATES * limiter.opt_interval / slots) if limiter.opt_interval else USUAL, least)


def make_fleet(cfg: RunConfig, lot: ItemSize) -> Fleet:
    if cfg.fleet.inference == "central" and cfg.run.mode not in ("threads", "ray"):
        raise UserError("fleet.inference: central is for run.mode threads or ray.")
    if cfg.run.mode == "sync":
        return SyncFleet(cfg, lot)
    if cfg.run.mode == "threads":
        return ThreadFleet(cfg, lot, cfg.fleet.queue or 1)  # and one that each explorer holds
    if cfg.run.mode == "files":
        return FilesFleet(cfg, lot)
    return RayFleet(cfg, lot)
