"""Fleets inside one process: explorers in lockstep with the learner, or each in a thread of its own."""

from __future__ import annotations

from collections.abc import Mapping
from sys import maxsize
from threading import Thread

from ganglion.config import RunConfig
from ganglion.core import State, Weights, join, under
from ganglion.errors import UserError
from ganglion.exchange import Packet
from ganglion.runtime.agent import PLAYER
from ganglion.runtime.fleet.account import Account, Source
from ganglion.runtime.fleet.broker import LocalBroker
from ganglion.runtime.fleet.predictor import build_predictor
from ganglion.runtime.fleet.sender import Lot
from ganglion.runtime.fleet.station import Place, Station


class Lockstep:
    """One explorer that takes one step when it is asked to, with the weights of that moment: a local run, through a
    broker. Nothing runs beside anything else."""

    lockstep = True

    def __init__(self, cfg: RunConfig, lot: Lot) -> None:
        self.account, self.broker = Account(), LocalBroker(1)
        self.account.admit(Source(PLAYER, 0, 0))
        self.station = Station(cfg, lot, self.broker, lockstep=True)
        self.station.begin(Place(0, 0))

    def pull(self, timeout: float) -> Packet | None:
        made = self.station.item()
        assert made is not None
        self.broker.push(*made)
        return self.broker.pull(0)

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
        self.station.close()

    def state(self) -> State:
        sender = State({}, {"sequence": self.station.sender.origin.sequence})
        return join({"explorer": self.station.explorer.state(), "sender": sender})

    def restore(self, state: State) -> None:
        sequence = int(under(state, "sender").scalars["sequence"])
        self.station.sender.origin = self.station.sender.origin._replace(sequence=sequence)
        self.account.next = {Source(PLAYER, 0, 0): sequence}
        self.station.explorer.restore(under(state, "explorer"))


class Threads:
    """Explorers as threads: for environments that wait or compute outside Python, and for tests."""

    lockstep = False

    def __init__(self, cfg: RunConfig, lot: Lot, queue: int) -> None:
        self.cfg, self.lot = cfg, lot
        self.account, self.broker = Account(), LocalBroker(queue)
        self.lives: list[int] = []  # the incarnation of each explorer, running or not
        self.running: dict[int, tuple[Station, Thread]] = {}
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
            station, _ = self.running.pop(explorer)
            station.gone = lambda: True

    def start(self, explorer: int) -> None:
        if explorer == len(self.lives):
            self.lives.append(-1)
        self.lives[explorer] += 1
        station = Station(self.cfg, self.lot, self.broker, ask=self.predictor.ask if self.predictor else None)
        station.settled = maxsize  # compiling is not for threads
        self.account.admit(Source(PLAYER, explorer, self.lives[explorer]))
        station.begin(Place(explorer, self.lives[explorer]))
        station.gone = lambda: self.broker.closed
        thread = Thread(target=self.walk, args=(station,), daemon=True, name=f"explorer {explorer}")
        self.running[explorer] = station, thread
        thread.start()

    def walk(self, station: Station) -> None:
        try:
            station.walk(self.broker)
        except BaseException as error:  # told by the thread that pulls
            if not self.broker.closed:
                self.errors.append(error)
        finally:
            station.close()

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
