"""Learner and explorers that share only storage: files that are whole or refused, places, death, and real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import pytest
import torch

from ganglion.config import RunConfig
from ganglion.config.files import load
from ganglion.core import Origin, Weights
from ganglion.errors import UserError
from ganglion.fleet import files_broker, files_fleet
from ganglion.fleet.files_broker import FileBroker, seal
from ganglion.fleet.files_explorer import explore
from ganglion.fleet.files_fleet import FilesFleet, Roster, read_place, read_session
from ganglion.fleet.receiver import Receiver
from ganglion.fleet.remote_explorer import ExplorerPlace
from ganglion.record.stores import Remote, StoreError, Where, names, put, shared
from ganglion.runtime.build import build
from ganglion.runtime.run import Run
from ganglion.runtime.trainer import Trainer
from tests.distributed.stores import KINDS, memory, place
from tests.equal.runs import SORTS, config

EAGER = {"log": {"writers": []}, "eval": "never", "save": "never"}


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    return place(request.param, tmp_path)


def origin(sequence: int, explorer: int = 0) -> Origin:
    return Origin("main", explorer, 0, sequence, 7)


# ------------------------------------------------------------ items and weights as files


def test_explorers_take_equal_turns_and_hold_up_only_themselves(folder: Where) -> None:
    broker = FileBroker(folder, 2)
    for explorer, count in ((0, 2), (3, 1), (10, 2)):
        for k in range(count):
            assert FileBroker(folder, 2).push(b"x", origin(k, explorer))  # each a process of its own
    order = [packet.origin[1:4:2] for _ in range(5) if (packet := broker.pull(0.0))]
    assert order == [(0, 0), (3, 0), (10, 0), (0, 1), (10, 1)]


@pytest.mark.parametrize("damage", ["empty", "short", "half", "flipped", "longer", "another's"])
def test_what_is_not_whole_is_refused_and_the_rest_goes_on(
    folder: Where, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = seal(bytes(range(100)))
    made = {
        "empty": b"",
        "short": whole[:20],
        "half": whole[:66],
        "flipped": whole[:5] + b"\xff" + whole[6:],
        "longer": whole + b"\n",
        "another's": b"PK\x03\x04" * 50,
    }
    broker = FileBroker(folder, 9)
    put(folder / "items" / "main.0.0.0.7", made[damage])
    broker.push(b"good", origin(1))
    packet = broker.pull(0.0)
    assert packet is not None and bytes(packet.body) == b"good"
    assert broker.pull(0.0) is None and broker.account.refused == 0  # it may still be on its way
    monkeypatch.setattr(files_broker, "GRACE", 0.0)
    assert broker.pull(0.0) is None and broker.account.refused == 1 and broker.waiting() == 0


def test_a_file_that_becomes_whole_in_time_is_taken(folder: Where) -> None:
    broker, whole = FileBroker(folder, 9), seal(b"late")
    put(folder / "items" / "main.0.0.0.7", whole[:10])
    assert broker.pull(0.0) is None
    put(folder / "items" / "main.0.0.0.7", whole)
    packet = broker.pull(0.0)
    assert packet is not None and bytes(packet.body) == b"late" and broker.account.refused == 0


def test_foreign_files_are_counted_once_and_left_alone(folder: Where) -> None:
    broker = FileBroker(folder, 9)
    for name in ("notes.txt", "main.0.0.x.1", "main.0.0.0"):
        put(folder / "items" / name, b"mine")
    for _ in range(2):
        assert broker.pull(0.0) is None
    assert broker.account.refused == 3 and broker.waiting() == 0 and len(names(folder / "items")) == 3


def test_damaged_weights_are_passed_over_and_old_ones_removed(folder: Where) -> None:
    broker = FileBroker(folder, 1)
    for version in range(5):
        broker.publish(Weights(version, {}, {"w": torch.full((3,), float(version))}), "main")
    assert sorted(names(folder / "weights")) == ["main.3", "main.4"]
    put(folder / "weights" / "main.9", b"half of it")
    put(folder / "weights" / "main.8", seal(b"no parcel"))
    newest = broker.latest("main", -1)
    assert newest is not None and newest.version == 4 and broker.latest("main", 4) is None


def test_a_store_that_is_away_is_borne_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FileBroker(memory(), 1)
    assert broker.push(b"before", origin(0))
    with monkeypatch.context() as patch:
        patch.setattr(Remote, "names", lambda self: (_ for _ in ()).throw(StoreError("the cable is out")))
        assert broker.pull(0.0) is None and broker.latest("main", -1) is None
        broker.outage.limit = -1.0
        with pytest.raises(StoreError, match="the cable is out"):
            broker.pull(0.0)
    packet = broker.pull(0.0)
    assert packet is not None and bytes(packet.body) == b"before"


# ------------------------------------------------------------ places


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_places_are_given_freed_and_given_again(folder: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(files_fleet, "monotonic", clock)
    made, guests = Roster(folder, 2, silence=10), [f"{k:016x}" for k in range(4)]

    def hello(guest: int, count: int) -> None:
        put(folder / "hello" / f"{guests[guest]}.{count}", b"")

    def seated() -> list[Any]:
        made.look()
        return [place and list(place) for place in (read_place(shared(folder), name) for name in guests)]

    hello(0, 1), hello(1, 1), hello(2, 1)
    assert seated() == [[0, 0], [1, 0], None, None]  # the third stands by
    clock.now += 8
    hello(0, 2), hello(2, 2)
    assert seated() == [[0, 0], [1, 0], None, None]
    clock.now += 8
    hello(0, 3), hello(2, 3)
    assert seated() == [[0, 0], None, [1, 1], None]  # the second is dead
    assert made.account.in_flight == 1 and made.account.restarts == 1
    for k in (1, 2, 3):
        files_broker.drop(folder / "hello" / f"{guests[0]}.{k}")  # the first says goodbye
    hello(3, 1)
    seated()
    assert seated() == [None, None, [1, 1], [0, 1]] and made.account.in_flight == 1
    made.wanted = 1
    assert seated() == [None, None, None, [0, 1]]


def test_who_is_seated_may_be_asked_while_another_thread_looks(tmp_path: Path) -> None:
    made = Roster(tmp_path, 2, silence=10)

    class Leaving:
        """Whose going is noticed just now."""

        @property
        def place(self) -> ExplorerPlace:
            made.guests.clear()
            return ExplorerPlace(0, 0)

    made.guests = {"a": Leaving(), "b": Leaving()}  # type: ignore[dict-item]
    assert made.seated == 2 and made.seated == 0


# ------------------------------------------------------------ whole runs


def trainer(sort: str, steps: int, path: str, **fleet: Any) -> tuple[Trainer, FilesFleet]:
    given = {**SORTS[sort], **EAGER, "train": {"budget": f"{steps} steps"}}
    run, fleet = {"mode": "files", "fast": "eager"}, {"path": path, "rows": 16, "silence": 1.5, **fleet}
    made = build(RunConfig.model_validate({**given, "run": run, "fleet": fleet}))
    assert isinstance(made.source, Receiver) and isinstance(made.source.fleet, FilesFleet)
    return made, made.source.fleet


class Guests:
    """Explorers as threads, each as a process of its own would do it."""

    def __init__(self, path: str, count: int) -> None:
        self.told: list[str] = []
        self.leaving = [False] * count
        self.threads = [Thread(target=self.one, args=(path, k), daemon=True) for k in range(count)]
        for thread in self.threads:
            thread.start()

    def one(self, path: str, k: int) -> None:
        explore(path, 30, self.told.append, lambda: self.leaving[k])

    def join(self) -> None:
        for thread in self.threads:
            thread.join(timeout=20)
            assert not thread.is_alive()


@pytest.mark.parametrize(("sort", "codec"), [("dqn", "zstd"), ("ppo", "lz4")])
def test_it_learns_and_accounts_for_every_item(sort: str, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a slow store, too: with a thread that looks and reads ahead."""
    path = str(memory())
    monkeypatch.setattr(files_fleet, "SLOW", 0.0 if sort == "ppo" else files_fleet.SLOW)
    guests = Guests(path, 2)  # they wait for the run
    made, fleet = trainer(sort, 1_000, path, compress=codec, compress_above=0)
    assert (fleet.worker is None) == (sort == "dqn")
    lags = [log.metrics["lag"] for log in made() if "lag" in log.metrics]
    told = made.source.numbers()  # type: ignore[union-attr]
    made.close()
    guests.join()
    assert made.at.env_steps >= 1_000 and made.at.opt_steps > 0
    assert told["fleet/lost"] == told["fleet/duplicated"] == told["fleet/refused"] == 0
    assert told["fleet/received"] == len(lags) > 0 and min(lags) >= 0
    assert guests.told.count("The run is over.") == 2
    assert read_session(fleet.folder).closed and names(fleet.folder) == ["session.json"]  # type: ignore[union-attr]


def test_bytes_that_are_no_item_of_this_run_are_refused(tmp_path: Path) -> None:
    made, fleet = trainer("dqn", 200, str(tmp_path), explorers=1)
    fleet.begin()
    for name in ("main.7.0.0.0", "main.8.0.0.0"):
        put(fleet.broker.items / name, seal(b"whole, and no parcel"))
    guests = Guests(str(tmp_path), 1)
    for _ in made():
        pass
    made.close()
    guests.join()
    assert fleet.account.refused == 2 and "2 refused" in fleet.account.line() and fleet.account.lost == 0


def test_one_leaves_and_another_takes_its_place(tmp_path: Path) -> None:
    made, fleet = trainer("dqn", 10**9, str(tmp_path), explorers=1)
    guests, stream = Guests(str(tmp_path), 2), made()

    def until(reached: Callable[[], bool]) -> None:
        ends = monotonic() + 30
        while not reached():
            next(stream)
            assert monotonic() < ends

    until(lambda: fleet.account.received > 3)
    guests.leaving = [True, True]
    until(lambda: fleet.roster.seated == 0 and not fleet.roster.guests)
    guests.join()
    more = Guests(str(tmp_path), 1)
    until(lambda: ("main", 0, 1) in fleet.account.next)  # type: ignore[comparison-overlap]
    made.close()
    more.join()
    assert fleet.account.lost == fleet.account.in_flight == 0 and fleet.account.restarts == 1


def test_a_run_is_saved_and_continued_with_the_same_explorers(tmp_path: Path) -> None:
    given = {"run": {"mode": "files", "fast": "eager", "dir": str(tmp_path / "run")}}
    fleet = {"explorers": 1, "rows": 16, "path": str(tmp_path / "fleet"), "silence": 1.0}
    left = Run.create(config("dqn", tmp_path / "run", 700, fleet=fleet, **given))
    assert "ganglion explore " + fleet["path"] in left.why
    guests = Guests(str(tmp_path / "fleet"), 1)
    for log in left.stream():
        if log.kind == "save":
            break
    left.trainer.source.fleet.lock.close()  # type: ignore[union-attr]  # as if it had been killed: nobody is told
    again = Run.open(tmp_path / "run")
    for _ in again.stream():
        pass
    again.close()
    guests.join()
    assert again.trainer.at.env_steps >= 700
    assert again.trainer.source.numbers()["fleet/lost"] == 0
    assert [source.incarnation for source in again.trainer.source.fleet.account.next] == [1]


# ------------------------------------------------------------ real processes


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ganglion", *words]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def test_processes_share_a_folder_and_one_of_them_is_killed(
    tmp_path: Path, started: Callable[..., subprocess.Popen[str]]
) -> None:
    """One explores, another stands by; the first is killed, the other takes its place, and learning goes on."""
    explorers = [started("explore", str(tmp_path)) for _ in range(2)]
    made, fleet = trainer("dqn", 10**9, f"file://{tmp_path}", explorers=1)
    stream = made()

    def until(reached: Callable[[], bool]) -> None:
        ends = monotonic() + 90
        while not reached():
            next(stream)
            assert monotonic() < ends, fleet.account.line()

    until(lambda: fleet.account.received > 3 and len(fleet.roster.guests) == 2)
    updates = made.at.opt_steps
    victim = next(k for k, process in enumerate(explorers) if place_of(process) is not None)
    os.kill(explorers[victim].pid, signal.SIGKILL)
    until(lambda: fleet.account.restarts == 1)
    until(lambda: any(source.incarnation == 1 for source in fleet.account.next) and made.at.opt_steps > updates + 10)
    made.close()
    told = [process.communicate(timeout=30)[0] for k, process in enumerate(explorers) if k != victim]
    assert all(text.endswith("The run is over.\n") for text in told), told
    assert fleet.account.lost == fleet.account.duplicated == 0 and fleet.account.in_flight == 1


@pytest.mark.soak
def test_explorers_are_killed_again_and_again(tmp_path: Path, started: Callable[..., subprocess.Popen[str]]) -> None:
    """Every 10 s one of three, at random, and another is started: nothing handed over is lost or comes twice."""
    explorers = [started("explore", str(tmp_path)) for _ in range(3)]
    made, fleet = trainer("dqn", 10**9, str(tmp_path), explorers=2)
    draw, began, killed, counts = random.Random(0), monotonic(), 0, list[int]()
    for _ in made():
        now = monotonic() - began
        if fleet.account.received > 3 and now > 10 + 10 * killed and killed < 6:
            os.kill((victim := explorers.pop(draw.randrange(3))).pid, signal.SIGKILL)
            assert victim.wait() == -signal.SIGKILL
            explorers.append(started("explore", str(tmp_path)))
            killed += 1
            counts.append(fleet.account.received)
        if killed == 6 and now > 10 + 10 * killed:
            break
    account, updates = fleet.account, made.at.opt_steps
    made.close()
    print(f"{killed} killed in {now:.0f} s: {account.line()}, {updates} updates, {len(fleet.roster.begun)} places")
    assert account.lost == account.duplicated == account.refused == 0 and 0 < account.in_flight <= killed
    assert all(b > a for a, b in zip(counts, counts[1:])) and account.received > counts[-1]


def place_of(process: subprocess.Popen[str]) -> ExplorerPlace | None:
    """The place that an explorer says it has, in its first lines."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("Explorer "):
            return ExplorerPlace(int(line.split()[1].strip(",")), int(line.split()[3].strip(".")))
        if "standing by" in line:
            return None
    return None


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("nosuch://x/y", r"fleet\.path: nosuch:// is not known\. Accepted: a folder, file://, memory://, s3://"),
        ("s4://bucket/x", r"s4:// is not known\. .* Did you mean 's3'\?"),
        ("file://relative/x", r"should be file:///folder"),
        ("s3://key:hunter2@bucket/x", r"fleet\.path: the URL holds a password"),
        ("simplecache::s3://bucket/x", "should be a folder or one URL"),
        ("memory://", "needs a name, such as memory://bucket/folder"),
    ],
)
def test_bad_places_are_named_and_secrets_are_not(path: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        trainer("dqn", 100, path)
    assert "hunter2" not in str(caught.value)


def test_a_mode_without_a_place_says_what_is_missing() -> None:
    with pytest.raises(UserError, match=r"run\.mode 'files' needs fleet\.path"):
        load("cartpole/dqn", ["run.mode=files"])


def test_explorers_without_a_run_say_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"explore: no run has begun in .*Start one: ganglion train"):
        explore(str(tmp_path), 0, lambda line: None)


def test_two_learners_do_not_share_a_place(tmp_path: Path) -> None:
    first, second = trainer("dqn", 100, str(tmp_path)), trainer("dqn", 100, str(tmp_path))
    first[1].begin()
    with pytest.raises(UserError, match="another process"):
        second[1].begin()
    first[0].close()
    second[1].begin()
    second[0].close()


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"fleet\.path: Not a directory \(.*/file\)"):
        trainer("dqn", 100, str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"fleet\.path: /proc/nowhere cannot be used: No such file"):
        trainer("dqn", 100, "/proc/nowhere")[1].begin()


def test_it_says_that_nobody_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(files_fleet, "ALONE", 0.0)
    made, fleet = trainer("dqn", 100, str(tmp_path))
    fleet.pull(0.0)
    made.close()
    assert f"no explorer is there. Start one, anywhere: ganglion explore {tmp_path}" in caplog.text


def test_storage_never_says_what_is_imported(tmp_path: Path) -> None:
    _, fleet = trainer("dqn", 100, str(tmp_path))
    fleet.session = fleet.session._replace(modules=["antigravity"])
    fleet.begin()
    with pytest.raises(UserError, match="Add: --import antigravity"):
        explore(str(tmp_path), 0, lambda line: None)
    fleet.close()
