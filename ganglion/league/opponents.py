"""The opponents of a learning player as one algorithm: several sets of weights, of which each slot is played by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ganglion import ops
from ganglion.core import (
    Acted,
    Algorithm,
    Carried,
    Draw,
    Draws,
    Knobs,
    Memory,
    Model,
    Noise,
    Obs,
    Past,
    Prediction,
    Progress,
    State,
    Stateful,
    Update,
    Weights,
    under,
)  # fmt: skip

Act = Callable[[Algorithm[Any, Any], Prediction, int], Acted]


class OpponentModels(Model):
    """The networks of all opponents, and what each kind of player remembers."""

    def __init__(self, kinds: Sequence[Sequence[Algorithm[Any, Any]]]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(algo.model for kind in kinds for algo in kind)
        self.first = [kind[0].model for kind in kinds]

    @property
    def watches(self) -> bool:
        return False  # nobody learns here

    def initial(self, slots: int) -> Memory:
        return tuple(part for model in self.first for part in model.initial(slots))


class Opponents(Algorithm[Any, Any]):
    """Several opponents as one algorithm: `algos`, whose weights are replaced when a match begins. Each computes an
    action for every slot, so shapes never change; a slot takes the action of the algorithm whose index it carries.
    `next` is that index for a slot's coming episode.

    Each kind of player (an algorithm with its settings) has algorithms of its own, as many as the others.
    """

    def __init__(self, kinds: Sequence[Sequence[Algorithm[Any, Any]]], slots: int, device: torch.device) -> None:
        self.kinds = tuple(tuple(kind) for kind in kinds)
        self.algos = [algo for kind in self.kinds for algo in kind]
        self.model = OpponentModels(self.kinds)
        self.next = torch.zeros(1, slots, dtype=torch.int64, device=device)
        self.played_with: list[dict[str, float]] = [dict(algo.knobs(Progress())) for algo in self.algos]

    def load(self, index: int, weights: Weights) -> None:
        """Another player's weights."""
        for name, part in self.algos[index].acting().items():
            part.restore(under(State(weights.tensors), name))
        self.played_with[index] = dict(weights.knobs)

    # ------------------------------------------------------------ what slots carry: their index, then of each kind

    def carry(self, slots: int) -> Carried:
        return (self.next[:, :slots], *(x for kind in self.kinds for x in kind[0].carry(slots)))

    def split(self, tensors: Sequence[Tensor], counts: Sequence[int]) -> list[tuple[Tensor, ...]]:
        parts = iter(tensors)
        return [tuple(next(parts) for _ in range(count)) for count in counts]

    def pasts(self, past: Past) -> list[Past]:
        """What each kind knows of the slots."""
        slots = past.start.shape[1]
        memories = self.split(past.memory, [len(kind[0].model.initial(slots)) for kind in self.kinds])
        carried = self.split(past.carried[1:], [len(kind[0].carry(slots)) for kind in self.kinds])
        return [Past(m, past.start, c) for m, c in zip(memories, carried, strict=True)]

    # ------------------------------------------------------------ acting

    def draws(self) -> Draws:
        """They share random numbers: a slot uses those of one."""
        each = [kind[0].draws() for kind in self.kinds]
        return Draws(most([d.predict for d in each]), most([d.explore for d in each]))

    def knobs(self, at: Progress) -> Mapping[str, float]:
        return {f"{k}/{name}": value for k, own in enumerate(self.played_with) for name, value in own.items()}

    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        """`dist` holds the predictions of all algorithms."""
        made = []
        for kind, own in zip(self.kinds, self.pasts(past), strict=True):
            for algo in kind:
                prediction = algo.predict(obs, own, part(noise, algo.draws().predict))
                made.append(prediction if prediction.carried else prediction._replace(carried=own.carried))
        return Prediction(tuple(made), made[0].value, (), past.carried)

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        def act(algo: Algorithm[Any, Any], own: Prediction, k: int) -> Acted:
            mine = {name.partition("/")[2]: value for name, value in knobs.items() if name.startswith(f"{k}/")}
            return algo.explore(own, mine, part(noise, algo.draws().explore))

        return self.chosen(prediction, act)

    def exploit(self, prediction: Prediction) -> Acted:
        return self.chosen(prediction, lambda algo, own, k: algo.exploit(own))

    def chosen(self, prediction: Prediction, act: Act) -> Acted:
        """The action of each slot's own opponent."""
        index = prediction.carried[0]
        acts = [act(algo, own, k) for k, (algo, own) in enumerate(zip(self.algos, prediction.dist, strict=True))]
        carried = [own.carried or before.carried for own, before in zip(acts, prediction.dist, strict=True)]
        memory, kept, first = [], [index], 0
        for kind in self.kinds:  # those of other kinds remember nothing of use
            places = range(first, first + len(kind))
            memory += pick(index, places, [acts[k].memory for k in places])
            kept += pick(index, places, [carried[k] for k in places])
            first += len(kind)
        action = pick(index, range(len(acts)), [own.action for own in acts])
        return Acted(action, {}, tuple(memory), tuple(kept))

    def learn(self, mini: Any, knobs: Knobs, noise: Noise) -> Update:
        raise TypeError("opponents do not learn")

    def parts(self) -> Mapping[str, Stateful]:
        return {f"opponent-{k}/{n}": part for k, algo in enumerate(self.algos) for n, part in algo.acting().items()}

    def acting(self) -> Mapping[str, Stateful]:
        return self.parts()


def pick(index: Tensor, places: Sequence[int], trees: Sequence[Any]) -> Any:
    """Of trees [1, B, ...], one per place: each slot's own; the first where its index is none of them."""

    def one(first: Tensor, *others: Tensor) -> Tensor:
        found = first
        for place, other in zip(places[1:], others, strict=True):
            found = torch.where((index == place).reshape(*index.shape, *(1,) * (first.ndim - 2)), other, found)
        return found

    return ops.map_tree(one, *trees) if len(trees) > 1 else trees[0]


def most(draws: Sequence[Draw]) -> Draw:
    return Draw(max(d.uniform for d in draws), max(d.normal for d in draws))


def part(noise: Noise, draw: Draw) -> Noise:
    """As many numbers as are asked for."""
    return Noise(noise.uniform[..., : draw.uniform], noise.normal[..., : draw.normal])
