"""The RayFleet: explorers as Ray actors, started, watched, replaced; shared memory carries their bytes."""

from __future__ import annotations

import logging
import secrets
import shutil
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from ganglion.config import RunConfig
from ganglion.config.files import dump, modules
from ganglion.core import Origin, Packet, State, Weights
from ganglion.errors import ClusterLostError, UserError
from ganglion.fleet.fork_server import ForkServer, join_fork_server, leave_fork_server
from ganglion.fleet.ray_actor import WEIGHTS, Brief, ExplorerActor, ProcessDiedError
from ganglion.fleet.ray_cluster import ClusterSettings, join_ray, leave_ray, watch_ray
from ganglion.fleet.receiver import Account, ExplorerLife
from ganglion.fleet.remote_explorer import ItemSize
from ganglion.fleet.shared_memory import Reader, SegmentName, SharedBoard
from ganglion.fleet.temporary_folders import make_folder
from ganglion.fleet.wire import pack_weights
from ganglion.processes import importable
from ganglion.runtime.agent import PLAYER

log = logging.getLogger(__name__)
FUTILE = 5  # deaths of one explorer, without an item between, that end a run
REMEMBERED = 1_000  # recoveries
CLOSING = 30.0  # seconds for Ray to end
ALONE = 60.0  # seconds without any explorer after which that is said


def site(cfg: RunConfig) -> ClusterSettings:
    """The Ray that a config asks for."""
    return ClusterSettings(cfg.fleet.address, cfg.fleet.host, cfg.fleet.explorers + cfg.fleet.learners - 1)


def explained(error: Any, who: str) -> Exception:
    """What an actor's own code raised, as it would have been raised here."""
    return error.cause if isinstance(error.cause, UserError) else RuntimeError(f"{who} failed: {error}")


def deaths(ray: Any, *more: type[Exception]) -> tuple[type[Exception], ...]:
    """What a call brings whose actor is gone: by itself, for want of memory, with its machine and what lay there."""
    kinds = ray.exceptions
    return kinds.RayActorError, kinds.OutOfMemoryError, kinds.NodeDiedError, kinds.ObjectLostError, *more


def end_actors(ray: Any, actors: Iterable[Any]) -> None:
    for actor in actors:
        with suppress(Exception):  # Ray may be gone already
            ray.kill(actor)


class ExplorerHandle:
    """One explorer: its actor, and the calls that are under way."""

    def __init__(self, explorer: int, incarnation: int, actor: Any) -> None:
        self.explorer, self.incarnation, self.actor = explorer, incarnation, actor
        self.starting: Any = actor.begin.remote(explorer, incarnation)
        self.asked: deque[Any] = deque()
        self.held = 0  # items it brought whose memory is still in use
        self.near, self.pid, self.home = True, 0, 0  # home: the actor's process, the other is its explorer process's
        self.fell: float | None = None  # when the one before it was found dead
        self.futile = 0

    @property
    def under_way(self) -> bool:
        return self.starting is not None or bool(self.asked)

    @property
    def next(self) -> Any:
        """The call that will return first."""
        return self.starting if self.starting is not None else self.asked[0]

    @property
    def name(self) -> str:
        return f"{self.explorer}-{self.incarnation}"


class RayFleet:
    """A fleet of Ray actors. Each is asked for an item ahead, or several, and asked again when one is taken: so the
    queue is bounded, explorers walk while the learner stores and learns, and what is under way is known when one dies.
    """

    lockstep = False

    def __init__(self, cfg: RunConfig, lot: ItemSize) -> None:
        fleet = cfg.fleet
        self.shared = fleet.shared
        self.account, self.wanted, self.spares = Account(), fleet.explorers, fleet.spares
        self.ahead = -(-(fleet.queue or 1) // fleet.explorers)  # items asked of an explorer at a time
        self.fork_server: ForkServer | None = None if fleet.address else join_fork_server()
        self.ray, self.own = join_ray(site(cfg))
        self.talk = watch_ray(self.ray)
        self.folder = make_folder()
        cookie = secrets.token_hex(8)
        if fleet.shared:
            (self.folder / cookie).touch()
        codec = (lot.codec.name, lot.codec.least)
        where = str(self.folder), cookie, self.ahead + 1, str(self.fork_server.path) if self.fork_server else ""
        self.brief = Brief(dump(cfg), modules(cfg), importable(), lot.rows, codec, *where)
        cpus = 1 if fleet.address else 0  # elsewhere Ray spreads them over machines
        options = {"num_cpus": cpus, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        self.actor = self.ray.remote(**options)(ExplorerActor)
        self.inference_server = self.talk(self.make_inference_server) if fleet.inference == "central" else None
        self.board, self.reader = SharedBoard(self.folder / WEIGHTS), Reader(self.folder)
        self.weights: Weights | None = None
        self.put: Any = None  # the newest weights as an object of Ray's, where somebody is far
        self.lives: list[int] = []  # the incarnation of each explorer
        self.members: dict[int, ExplorerHandle] = {}
        self.waiting: list[Any] = []  # spare actors
        self.turn = 0
        self.alone = monotonic()  # since when nobody has begun, or when that was said last
        self.taken: ExplorerHandle | None = None  # whose item is being read
        self.recoveries: deque[float] = deque(maxlen=REMEMBERED)
        self.waiting += self.talk(
            lambda: [self.explorer_actor() for _ in range(self.wanted)]
        )  # at once: it takes a while

    def make_inference_server(self) -> Any:
        """The predictor, on this machine; Ray itself starts it anew, and asks it again."""
        from ganglion.fleet.inference_server import InferenceServer

        here = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self.ray.get_runtime_context().get_node_id(), soft=False
        )
        again = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 2 * self.wanted + 8}
        return self.ray.remote(num_cpus=0, scheduling_strategy=here, **again)(InferenceServer).remote(list(self.brief))

    def explorer_actor(self) -> Any:
        return self.actor.remote(list(self.brief), self.inference_server)

    # ------------------------------------------------------------ items

    def pull(self, timeout: float) -> Packet | None:
        return self.talk(lambda: self.take(timeout))

    def take(self, timeout: float) -> Packet | None:
        """The next item for the learner of this process; the one before is stored."""
        self.release()
        return self.arrived(timeout)

    def arrived(self, timeout: float) -> Packet | None:
        """The next item; `taken` is whose it is."""
        self.resize(self.wanted)
        ends = monotonic() + timeout
        while (left := ends - monotonic()) >= 0:
            order = [member for member in self.members.values() if member.under_way]
            if not order:  # all wait until an item of theirs is stored
                sleep(left)
                return None
            self.turn = (self.turn + 1) % len(order)
            calls = {member.next: member for member in order[self.turn :] + order[: self.turn]}  # equal turns
            ready, _ = self.ray.wait(list(calls), num_returns=1, timeout=left)
            if not ready:
                self.remind()
                self.call()
                return None
            packet = self.receive(calls[ready[0]], ready[0])
            if packet is not None:
                return packet
        return None

    def receive(self, member: ExplorerHandle, call: Any) -> Packet | None:
        """What a call brought: an item, a start, or the news that its explorer is dead."""
        try:
            told = self.ray.get(call)
        except deaths(self.ray) as error:
            self.talk.look()
            self.replace(member, error)
            return None
        except self.ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, ProcessDiedError):
                raise explained(error, f"explorer {member.explorer}") from error
            self.replace(member, error.cause, member.actor)
            return None
        if member.starting is not None:
            (member.near, member.pid, member.home), member.starting = told, None
            self.ask(member)
            return None
        member.asked.popleft()
        member.held += 1
        self.taken = member
        if member.fell is not None:
            self.recoveries.append(monotonic() - member.fell)
            member.fell = None
        member.futile = 0
        self.ask(member)  # it walks on while this one is stored
        origin, body = told
        return Packet(Origin(*origin), self.reader.read(SegmentName(*body)) if member.near else body)

    def call(self) -> None:
        """Says now and then that no explorer begins: a cluster without room for them waits in silence."""
        if any(member.starting is None for member in self.members.values()):
            self.alone = monotonic()
        elif monotonic() - self.alone > ALONE:
            self.alone = monotonic()
            log.warning("no explorer has begun for %g s: is there a free processor for each? See: ray status", ALONE)

    def release(self) -> None:
        """The item that was taken last is stored: its explorer may write over it."""
        with suppress(ClusterLostError):  # the next pull says so: this item is stored, and to be counted
            self.talk(self.give_back)

    def give_back(self) -> None:
        member, self.taken = self.taken, None
        if member is not None:
            self.free(member)
        if self.account.received and len(self.waiting) < self.spares:  # once the first explorers are under way
            self.waiting.append(self.explorer_actor())

    def free(self, member: ExplorerHandle) -> None:
        """An item is stored, or copied."""
        member.held -= 1
        if self.members.get(member.explorer) is member:
            self.ask(member)

    def ask(self, member: ExplorerHandle) -> None:
        """For what may wait; beside that, its explorer has room for one that is being stored."""
        while len(member.asked) + max(member.held - 1, 0) < self.ahead:
            given = () if member.near else (self.far(),)
            member.asked.append(member.actor.collect.remote(*given))

    # ------------------------------------------------------------ weights

    def publish(self, weights: Weights) -> None:
        """Once per version: into shared memory, and, where somebody is far, into Ray's object store."""
        self.weights, self.put = weights, None
        self.board.publish(weights)
        self.remind()

    def remind(self) -> None:
        """Hands the newest weights to a predictor that does not share this memory, and may have been started anew."""
        inference_server = self.inference_server
        if inference_server is not None and not self.shared and self.weights is not None:
            self.talk(lambda: inference_server.take.remote(self.far()))

    def far(self) -> Any:
        assert self.weights is not None
        if self.put is None:
            self.put = self.ray.put(pack_weights(self.weights))
        return self.put

    # ------------------------------------------------------------ explorers

    def resize(self, explorers: int) -> None:
        self.wanted = explorers
        self.talk(lambda: self.fit(explorers))

    def fit(self, explorers: int) -> None:
        """Starts and ends explorers until there are so many."""
        for explorer in range(explorers):
            if explorer not in self.members:
                self.start(explorer)
        for explorer in [e for e in self.members if e >= explorers]:
            member = self.members.pop(explorer)
            self.account.in_flight += len(member.asked)
            self.ray.kill(member.actor)
            self.reader.forget(member.name)

    def start(self, explorer: int, actor: Any = None) -> ExplorerHandle:
        """A new life of an explorer: in an actor that is left, else in one that stood by where there is one."""
        while explorer >= len(self.lives):
            self.lives.append(-1)
        self.lives[explorer] += 1
        if actor is None:
            actor = self.waiting.pop() if self.waiting else self.explorer_actor()
        self.account.admit(ExplorerLife(PLAYER, explorer, self.lives[explorer]))
        member = self.members[explorer] = ExplorerHandle(explorer, self.lives[explorer], actor)
        return member

    def replace(self, dead: ExplorerHandle, error: Exception, actor: Any = None) -> None:
        """Another takes the place of an explorer that has died; its items under way are lost with it, and counted."""
        fell = monotonic()
        self.account.ended(len(dead.asked))
        self.reader.forget(dead.name)
        log.warning("explorer %d ended (process %d): started anew", dead.explorer, dead.pid)
        if dead.futile + 1 >= FUTILE:
            why = str(error).strip().splitlines()[-1][:300]
            raise UserError(f"run.mode: explorer {dead.explorer} died {FUTILE} times before it brought an item. {why}")
        member = self.start(dead.explorer, actor)
        member.fell, member.futile = dead.fell or fell, dead.futile + 1

    def numbers(self) -> Mapping[str, float]:
        calls = [call for member in self.members.values() for call in member.asked]
        ready = len(self.talk(lambda: self.ray.wait(calls, num_returns=len(calls), timeout=0))[0]) if calls else 0
        running = sum(member.starting is None for member in self.members.values())
        told = {"fleet/explorers": float(running), "fleet/queue": float(ready)}
        return {**told, "fleet/recovery": max(self.recoveries)} if self.recoveries else told

    def close(self) -> None:
        """Ends all actors, and Ray where it was started here."""
        oracles = [] if self.inference_server is None else [self.inference_server]
        actors = [*(member.actor for member in self.members.values()), *self.waiting, *oracles]
        self.members, self.waiting = {}, []
        with suppress(ClusterLostError):
            self.talk(lambda: end_actors(self.ray, actors), CLOSING)
        if self.fork_server is not None:
            leave_fork_server(self.fork_server)
        self.talk.close(leave_ray if self.own else lambda: None, CLOSING)
        shutil.rmtree(Path(self.folder), ignore_errors=True)

    def state(self) -> State:
        return State({}, {"lives": list(self.lives)})

    def restore(self, state: State) -> None:
        self.lives = list(state.scalars["lives"])  # those who start now are the next incarnations
