"""From a config to a Trainer whose explorers are elsewhere."""

from __future__ import annotations

import torch

from ganglion.config import RunConfig
from ganglion.runtime.build import build_agent, build_env, build_evaluator
from ganglion.runtime.cluster import begin_ray
from ganglion.runtime.coordinator import Coordinator, site
from ganglion.runtime.fleets import Lockstep, Threads
from ganglion.runtime.learner import Learner
from ganglion.runtime.parcel import Codec, check_codec
from ganglion.runtime.receiver import Fleet, Receiver
from ganglion.runtime.sender import Lot
from ganglion.runtime.station import light
from ganglion.runtime.streams import derive
from ganglion.runtime.trainer import Trainer


def build_spread(cfg: RunConfig) -> Trainer:
    """A Trainer that has not begun: the same roles, with a Receiver where a local run has its Explorer."""
    torch.set_num_threads(cfg.run.threads)
    check_codec(cfg.fleet.compress)
    if cfg.run.mode == "ray":
        begin_ray(site(cfg))
    cfg = cfg.model_copy(update={"env": light(cfg.env)})
    env = build_env(cfg)
    agent, recipe = build_agent(cfg, env.spec), cfg.algo.recipe()
    learner = Learner(agent, recipe.buffer(env.spec, agent.device), recipe.limiter.build(), cfg.run.seed)
    rows = int(getattr(learner.buffer, "horizon", 0)) if learner.buffer.fresh else 0
    lot = Lot(rows, cfg.fleet.item, Codec(cfg.fleet.compress, cfg.fleet.compress_above))
    max_lag = recipe.max_lag if cfg.fleet.max_lag is None else cfg.fleet.max_lag
    receiver = Receiver(learner, make_fleet(cfg, lot), env, max_lag)
    env.close()
    seed = derive(cfg.run.seed, "eval") if cfg.eval.seed is None else cfg.eval.seed
    return Trainer(receiver, learner, build_evaluator(cfg, agent, cfg.eval.episodes, seed), cfg.train.budget)


def make_fleet(cfg: RunConfig, lot: Lot) -> Fleet:
    if cfg.run.mode == "sync":
        return Lockstep(cfg, lot)
    if cfg.run.mode == "threads":
        return Threads(cfg, lot, cfg.fleet.queue or cfg.fleet.explorers * (1 if lot.rows else 2))
    return Coordinator(cfg, lot)
