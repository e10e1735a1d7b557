"""Which agents each player has: as a config names them, or by a word."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ganglion.config.run import RESERVED, PlayerSection
from ganglion.errors import UserError

WORDS = ("each", "roles")  # a player for every agent, or for those whose names differ only by the number at their end


def seated(players: Mapping[str, PlayerSection], agents: Sequence[str]) -> Mapping[str, PlayerSection]:
    """`players: {each: {}}` and `{roles: {}}` stand for players of these settings, called as their agents are."""
    words = [word for word in WORDS if word in players and not players[word].agents and word not in agents]
    if not words:
        return {name: own.model_copy(update={"agents": own.agents or (name,)}) for name, own in players.items()}
    if len(players) > 1:
        raise UserError(f"players: {words[0]} stands for all players, and has no others beside it.")
    seats: dict[str, list[str]] = {}
    for agent in agents:
        name = agent if words == ["each"] else re.sub(r"_?[0-9]+$", "", agent)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise UserError(f"players: {agent!r} cannot be the name of a player; name players and their agents.")
        seats.setdefault(f"{name}s" if name in RESERVED else name, []).append(agent)
    whole = players[words[0]]
    return {name: whole.model_copy(update={"agents": tuple(own)}) for name, own in seats.items()}
