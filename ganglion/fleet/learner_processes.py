"""Several learners of one run: the first is this process's, learner workers are started, watched and ended by it."""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
import socket
import struct
import subprocess
from collections.abc import Generator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from ganglion import registry
from ganglion.config import RunConfig
from ganglion.config.files import dump, modules
from ganglion.core import Command, Episode, LogData, Packet, Stop
from ganglion.errors import ClusterLostError, LearnerLostError, UserError
from ganglion.fleet.build import begin_cluster, build_distributed, check_episodes
from ganglion.fleet.dealer import Dealer, LearnerQueue
from ganglion.fleet.learner_group import Group, GroupTrainer, seed_of
from ganglion.fleet.learner_worker import LearnerBrief, LearnerWorker
from ganglion.fleet.ray_fleet import deaths, end_actors, explained
from ganglion.fleet.receiver import Receiver
from ganglion.fleet.temporary_folders import make_folder
from ganglion.processes import findable, importable, python
from ganglion.runtime.build import build, pick_device
from ganglion.runtime.engine import Engine
from ganglion.runtime.trainer import Trainer

log = logging.getLogger(__name__)
PATIENCE = 3_600.0  # seconds that learners wait for one of them: the first may be evaluating, or saving
GRACE = 5.0  # seconds in which one that was lost is found out
ADDRESS_OF = 0x8915  # ioctl: the address of a network interface
THREADS = 4  # of an actor: one learns, one takes items


def placed(cfg: RunConfig, rank: int) -> RunConfig:
    """The config of one learner alone: its seed, its device; eagerly unless told otherwise."""
    device = pick_device(cfg.run.device)
    fast = "eager" if cfg.run.fast == "auto" else cfg.run.fast
    chosen = f"cuda:{rank % torch.cuda.device_count()}" if device.type == "cuda" else "cpu"
    run = cfg.run.model_copy(update={"seed": seed_of(cfg.run.seed, rank), "fast": fast, "device": chosen})
    return cfg.model_copy(update={"run": run, "fleet": cfg.fleet.model_copy(update={"learners": 1})})


@registry.register("mode", "learners")
class LearnersMode:
    """Several learners that make each update together; explorers are as `run.mode` says."""

    @staticmethod
    def build(cfg: RunConfig, engine: Engine | None = None) -> Trainer:
        if cfg.algo.library != "torch":
            raise UserError(f"fleet.learners: the gradients of {cfg.algo.kind} cannot be averaged. Accepted: 1.")
        return build_several(cfg)


def build_several(cfg: RunConfig) -> Trainer:
    """The Trainer of the first learner; the others have been started, and are waited for when it begins."""
    check_episodes(cfg)
    given = cfg.run.mode == "ray"
    first = placed(cfg, 0)
    if not given:
        return LeadTrainer(build(first), LearnerProcesses(cfg))
    begin_cluster(cfg)
    first = first.model_copy(update={"fleet": cfg.fleet})
    trainer = build_distributed(first, Dealer)
    source = trainer.source
    assert isinstance(source, Receiver) and isinstance(source.fleet, Dealer)
    return LeadTrainer(trainer, LearnerActors(cfg, source.fleet), source, source.fleet)


def posts(cfg: RunConfig, given: bool) -> list[LearnerBrief]:
    """What the learners beyond the first need to know."""
    return [LearnerBrief(dump(cfg), modules(cfg), importable(), rank, given) for rank in range(1, cfg.fleet.learners)]


# ------------------------------------------------------------ the others


class OtherLearners(Protocol):
    """The other learners."""

    def gather(self, device: torch.device, checkpoint: str) -> Group:
        """All of them, together; from a checkpoint, where there is one."""
        ...

    def why(self, error: Exception) -> Exception:
        """What is behind an error of talking to them."""
        ...

    def close(self) -> None: ...


class LearnerProcesses:
    """LearnerWorkers as processes of this machine, each with an explorer of its own."""

    def __init__(self, cfg: RunConfig) -> None:
        self.size, self.folder, self.meetings = cfg.fleet.learners, make_folder(), count()
        self.failed: dict[int, Any] = {}  # what a learner worker said last
        self.started = [self.start(post) for post in posts(cfg, False)]

    def start(self, post: LearnerBrief) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen(python("ganglion.fleet.learner_worker"), env=findable(), **pipes)
        self.tell(process, list(post))
        return process

    def tell(self, process: subprocess.Popen[str], what: Any) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # its answer says why, or that there is none
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()

    def answer(self, process: subprocess.Popen[str], rank: int) -> None:
        """Reads a line; an exception where it says why the process failed, or where there is none."""
        assert process.stdout is not None
        line = process.stdout.readline()
        told = json.loads(line) if line else self.failed.get(rank, {})
        if "error" in told:
            self.failed[rank] = told
            raise (
                UserError(told["error"].partition(": ")[2])
                if told["user"]
                else RuntimeError(f"learner {rank} failed: {told['error']}")
            )
        if not told:
            raise LearnerLostError(f"learner {rank} ended (process {process.pid})")

    def gather(self, device: torch.device, checkpoint: str) -> Group:
        for rank, process in enumerate(self.started, 1):
            self.answer(process, rank)
        meet = self.folder / f"meet-{next(self.meetings)}"
        for process in self.started:
            self.tell(process, str(meet))
        return Group(0, self.size, meet, device, PATIENCE)

    def why(self, error: Exception) -> Exception:
        found: list[Exception] = []
        for rank, process in enumerate(self.started, 1):
            try:
                process.wait(GRACE)
                self.answer(process, rank)
            except subprocess.TimeoutExpired:
                continue
            except (LearnerLostError, UserError, RuntimeError) as reason:
                found.append(reason)
        return first_cause(found) or error

    def close(self) -> None:
        for process in self.started:
            process.kill()
        for process in self.started:
            process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)


class LearnerActors:
    """LearnerWorkers as Ray actors, each given its items by the Dealer."""

    def __init__(self, cfg: RunConfig, dealer: Dealer) -> None:
        self.ray, self.talk, self.dealer, self.size = dealer.ray, dealer.talk, dealer, cfg.fleet.learners
        self.folder, self.meetings = make_folder(), count()
        joined = bool(cfg.fleet.address)  # elsewhere Ray finds room for them
        gpus = float(joined and pick_device(cfg.run.device).type == "cuda")
        options = {"num_cpus": int(joined), "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        made = self.ray.remote(max_concurrency=THREADS, **options)(LearnerWorker)
        dealer.queues += self.talk(lambda: [LearnerQueue(made.remote(list(post))) for post in posts(cfg, True)])
        self.learning: list[Any] = []

    @property
    def actors(self) -> list[Any]:
        return [queue.actor for queue in self.dealer.queues[1:]]

    def gather(self, device: torch.device, checkpoint: str) -> Group:
        try:
            self.talk(lambda: self.ray.get([actor.ready.remote(checkpoint) for actor in self.actors]), inf)
        except deaths(self.ray, self.ray.exceptions.RayTaskError) as error:
            self.talk.look()
            raise reason(self.ray, error, "a learner") from error
        here = self.ray.util.get_node_ip_address()
        hosts = {node["NodeManagerAddress"] for node in self.talk(self.ray.nodes) if node["Alive"]}
        place: Path | Store
        if hosts == {here}:
            place, over = self.folder / f"meet-{next(self.meetings)}", "lo"
            meet = str(place)
        else:
            place, port = listen(here, self.size)
            meet, over = f"{here}:{port}", interface(here)
        self.learning = self.talk(lambda: [actor.learn.remote(meet) for actor in self.actors])
        return Group(0, self.size, place, device, PATIENCE, over)

    def why(self, error: Exception) -> Exception:
        ended, _ = self.talk(lambda: self.ray.wait(self.learning, num_returns=len(self.learning), timeout=GRACE))
        found = []
        for call in ended:
            try:
                self.talk(partial(self.ray.get, call))
            except deaths(self.ray, self.ray.exceptions.RayTaskError) as told:
                found.append(reason(self.ray, told, f"learner {1 + self.learning.index(call)}"))
        return first_cause(found) or error

    def close(self) -> None:
        with suppress(ClusterLostError):
            self.talk(lambda: end_actors(self.ray, self.actors))
        shutil.rmtree(self.folder, ignore_errors=True)


def reason(ray: Any, error: Any, who: str) -> Exception:
    """What a call to a learner worker brought instead of an answer."""
    return LearnerLostError(f"{who} ended") if isinstance(error, deaths(ray)) else explained(error, who)


def first_cause(found: Sequence[Exception]) -> Exception | None:
    """One of several errors: of those who only heard that another is lost, last."""
    order = (LearnerLostError, UserError, Exception)
    ranked = sorted(found, key=lambda error: next(k for k, kind in enumerate(order) if isinstance(error, kind)))
    return ranked[0] if ranked else None


# ------------------------------------------------------------ where they meet


def meeting(meet: str, size: int) -> tuple[Path | Store, str]:
    """Where a learner worker meets the others, as it was told, and the network that it talks over."""
    if meet.startswith("/"):
        return Path(meet), "lo"
    host, _, port = meet.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # sends nothing; it says which of our addresses leads there
        here = probe.getsockname()[0]
    wait = timedelta(seconds=PATIENCE)
    return TCPStore(host, int(port), size, False, wait), interface(here)


def listen(host: str, size: int) -> tuple[Store, int]:
    """A place to meet on one address of this machine, at a port that is free."""
    server = socket.create_server((host, 0))
    port = int(server.getsockname()[1])
    wait = timedelta(seconds=PATIENCE)
    store = TCPStore(
        host, port, size, True, wait, wait_for_workers=False, master_listen_fd=server.detach(), use_libuv=True
    )
    return store, port


def interface(address: str) -> str:
    """The network interface that has an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                told = fcntl.ioctl(probe.fileno(), ADDRESS_OF, struct.pack("256s", name[:15].encode()))
                if socket.inet_ntoa(told[20:24]) == address:
                    return name
    raise UserError(f"fleet.learners: no network of this machine has the address {address}.")


# ------------------------------------------------------------ the first


class LeadTrainer(GroupTrainer):
    """The first learner's: gathers the others when it begins, and tells when one of them is lost."""

    def __init__(
        self, trainer: Trainer, company: OtherLearners, receiver: Receiver | None = None, dealer: Dealer | None = None
    ) -> None:
        """`receiver` and `dealer`: where items are dealt to all learners here."""
        super().__init__(trainer, None)
        self.company, self.checkpoint = company, ""
        self.receiver, self.dealer = receiver, dealer
        self.heard: list[Episode] = []  # that ended in items of others
        if receiver is not None and dealer is not None:
            dealer.hear = partial(self.hear, receiver)

    def resumed(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint

    def __call__(self) -> Generator[LogData, Command | None, Stop]:
        try:
            if self.met is None:
                self.met = self.company.gather(self.learner.agent.device, self.checkpoint)
            return (yield from super().__call__())
        except (RuntimeError, LearnerLostError) as error:
            why = self.company.why(error)
            if why is error:
                raise
            raise why from error

    def hear(self, receiver: Receiver, packet: Packet) -> bool:
        """Episodes and failures are recorded whoever learns from them; False: it is no item."""
        item = receiver.open(packet)
        if item is None:
            return False
        receiver.note(item)
        first = item.origin.explorer * receiver.spec.slots
        self.heard += [episode._replace(slot=first + episode.slot) for episode in item.episodes]
        return True

    def run_collect(self) -> LogData:
        """Others count the steps and episodes of their items; all are told here."""
        log = super().run_collect()
        heard, self.heard = tuple(self.heard), []
        return log._replace(episodes=(*log.episodes, *heard))

    def idle(self) -> bool:
        """Explorers walk on for the others, and need weights for it: a resumed learner may have enough at once."""
        if self.receiver is not None and self.dealer is not None:
            self.receiver.publish(self.at)
            self.dealer.serve()
        return super().idle()

    def close(self) -> None:
        """Ends the others."""
        if self.met is not None:
            self.met.close()
        self.company.close()
        super().close()
