"""Worker processes of a pool: started, spoken to through pipes, watched, ended."""

from __future__ import annotations

import json
import mmap
import os
import platform
import select
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from time import monotonic, perf_counter, sleep
from typing import Any, Literal

from ganglion.envs.gym_arrays import Array
from ganglion.envs.gym_make import plain
from ganglion.envs.pool_layout import Block, PoolForm, decode, lay, outline
from ganglion.envs.slots import ActionLog
from ganglion.envs.worker import MESSAGE, WAKE, frame, push, read_frame
from ganglion.errors import EnvError, UserError

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # workers are the parallelism
LAST_WORDS = 0.3  # seconds for a worker that hangs to say where


class LostError(Exception):
    """A worker died, or did not answer in time."""

    def __init__(self, kind: str, error: str) -> None:
        super().__init__(error)
        self.kind, self.error = kind, error


class WorkerProcess:
    """A worker process and the two pipes to it. `load` is its first message: what to import."""

    def __init__(self, block: int, load: dict[str, Any]) -> None:
        into, self._tell = os.pipe()
        self._hear, out = os.pipe()
        self._trace = os.memfd_create("ganglion-trace")
        self._poll = select.poll()
        self._poll.register(self._hear, select.POLLIN)
        bound = threading.current_thread() is threading.main_thread()  # else it would die with that thread
        words = [into, out, block, self._trace, os.getpid(), int(bound)]
        command = [sys.executable, "-P", "-m", "ganglion.envs.worker", *map(str, words)]
        paths = os.pathsep.join(path for path in sys.path if path)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(into, out, block, self._trace),
                env={**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONPATH": paths},
                process_group=0,  # Ctrl-C goes to the pool alone
            )
        finally:
            os.close(into)
            os.close(out)
        self.pid = self.process.pid
        self.answered = False
        self._head = WAKE  # the first byte of a message, where it has been read
        self.tell({"do": "load", **load})

    # ------------------------------------------------------------ speaking

    def wake(self) -> None:
        """Has it look at what is asked for. One that has died is noticed by whoever waits for its answer."""
        if not self.ended:
            with suppress(BrokenPipeError):
                os.write(self._tell, WAKE)

    def tell(self, message: dict[str, Any], payload: bytes = b"") -> None:
        """Sends a message. One that has died is noticed by whoever waits for its answer."""
        if not self.ended:
            with suppress(BrokenPipeError):
                push(self._tell, frame(message, payload))

    def ask(self, message: dict[str, Any], seconds: float, payload: bytes = b"") -> dict[str, Any]:
        """Tells and hears."""
        self.tell(message, payload)
        return self.hear(seconds)

    def ready(self, seconds: float) -> None:
        """Waits until it has imported what it needs."""
        if not self.answered:
            self.hear(seconds)
            self.answered = True

    def hear(self, seconds: float) -> dict[str, Any]:
        """Its next message. What it could not do is raised."""
        self._check()
        word, self._head = self._head, WAKE
        while word == WAKE:
            if not self._poll.poll(seconds * 1000):
                raise LostError("timeout", f"no answer within {seconds:g} s")
            word = os.read(self._hear, 1)
        if word != MESSAGE:
            raise self.death()
        try:
            message, _ = read_frame(self._hear)
        except ValueError:  # it died in the middle of a message
            raise self.death() from None
        if "error" in message:
            raise (UserError if message["user"] else EnvError)(message["error"])
        return message

    def doze(self, milliseconds: float) -> None:
        """Sleeps until it says something; one that has died is noticed."""
        self._check()
        if self._head == WAKE and self._poll.poll(milliseconds):
            self._head = os.read(self._hear, 1)
            if not self._head:
                raise self.death()

    @property
    def pipe(self) -> int:
        """What becomes readable when it has said something."""
        return self._hear

    # ------------------------------------------------------------ ending

    @property
    def ended(self) -> bool:
        """Whether it was hung up on."""
        return self._tell < 0

    def _check(self) -> None:
        if self.ended:
            raise LostError("death", "no worker could be started")

    def death(self) -> LostError:
        """How it died."""
        try:
            code = self.process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:  # an environment may close what is not its own
            return LostError("death", "the worker closed its pipes")
        if code < 0:
            name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
            return LostError("death", f"the worker was ended by {name}")
        return LostError("death", f"the worker ended with code {code}")

    def last_words(self, hangs: bool) -> str:
        """The stack it left behind; one that hangs is asked for it."""
        if hangs:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGUSR1)
            until = monotonic() + LAST_WORDS
            while os.fstat(self._trace).st_size == 0 and monotonic() < until:
                sleep(0.005)
            sleep(0.01)  # the rest of it
        return os.pread(self._trace, 1 << 16, 0).decode(errors="replace") if self._trace >= 0 else ""

    def memory(self) -> float:
        """The megabytes it holds."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        except (OSError, IndexError):
            return 0.0

    def hang_up(self) -> None:
        """Ends its pipe: it closes its environments and exits."""
        if self._tell >= 0:
            os.close(self._tell)
            self._tell = -1

    def end(self, seconds: float = 0.0) -> None:
        """Waits so long for it to exit, then kills it; nothing of it is left."""
        self.hang_up()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for file in (self._hear, self._trace):
            if file >= 0:
                os.close(file)
        self._hear = self._trace = -1


SPIN = 100e-6  # seconds
GOODBYE = 3.0  # seconds for all workers to close their environments
TRIES = 3  # workers started for one that was lost


class Share:
    """What one worker walks: its slots, and what it is owed and has got."""

    def __init__(self, index: int, first: int, count: int) -> None:
        self.index, self.first, self.count = index, first, count
        self.slots = range(first, first + count)
        self.part = slice(first, first + count)
        self.tick = 0  # steps asked for
        self.pending: list[Array] | None = None  # the actions of a step that is not yet acknowledged
        self.doomed: tuple[int, ...] = ()  # slots whose part of that step ended a worker: they are cut
        self.sent = 0.0
        self.pace = 0.0  # seconds that a step of one slot takes, smoothed
        self.log = ActionLog()


class WorkerProcesses:
    """One worker per share, and a spare. `patience`: seconds for starting and for making environments."""

    def __init__(
        self,
        maker: str,
        arguments: dict[str, Any],
        masks: bool | Literal["auto"],
        limit: int,
        patience: float,
        spare: bool,
    ) -> None:
        if not hasattr(os, "memfd_create"):
            raise UserError("env.workers: worker processes need Linux; set it to 0")
        if not isinstance(maker, str):
            raise UserError(
                "a pool makes environments in other processes: name the function that makes one, 'module:function', "
                f"instead of passing {maker!r}"
            )
        self.patience, self.spare = patience, spare
        self._load = {"path": sys.path, "maker": maker, "arguments": plain("env.options", arguments)}
        self._take = {"do": "take", "limit": limit, "masks": masks}
        self._file = os.memfd_create("ganglion-slots")
        self.members: list[WorkerProcess] = []
        self._spares: list[WorkerProcess] = []
        self.close = weakref.finalize(self, end, self.members, self._spares, self._file)
        self.form: PoolForm
        self.mapped = False  # whether the block has its size
        self.replaced: list[float] = []  # the seconds each replacement took
        self.losses: list[tuple[Share, LostError, str]] = []  # workers that died while they were started
        self.spin = 0.0  # seconds that workers and pool watch for one another before they sleep

    def start(self, shares: list[Share]) -> Block:
        """Starts all workers at once, learns the spaces from them, and maps the block."""
        self.members.extend(self._begin(warm=False) for _ in shares)
        for share in shares:
            self.members[share.index].tell(self._taking(share))
        looks = [self._insist(share) for share in shares]
        check_same(shares, looks)
        obs, action = decode(looks[0]["obs"]), decode(looks[0]["action"])
        self.spin = watching(len(looks))
        self.form = PoolForm(obs, action, looks[0]["masked"], shares[-1].slots.stop, len(looks))
        _, size = lay(self.form)
        os.ftruncate(self._file, size)
        self.mapped = True
        for share in shares:
            self.members[share.index].tell(self._mapping(share))
        for share in shares:
            self._insist(share)
        self.hire()
        block, _ = lay(self.form, mmap.mmap(self._file, size))
        assert block is not None
        return block

    def _insist(self, share: Share) -> dict[str, Any]:
        """The answer of a share's worker, or of another where it dies before it can give one."""
        try:
            self.members[share.index].ready(self.patience)
            return self.members[share.index].hear(self.patience)
        except LostError as error:
            lost, began = error, perf_counter()
        for _ in range(TRIES):
            self.losses.append((share, lost, self.bury(share, lost)))
            try:
                look = self.replace(share)
                self.replaced.append(perf_counter() - began)
                return look
            except LostError as error:
                lost = error
        words = self.bury(share, lost)
        raise EnvError(f"env: a worker could not be started: {lost.error}.\n{words}".rstrip()) from lost

    def _begin(self, warm: bool) -> WorkerProcess:
        return WorkerProcess(self._file, {**self._load, "warm": warm})

    def _taking(self, share: Share) -> dict[str, Any]:
        return {**self._take, "first": share.first, "count": share.count}

    def _mapping(self, share: Share) -> dict[str, Any]:
        own = {"do": "map", "index": share.index, "spin": self.spin}
        return {**own, "slots": self.form.slots, "workers": self.form.workers, "outline": outline(self.form)}

    def bury(self, share: Share, lost: LostError) -> str:
        """Ends a share's worker, which is dead or does not answer; its last words."""
        member = self.members[share.index]
        words = member.last_words(lost.kind == "timeout")
        member.end()
        return words

    def replace(self, share: Share) -> dict[str, Any]:
        """Another worker for a share whose own has ended: the spare, if it lives. What its environments look like."""
        while self._spares and self._spares[-1].process.poll() is not None:  # it may have been killed, too
            self._spares.pop().end()
        member = self._spares.pop() if self._spares else self._begin(warm=False)
        self.members[share.index] = member
        member.ready(self.patience)
        look = member.ask(self._taking(share), self.patience)
        if self.mapped:
            member.ask(self._mapping(share), self.patience)
        return look

    def hire(self) -> None:
        """Starts a spare, which imports in the background."""
        if self.spare and not self._spares:
            self._spares.append(self._begin(warm=True))

    def pids(self) -> list[int]:
        """The processes that walk the shares."""
        return [member.pid for member in self.members]


def watching(workers: int) -> float:
    """How long both sides watch: not at all where watchers would be in each other's way, or where memory is not seen in
    the order it was written in."""
    ordered = platform.machine() in ("x86_64", "AMD64")
    return SPIN if ordered and workers <= len(os.sched_getaffinity(0)) else 0.0


def check_same(shares: list[Share], looks: list[dict[str, Any]]) -> None:
    """Refuses workers whose environments have other spaces than the first's."""
    for share, look in zip(shares, looks, strict=True):
        for key in ("obs", "action", "masked"):
            if look[key] != looks[0][key]:
                ours, first = (json.dumps(one[key])[:200] for one in (look, looks[0]))
                raise UserError(
                    f"env.per_slot: all slots need the same spaces: slot {share.first} has {ours}, slot 0 {first}"
                )


def end(members: list[WorkerProcess], spares: list[WorkerProcess], file: int) -> None:
    """Ends every worker: asked first, killed where that takes too long."""
    for member in (everyone := [*members, *spares]):
        member.hang_up()
    until = monotonic() + GOODBYE
    for member in everyone:
        member.end(max(until - monotonic(), 0.0))
    members.clear()
    spares.clear()
    os.close(file)
