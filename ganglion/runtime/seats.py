"""Which agents a player has: as a config names them, or by a word."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ganglion.config.run import RESERVED, PlayerSection
from ganglion.errors import UserError, nearest

WORDS = ("each", "roles")  # a player for every agent, or for those whose names differ only by the number at their end


def seated(players: Mapping[str, PlayerSection] | str, agents: Sequence[str]) -> Mapping[str, PlayerSection]:
    match players:
        case str(how) if how not in WORDS:
            close = nearest(how, WORDS)
            raise UserError(f"players: should be {' or '.join(WORDS)}, or players by name, got {how[:80]!r}.{close}")
        case str(how):
            return by_word(how == "roles", agents)
        case named:
            return named


def by_word(roles: bool, agents: Sequence[str]) -> dict[str, PlayerSection]:
    seats: dict[str, list[str]] = {}
    for agent in agents:
        name = re.sub(r"_?[0-9]+$", "", agent) if roles else agent
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise UserError(f"players: {agent!r} cannot be the name of a player; name players and their agents.")
        seats.setdefault(f"{name}s" if name in RESERVED else name, []).append(agent)
    return {name: PlayerSection(agents=tuple(own)) for name, own in seats.items()}
