"""The broker of those who share only storage: items and weights as files, each whole by its own checksum.

    items/<player>.<explorer>.<incarnation>.<sequence>.<version>     taken by the learner, oldest first, in equal turns
    weights/<player>.<version>                                       the highest version wins

A file ends with the checksum of all before it: one that is half-written, cut off or foreign is no item, and so is one
that is larger than items of this run are, a link, a pipe or a folder. Nothing is renamed, locked or appended to, so any
store will do.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from time import monotonic
from typing import Any

from ganglion.core import Origin, Packet, Weights
from ganglion.fleet.receiver import Account
from ganglion.fleet.wire import WireForm, pack_weights, unpack_weights
from ganglion.record.stores import Beneath, Where, drop, names, pace, put, shared
from ganglion.record.tensor_file import digest

log = logging.getLogger(__name__)
ITEM = re.compile(r"([\w-]{1,64})\.(\d{1,9})\.(\d{1,9})\.(\d{1,18})\.(-1|\d{1,18})", re.ASCII)
BOARD = re.compile(r"([\w-]{1,64})\.(\d{1,18})", re.ASCII)
MARK = 32  # bytes of a checksum
GRACE = 2.0  # seconds that a file may take to become whole, where stores show what is still being written
KEPT = 2  # versions of weights: somebody may be reading the one before
MOST = 1 << 34  # bytes of a file, where nobody knows better
TOLD = 10.0  # seconds between two complaints about a store that is away


def seal(data: Any) -> bytes:
    """Bytes and their checksum."""
    view = memoryview(data)
    return b"".join([view, digest(view).encode()])


def unseal(whole: bytes) -> memoryview | None:
    """The bytes that were sealed; None where they are not all there."""
    view = memoryview(bytearray(whole))  # tensors of an item are views of it, and want memory that can be written
    data = view[:-MARK]
    return data if len(whole) >= MARK and digest(data).encode() == view[-MARK:] else None


class Outage:
    """A store that is away now and then: complained about, and borne for a while."""

    def __init__(self, limit: float = 120.0) -> None:
        self.limit = limit  # seconds
        self.since: float | None = None
        self.told = -TOLD

    @contextmanager
    def borne(self) -> Iterator[None]:
        try:
            yield
            self.since = None
        except OSError as error:
            now = monotonic()
            self.since = now if self.since is None else self.since
            if now - self.since > self.limit:
                raise
            if now - self.told > TOLD:
                self.told = now
                log.warning("the storage does not answer, trying on: %s", error)


class FileBroker:
    """A Broker of files in a folder. Each explorer may have `size` items waiting, and waits itself while it has."""

    def __init__(self, folder: Where | Beneath, size: int, most: int = 0, account: Account | None = None) -> None:
        """`most`: bytes of an item. `account`: of refusals."""
        home = shared(folder)
        self.items, self.board, self.size, self.most = home / "items", home / "weights", size, most or MOST
        self.account = account or Account()
        self.form: WireForm | None = None  # of weights, for whoever reads them
        self.nap = pace(folder)
        self.ended = Event()
        self.outage = Outage()
        self.seen: deque[tuple[str, Origin]] = deque()  # listed, and not pulled yet
        self.doubtful: dict[str, float] = {}  # since when a file is not whole
        self.foreign: set[str] = set()

    # ------------------------------------------------------------ items

    def push(self, item: Any, origin: Origin) -> bool:
        name = ".".join(map(str, origin))
        if not ITEM.fullmatch(name):
            raise ValueError(f"an item of {origin} cannot be named as a file")
        own = ".".join(map(str, origin[:3])) + "."
        whole = seal(item)
        while not self.ended.is_set():
            with self.outage.borne():
                if sum(other.startswith(own) for other in names(self.items)) < self.size:
                    put(self.items / name, whole)
                    return True
            self.ended.wait(self.nap)
        return False

    def pull(self, timeout: float) -> Packet | None:
        ends = monotonic() + timeout
        while (packet := self.take()) is None and not self.ended.is_set() and monotonic() < ends:
            self.ended.wait(min(self.nap, max(ends - monotonic(), 0.0)))
        return packet

    def take(self) -> Packet | None:
        """The next item that is whole, where there is one."""
        with self.outage.borne():
            if not self.seen:
                self.seen.extend(self.turns(self.found()))
            while self.seen:
                name, origin = self.seen.popleft()
                body = self.whole(name)
                if body is not None:
                    with self.outage.borne():  # else it comes again, and is known
                        drop(self.items / name)
                    return Packet(origin, body)
        return None

    def found(self) -> list[tuple[str, Origin]]:
        """What lies there and is named as an item; other names are counted, once, and left alone."""
        items = []
        for name in names(self.items):
            fits = ITEM.fullmatch(name)
            if fits:
                items.append((name, Origin(fits[1], *map(int, fits.groups()[1:]))))
            elif name not in self.foreign:
                self.foreign.add(name)
                self.account.refuse(f"{str(self.items / name)[:500]!r}: it is not named as one, and is left alone")
        return items

    def turns(self, items: list[tuple[str, Origin]]) -> list[tuple[str, Origin]]:
        """The oldest of every explorer, then the second of every explorer, and so on."""
        before: Counter[tuple[Any, ...]] = Counter()
        ranked = []
        for name, origin in sorted(items, key=lambda item: item[1]):
            ranked.append((before[origin[:3]], name, origin))
            before[origin[:3]] += 1
        return [(name, origin) for _, name, origin in sorted(ranked, key=lambda rank: (rank[0], rank[2]))]

    def whole(self, name: str) -> memoryview | None:
        """A file's bytes without its checksum. One that stays damaged is removed: its explorer waits for that."""
        body, why = None, "it is damaged"
        try:
            body = unseal((self.items / name).read_most(self.most + MARK))
        except FileNotFoundError:
            return None
        except (ValueError, PermissionError) as error:
            why = str(error)
        if body is not None:
            self.doubtful.pop(name, None)
        elif monotonic() - self.doubtful.setdefault(name, monotonic()) > GRACE:
            del self.doubtful[name]
            self.account.refuse(f"{self.items / name}: {why}; removed")
            drop(self.items / name)
        return body

    def waiting(self) -> int:
        count = 0
        with self.outage.borne():
            count = sum(ITEM.fullmatch(name) is not None for name in names(self.items))
        return count  # noqa: RET504 - 0 while the store is away

    # ------------------------------------------------------------ weights

    def publish(self, weights: Weights, player: str) -> None:
        whole = seal(pack_weights(weights))
        with self.outage.borne():
            put(self.board / f"{player}.{weights.version}", whole)
            known = self.versions(player)
            newer = [version for version in known if version > weights.version]  # nobody's but a forger's
            for version in newer + known[len(newer) + KEPT :]:
                drop(self.board / f"{player}.{version}")

    def latest(self, player: str, newer_than: int) -> Weights | None:
        """The newest that is whole. Where all are older than what is asked for, that one was withdrawn: a forger's."""
        with self.outage.borne():
            known = self.versions(player)
            newer_than = -1 if known and known[0] < newer_than else newer_than
            for version in known:
                if version <= newer_than:
                    break
                weights = self.read_weights(f"{player}.{version}")
                if weights is not None:
                    return weights
        return None

    def versions(self, player: str) -> list[int]:
        """What lies there, the newest first."""
        fits = filter(None, map(BOARD.fullmatch, names(self.board)))
        return sorted((int(fit[2]) for fit in fits if fit[1] == player), reverse=True)

    def read_weights(self, name: str) -> Weights | None:
        try:
            body = unseal((self.board / name).read_most((self.form.most if self.form else MOST) + MARK))
            return None if body is None else unpack_weights(body, self.form)
        except (FileNotFoundError, PermissionError, ValueError, KeyError):
            return None

    def close(self) -> None:
        """Lets everyone go who waits, here: nothing more is taken."""
        self.ended.set()
