"""The worker processes of a pool: starting them, keeping a spare that has already imported, ending all of them."""

from __future__ import annotations

import json
import mmap
import os
import platform
import sys
import weakref
from time import monotonic, perf_counter
from typing import Any, Literal

from ganglion.envs.actionlog import ActionLog
from ganglion.envs.arrays import Array
from ganglion.envs.making import plain
from ganglion.envs.member import LostError, Member
from ganglion.envs.shared import Block, Form, decode, lay, outline
from ganglion.errors import EnvError, UserError

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


class Crew:
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
        self.members: list[Member] = []
        self._spares: list[Member] = []
        self.close = weakref.finalize(self, end, self.members, self._spares, self._file)
        self.form: Form
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
        self.form = Form(obs, action, looks[0]["masked"], shares[-1].slots.stop, len(looks))
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

    def _begin(self, warm: bool) -> Member:
        return Member(self._file, {**self._load, "warm": warm})

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


def end(members: list[Member], spares: list[Member], file: int) -> None:
    """Ends every worker: asked first, killed where that takes too long."""
    for member in (everyone := [*members, *spares]):
        member.hang_up()
    until = monotonic() + GOODBYE
    for member in everyone:
        member.end(max(until - monotonic(), 0.0))
    members.clear()
    spares.clear()
    os.close(file)
