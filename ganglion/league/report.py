"""A league in text and as a picture: players and lineage, payoff, who plays whom, ratings over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ganglion.errors import UserError
from ganglion.league.players import League

MOST = 20  # snapshots that are listed one by one
BARS = "▁▂▃▄▅▆▇█"
Rows = list[tuple[str, ...]]


def players(league: League) -> Rows:
    """The strongest, and all who learn: where they come from, and how strong they are."""
    rows: Rows = [("player", "role", "of", "since", "games", "snapshots", "resets", "elo", "trueskill")]
    ranked = strongest(league)
    for name in [n for k, n in enumerate(ranked) if k < MOST or league.players[n].learns]:
        p, skill = league.players[name], league.ratings.skill[name]
        counts = (f"{p.games:,}", str(p.snapshots), str(p.resets)) if p.learns else ("", "", "")
        told = (f"{league.ratings.elo[name]:.0f}", f"{skill.mean:.1f}")
        rows.append((name, p.role.replace("_", " "), p.parent, f"{p.born:,}", *counts, *told))
    return rows


def strongest(league: League) -> list[str]:
    return sorted(league.players, key=lambda name: -league.ratings.elo[name])


def shown(league: League, most: int) -> list[str]:
    """Those who learn, and as many of the newest snapshots as there is room for."""
    learners = [name for name, player in league.players.items() if player.learns]
    return learners + league.past[::-1][: max(most - len(learners), 0)]


def payoff(league: League, width: int) -> Rows:
    """How often each (down) beats each (across), in percent; a point where too few games were played."""
    longest = max(map(len, league.players))
    names = shown(league, max((width - longest - 2) // 5, 2))
    rates, games = league.payoff.table(), league.payoff.games
    place = {name: league.payoff.names.index(name) for name in names}

    def cell(one: str, other: str) -> str:
        i, j = place[one], place[other]
        return f"{100 * rates[i, j]:3.0f}" if games[i, j] >= league.payoff.least else "  ."

    rows: Rows = [("win %", *(f"{k:3}" for k in range(1, len(names) + 1)))]
    return rows + [(f"{k} {one}", *(cell(one, other) for other in names)) for k, one in enumerate(names, 1)]


def meetings(league: League, width: int) -> list[str]:
    """Whom each learner has met most."""
    lines = []
    for name in (n for n, p in league.players.items() if p.learns):
        row = league.payoff.met[league.payoff.names.index(name)]
        counts = sorted(zip(row, league.payoff.names, strict=True), reverse=True)
        told = [f"{other} {count:,.0f}" for count, other in counts if count]
        lines.append(clipped(f"{name}: {', '.join(told) or 'itself alone'}", width))
    return lines


def lineage(league: League, width: int) -> list[str]:
    """The snapshots of each learner, with the game after which each was made."""
    lines = []
    for name in (n for n, p in league.players.items() if p.learns):
        made = [f"{own} at {league.players[own].born:,}" for own in league.past if league.players[own].parent == name]
        lines.append(clipped(f"{name} -> {' -> '.join(made)}" if made else f"{name}: no snapshot yet", width))
    return lines


def clipped(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 4].rstrip() + " ..."


def history(records: Sequence[Mapping[str, Any]]) -> dict[str, tuple[list[float], list[float]]]:
    """Of each learner, games of the league and its Elo."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for log in records:
        for key, value in log.items():
            if key.startswith("league/elo/"):
                games, elo = found.setdefault(key.removeprefix("league/elo/"), ([], []))
                games.append(log["league/games"])
                elo.append(value)
    return found


def curves(records: Sequence[Mapping[str, Any]], width: int) -> list[str]:
    """Elo over time, a line of blocks for each learner."""
    found = history(records)
    low = min((min(elo) for _, elo in found.values()), default=0.0)
    high = max((max(elo) for _, elo in found.values()), default=0.0)
    longest, lines = max(map(len, found), default=0), []
    for name, (_, elo) in found.items():
        room = max(min(width - longest - 22, len(elo)), 1)
        points = [elo[k * (len(elo) - 1) // max(room - 1, 1)] for k in range(room)]
        drawn = "".join(BARS[int((x - low) / (high - low + 1e-9) * 7.99)] for x in points)
        lines.append(f"{name:<{longest}}  {elo[0]:6.0f} {drawn} {elo[-1]:6.0f}")
    return lines


def text(league: League, records: Sequence[Mapping[str, Any]], width: int) -> list[tuple[str, list[str] | Rows]]:
    """Title and lines, or rows of a table, of each part."""
    return [
        (f"Players: {league.games:,} games", players(league)),
        ("Payoff", payoff(league, width)),
        ("Ratings over time (Elo)", curves(records, width)),
        ("Who plays whom (games)", meetings(league, width)),
        ("Lineage (snapshot at game)", lineage(league, width)),
    ]


def draw(league: League, records: Sequence[Mapping[str, Any]], file: str) -> None:
    """Payoff and ratings as a picture."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError("--out: a picture needs matplotlib: pip install 'ganglion[plot]'") from None
    names = shown(league, 40)
    rows = [league.payoff.names.index(name) for name in names]
    figure = Figure(figsize=(14, 6), layout="constrained")
    table, ratings = figure.subplots(1, 2)
    image = table.imshow(league.payoff.table()[rows][:, rows], cmap="RdYlGn", vmin=0, vmax=1)
    table.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    table.set_yticks(range(len(names)), names, fontsize=7)
    table.set(title="win rate of each (down) against each (across)")
    figure.colorbar(image, ax=table, shrink=0.8)
    for name, (games, elo) in history(records).items():
        ratings.plot(games, elo, label=name)
    ratings.set(title="ratings over time", xlabel="games", ylabel="Elo")
    if history(records):
        ratings.legend()
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise UserError(f"--out: {file[:200]}: {error}") from error
