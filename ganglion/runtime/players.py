"""Who plays: a player has an algorithm of its own and the slots of some of the environment's agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ganglion.config import RunConfig
from ganglion.core import Action, EnvSpec, Past, Step, alike
from ganglion.errors import UserError, nearest
from ganglion.runtime.agent import PLAYER, Agent
from ganglion.runtime.explorer import part, placed


class Player(NamedTuple):
    """One of the players of a run."""

    name: str
    cfg: RunConfig  # the run's, with the algorithm of this player
    agents: tuple[str, ...]
    world: EnvSpec  # that it is trained in
    learns: bool = True

    def place(self, spec: EnvSpec) -> slice | None:
        """Its slots; None: all."""
        return None if self.agents == spec.agents else spec.place(self.agents)

    def spec(self, spec: EnvSpec) -> EnvSpec:
        """The environment as this player sees it."""
        return replace(spec, slots=len(self.agents) * spec.copies, agents=self.agents)


def players(cfg: RunConfig, spec: EnvSpec) -> list[Player]:
    """Those that a config names; one for all agents where it names none."""
    if spec.slots % len(spec.agents):
        raise UserError(f"env.slots: {spec.slots} are no whole copies of a game of {len(spec.agents)} agents.")
    if not cfg.players:
        return [Player(PLAYER, cfg, spec.agents, spec)]
    from ganglion.runtime.seats import seated

    found = []
    for name, own in seated(cfg.players, spec.agents).items():
        found.append(Player(name, cfg.model_copy(update={"algo": own.algo or cfg.algo}), own.agents, spec, own.learn))
    check_agents(found, spec)
    return found


def check_agents(found: Sequence[Player], spec: EnvSpec) -> None:
    """Every agent is played by one player, and a player's agents follow each other."""
    known = ", ".join(spec.agents)
    taken: list[str] = []
    for player in found:
        for agent in player.agents:
            if agent not in spec.agents:
                close = nearest(agent, spec.agents)
                raise UserError(f"players.{player.name}.agents: no agent {agent!r}. Accepted: {known}.{close}")
            if agent in taken:
                raise UserError(f"players.{player.name}.agents: {agent!r} is played by another player, too.")
            taken.append(agent)
        first = spec.agents.index(player.agents[0])
        if spec.agents[first : first + len(player.agents)] != player.agents:
            raise UserError(f"players.{player.name}.agents: should follow each other as in {known}.")
    if missing := [agent for agent in spec.agents if agent not in taken]:
        raise UserError(f"players: nobody plays {', '.join(missing)}.")


def check_scored(spec: EnvSpec, trained: EnvSpec) -> None:
    """Refuses to score an agent in an environment where it cannot act."""
    told = f"so agents of {trained.name} cannot be scored in {spec.name}."
    if spec.agents != trained.agents:
        raise UserError(f"eval.env: its agents are {spec.agents}, those of env {trained.agents}, {told}")
    if not alike(spec.obs, trained.obs):
        raise UserError(f"eval.env: its observations are {spec.obs}, those of env {trained.obs}, {told}")
    if spec.action != trained.action:
        raise UserError(f"eval.env: its actions are {spec.action}, those of env {trained.action}, {told}")


class Table:
    """Agents in their places, acting without learning: evaluation, `play`."""

    def __init__(self, seated: Sequence[tuple[Agent, slice | None]], slots: int) -> None:
        self.agents, self.places, self.slots = [a for a, _ in seated], [place for _, place in seated], slots
        counts = [slots if place is None else place.stop - place.start for place in self.places]
        self.pasts = [agent.start(count) for agent, count in zip(self.agents, counts, strict=True)]

    def act(self, step: Step) -> Action:
        """What all do, deterministically, where they see this."""
        acted = [
            agent.predict(part(step.obs, place), agent.paid(past, part(step.reward, place)))
            for agent, place, past in zip(self.agents, self.places, self.pasts, strict=True)
        ]
        starts = ~step.valid.to(self.agents[0].device)[None]
        self.pasts = [
            Past(own.memory, part(starts, place, 1), own.carried) for own, place in zip(acted, self.places, strict=True)
        ]
        return placed(acted, self.places, self.slots)
