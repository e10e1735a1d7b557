"""An explorer that comes by itself to a run met through storage, and stays until the run is over."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Callable
from threading import Thread
from time import monotonic, sleep

from ganglion import registry
from ganglion.config.files import load
from ganglion.core import Progress, Weights
from ganglion.errors import UserError
from ganglion.fleet.files_broker import FileBroker
from ganglion.fleet.files_fleet import Session, clear, read_place, read_session
from ganglion.fleet.remote_explorer import Board, ExplorerPlace, ItemSize, RemoteExplorer
from ganglion.fleet.wire import Codec, WireForm, check_codec
from ganglion.record.stores import Shared, drop, located, pace, put, reached, shared

log = logging.getLogger(__name__)
Tell = Callable[[str], None]
Left = Callable[[], bool]
ALERT = 0.1  # seconds in which it notices that it is to leave
GLANCES = 5  # naps between two looks for newer weights


class Paced:
    """Looks for newer weights now and then: a look at a store costs more than a step."""

    def __init__(self, board: Board, seconds: float) -> None:
        self.board, self.seconds, self.next = board, seconds, 0.0

    def latest(self, player: str, newer_than: int) -> Weights | None:
        if monotonic() < self.next:
            return None
        weights = self.board.latest(player, newer_than)
        self.next = monotonic() + self.seconds
        return weights


class FilesExplorer:
    """One stay: says hello, waits for a place, walks until it loses it, says goodbye."""

    def __init__(self, folder: Shared, session: Session, left: Left) -> None:
        self.home, self.session, self.left = folder / session.token, session, left
        self.name, self.count = secrets.token_hex(8), 0
        self.broker = FileBroker(self.home, session.ahead)
        self.place: ExplorerPlace | None = None

    def prepare(self) -> RemoteExplorer:
        """All that takes long, before anyone counts on it."""
        import torch

        check_codec(self.session.codec[0])
        cfg = load(self.session.config)
        torch.set_num_threads(cfg.run.threads)
        lot = ItemSize(self.session.rows, Codec(*self.session.codec))
        remote_explorer = RemoteExplorer(cfg, lot, Paced(self.broker, GLANCES * self.broker.nap))
        remote_explorer.gone = self.broker.ended.is_set
        self.broker.form = WireForm(remote_explorer.agent.command(Progress()).tensors)
        return remote_explorer

    def stay(self, tell: Tell) -> None:
        remote_explorer = self.prepare()
        beating = Thread(target=self.live, daemon=True, name="sign of life")
        try:
            self.beat()
            beating.start()
            if self.seated(tell):
                assert self.place is not None
                remote_explorer.begin(self.place)
                remote_explorer.walk(self.broker)
        finally:
            self.broker.close()
            if beating.is_alive():
                beating.join()
            self.goodbye()
            remote_explorer.close()

    def seated(self, tell: Tell) -> bool:
        """Waits for a place; False: the session is over before there is one."""
        asked, told = monotonic(), False
        while not self.broker.ended.is_set():
            with self.broker.outage.borne():
                self.place = read_place(self.home, self.name)
                if self.place is not None:
                    tell(f"Explorer {self.place.explorer}, incarnation {self.place.incarnation}.")
                    return True
            if not told and monotonic() - asked > 2 * self.session.silence:
                told = True
                tell("All places are taken (fleet.explorers of the run), or its learner is busy: standing by.")
            self.broker.ended.wait(max(self.broker.nap, ALERT / 2))
        return False

    def live(self) -> None:
        """Signs of life, until there is nobody to give them to."""
        last = monotonic()
        while not self.broker.ended.wait(ALERT):
            if self.left():
                self.broker.close()
            elif monotonic() - last > self.session.beat:
                last = monotonic()
                try:
                    with self.broker.outage.borne():
                        self.beat()
                        if self.lost():
                            self.broker.close()
                except (OSError, UserError) as error:
                    log.error("cannot go on: %s", error)
                    self.broker.close()

    def beat(self) -> None:
        before, self.count = self.count, self.count + 1
        put(self.home / "hello" / f"{self.name}.{self.count}", b"")
        drop(self.home / "hello" / f"{self.name}.{before}")

    def lost(self) -> bool:
        """Whether its place is another's, or the run over or begun anew."""
        if self.place is not None:
            return read_place(self.home, self.name) != self.place
        session = read_session(self.home.parent)
        return session is None or self.over(session)

    def over(self, session: Session) -> bool:
        return session.closed or session.token != self.session.token

    def goodbye(self) -> None:
        with self.broker.outage.borne():
            drop(self.home / "hello" / f"{self.name}.{self.count}")
            session = read_session(self.home.parent)
            if session is not None and self.over(session):
                clear(self.home)  # what it has written since the learner did that


def explore(path: str, wait: float, tell: Tell, left: Left = lambda: False) -> None:
    """Explores for whatever run is met at a path, from one stay to the next, until the run is over."""
    folder = shared(reached(located(path, "explore"), "explore"))
    met: str | None = None  # the run whose end is ours
    while not left():
        session = meet(folder, wait, tell, left, met)
        if session is None:
            return
        check_fit(session)
        met = session.token
        FilesExplorer(folder, session, left).stay(tell)


def meet(folder: Shared, wait: float, tell: Tell, left: Left, met: str | None) -> Session | None:
    """The session that is on; None where the one that was met has ended, or it was told to leave."""
    ends, told = monotonic() + wait, False
    while not left():
        session = read_session(folder)
        if session is not None and not session.closed:
            return session
        if session is not None and session.token == met:
            tell("The run is over.")
            return None
        if monotonic() > ends:
            what = "no run has begun" if session is None else "the last run is over"
            raise UserError(
                f"explore: {what} in {folder}. Start one: ganglion train ... --mode files fleet.path={folder}"
            )
        if not told:
            told = True
            tell(f"Waiting for a run in {folder}.")
        sleep(max(pace(folder), ALERT))
    return None


def check_fit(session: Session) -> None:
    """Whether this process can explore for a run. Storage never says what is imported: whoever starts it does."""
    if session.ganglion != registry.version():
        raise UserError(f"explore: the run is of Ganglion {session.ganglion}, and this is {registry.version()}.")
    missing = [name for name in session.modules if name not in sys.modules]
    if missing:
        flags = " ".join(f"--import {name}" for name in missing)
        raise UserError(f"explore: the run needs modules of its user's own. Add: {flags}")
