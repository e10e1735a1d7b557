"""A worker process of a pool: walks some slots and writes what they see into shared memory.

It imports numpy, gymnasium and the environment, never torch. Steps are asked for and answered by numbers in shared
memory, which both sides watch for a moment before they sleep; a byte on a pipe wakes a sleeper. Everything else
(starting, resuming, what went wrong) is JSON with its length before it, on the same pipes. The process ends when its
pipe does, so that none outlives the pool.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import mmap
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ganglion.envs.gym_arrays import Array, action_leaves
from ganglion.envs.gym_make import by_name
from ganglion.envs.pool_layout import INFO, Block, PoolForm, check_outline, encode, lay, outline
from ganglion.envs.slots import EpisodePlaces, Finished, Make, Slots, check_alike, mask_size
from ganglion.errors import EnvError, UserError
from ganglion.faults import close_all, place, told

WAKE, MESSAGE = b".", b"m"
NAP = 50  # milliseconds of sleep after which a byte that went astray is no longer missed
PR_SET_NAME, PR_SET_PDEATHSIG = 15, 1


def exactly(pipe: int, size: int) -> bytes:
    """So many bytes of a pipe; fewer where it has ended."""
    parts = []
    while size > 0:
        part = os.read(pipe, min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def frame(message: dict[str, Any], payload: bytes = b"") -> bytes:
    """A message as it travels, raw bytes after it."""
    text = json.dumps({**message, "bytes": len(payload)}).encode()
    return MESSAGE + len(text).to_bytes(4, "little") + text + payload


def read_frame(pipe: int) -> tuple[dict[str, Any], bytes]:
    """The rest of a message whose first byte has been read."""
    text = exactly(pipe, int.from_bytes(exactly(pipe, 4), "little"))
    message: dict[str, Any] = json.loads(text)
    return message, exactly(pipe, message["bytes"])


def push(pipe: int, data: bytes) -> None:
    """Writes all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


class Worker:
    """One process's share of the slots."""

    def __init__(self, into: int, out: int, block: int) -> None:
        self.into, self.out, self.file = into, out, block
        self.make: Make
        self.envs: list[Any] = []
        self.masked = self.first = self.limit = self.index = 0
        self.slots: Slots
        self.block: Block
        self.actions: list[Array] = []
        self.asked = self.begun = self.ready = np.zeros(1, np.int64).data
        self.asleep: Any = np.zeros((2, 1), np.int64).data
        self.last = 0  # the step that was asked for last
        self.spin = 0.0  # seconds to watch before sleeping
        self.sequence: Array
        self.poll = select.poll()
        self.poll.register(into, select.POLLIN)
        self.shown: list[int] = []  # slots whose score is on show

    def run(self) -> None:
        """Answers until the pool is gone."""
        while True:
            while self.wanted():
                self.step()
            word = self.sleep()
            if word == MESSAGE:
                self.answer(*read_frame(self.into))
            elif not word:
                break
        close_all(self.envs)

    def wanted(self) -> bool:
        """Watches for a moment whether a step is asked for."""
        asked, index, last = self.asked, self.index, self.last
        until = perf_counter() + self.spin
        while asked[index] == last:
            if perf_counter() > until:
                return False
            os.sched_yield()
        return True

    def sleep(self) -> bytes:
        """What comes by the pipe, nothing when it has ended; a byte to wake up by when a step is asked for."""
        self.asleep[0, self.index] = 1
        while self.asked[self.index] == self.last:
            if self.poll.poll(NAP):
                break
        self.asleep[0, self.index] = 0
        return os.read(self.into, 1) if self.poll.poll(0) else WAKE

    def answer(self, message: dict[str, Any], payload: bytes) -> None:
        try:
            answer = getattr(self, f"on_{message.pop('do')}")(message, payload)
        except BaseException as error:  # an environment may call sys.exit() anywhere
            known = isinstance(error, UserError)
            text = str(error) if known else f"env: {told(error)} ({place(error)})"
            answer = {"error": text, "user": known and not isinstance(error, EnvError)}
        push(self.out, frame(answer))

    def step(self) -> None:
        """The step that is asked for; the sequence numbers say which one the rows belong to."""
        self.last = asked = self.asked[self.index]
        self.begun[self.index] = asked
        if self.shown:
            self.block.scored[self.shown] = False
            self.shown = []
        slots = self.slots
        slots.act([column.copy() for column in self.actions])  # an environment may keep what it is given
        if slots.finished:
            for finished in slots.drain():
                self.score(finished)
        self.sequence[...] = asked
        if slots.failures:
            failures, slots.failures = slots.failures, []
            self.ready[self.index] = -asked
            push(self.out, frame({"failures": failures}))
            return
        self.ready[self.index] = asked
        if self.asleep[1, self.index]:
            os.write(self.out, WAKE)

    def score(self, finished: Finished) -> None:
        """Shows an episode's score; info that has no room is left out."""
        slot, total, length, info = finished
        text = json.dumps(info).encode()
        while len(text) > INFO - 2:
            info.popitem()
            text = json.dumps(info).encode()
        self.block.total[slot], self.block.length[slot] = total, length
        self.block.info[slot, :2] = len(text) & 255, len(text) >> 8
        self.block.info[slot, 2 : 2 + len(text)] = np.frombuffer(text, np.uint8)
        self.block.scored[slot] = True
        self.shown.append(slot)

    # ------------------------------------------------------------ messages

    def on_load(self, message: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """Imports what makes the environments; a spare makes one, so that all it needs has been imported."""
        sys.path[:] = message["path"]
        self.make = partial(by_name(message["maker"]), **message["arguments"])
        if message["warm"]:
            close_all([self.make(0)])
        return {"loaded": True}

    def on_take(self, message: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """Makes the environments of some slots, and says what they look like."""
        self.first, self.limit = message["first"], message["limit"]
        self.envs = [self.make(self.first + slot) for slot in range(message["count"])]
        for slot, env in enumerate(self.envs):
            check_alike(self.first + slot, env, self.envs[0])
        self.masked = mask_size(self.envs[0], message["masks"])
        one = self.envs[0]
        return {"obs": encode(one.observation_space), "action": encode(one.action_space), "masked": self.masked}

    def on_map(self, message: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """Maps the shared block, whose size is known once all spaces are."""
        self.index, self.spin = message["index"], message["spin"]
        one, count = self.envs[0], len(self.envs)
        form = PoolForm(one.observation_space, one.action_space, self.masked, message["slots"], message["workers"])
        check_outline(self.first, outline(form), message["outline"])
        _, size = lay(form)
        block, _ = lay(form, mmap.mmap(self.file, size))
        assert block is not None
        self.block = block
        self.asked, self.begun, self.ready = block.asked.data, block.begun.data, block.ready.data
        self.asleep, self.last = block.asleep.data, block.asked.data[self.index]
        self.sequence = block.sequence[self.first : self.first + count]
        self.actions = [array[self.first : self.first + count] for array in block.actions]
        arrays = block.views(self.first, count)
        self.slots = Slots(self.envs, self.masked, self.limit, self.first, self.make, arrays)
        self.slots.passes = ()  # Ctrl-C is not heard here
        self.envs = self.slots.envs
        return {"mapped": os.getpid()}

    def on_reset(self, message: dict[str, Any], payload: bytes) -> dict[str, Any]:
        self.slots.reset(message["seed"])
        return {"failures": []}

    def on_bring(self, message: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """Brings the slots to where they were, by replaying their actions."""
        columns, start = [], 0
        rows = sum(message["counts"])
        for leaf in action_leaves(self.envs[0].action_space):
            dtype, shape = np.dtype(leaf.dtype), (rows, *leaf.shape)
            size = dtype.itemsize * int(np.prod(shape))
            columns.append(np.frombuffer(payload[start : start + size], dtype).reshape(shape).copy())
            start += size
        names = ("seed", "episode", "ended", "cut", "counts")
        wrong = self.slots.bring(EpisodePlaces(**{name: message[name] for name in names}, columns=columns))
        failures, self.slots.failures = self.slots.failures, []
        return {"wrong": wrong, "cut": sorted(self.slots.cut), "failures": failures}

    def on_cut(self, message: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """Gives up running episodes: the next step ends them."""
        self.slots.cut.update(message["slots"])
        return {}

    def on_modules(self, message: dict[str, Any], payload: bytes) -> dict[str, Any]:
        """What has been imported so far: for tests."""
        return {"modules": sorted(sys.modules)}


def obey_parent(parent: int, bound: bool) -> None:
    """Signals: Ctrl-C is the pool's affair, and a pool that is killed takes its workers along."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        system = ctypes.CDLL(None, use_errno=True)
        system.prctl(PR_SET_NAME, b"ganglion-env", 0, 0, 0)
        if bound:
            system.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)


def main() -> None:
    """into out block trace parent bound: file descriptors, the pool's process id, and whether to die with it."""
    into, out, block, trace, parent, bound = map(int, sys.argv[1:7])
    obey_parent(parent, bool(bound))
    faulthandler.enable(trace)
    faulthandler.register(signal.SIGUSR1, trace)  # how a worker that hangs says where
    try:
        Worker(into, out, block).run()
    except BrokenPipeError:
        return
    except BaseException:
        with suppress(OSError):  # an environment may have closed what is not its own
            push(trace, traceback.format_exc().encode())
        os._exit(1)


if __name__ == "__main__":
    main()
