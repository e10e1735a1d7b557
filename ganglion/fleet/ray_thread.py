"""A thread that talks to Ray, so that nobody waits for ever: where Ray's own processes are gone or stand still, its
calls do not return, whatever time-out they are given, and a signal does not reach whoever waits in them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread, current_thread
from time import monotonic
from typing import Any, TypeVar

from ganglion.errors import ClusterLostError

T = TypeVar("T")
LOOK = 1.0  # seconds between two looks at Ray
SILENT = 20  # looks in a row at which it was not found well: it is given up
LIMIT = 120.0  # seconds for a call that takes a moment
PARTS = ("raylet", "gcs_server")  # Ray's processes without which there is no cluster
ENDED, STOPPED = ("", "Z", "X"), ("T", "t")  # states of a process, as in /proc


class Health:
    """Whether Ray lives: its processes on this machine are looked at, and it is asked for its nodes, in a thread.

    Another thread counts the looks, however long the learner is busy with something else. Looks are counted, not
    seconds: whoever was stopped for an hour has missed nothing.
    """

    def __init__(self, ray: Any) -> None:
        self.ray, self.node = ray, ray.get_runtime_context().get_node_id()
        self.pids = processes(self.node)
        self.missed, self.closed = 0, Event()
        for target in (self.listen, self.count):
            Thread(target=target, name="ray-health", daemon=True).start()

    def count(self) -> None:
        """A look more, until a sign of life; asking Ray may not return."""
        while not self.closed.wait(LOOK):
            self.missed += 1

    def listen(self) -> None:
        while not self.closed.wait(LOOK):
            with suppress(Exception):  # of many kinds; none is a sign of life
                there = any(node["Alive"] for node in self.ray.nodes() if node["NodeID"] == self.node)
                if there and not any(state(pid) in STOPPED for pid in self.pids.values()):
                    self.missed = 0

    def look(self) -> None:
        """An error where Ray is lost."""
        for name, pid in self.pids.items():
            if state(pid) in ENDED:
                raise ClusterLostError(f"run.mode: Ray's {name} has ended (process {pid}).")
        if self.missed > SILENT:
            raise ClusterLostError(f"run.mode: Ray has not answered for {SILENT * LOOK:.0f} s.")

    def close(self) -> None:
        self.closed.set()


class RayThread:
    """Does what it is asked, one thing after the other. `lost` is called once, when Ray is."""

    def __init__(self, health: Health, lost: Callable[[], None]) -> None:
        self.health, self.lost = health, lost
        self.why: ClusterLostError | None = None
        self.asked: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self.thread = Thread(target=self.run, name="ray-calls", daemon=True)
        self.thread.start()

    def run(self) -> None:
        while (asked := self.asked.get()) is not None:
            ask, future = asked
            try:
                future.set_result(ask())
            except BaseException as error:  # raised where it was asked for
                future.set_exception(error)

    def __call__(self, ask: Callable[[], T], limit: float = LIMIT) -> T:
        """What a call to Ray brings; ClusterLostError where Ray is lost, or it takes longer than `limit`."""
        if current_thread() is self.thread:
            return ask()
        self.look()
        future, ends = self.put(ask), monotonic() + limit
        while not came(future, LOOK):
            self.look()
            if monotonic() > ends:
                self.fail(ClusterLostError(f"run.mode: Ray did not answer a call within {limit:.0f} s."))
        return future.result()

    def put(self, ask: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self.asked.put((ask, future))
        return future

    def look(self) -> None:
        """An error where Ray is lost: then whatever was found to have died with it is not at fault."""
        if self.why is not None:
            raise self.why
        try:
            self.health.look()
        except ClusterLostError as error:
            self.fail(error)

    def fail(self, error: ClusterLostError) -> None:
        self.why = error
        self.lost()
        raise error

    def close(self, leave: Callable[[], None], limit: float) -> None:
        """Leaves Ray, unless it is lost: from here on nothing of it need live."""
        self.health.close()
        if self.why is None and not came(self.put(leave), limit):
            self.lost()
        self.asked.put(None)


def came(future: Future[Any], seconds: float) -> bool:
    """Whether it brings something, or an error, in that time."""
    return bool(wait([future], seconds)[0])


def processes(node: str) -> dict[str, int]:
    """Ray's own processes of a node, where that is this machine."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            name = (path / "comm").read_text().strip()
            if name in PARTS and node.encode() in (path / "cmdline").read_bytes():
                found[name] = int(path.name)
    return found


def state(pid: int) -> str:
    """A letter, as in /proc; nothing where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
