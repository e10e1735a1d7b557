"""What runs on each node of an allocation (slurm's): Ray, and on the first one the run. Nodes find each other by files
in the job's folder, which all of them can reach; ports are whatever is free."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from ganglion.errors import ClusterLostError, UserError
from ganglion.fleet.ray_cluster import ALONE, LOOPBACK, QUIET, STORE, import_ray, room
from ganglion.launch.restarts import Restarter, RunProcess, begun, command
from ganglion.processes import python

SESSION = "ganglion-ray-"  # the folder of Ray's sockets and logs, which nobody else can enter
LOOK = 0.2  # seconds between two looks at a file
MEET = 300.0  # seconds for the first node to be there
GATHER = 120.0  # seconds for the others to join it


class SlurmJob(NamedTuple):
    """What is written when a job is made, in plain values."""

    run: str  # its folder
    imports: Sequence[str]
    needs: int  # processors for explorers and learners beyond the first
    restarts: int


class Node:
    """One node of an allocation."""

    def __init__(self, folder: Path, tell: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> None:
        if "SLURM_PROCID" not in environ:
            raise UserError("launch node: is started by a job of ganglion launch slurm, on each of its nodes.")
        self.folder, self.tell = folder, tell
        self.job = SlurmJob(**json.loads((folder / "job.json").read_text()))
        self.rank, self.nodes = int(environ["SLURM_PROCID"]), int(environ.get("SLURM_NNODES", "1"))
        self.cpus = environ.get("SLURM_CPUS_ON_NODE", "1")
        life = f"{environ.get('SLURM_JOB_ID', '0')}-{environ.get('SLURM_RESTART_COUNT', '0')}"
        self.address, self.ended, self.token = (folder / f"{name}-{life}" for name in ("address", "ended", "token"))
        self.host = environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")  # of the first, as the others reach it
        self.environ = dict(environ)

    def settings(self, here: str) -> dict[str, str]:
        """Of Ray, by the environment: a secret in an argument could be read by anyone on the node."""
        safe = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}
        return {**self.environ, **QUIET, **(ALONE if here in LOOPBACK else {}), **safe}

    def start_ray(self, here: str, *words: str) -> RunProcess:
        start = python("ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
        own = [f"--node-ip-address={here}", f"--num-cpus={self.cpus}", f"--object-store-memory={STORE}"]
        ports = ["--min-worker-port=0", "--max-worker-port=0"]  # any
        # Slurm tells every process at once to stop: Ray should be there until the run is saved.
        with (self.folder / f"ray-{self.rank}.out").open("ab") as out:
            return RunProcess([*start, *own, *ports, *words], self.settings(here), out)

    # ------------------------------------------------------------ the first

    def lead(self) -> int:
        """Ray's head and the run; the other nodes end when it does."""
        if self.nodes > 1 and self.host in LOOPBACK:
            raise UserError(f"launch slurm: slurm knows the first node as {self.host}, where others cannot reach it.")
        make_secret(self.token)
        address = f"{self.host}:{free_port(self.host)}"
        session = Path(tempfile.mkdtemp(prefix=SESSION, dir=room(f"{SESSION}12345678")))
        self.head = self.start_head(address, session)
        try:
            write(self.address, f"{address} {session}")
            self.gather(address)
            return self.train(address, session)
        finally:
            self.ended.touch()
            for file in (self.token, self.address):  # first: slurm may not wait for the rest
                file.unlink(missing_ok=True)
            end(self.head)
            shutil.rmtree(session, ignore_errors=True)

    def start_head(self, address: str, session: Path) -> RunProcess:
        own = [f"--port={address.rpartition(':')[2]}", f"--temp-dir={session / 'r'}", "--include-dashboard=false"]
        return self.start_ray(self.host, "--head", *own)

    def gather(self, address: str) -> None:
        """Waits for the other nodes, and looks whether there is room for everyone."""
        os.environ.update(self.settings(self.host))
        ray, ends = import_ray(), monotonic() + GATHER
        while not self.reached(ray, address):
            if self.head.poll() is not None or monotonic() > ends:
                raise UserError(
                    f"launch slurm: Ray did not start at {address}. It says why in {self.folder / 'ray-0.out'}"
                )
            sleep(LOOK)
        try:
            while (there := sum(node["Alive"] for node in ray.nodes())) < self.nodes and monotonic() < ends:
                sleep(LOOK)
            cpus = int(ray.cluster_resources().get("CPU", 0))
        finally:
            ray.shutdown()
        self.tell(f"Ray at {address}: {there} of {self.nodes} nodes, {cpus} processors")
        if cpus < self.job.needs:
            needs = f"{self.job.needs} processors, one for each explorer and each learner beyond the first"
            raise UserError(
                f"fleet.explorers: the run needs {needs}; the nodes have {cpus}. Try more --nodes or --cpus."
            )

    def reached(self, ray: Any, address: str) -> bool:
        with suppress(Exception):  # of many kinds, while it starts
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            return True
        return False

    def train(self, address: str, session: Path) -> int:
        def mend(code: int) -> None:
            """Another head at the same address, where Ray is what was lost; the other nodes join it."""
            if code == ClusterLostError.code:
                end(self.head)
                self.head = self.start_head(address, session)
                self.gather(address)

        flags = [word for module in self.job.imports for word in ("--import", module)]
        where = f"fleet.address={address}"
        keeper = Restarter(lambda: begun(self.job.run), self.job.restarts, self.tell, mend)
        train = command("train", str(self.folder / "config.yaml"), where, *flags)
        return keeper.keep(train, command("resume", self.job.run, where, *flags), self.settings(self.host))

    # ------------------------------------------------------------ the others

    def follow(self) -> int:
        """A node of Ray's, until the first one has ended."""
        ends = monotonic() + MEET
        while not self.address.exists():
            if monotonic() > ends or self.ended.exists():
                raise UserError(f"launch slurm: node {self.rank} did not hear from the first one in {MEET:.0f} s.")
            sleep(LOOK)
        address, _, session = self.address.read_text().partition(" ")
        Path(session).mkdir(mode=0o700, exist_ok=True)  # Ray has the same folder on every node
        ray = self.start_ray(towards(address), f"--address={address}")
        while not self.ended.exists():  # an exit would end the job, and the run may be saving
            if ray.poll() is not None:  # the first node may have another head by now
                end(ray)
                ray = self.start_ray(towards(address), f"--address={address}")
            sleep(LOOK)
        end(ray)
        shutil.rmtree(session, ignore_errors=True)
        return 0


def run_node(folder: Path, tell: Callable[[str], None]) -> int:
    node = Node(folder, tell)
    if node.rank == 0:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and so through every `finally`
        return node.lead()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # slurm tells all of them; it is for the first one to save and end
    return node.follow()


def make_secret(file: Path) -> None:
    """A token that nobody else can read."""
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(secrets.token_hex(32))


def write(file: Path, text: str) -> None:
    """Whole, or not at all."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])


def towards(address: str) -> str:
    """Which address of this machine leads to another."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # sends nothing
        return str(probe.getsockname()[0])


def end(process: RunProcess) -> None:
    """At once, and all that it started."""
    process.kill()
    process.wait()
    process.clear()
