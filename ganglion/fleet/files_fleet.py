"""Who explores for a run that is met through storage: what the learner says, and the places it gives to those who come.

session.json                     what an explorer must know; written anew by each start of the learner
<session>/hello/<guest>.<count>  an explorer's sign of life, the count grows
<session>/places/<guest>         the learner's answer: which explorer it is, and of which incarnation
<session>/items, weights         the broker's
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from ganglion import registry
from ganglion.config import RunConfig
from ganglion.config.files import dump, modules
from ganglion.core import Packet, State, Weights
from ganglion.errors import UserError
from ganglion.fleet.files_broker import FileBroker, seal, unseal
from ganglion.fleet.receiver import Account, ExplorerLife
from ganglion.fleet.remote_explorer import ExplorerPlace, ItemSize
from ganglion.fleet.wire import CODECS
from ganglion.record.lock import held
from ganglion.record.stores import SLOW, Beneath, Shared, Where, drop, located, names, pace, put, reached, shared
from ganglion.runtime.agent import PLAYER

log = logging.getLogger(__name__)
SESSION = "session.json"
TOKEN = re.compile(r"[0-9a-f]{16}")
HELLO = re.compile(r"([0-9a-f]{16})\.([0-9]{1,12})")
PARTS = ("hello", "places", "items", "weights")  # of a session's folder
SMALL = 1 << 22  # bytes of session.json, or of an answer, at most
BEATS = 5  # signs of life in the time after which one is missed
ALONE = 60.0  # seconds without any explorer after which that is said
LOOK = 0.5  # seconds between two looks at who is there


class Session(NamedTuple):
    """What an explorer must know, in plain values."""

    token: Annotated[str, Field(pattern=f"^{TOKEN.pattern}$")]  # of this start of the learner; names its folder
    ganglion: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+_-]{1,64}$")]  # its version
    config: Annotated[str, Field(pattern=r"\n")]  # YAML, of several lines: one would be the name of a file
    modules: list[Annotated[str, Field(pattern=r"^[A-Za-z_][0-9A-Za-z_.]{0,200}$")]]  # the user's, that register names
    rows: Annotated[int, Field(ge=1, le=1 << 24)]  # of an item
    codec: tuple[Annotated[str, Field(pattern=f"^({'|'.join(CODECS)})$")], Annotated[int, Field(ge=0)]]
    ahead: Annotated[int, Field(ge=1, le=100_000)]  # items of one explorer that may wait
    silence: Annotated[float, Field(ge=0.5, le=86_400)]  # seconds after which a place is given to another
    closed: bool = False

    @property
    def beat(self) -> float:
        return self.silence / BEATS


SESSIONS = TypeAdapter(Session)
PLACES = TypeAdapter(tuple[Annotated[int, Field(ge=0, lt=10_000)], Annotated[int, Field(ge=0, lt=10**9)]])


def read_session(folder: Where | Shared) -> Session | None:
    """What the learner says; None where there is none, or none that is whole. It says where an explorer writes, and
    what it removes in the end: so each entry is what it should be, or it is refused."""
    text = read_text(shared(folder) / SESSION)
    try:
        return None if text is None else SESSIONS.validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        what = f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"[:300]
        told = f"{folder} is not a run's, or one of another version of Ganglion: {SESSION} is refused"
        raise UserError(f"{told} ({what}).") from None


def read_place(home: Shared, guest: str) -> ExplorerPlace | None:
    """The place that the learner gave to a guest."""
    text = read_text(home / "places" / guest)
    try:
        return None if text is None else ExplorerPlace(*PLACES.validate_json(text, strict=True))
    except ValidationError:
        return None


def write_json(path: Where | Shared, told: Any) -> None:
    put(path, seal(json.dumps(told).encode()))


def read_text(path: Shared) -> bytes | None:
    """What was written there; None where nothing is, or nothing that is whole."""
    try:
        body = unseal(path.read_most(SMALL))
        return None if body is None else bytes(body)
    except (FileNotFoundError, ValueError):
        return None


class JoinedExplorer:
    """An explorer that has said hello."""

    def __init__(self) -> None:
        self.count, self.heard, self.missed = -1, 0.0, 0
        self.place: ExplorerPlace | None = None


class Roster:
    """Places for explorers that come by themselves: taken back from those who have left or fallen silent."""

    def __init__(self, folder: Where | Beneath, wanted: int, silence: float) -> None:
        home = shared(folder)
        self.hello, self.places = home / "hello", home / "places"
        self.wanted, self.silence = wanted, silence
        self.lives: list[int] = []  # the incarnation of each explorer
        self.guests: dict[str, JoinedExplorer] = {}  # in the order they came
        self.begun: set[int] = set()  # explorers of this session, running or not
        self.account = Account()

    def look(self) -> None:
        """Who is there, who is not any more, and who may begin."""
        now, counts = monotonic(), self.counts()
        for name, count in counts.items():
            guest = self.guests.setdefault(name, JoinedExplorer())
            if count != guest.count:
                guest.count, guest.heard, guest.missed = count, now, 0
        for name, guest in list(self.guests.items()):
            guest.missed += name not in counts  # a listing may miss a name that is just being replaced
            if guest.missed > 1 or (guest.place is not None and guest.place.explorer >= self.wanted):
                self.dismiss(name)
            elif now - guest.heard > self.silence:
                self.bury(name)
        self.seat()

    def counts(self) -> dict[str, int]:
        """The newest sign of life of each guest."""
        signs = sorted((fit[1], int(fit[2])) for fit in filter(None, map(HELLO.fullmatch, names(self.hello))))
        return dict(signs)

    def seat(self) -> None:
        """Gives free places to those who have none."""
        taken = {guest.place.explorer for guest in self.guests.values() if guest.place}
        free = [explorer for explorer in range(self.wanted) if explorer not in taken]
        waiting = [name for name, guest in self.guests.items() if guest.place is None]
        for explorer, name in zip(free, waiting):
            self.lives += [-1] * (explorer + 1 - len(self.lives))
            self.lives[explorer] += 1
            place = ExplorerPlace(explorer, self.lives[explorer])
            write_json(self.places / name, list(place))
            self.guests[name].place = place
            self.account.admit(ExplorerLife(PLAYER, *place))
            self.account.restarts += explorer in self.begun
            self.begun.add(explorer)

    def bury(self, name: str) -> None:
        """Takes the place of one who gives no sign of life; what it had in the making is gone with it."""
        guest = self.guests[name]
        if guest.place is not None:
            self.account.in_flight += 1
            log.warning(
                "explorer %d gave no sign of life for %g s: its place is free", guest.place.explorer, self.silence
            )
        self.dismiss(name)
        drop(self.hello / f"{name}.{guest.count}")

    def dismiss(self, name: str) -> None:
        """Without a place, an explorer says hello again, under another name."""
        del self.guests[name]
        drop(self.places / name)

    @property
    def seated(self) -> int:
        guests = list(self.guests.values())  # at once: another thread may be looking who is there
        return sum(guest.place is not None for guest in guests)


class FilesFleet:
    """A fleet met through storage: explorers come by themselves (`ganglion explore`), leave, die, are replaced."""

    lockstep = False

    def __init__(self, cfg: RunConfig, lot: ItemSize) -> None:
        fleet = cfg.fleet
        assert fleet.path is not None  # the config says so
        self.place = reached(located(fleet.path, "fleet.path"), "fleet.path")
        self.folder = shared(self.place)
        ahead = -(-(fleet.queue or 1) // fleet.explorers)
        own = dump(cfg), modules(cfg), lot.rows, (lot.codec.name, lot.codec.least)
        self.session = Session(secrets.token_hex(8), registry.version(), *own, ahead, fleet.silence)
        home = self.folder / self.session.token
        self.roster = Roster(home, fleet.explorers, fleet.silence)
        self.account = self.roster.account
        self.broker = FileBroker(home, ahead, lot.most, self.account)
        self.looked: float | None = None  # when, at the roster; None before the first time
        self.alone = 0.0  # since when nobody is there, or when that was said last
        # Where a look costs more than an update, another thread takes it, and the next item, while the learner learns.
        self.worker = ThreadPoolExecutor(1, "storage") if pace(self.folder) >= SLOW else None
        self.coming: Future[Packet | None] | None = None
        self.lock = ExitStack()

    def begin(self) -> None:
        """Says to everyone where the run is; what an earlier learner left is removed."""
        if self.looked is not None:
            return
        try:
            if isinstance(self.place, Path):
                self.place.mkdir(parents=True, exist_ok=True)
            self.lock.enter_context(held(self.place))
            for name in names(self.folder):
                if TOKEN.fullmatch(name):
                    clear(self.folder / name)
            write_json(self.folder / SESSION, self.session._asdict())
        except OSError as error:
            raise UserError(f"fleet.path: {self.folder} cannot be used: {error.strerror or error}.") from error
        self.looked, self.alone = 0.0, monotonic()

    def pull(self, timeout: float) -> Packet | None:
        self.begin()
        if self.worker is None:
            return self.work(timeout)
        coming = self.coming or self.worker.submit(self.work, timeout)
        self.coming = coming
        if not wait([coming], timeout).done:
            return None
        packet = coming.result()
        self.coming = None if packet is None else self.worker.submit(self.work, timeout)
        return packet

    def work(self, timeout: float) -> Packet | None:
        """All that is to be looked at, and the next item."""
        often = min(LOOK, self.session.beat)
        if monotonic() - (self.looked or 0.0) > often:
            with self.broker.outage.borne():
                self.check()
                self.roster.look()
            self.looked = monotonic()
            self.call()
        return self.broker.pull(min(timeout, often))

    def call(self) -> None:
        """Says now and then that nobody is there to explore."""
        if self.roster.seated:
            self.alone = monotonic()
        elif monotonic() - self.alone > ALONE:
            self.alone = monotonic()
            log.warning("no explorer is there. Start one, anywhere: ganglion explore %s", self.folder)

    def check(self) -> None:
        """Two learners in one place would take each other's items."""
        told = None
        with suppress(UserError):  # nobody's
            told = read_session(self.folder)
        if told is not None and told.token != self.session.token:
            raise UserError(f"fleet.path: another run has begun in {self.folder}. Give each a folder of its own.")

    def release(self) -> None:
        """Every item has memory of its own."""

    def publish(self, weights: Weights) -> None:
        self.begin()
        self.broker.publish(weights, PLAYER)

    def numbers(self) -> Mapping[str, float]:
        return {"fleet/explorers": float(self.roster.seated), "fleet/queue": float(self.broker.waiting())}

    def resize(self, explorers: int) -> None:
        """So many places; who comes beyond them stands by."""
        self.roster.wanted = explorers

    def close(self) -> None:
        """Tells everyone that the run is over."""
        self.broker.close()
        if self.worker is not None:
            self.worker.shutdown()
        if self.looked is None:
            return
        with suppress(OSError, UserError):
            self.check()
            write_json(self.folder / SESSION, self.session._replace(closed=True)._asdict())
            clear(self.folder / self.session.token)
        self.lock.close()

    def state(self) -> State:
        return State({}, {"lives": list(self.roster.lives)})

    def restore(self, state: State) -> None:
        self.roster.lives = list(state.scalars["lives"])  # those who come now are the next incarnations


def clear(home: Shared) -> None:
    """Removes what lies in a session's folder, unless somebody is just writing into it; and the folder, if it held
    nothing else."""
    with suppress(OSError):
        for part in PARTS:
            (home / part).clear()
        if not home.names():
            home.clear()
