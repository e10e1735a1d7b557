"""From a config to the Trainer of a distributed run."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from ganglion import registry
from ganglion.config import Every, RunConfig
from ganglion.core import EnvSpec
from ganglion.errors import UserError
from ganglion.fleet.files_fleet import FilesFleet
from ganglion.fleet.fork_server import begin_fork_server
from ganglion.fleet.in_process import SyncFleet, ThreadFleet
from ganglion.fleet.items import Expected, expect
from ganglion.fleet.ray_cluster import begin_ray
from ganglion.fleet.ray_fleet import RayFleet, site
from ganglion.fleet.receiver import Fleet, Receiver, Receivers
from ganglion.fleet.remote_evaluator import EvaluatedRemotely
from ganglion.fleet.remote_explorer import ItemSize
from ganglion.fleet.wire import Codec, check_codec
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_agents, build_env, build_evaluator, build_learner, light
from ganglion.runtime.engine import Engine
from ganglion.runtime.learner import Learner
from ganglion.runtime.players import Player
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

    together: ClassVar[bool] = False

    @staticmethod
    def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        return build_distributed(cfg)


def check_episodes(cfg: RunConfig) -> None:
    """Refuses rollouts of whole episodes where several explorers or learners would share them."""
    if cfg.algo.plain().get("episodes") and (cfg.run.mode != "sync" or cfg.fleet.learners > 1):
        raise UserError(
            "algo.episodes: rollouts of whole episodes are collected in one process, for one learner: "
            "run.mode: local and fleet.learners: 1."
        )


def build_distributed(cfg: RunConfig, make: Make | None = None) -> Trainer:
    """A Trainer that has not begun: the same roles, with a Receiver where a local run has its Explorer."""
    check_episodes(cfg)
    torch.set_num_threads(cfg.run.threads)
    check_codec(cfg.fleet.compress)
    if cfg.run.mode == "ray" and make is None:
        begin_cluster(cfg)
    cfg = cfg.model_copy(update={"env": light(cfg.env)})
    env = build_env(cfg)
    made = build_agents(cfg, env.spec)
    learners = [build_learner(player.cfg, agent, player.spec(env.spec)) for player, agent in made if player.learns]
    lot = ItemSize(item_rows(cfg, learners[0]), Codec(cfg.fleet.compress, cfg.fleet.compress_above))
    expected = [expected_of(player, agent, env.spec, lot) for player, agent in made[: len(learners)]]
    lot = lot._replace(most=expected[0].form.most)
    fleet = (make or make_fleet)(cfg, lot)
    views = fleet.views([agent.player for _, agent in made]) if isinstance(fleet, SyncFleet) else [fleet]
    sources = [
        Receiver(learner, view, env, lag_of(player, env.spec), own, player.place(env.spec))
        for learner, view, own, (player, _) in zip(learners, views, expected, made, strict=False)
    ]
    env.close()
    seed = derive(cfg.run.seed, "eval") if cfg.eval.seed is None else cfg.eval.seed
    evaluator = build_evaluator(cfg, made, cfg.eval.episodes, seed)
    frozen = [agent for player, agent in made if not player.learns]
    whole = Receivers(sources, env.spec, fleet) if len(made) > 1 else sources[0]
    remote = scored(fleet, made[0][1], cfg.eval.every)
    return Trainer(whole, learners[0], evaluator, cfg.train.budget, remote, others=learners[1:], frozen=frozen)


def item_rows(cfg: RunConfig, learner: Learner) -> int:
    """Of an item."""
    if cfg.run.mode == "sync":
        return 1
    return cfg.fleet.rows if cfg.fleet.rows and not learner.buffer.fresh else fitting(learner, learner.slots)


def expected_of(player: Player, agent: Agent, spec: EnvSpec, lot: ItemSize) -> Expected:
    own = player.spec(spec)
    return expect(agent, player.cfg.algo.recipe(own).processor.build(own, agent.device), own, lot)


def lag_of(player: Player, spec: EnvSpec) -> int | None:
    """Updates behind which an item is dropped."""
    most = player.cfg.fleet.max_lag
    return player.cfg.algo.recipe(player.spec(spec)).max_lag if most is None else most


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
