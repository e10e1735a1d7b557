"""What every broker keeps: bounded one way, the newest the other way; and the account of items."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from time import sleep

import pytest
import torch

from ganglion.core import Broker, Origin, Weights
from ganglion.fleet.files_broker import FileBroker
from ganglion.fleet.in_process import LocalBroker
from ganglion.fleet.receiver import Account, ExplorerLife
from tests.distributed.stores import KINDS, place

Make = Callable[[int], Broker]


@pytest.fixture(params=["local", *KINDS])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "local":
        return LocalBroker
    return lambda size: FileBroker(place(request.param, tmp_path), size)


def origin(sequence: int, explorer: int = 0, incarnation: int = 0) -> Origin:
    return Origin("main", explorer, incarnation, sequence, 0)


def test_items_come_in_order_and_a_full_queue_holds_the_sender(make: Make) -> None:
    broker, sent = make(2), []

    def send() -> None:
        for k in range(5):
            broker.push(bytes([k]), origin(k))
            sent.append(k)

    thread = Thread(target=send)
    thread.start()
    sleep(0.1)
    assert sent == [0, 1] and broker.waiting() == 2
    got = [broker.pull(1.0) for _ in range(5)]
    thread.join()
    assert [bytes(packet.body) for packet in got if packet] == [bytes([k]) for k in range(5)]
    assert [packet.origin for packet in got if packet] == [origin(k) for k in range(5)]
    assert broker.pull(0.0) is None


def test_closing_lets_everyone_go(make: Make) -> None:
    broker = make(1)
    broker.push(b"", origin(0))
    taken: list[bool] = []
    thread = Thread(target=lambda: taken.append(broker.push(b"", origin(1))))
    thread.start()
    sleep(0.05)
    broker.close()
    thread.join(timeout=2)
    assert taken == [False] and broker.waiting() == 1


def test_the_newest_weights_win(make: Make) -> None:
    broker = make(1)
    assert broker.latest("main", -1) is None
    for version in (0, 1, 5):
        broker.publish(Weights(version, {"eps": 0.5}, {"w": torch.full((), float(version))}), "main")
    newest = broker.latest("main", 1)
    assert newest is not None and newest.version == 5 and newest.tensors["w"] == 5 and newest.knobs == {"eps": 0.5}
    assert broker.latest("main", 5) is None and broker.latest("other", -1) is None


def test_the_account_knows_gaps_and_repeats() -> None:
    account = Account()
    account.newest = 0
    for source in (("main", 0, 0), ("main", 1, 0), ("main", 0, 1)):
        account.admit(ExplorerLife(*source))
    taken = [account.take(origin(k)) for k in (0, 1, 1, 4, 2)]
    assert taken == [True, True, False, True, False]
    assert account.take(origin(0, explorer=1)) and account.take(origin(0, incarnation=1))
    account.ended(2)
    assert account.line() == "5 items: 2 lost, 2 duplicated, 0 stale, 2 in flight; 1 explorers started anew"
    again = Account()
    again.restore(account.state())
    assert again.numbers() == account.numbers()
