"""Explorers in the learner's process: in lockstep or as threads, with a bounded queue between."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from sys import maxsize
from threading import Condition, Thread
from typing import Any

from ganglion.config import RunConfig
from ganglion.core import Origin, Packet, State, Weights, join, under
from ganglion.errors import UserError
from ganglion.fleet.inference_server import build_predictor
from ganglion.fleet.receiver import Account, ExplorerLife, Fleet
from ganglion.fleet.remote_explorer import ExplorerPlace, ItemSize, RemoteExplorer
from ganglion.fleet.wire import Bytes
from ganglion.runtime.agent import PLAYER


class LocalBroker:
    """Items in the order they came, at most `size` of them: who pushes one more waits until one is pulled."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.items: deque[Packet] = deque()
        self.weights: dict[str, Weights] = {}
        self.changed = Condition()
        self.closed = False

    def push(self, item: Any, origin: Origin) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.items) < self.size)
            if self.closed:
                return False
            self.items.append(Packet(origin, item))
            self.changed.notify_all()
            return True

    def pull(self, timeout: float) -> Packet | None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.closed or bool(self.items), timeout) or not self.items:
                return None
            packet = self.items.popleft()
            self.changed.notify_all()
            return packet

    def publish(self, weights: Weights, player: str) -> None:
        with self.changed:
            self.weights[player] = weights
            self.changed.notify_all()

    def latest(self, player: str, newer_than: int) -> Weights | None:
        with self.changed:
            weights = self.weights.get(player)
            return weights if weights is not None and weights.version > newer_than else None

    def waiting(self) -> int:
        return len(self.items)

    def close(self) -> None:
        """Lets everyone go who waits: nothing more is taken."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class SyncFleet:
    """One explorer that takes one step when it is asked to, with the weights of that moment: a local run, through a
    broker. Nothing runs beside anything else."""

    lockstep = True

    def __init__(self, cfg: RunConfig, lot: ItemSize) -> None:
        self.account, self.broker = Account(), LocalBroker(1)
        self.remote_explorer = RemoteExplorer(cfg, lot, self.broker, lockstep=True)
        self.remote_explorer.begin(ExplorerPlace(0, 0))
        self.account.admit(ExplorerLife(self.remote_explorer.senders[0].origin.player, 0, 0))
        self.came: dict[str, tuple[Bytes, Origin]] = {}  # what players have not fetched yet

    def views(self, players: Sequence[str]) -> Sequence[Fleet]:
        """The same for each player."""
        return [self] if len(players) == 1 else [SyncPlayer(self, player) for player in players]

    def fetch(self, player: str) -> Packet | None:
        """What comes of one step for a player: of the last one, or of the next where it has that."""
        if player not in self.came:
            self.came = {origin.player: (body, origin) for body, origin in self.remote_explorer.items()}
        self.broker.push(*self.came.pop(player))
        return self.broker.pull(0)

    def pull(self, timeout: float) -> Packet | None:
        return self.fetch(PLAYER)

    def release(self) -> None:
        """Every item has memory of its own."""

    def publish(self, weights: Weights) -> None:
        self.broker.publish(weights, PLAYER)

    def numbers(self) -> Mapping[str, float]:
        return {"fleet/explorers": 1.0}

    def resize(self, explorers: int) -> None:
        if explorers != 1:
            raise UserError("fleet.explorers: in lockstep there is one.")

    def close(self) -> None:
        self.broker.close()
        self.remote_explorer.close()

    def state(self) -> State:
        sender = State({}, {"sequence": self.remote_explorer.senders[0].origin.sequence})
        return join({"explorer": self.remote_explorer.explorer.state(), "sender": sender})

    def restore(self, state: State) -> None:
        sequence = int(under(state, "sender").scalars["sequence"])
        for sender in self.remote_explorer.senders:
            sender.origin = sender.origin._replace(sequence=sequence)
        self.account.next = {ExplorerLife(self.remote_explorer.senders[0].origin.player, 0, 0): sequence}
        self.remote_explorer.explorer.restore(under(state, "explorer"))


class SyncPlayer:
    """A SyncFleet as one of several players sees it."""

    lockstep = True

    def __init__(self, fleet: SyncFleet, player: str) -> None:
        self.fleet, self.player, self.account = fleet, player, Account()
        self.account.admit(ExplorerLife(player, 0, 0))

    def pull(self, timeout: float) -> Packet | None:
        return self.fleet.fetch(self.player)

    def release(self) -> None:
        """Every item has memory of its own."""

    def publish(self, weights: Weights) -> None:
        self.fleet.broker.publish(weights, self.player)

    def numbers(self) -> Mapping[str, float]:
        return self.fleet.numbers()

    def resize(self, explorers: int) -> None:
        self.fleet.resize(explorers)

    def close(self) -> None:
        """The fleet is closed once, by who holds it."""

    def state(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        sequence = self.fleet.remote_explorer.senders[0].origin.sequence
        self.account.next = {ExplorerLife(self.player, 0, 0): sequence}


class ThreadFleet:
    """Explorers as threads: for environments that wait or compute outside Python, and for tests."""

    lockstep = False

    def __init__(self, cfg: RunConfig, lot: ItemSize, queue: int) -> None:
        self.cfg, self.lot = cfg, lot
        self.account, self.broker = Account(), LocalBroker(queue)
        self.lives: list[int] = []  # the incarnation of each explorer, running or not
        self.running: dict[int, tuple[RemoteExplorer, Thread]] = {}
        self.wanted = cfg.fleet.explorers
        self.predictor = build_predictor(cfg, self.broker) if cfg.fleet.inference == "central" else None
        self.errors: list[BaseException] = []

    def pull(self, timeout: float) -> Packet | None:
        self.resize(self.wanted)
        packet = self.broker.pull(timeout)
        if self.errors:  # also where others go on: one that is gone would not be missed
            raise self.errors[0]
        return packet

    def release(self) -> None:
        """Every item has memory of its own."""

    def publish(self, weights: Weights) -> None:
        self.broker.publish(weights, PLAYER)

    def numbers(self) -> Mapping[str, float]:
        return {"fleet/explorers": float(len(self.running)), "fleet/queue": float(self.broker.waiting())}

    def resize(self, explorers: int) -> None:
        self.wanted = explorers
        for explorer in range(explorers):
            if explorer not in self.running:
                self.start(explorer)
        for explorer in [e for e in self.running if e >= explorers]:
            remote_explorer, _ = self.running.pop(explorer)
            remote_explorer.gone = lambda: True

    def start(self, explorer: int) -> None:
        if explorer == len(self.lives):
            self.lives.append(-1)
        self.lives[explorer] += 1
        remote_explorer = RemoteExplorer(
            self.cfg, self.lot, self.broker, ask=self.predictor.ask if self.predictor else None
        )
        remote_explorer.settled = maxsize  # compiling is not for threads
        self.account.admit(ExplorerLife(PLAYER, explorer, self.lives[explorer]))
        remote_explorer.begin(ExplorerPlace(explorer, self.lives[explorer]))
        remote_explorer.gone = lambda: self.broker.closed
        thread = Thread(target=self.walk, args=(remote_explorer,), daemon=True, name=f"explorer {explorer}")
        self.running[explorer] = remote_explorer, thread
        thread.start()

    def walk(self, remote_explorer: RemoteExplorer) -> None:
        try:
            remote_explorer.walk(self.broker)
        except BaseException as error:  # told by the thread that pulls
            if not self.broker.closed:
                self.errors.append(error)
        finally:
            remote_explorer.close()

    def close(self) -> None:
        self.broker.close()
        if self.predictor is not None:
            self.predictor.close()
        for _, thread in self.running.values():
            thread.join(timeout=10)

    def state(self) -> State:
        return State({}, {"lives": list(self.lives)})

    def restore(self, state: State) -> None:
        self.lives = list(state.scalars["lives"])  # those who start now are the next incarnations
