"""Which slots each player of a league has: a learner has copies of the game of its own, where it plays every agent in
turn, and its opponents play the others."""

from __future__ import annotations

from dataclasses import replace

import torch

from ganglion import ops
from ganglion.core import Action, Env, EnvSpec, Episode, Promise, State, Step
from ganglion.errors import UserError
from ganglion.faults import Faults


def home_spec(spec: EnvSpec, learners: int) -> EnvSpec:
    """The world as one learner sees it: its own slots, of one agent."""
    return replace(spec, slots=spec.copies // learners, agents=spec.agents[:1])


def places(spec: EnvSpec, learners: int, number: int) -> tuple[slice, slice]:
    """The slots of a learner, and those of its opponents, in the order of seats."""
    own, both = spec.copies // learners, spec.slots // learners
    first = number * both
    return slice(first, first + own), slice(first + own, first + both)


def check_seats(spec: EnvSpec, learners: int) -> None:
    """Every learner plays every agent, equally often."""
    agents = len(spec.agents)
    if agents == 1:
        raise UserError(f"league: {spec.name} is a world of one agent: there are no opponents in it.")
    if spec.slots % (least := agents * agents * learners):
        why = f"{agents} agents, each played by each of {learners} learning players"
        raise UserError(f"env.slots: {spec.slots} should be a multiple of {least} ({why}): somebody has no seat.")


def order(spec: EnvSpec, learners: int) -> torch.Tensor:
    """The environment's slots in the order of seats: of each learner its own, [copies], then its opponents'."""
    agents, own = len(spec.agents), spec.copies // learners
    copies = torch.arange(spec.copies).view(learners, own)
    home = torch.arange(own) * agents // own  # the agent that is played in each of a learner's copies
    seats = [(home + k) % agents * spec.copies + copies for k in range(agents)]  # each [learners, own]
    return torch.stack(seats, 1).flatten()


class LeagueEnv(Env):
    """An environment of several agents with its slots in the order of the league's seats."""

    def __init__(self, env: Env, learners: int) -> None:
        check_seats(env.spec, learners)
        self.env, self.spec, self.learners = env, env.spec, learners
        self.promise: Promise = env.promise
        self.order = order(env.spec, learners)
        self.back = self.order.argsort()
        self.seat_of: list[int] = self.back.tolist()

    @property
    def faults(self) -> Faults:
        return self.env.faults

    def reordered(self, step: Step) -> Step:
        index = self.order.to(step.reward.device)
        return ops.map_tree(lambda x: x[index], step)

    def reset(self, seed: int) -> Step:
        return self.reordered(self.env.reset(seed))

    def step(self, action: Action) -> Step:
        return self.reordered(self.env.step(ops.map_tree(lambda x: x[self.back.to(x.device)], action)))

    def episodes(self) -> list[Episode]:
        return [episode._replace(slot=self.seat_of[episode.slot]) for episode in self.env.episodes()]

    def render(self) -> object:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def state(self) -> State:
        return self.env.state()

    def restore(self, state: State) -> None:
        self.env.restore(state)
