"""From a config with a `league` and run.mode ray to its Trainer."""

from __future__ import annotations

from typing import Any

import torch

from ganglion.config import RunConfig
from ganglion.errors import UserError
from ganglion.fleet.fork_server import begin_fork_server
from ganglion.fleet.ray_cluster import begin_ray
from ganglion.league.build import build_games, kinds_of
from ganglion.league.evaluator import LeagueEvaluator
from ganglion.league.league_env import LeagueEnv, home_spec
from ganglion.league.ray_league import RayLeague, site
from ganglion.league.settings import LeagueSettings
from ganglion.runtime.build import build_agent, build_engine, build_env, light
from ganglion.runtime.trainer import Trainer


def build_ray_league(cfg: RunConfig, league: LeagueSettings) -> Trainer:
    """A Trainer that has not begun: the same roles; its learners are elsewhere, and its Source tells what they do."""
    torch.set_num_threads(cfg.run.threads)
    players = list(league.players)
    if cfg.fleet.explorers < len(players):
        short = f"{cfg.fleet.explorers} for {len(players)} learning players ({', '.join(players)[:200]})"
        raise UserError(f"fleet.explorers: {short}: somebody has no explorer. Accepted: {len(players)} and more.")
    if cfg.fleet.inference == "central":
        raise UserError("fleet.inference: explorers of a league predict themselves. Accepted: own.")
    cfg = cfg.model_copy(update={"env": light(cfg.env)})
    env, kinds = LeagueEnv(build_env(cfg), 1), kinds_of(cfg, league)
    home, engine = home_spec(env.spec, 1), build_engine(cfg)
    env.close()
    if league.matches > home.slots:
        raise UserError(
            f"league.matches: {league.matches} is more than the {home.slots} copies of each explorer's game."
        )
    agents = [build_agent(kinds.configs[kinds.of[name]], home, engine, name) for name in players]
    games = build_games(cfg, kinds, engine)
    if not cfg.fleet.address:
        begin_fork_server()
    begin_ray(site(cfg, len(players)))
    source = RayLeague(cfg, league, agents, env.spec, env.faults, games)
    learners: Any = source.learners
    evaluator: Any = LeagueEvaluator(source, cfg.eval.episodes)
    return Trainer(source, learners[0], evaluator, cfg.train.budget, others=learners[1:])
