"""From a config with a `league` to its Trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from ganglion.config import RunConfig
from ganglion.core import EnvSpec, Sink
from ganglion.errors import UserError
from ganglion.league.evaluator import LeagueEvaluator
from ganglion.league.games import Games
from ganglion.league.league_env import LeagueEnv, home_spec, places
from ganglion.league.learning_player import LearningPlayer
from ganglion.league.opponents import Opponents
from ganglion.league.settings import LeagueSettings
from ganglion.league.source import LeagueSource
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_agent, build_algo, build_engine, build_env, build_learner
from ganglion.runtime.engine import Engine
from ganglion.runtime.explorer import Explorer, Nowhere, Seat
from ganglion.runtime.randomness import derive
from ganglion.runtime.trainer import Trainer


class Kinds(NamedTuple):
    """The algorithms of a league's players, each once."""

    configs: list[RunConfig]
    of: dict[str, int]  # by player


def kinds_of(cfg: RunConfig, league: LeagueSettings) -> Kinds:
    configs: list[RunConfig] = []
    of = {}
    for name, player in league.players.items():
        own = cfg if player.algo is None else cfg.model_copy(update={"algo": player.algo})
        of[name] = next((k for k, other in enumerate(configs) if other.algo == own.algo), len(configs))
        configs += [own] if of[name] == len(configs) else []
    return Kinds(configs, of)


def build_league(cfg: RunConfig, league: LeagueSettings, engine: Engine | None = None) -> Trainer:
    """A Trainer that has not begun."""
    torch.set_num_threads(cfg.run.threads)
    engine, seed, learners, players, seats = engine or build_engine(cfg), cfg.run.seed, [], [], []
    env = LeagueEnv(build_env(cfg), len(league.players))
    home, kinds = home_spec(env.spec, env.learners), kinds_of(cfg, league)
    if league.matches > home.slots:
        raise UserError(f"league.matches: {league.matches} is more than the {home.slots} copies of each player's game.")
    for number, name in enumerate(league.players):
        own = kinds.configs[kinds.of[name]]
        agent = build_agent(own, home, engine, name)
        learners.append(build_learner(own, agent, home))
        ours, theirs = places(env.spec, env.learners, number)
        seats.append(build_seat(own, agent, learners[-1], home, ours))
        opponents = build_opponents(league.matches, kinds, home, theirs.stop - theirs.start, engine)
        seats.append(build_seat(own, Agent(opponents, engine, f"{name}:opponents"), Nowhere(), home, theirs))
        players.append(LearningPlayer(agent, seats[-1], opponents, kinds.of, home.slots))
    games = build_games(cfg, kinds, engine)
    source = LeagueSource(Explorer(env, seats, seed), players, league, seed, games)
    frozen = [player.away.agent for player in players]
    evaluator = LeagueEvaluator(source, cfg.eval.episodes)
    return Trainer(source, learners[0], evaluator, cfg.train.budget, others=learners[1:], frozen=frozen)


def build_seat(cfg: RunConfig, agent: Agent, sink: Sink, spec: EnvSpec, place: slice) -> Seat:
    count = place.stop - place.start
    processor = cfg.algo.recipe(spec).processor.build(replace(spec, slots=count), agent.device)
    return Seat(agent, processor, sink, cfg.run.seed, count, place)


def build_opponents(matches: int, kinds: Kinds, spec: EnvSpec, slots: int, engine: Engine) -> Opponents:
    """Of each kind one per match, and one that is free while a match ends slot by slot."""
    count = range(matches + 1)
    algos = [[build_algo(own, spec, engine, f"opponent-{k}") for k in count] for own in kinds.configs]
    return Opponents(algos, slots, engine.device)


def build_games(cfg: RunConfig, kinds: Kinds, engine: Engine | None = None) -> Games:
    """Games between given players, on a world of their own."""
    engine = engine or build_engine(cfg)
    env = build_env(cfg)  # asked for its spaces
    least, most = len(env.spec.agents) ** 2, cfg.eval.slots or env.spec.slots
    spec = home_spec(env.spec, 1)
    env.close()
    slots = least * max(1, min(most, len(env.spec.agents) * cfg.eval.episodes) // least)
    agents = [[build_agent(own, spec, engine, f"side-{k}") for k in range(2)] for own in kinds.configs]

    def make_seat(parent: str, side: int, place: slice) -> Seat:
        kind = kinds.of[parent]
        return build_seat(kinds.configs[kind], agents[kind][side], Nowhere(), spec, place)

    return Games(lambda: build_env(cfg, slots), make_seat, derive(cfg.run.seed, "eval"))
