"""A league as its newest checkpoint left it: its players, ready to play games, and what is known of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from ganglion.config import RunConfig
from ganglion.core import Progress, under
from ganglion.errors import UserError, nearest
from ganglion.league.league_env import LeagueEnv
from ganglion.league.learning_player import Result
from ganglion.league.players import League
from ganglion.league.source import LeagueSource
from ganglion.record.checkpoint import Checkpoints, beside_training
from ganglion.record.stores import Where
from ganglion.runtime.evaluator import deviation
from ganglion.runtime.run import chosen, load_config, taking
from ganglion.runtime.trainer import named


class SavedLeague:
    """The players of a run, historical ones too."""

    def __init__(self, folder: Where) -> None:
        self.folder, self.cfg = folder, league_config(folder)
        checkpoints = Checkpoints(folder / "checkpoints", self.cfg.save.keep)
        state, path = beside_training(lambda: chosen(folder, checkpoints, "last"))
        self.path = str(path)
        assert self.cfg.league is not None
        trainer = self.cfg.league.build(in_one_process(self.cfg))
        self.source: LeagueSource = trainer.source
        with taking(path):
            for player in self.source.players:
                player.agent.restore(under(state, named("agent", player.agent)))
            self.source.members.take_members(under(state, "source"))
            self.at = Progress.read(under(state, "counters").scalars["at"])

    @property
    def league(self) -> League:
        return self.source.league

    def known(self, name: str, option: str) -> str:
        """The name of a player, checked."""
        names = list(self.league.players)
        if name not in names:
            shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            raise UserError(f"{option}: there is no player {name[:80]!r}. Accepted: {shown}.{nearest(name, names)}")
        return name

    def play(self, home: str, away: str, games: int, seed: int) -> list[Result]:
        """Games of two players, as they play in training; their results for the first."""
        self.source.games.seed = seed
        first, second = (self.source.contender(name, self.at) for name in (home, away))
        return self.source.games.play(first, second, games)

    def frames(self, home: str, away: str, games: int, seed: int) -> Iterator[Any]:
        """What their games look like, frame by frame."""
        self.source.games.seed = seed
        first, second = (self.source.contender(name, self.at) for name in (home, away))
        agents = len(self.source.spec.agents)
        env = LeagueEnv(self.cfg.env.whole(slots=agents * agents, device="cpu", render=True), 1)
        yield from self.source.games.frames(env, first, second, games)
        env.close()

    def close(self) -> None:
        self.source.close()


def in_one_process(cfg: RunConfig) -> RunConfig:
    """A league on Ray as one whose players share the slots of one process, to look at it and to play its games."""
    if cfg.run.mode == "local":
        return cfg
    league: Any = cfg.league
    env = cfg.env.model_copy(update={"slots": cfg.env.slots * len(league.players)})
    return cfg.model_copy(update={"env": env, "run": cfg.run.model_copy(update={"mode": "local"})})


def league_config(folder: Where) -> RunConfig:
    """The config of a run that is a league."""
    cfg = load_config(folder)
    if cfg.league is None:
        raise UserError(f"{folder} is no league: its config has no section `league`.")
    return cfg


def records(folder: Where) -> list[dict[str, Any]]:
    """What was recorded while it trained."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [log for log in map(json.loads, lines) if log.get("kind") == "record"]


def match_frames(folder: Where, names: Sequence[str], games: int, seed: int) -> Iterator[Any]:
    """Frames of games of two players, one against itself; of the first two that learn where nobody is named."""
    saved = SavedLeague(folder)
    names = names or saved.source.names
    home, away = (saved.known(name, "--players") for name in (names[0], names[min(1, len(names) - 1)]))
    yield from saved.frames(home, away, games, seed)
    saved.close()


def score_games(folder: Where, player: str | None, against: str | None, games: int, seed: int) -> Mapping[str, Any]:
    """Games of a player against another one, itself where none is named: how many it wins, and what it gets."""
    saved = SavedLeague(folder)
    name = saved.known(player or saved.source.players[0].name, "--player")
    other = saved.known(against or name, "--against")
    played = saved.play(name, other, games, seed)
    saved.close()
    totals, scores = [game.total for game in played], [game.score for game in played]
    half, won = 1.96 * deviation(scores, lost=1) / len(scores) ** 0.5, fmean(scores)
    return {
        "player": name,
        "against": other,
        "win_rate": won,
        "interval": (won - half, won + half),
        "drawn": scores.count(0.5) / len(scores),
        "mean": fmean(totals),
        "episodes": len(played),
        "seed": seed,
        "checkpoint": saved.path,
        "returns": totals,
    }
