"""Ray, started or joined safely: loopback and a token by default, nothing wider without one."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from ganglion.errors import ClusterLostError, UserError
from ganglion.fleet.fork_server import close_left
from ganglion.fleet.ray_thread import Health, RayThread
from ganglion.fleet.temporary_folders import PREFIX, disks, make_folder, table
from ganglion.processes import BESIDE

STORE = 512 * 1024 * 1024  # bytes of Ray's object store: items of explorers on this machine do not pass through it
LOOPBACK = ("127.0.0.1", "localhost", "::1")
NEARBY = "auto"  # as an address: whatever runs on this machine
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # tells nobody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed",  # the ray fleet says so itself, in a line
}
# Ray would make 127.0.0.1 a reachable address and listen on all of them; where it thinks that clusters are not
# supported, it keeps to loopback.
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
PRELOAD = {"preload_python_modules": ["ganglion.fleet.ray_actor"]}  # by the processes that will be explorer actors
START = 180.0  # seconds for Ray to start
SOCKET = "r/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"  # the longest name that Ray makes
MAX_SOCKET = 107  # characters of a socket's name
REMEDY = "Make one with `ray get-auth-token --generate`, and give all machines RAY_AUTH_MODE=token and the same token."
IMPORTED = "run.mode: ray was imported before, and would listen on all addresses. Build the run first."


class ClusterSettings(NamedTuple):
    """Which Ray: one that is there, at an address, or a new one that listens on a host."""

    address: str | None = None
    host: str = "127.0.0.1"
    processes: int = 2  # that are started, and import what they need, before anyone asks for them

    @property
    def where(self) -> str:
        """The host alone."""
        if self.address is None:
            return self.host
        return self.address.removeprefix("ray://").rpartition(":")[0].strip("[]") or self.address


_coming: dict[ClusterSettings, Future[Any]] = {}
_left = Event()
_made: list[str] = []  # files with tokens of our own
_private: list[Path] = []  # folders of this process
_lost: list[bool] = []


def begin_ray(site: ClusterSettings) -> None:
    """Starts it in a thread: Ray and torch take seconds each, and neither needs the other."""
    check_open(site, os.environ)
    change(site)
    if site not in _coming and not (ray_there() and import_ray().is_initialized()):
        future = _coming[site] = Future[Any]()
        Thread(target=lambda: settle(future, site), name="ray", daemon=True).start()


def change(site: ClusterSettings) -> None:
    """What was begun before all settings were read: taken, where it is the same Ray, else left."""
    for other in [other for other in _coming if other != site]:
        coming = _coming.pop(other)
        if other[:2] == site[:2]:  # it only has other processes ready
            _coming.setdefault(site, coming)
        elif coming.exception(START) is None:
            leave_ray()


def settle(future: Future[Any], site: ClusterSettings) -> None:
    """The thread stays until Ray is left: its processes end with the thread that started them."""
    try:
        ray = start_ray(site)
    except BaseException as error:  # told by whoever joins
        future.set_exception(error)
    else:
        _left.clear()
        future.set_result(ray)
        _left.wait()


def ray_there() -> bool:
    """Whether it has been imported."""
    return "ray" in sys.modules


def join_ray(site: ClusterSettings) -> tuple[Any, bool]:
    """Ray, ready for use, and whether it came with this call: then `leave_ray` is the caller's to call."""
    begin_ray(site)
    coming = _coming.pop(site, None)
    if coming is None:
        return import_ray(), False
    try:
        return coming.result(START), True
    except TimeoutError:
        lose_ray()
        raise ClusterLostError(f"run.mode: Ray has not started within {START:.0f} s.") from None


def start_ray(cfg: ClusterSettings) -> Any:
    """Settings first: Ray reads them when it is imported."""
    alone = cfg.where in LOOPBACK
    settings = {**QUIET, **(ALONE if alone else {})}
    if not cfg.address and "RAY_AUTH_MODE" not in os.environ:
        settings |= {} if has_token(os.environ) else {"RAY_AUTH_TOKEN_PATH": token()}
        settings |= {} if ray_there() else {"RAY_AUTH_MODE": "token"}  # else Ray sets it itself
    os.environ.update(settings)
    ray = import_ray()
    # Ray's workers would search the working folder first, unless the job is that of a client elsewhere.
    own = ray.job_config.JobConfig(_client_job=True, _py_driver_sys_path=list(BESIDE))
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "job_config": own}
    try:
        if cfg.address:
            ray.init(address=cfg.address, **quiet)
        else:
            where = {"address": "local"}  # a new one, though another may run here
            where |= {} if alone else {"_node_ip_address": cfg.host}
            where |= {"_temp_dir": session()} if session() else {}
            ray.init(
                num_cpus=cfg.processes, include_dashboard=False, object_store_memory=STORE, _system_config=PRELOAD,
                **where, **quiet,
            )  # fmt: skip
    except ConnectionError as error:
        told = "It may not be there, or the token may not be its own (RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH)."
        raise UserError(f"fleet.address: no Ray cluster could be joined at {cfg.address}. {told}") from error
    if wide(ray.util.get_node_ip_address()) and (not guarded(os.environ) if cfg.address else alone):
        ray.shutdown()
        raise UserError(unguarded(cfg) if cfg.address else IMPORTED)
    return ray


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError("run.mode: ray needs the package ray. Try: pip install 'ganglion[ray]'") from error
    return ray


def watch_ray(ray: Any) -> RayThread:
    """What talks to Ray, as long as Ray lives."""
    return RayThread(Health(ray), lose_ray)


def leave_ray() -> None:
    import_ray().shutdown()
    _left.set()


def lose_ray() -> None:
    """Ray is lost: it would wait for what is gone when this process ends, and so does not get to it."""
    if not _lost:
        _lost.append(True)
        atexit.register(end_lost)  # and so before Ray's own


def end_lost(code: int = ClusterLostError.code) -> None:
    """Ends this process at once where Ray is lost. Its processes end with whoever started them."""
    if _lost:
        for folder in _private:
            shutil.rmtree(folder, ignore_errors=True)
        close_left()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def check_open(cfg: ClusterSettings, environ: Mapping[str, str]) -> None:
    """Refuses to talk beyond this machine without a token."""
    if not wide(cfg.where):
        return
    if not guarded(environ):
        raise UserError(unguarded(cfg))


def unguarded(cfg: ClusterSettings) -> str:
    name = "address" if cfg.address else "host"
    return f"fleet.{name}: {cfg.where} can be reached from other machines, and Ray has no token. {REMEDY}"


def guarded(environ: Mapping[str, str]) -> bool:
    """Whether Ray asks everyone for a token."""
    return environ.get("RAY_AUTH_MODE", "token") == "token" and has_token(environ)


def wide(host: str) -> bool:
    """Whether others can reach it."""
    return host not in (*LOOPBACK, NEARBY)


def has_token(environ: Mapping[str, str]) -> bool:
    """Whether there is a token of the user's: one made here is for a cluster made here."""
    file = environ.get("RAY_AUTH_TOKEN_PATH")
    return bool(environ.get("RAY_AUTH_TOKEN") or (file and file not in _made))


def private(where: Path | None = None) -> Path:
    """A folder that nobody else can read; gone with the process."""
    folder = make_folder(where)
    _private.append(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def session() -> str:
    """Where Ray has its sockets and logs, which it lets everybody write to: in a folder that nobody else can enter. On
    a disk, for logs grow; Ray's own choice where there is none that will do."""
    disk = room(f"{PREFIX}{os.getpid()}-{table()}-12345678")
    return str(private(disk) / "r") if disk else ""


def room(name: str) -> Path | None:
    """The disk on which a folder of that name may hold Ray's sockets: their names must be short."""
    fits = (disk for disk in disks() if len(str(disk / name / SOCKET)) <= MAX_SOCKET and os.access(disk, os.W_OK))
    return next(fits, None)


@cache
def token() -> str:
    """A file with a token for this process and its own cluster, which nobody else can read; gone with the process."""
    file = private() / "token"
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(secrets.token_hex(32))
    _made.append(str(file))
    return str(file)
