"""A remote explorer: its Explorer with Agent and Env, and the sink that gathers rows into items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, sleep
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ganglion import ops
from ganglion.buffers import RolloutBuffer
from ganglion.buffers.storage import row_of, tree_of
from ganglion.config import RunConfig
from ganglion.core import Broker, Episode, Obs, Origin, Past, Processor, Progress, Row, State, Weights, under
from ganglion.faults import close_all
from ganglion.fleet.inference_client import Ask, RemoteAgent
from ganglion.fleet.wire import PLAIN, Bytes, Codec, Room, pack, unpack
from ganglion.runtime.agent import Agent
from ganglion.runtime.build import build_agents, build_env, build_seat, in_places
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.players import Player
from ganglion.runtime.randomness import derive


class ItemSize(NamedTuple):
    """How much is an item, and how it is compressed."""

    rows: int
    codec: Codec = PLAIN
    most: int = 0  # bytes of one, for whoever receives them


class Item(NamedTuple):
    """Consecutive rows of one explorer, what follows them, and what else happened on the way."""

    origin: Origin
    rows: Row  # [T, B, ...]
    ahead: tuple[Obs, Past]
    episodes: tuple[Episode, ...]
    about: Mapping[str, Any]


class Sender:
    """Keeps rows until there are enough for an item."""

    def __init__(self, lot: ItemSize, origin: Origin) -> None:
        self.lot, self.origin = lot, origin
        self.kept = RolloutBuffer(lot.rows, 1.0, torch.device("cpu"))
        self.ahead: tuple[Obs, Past] | None = None

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        self.kept.push(rows, ahead, at)
        self.ahead = ahead

    def room(self, at: Progress, slots: int) -> int:
        """One row: newer weights are looked for before each."""
        return 1

    @property
    def full(self) -> bool:
        return self.kept.ready()

    @property
    def empty(self) -> bool:
        return self.kept.room() == self.lot.rows

    def seal(self, episodes: list[Episode], about: Mapping[str, Any], room: Room | None = None) -> tuple[Bytes, Origin]:
        """The item as bytes, and its origin; the next one begins."""
        assert self.ahead is not None
        obs, past = self.ahead
        ahead = {"obs": obs, "start": past.start, "memory": past.memory}
        tensors = ops.flatten_names({"rows": self.kept.rows(), "ahead": ahead})
        played = [[e.slot, float(e.total), float(e.length), numbers(e.info), e.many] for e in episodes]
        parcel = pack({"origin": list(self.origin), "episodes": played, **about}, tensors, self.lot.codec, room)
        sent, self.origin = self.origin, self.origin._replace(sequence=self.origin.sequence + 1)
        self.kept.release()
        return parcel, sent


def numbers(info: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in info.items()}


def read(body: Any) -> Item:
    """The item that was sealed; its tensors are views of the bytes. For bytes of our own: see `items.Expected`."""
    return item_of(*unpack(body))


def item_of(about: dict[str, Any], tensors: Mapping[str, Tensor]) -> Item:
    """The item of a parcel."""
    rows, ahead = row_of(under(State(tensors), "rows").tensors), tree_of(under(State(tensors), "ahead").tensors)
    played = tuple(Episode(*episode) for episode in about.pop("episodes"))
    past = Past(ahead["memory"], ahead["start"])
    return Item(Origin(*about.pop("origin")), rows, (ahead["obs"], past), played, about)


NAP = 0.002  # seconds between two looks for the first weights
SETTLED = 256  # items until it acts with compiled functions, which take seconds to load: one explorer after another


class Board(Protocol):
    """Where weights are found: the weights plane of a Broker."""

    def latest(self, player: str, newer_than: int) -> Weights | None: ...


def lighten(agent: Agent) -> None:
    """Forgets what only learning needs, targets and optimisers: for whoever acts and never learns."""
    acting = list(agent.algo.acting().values())
    parts = [part for part in agent.algo.parts().values() if not any(part is one for one in acting)]
    for name, value in list(vars(agent.algo).items()):
        if any(value is part for part in parts):
            delattr(agent.algo, name)


class ExplorerPlace(NamedTuple):
    """Which explorer of a run this is, and how often it has been started anew."""

    explorer: int
    incarnation: int

    def seed(self, seed: int) -> int:
        """Of all its random streams; the first explorer's is the run's own, so that alone it repeats a local run."""
        return seed if self == (0, 0) else derive(seed, f"explorer/{self.explorer}/{self.incarnation}")


class RemoteExplorer:
    """Walks its slots with the newest weights it can find, and makes items of what happens."""

    def __init__(
        self, cfg: RunConfig, lot: ItemSize, board: Board, lockstep: bool = False, ask: Ask | None = None
    ) -> None:
        self.cfg, self.lot, self.board, self.lockstep = away(cfg), lot, board, lockstep
        self.env = build_env(self.cfg)
        self.made = build_agents(self.cfg, self.env.spec)
        self.agent = self.made[0][1]
        self.remote_agent = None if ask is None else RemoteAgent(self.agent.algo, ask)  # finds weights, and predicts
        if self.remote_agent is not None:
            self.agent, self.made = self.remote_agent, [(self.made[0][0], self.remote_agent)]
        for _, agent in self.made:
            lighten(agent)
        self.processors: list[Processor] = []
        self.settled = 0 if lockstep else SETTLED
        self.version = -1  # of the weights it acts with
        self.gone: Callable[[], bool] = lambda: False  # whether nobody waits for items any more

    def begin(self, place: ExplorerPlace) -> None:
        """Takes a place; its slots start from a reset."""
        if not self.lockstep:
            self.agent.algo.share = place.explorer, max(self.cfg.fleet.explorers, place.explorer + 1)
            self.settled = self.settled * (1 + place.explorer)
        self.since = -1  # the item at which it first heard that there are compiled functions
        spec, seed = self.env.spec, place.seed(self.cfg.run.seed)
        self.senders = [
            Sender(self.lot, Origin(player.name, *place, sequence=0, version=-1)) for player, _ in self.made
        ]
        close_all(self.processors)
        seats = [
            build_seat(recording(player, place), agent, spec, sender, seed)
            for (player, agent), sender in zip(self.made, self.senders, strict=True)
        ]
        self.processors = [seat.processor for seat in seats]
        self.explorer = Explorer(self.env, in_places(seats), seed)

    @property
    def sender(self) -> Sender:
        """Of the first player."""
        return self.senders[0]

    def item(self, room: Room | None = None) -> tuple[Bytes, Origin] | None:
        """Walks until there is an item; None where nobody waits for it any more."""
        return next(iter(self.items(room)), None)

    def items(self, room: Room | None = None) -> list[tuple[Bytes, Origin]]:
        """The same of all players."""
        began, episodes = perf_counter(), list[Episode]()
        while not (self.sender.full or self.gone()):
            if not self.obey():
                sleep(NAP)
                continue
            first = self.sender.empty
            episodes += self.explorer.step(Progress()).episodes
            if first:  # an item's version is the oldest in it
                version = self.remote_agent.version if self.remote_agent else self.version
                for sender in self.senders:
                    sender.origin = sender.origin._replace(version=version)
        if not self.sender.full:
            return []
        faults = self.explorer.faults
        failures, faults.fresh = faults.fresh, []
        logged, faults.logged = faults.logged, []
        told = {"failures": failures, "logged": logged, "rows_lost": faults.rows_lost}
        about = {**told, "seconds": perf_counter() - began}
        if len(self.senders) == 1:
            return [self.sender.seal(episodes, about, room)]
        return [self.seal(sender, player, episodes, about) for sender, (player, _) in zip(self.senders, self.made)]

    def seal(
        self, sender: Sender, player: Player, episodes: Sequence[Episode], about: Mapping[str, Any]
    ) -> tuple[Bytes, Origin]:
        """One of several players' item, with its own episodes; what went wrong is told once."""
        place = player.place(self.env.spec)
        own = [e._replace(slot=e.slot - (place.start if place else 0)) for e in episodes if e.player == player.name]
        return sender.seal(own, about if sender is self.sender else {"seconds": about["seconds"]})

    def walk(self, broker: Broker) -> None:
        """Hands over one item after the other, until nobody waits for them any more."""
        while (made := self.item()) is not None and broker.push(*made):
            pass

    def obey(self) -> bool:
        """Takes over newer weights, in lockstep whatever is there; whether it has any."""
        if self.remote_agent:
            return True
        for _, agent in self.made[1:]:  # of lockstep, where weights of all are there
            if (others := self.board.latest(agent.player, -1)) is not None:
                agent.obey(others)
        weights = self.board.latest(self.agent.player, -1 if self.lockstep else self.version)
        if weights is not None:
            self.agent.obey(weights)
            self.version = weights.version
            if weights.fast and not self.agent.engine.on:
                self.go_over(self.sender.origin.sequence)
        return self.version >= 0

    def go_over(self, item: int) -> None:
        """Acts with compiled functions, once it has lived long enough to be worth it and it is its turn."""
        self.since = item if self.since < 0 else self.since
        self.agent.engine.switch(item - self.since >= self.settled)

    def close(self) -> None:
        close_all([self.env, *self.processors])


def recording(player: Player, place: ExplorerPlace) -> Player:
    """With a folder of this explorer's own to record in, where the run records."""
    if player.cfg.data.record is None:
        return player
    own = player.cfg.data.model_copy(update={"record": f"{player.cfg.data.record}/explorer-{place.explorer}"})
    return player._replace(cfg=player.cfg.model_copy(update={"data": own}))


def away(cfg: RunConfig) -> RunConfig:
    """The config of a remote explorer: it acts on the CPU."""
    return cfg.model_copy(update={"run": cfg.run.model_copy(update={"device": "cpu"})})
