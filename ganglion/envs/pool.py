"""Environments stepped by worker processes, and the pool as an Env."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Sequence
from functools import partial
from math import isnan
from time import monotonic, perf_counter
from typing import Any, Literal

import numpy as np
import torch

from ganglion.core import Promise
from ganglion.envs.gym import GymEnv
from ganglion.envs.gym_arrays import Array
from ganglion.envs.pool_process import TRIES, LostError, Share, WorkerProcesses
from ganglion.envs.slots import ActionLog, EpisodePlaces, Finished, add_actions, episode_of, nobody
from ganglion.envs.worker import NAP
from ganglion.errors import EnvError, UserError

PATIENCE = 60.0  # seconds at least for starting, making environments, replaying; five time-outs where they are longer
REPLAY = 0.3  # seconds that replaying a worker's episodes may take; longer ones are cut
LOOK = 1.0  # seconds between two looks at the workers' memory
ALL = slice(None)


class Pool:
    """Slots walked by workers. `maker` is "module:function", called in a worker as `function(slot, **arguments)`.

    `timeout`: seconds for a step of one worker. `max_memory`: megabytes a worker may hold. `replay`: whether an episode
    repeats under its seed and actions, by which the slots of a lost worker are restored.
    """

    def __init__(
        self,
        maker: str,
        arguments: dict[str, Any],
        slots: int,
        workers: int,
        masks: bool | Literal["auto"] = "auto",
        limit: int = 0,
        timeout: float = 60.0,
        max_memory: float = 4096.0,
        replay: bool = True,
        spare: bool = True,
    ) -> None:
        self.timeout, self.max_memory, self.replay = timeout, max_memory, replay
        workers = min(workers, slots)
        bounds = [slots * i // workers for i in range(workers + 1)]
        self.shares = [Share(i, bounds[i], bounds[i + 1] - bounds[i]) for i in range(workers)]
        self.worker_processes = WorkerProcesses(maker, arguments, masks, limit, max(PATIENCE, 5 * timeout), spare)
        self.close = self.worker_processes.close
        try:
            self._block = block = self.worker_processes.start(self.shares)
        except BaseException:
            self.close()
            raise
        # Memory of our own for what has been acknowledged: workers write into theirs while ours is looked at.
        self.obs, self.masks, self.reward = (
            [array.copy() for array in block.obs],
            block.masks.copy(),
            block.reward.copy(),
        )
        self.flags = block.flags.copy()
        self.terminated, self.truncated, self.valid, self.lost, self.goes_on = self.flags
        self._pairs = [*zip(self.obs, block.obs, strict=True), (self.reward, block.reward)]
        self._pairs += [(self.masks, block.masks)] if block.masks.size else []
        self._all_valid = np.ones(slots, np.bool_).tobytes()
        self._asked, self._ready, self._sequence = block.asked.data, block.ready.data, block.sequence.data
        self._asleep: Any = block.asleep.data  # memoryviews are quicker for single numbers
        self._looked = monotonic()
        self.rows_acknowledged = self.rows_in_flight = self.rows_lost = 0
        self.replaced = self.worker_processes.replaced
        self.failures: list[dict[str, Any]] = []  # what went wrong since somebody looked
        self._clear(0)
        for loss in self.worker_processes.losses:
            self._blame(loss[0], None, *loss[1:])

    # ------------------------------------------------------------ walking

    def _clear(self, seed: int) -> None:
        self.seed = seed
        self.episode = [0] * len(self.reward)
        self._began = [share.tick for share in self.shares for _ in share.slots]  # the step an episode began with
        self._over: set[int] = set()  # slots whose episode has ended
        self.finished: list[Finished] = []
        self.hurt = False
        for share in self.shares:
            if share.pending is not None:
                raise RuntimeError("recv() what was sent before anything else")
            share.log = ActionLog()

    def _take_over(self, part: slice = ALL) -> None:
        """What workers have written becomes what is shown: one copy per array."""
        for own, shared in self._pairs:
            own[part] = shared[part]
        self.flags[:, part] = self._block.flags[:, part]

    def reset(self, seed: int) -> None:
        """Starts every slot's episode 0; what goes wrong here is raised."""
        self._clear(seed)
        for share in self.shares:
            self.worker_processes.members[share.index].tell({"do": "reset", "seed": seed})
        for share in self.shares:
            try:
                self.worker_processes.members[share.index].hear(self.worker_processes.patience)
            except LostError as error:
                self._recover(share, error, begun=False)
        self._take_over()

    def act(self, columns: list[Array]) -> None:
        """A step of every slot. `columns`, [B, ...] per leaf of the action, are kept: hand over memory of their own."""
        self.send(columns)
        self.recv()

    def send(self, columns: list[Array], workers: Sequence[int] | None = None) -> None:
        """Asks some workers, or all, for a step of their slots; only their rows of `columns` are read."""
        shares = self.shares if workers is None else [self.shares[i] for i in workers]
        for part in [ALL] if workers is None else [share.part for share in shares]:
            for shared, column in zip(self._block.actions, columns, strict=True):
                shared[part] = column[part]
        sent = perf_counter()
        for share in shares:
            if share.pending is not None:
                raise RuntimeError(f"worker {share.index} has been asked already")
            share.pending, share.sent = columns, sent
            share.tick += 1
            self._ask(share)

    def recv(self, least: int | None = None, workers: Sequence[int] | None = None) -> list[int]:
        """Waits for all that was asked for, of some workers or all, or for so many slots of it; says which are new.
        `obs`, `reward` and the flags show them."""
        asked = self.shares if workers is None else [self.shares[i] for i in workers]
        ready = [share for share in asked if share.pending is not None]
        self.hurt = False
        if least is None:
            for share in reversed(ready):  # the last to be woken is the last to be ready: one wait, not many
                self._wait(share)
            self._acknowledge(ready)
        else:
            ready = self._some(ready, least)
        if monotonic() - self._looked > LOOK:
            self._watch()
        return [slot for share in ready for slot in share.slots]

    def _ask(self, share: Share) -> None:
        """Asks for a step; a worker that does not sleep will see it."""
        self._asked[share.index] = share.tick
        if self._asleep[0, share.index]:
            self.worker_processes.members[share.index].wake()

    def _some(self, waiting: list[Share], least: int) -> list[Share]:
        """The shares that are ready first, of so many slots at least."""
        ready: list[Share] = []
        while waiting and sum(share.count for share in ready) < least:
            lost = [share for share in waiting if self.worker_processes.members[share.index].ended]
            new = lost or [share for share in waiting if abs(self._ready[share.index]) == share.tick]
            new = new or [share for share in waiting if perf_counter() - share.sent > self.timeout]
            for share in new:
                self._wait(share)
            ready += new
            waiting = [share for share in waiting if share not in new]
            if waiting and not new:
                self._sleep(waiting)
        self._acknowledge(ready)
        return ready

    def _sleep(self, waiting: list[Share]) -> None:
        """Until one of these workers says something, or dies."""
        poll = select.poll()
        for share in waiting:
            self._asleep[1, share.index] = 1
            poll.register(self.worker_processes.members[share.index].pipe, select.POLLIN)
        pipes = dict(poll.poll(NAP))
        for share in waiting:
            self._asleep[1, share.index] = 0
            if self.worker_processes.members[share.index].pipe in pipes:
                try:
                    self.worker_processes.members[share.index].doze(0)
                except LostError as error:
                    self._recover(share, error)

    def _wait(self, share: Share) -> None:
        """Until a worker's step is ready, and what failed in it is known; what is lost is replaced on the way."""
        ready, index = self._ready, share.index
        while True:
            try:
                self._watch_for(share)
                if ready[index] < 0:
                    self._note(share, self.worker_processes.members[index].hear(self.timeout)["failures"])
                break
            except LostError as error:
                self._recover(share, error)
        self._asleep[1, index] = 0
        took = (perf_counter() - share.sent) / share.count
        share.pace = min(took, 1.001 * share.pace) if share.pace else took  # others may have had the processor

    def _watch_for(self, share: Share) -> None:
        """Watches for a step for a moment, then sleeps."""
        index, tick, ready = share.index, share.tick, self._ready
        until = perf_counter() + self.worker_processes.spin
        while abs(ready[index]) != tick:
            if perf_counter() < until:
                os.sched_yield()
                continue
            self._asleep[1, index] = 1
            if abs(ready[index]) != tick:
                self.worker_processes.members[index].doze(NAP)
            if perf_counter() - share.sent > self.timeout and abs(ready[index]) != tick:
                raise LostError("timeout", f"no answer within {self.timeout:g} s")

    def _note(self, share: Share, failures: list[dict[str, Any]]) -> None:
        """Keeps failures until somebody looks, with the actions of their episodes, which are known here."""
        log = ActionLog()
        log.rows = share.log.rows if share.pending is None else [*share.log.rows, share.pending]
        for failure in failures:
            failure["actions"] = None
            if self.replay and failure["slot"] is not None:
                add_actions(failure, log, failure["slot"], len(self._block.actions))
            self.failures.append({**failure, "worker": share.index})

    def _acknowledge(self, ready: list[Share]) -> None:
        """Takes rows over, after a look at their sequence numbers; then the endings and the log."""
        for part in [ALL] if len(ready) == len(self.shares) else [share.part for share in ready]:
            self._take_over(part)
        for share in ready:
            if self._sequence[share.part].tolist() != [share.tick] * share.count:
                raise RuntimeError(f"rows of worker {share.index} are not of step {share.tick}")
            for slot in self._over.intersection(share.slots) if self._over else ():
                self._over.discard(slot)
                self.episode[slot] += 1
                self._began[slot] = share.tick
            self.rows_acknowledged += share.count
        if self.valid.tobytes() != self._all_valid:
            self._endings(ready)
        for share in ready:
            assert share.pending is not None
            if self.replay:
                share.log.append(share.pending, partial(self._lengths, share))
            share.pending, share.doomed = None, ()

    def _endings(self, ready: list[Share]) -> None:
        block = self._block
        for slot in [slot for share in ready for slot in share.slots if not self.valid[slot]]:
            if not self.goes_on[slot]:
                self._over.add(slot)
            if block.scored[slot]:
                size = int(block.info[slot, 0]) | int(block.info[slot, 1]) << 8
                info = json.loads(block.info[slot, 2 : 2 + size].tobytes())
                self.finished.append((slot, float(block.total[slot]), int(block.length[slot]), info))
            if self.truncated[slot] and not block.scored[slot]:
                self.hurt = True
                self.rows_lost += int(self.lost[slot])

    def over(self, slot: int) -> bool:
        return slot in self._over

    @property
    def length(self) -> list[int]:
        """Steps of each slot's episode so far."""
        return [length for share in self.shares for length in self._lengths(share)]

    def _lengths(self, share: Share) -> list[int]:
        tick = share.tick - (share.pending is not None)
        return [tick - self._began[slot] for slot in share.slots]

    def drain(self) -> list[Finished]:
        """The episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def tail(self, leaf: int, slot: int, count: int) -> list[Array]:
        """The last `count` actions of a slot."""
        share = next(share for share in self.shares if slot in share.slots)
        return share.log.tail(leaf, slot, count)

    # ------------------------------------------------------------ resuming

    def bring(self, place: EpisodePlaces) -> list[int]:
        """Brings every slot to where a state left it, whose observations `obs` holds; says which did not repeat."""
        self._clear(place.seed)
        self.episode = list(place.episode)
        self._over = {slot for slot, ended in enumerate(place.ended) if ended}
        ends = np.cumsum([0, *place.counts])
        for own, shared in self._pairs:
            np.copyto(shared, own)
        wrong: list[int] = []
        parts = []
        for share in self.shares:
            rows = slice(ends[share.first], ends[share.first + share.count])
            counts = place.counts[share.part]
            cut = [slot - share.first for slot in place.cut if slot in share.slots]
            columns = [column[rows] for column in place.columns]
            share.log.refill(place.columns, place.counts)
            for slot, count in zip(share.slots, counts, strict=True):
                self._began[slot] = share.tick - count
            parts.append(
                EpisodePlaces(place.seed, place.episode[share.part], place.ended[share.part], cut, counts, columns)
            )
            self._tell_place(share, parts[-1])
        for share in self.shares:
            try:
                said = self.worker_processes.members[share.index].hear(
                    self.worker_processes.patience + 0.05 * sum(parts[share.index].counts)
                )
                self._note(share, said["failures"])
                wrong += [share.first + slot for slot in said["wrong"]]
            except LostError as error:
                self._recover(share, error)
        self._take_over()
        return wrong

    def _tell_place(self, share: Share, place: EpisodePlaces) -> None:
        message = {**place._asdict(), "do": "bring"}
        pairs = zip(message.pop("columns"), self._block.actions, strict=True)
        payload = b"".join(column.astype(shared.dtype).tobytes() for column, shared in pairs)
        self.worker_processes.members[share.index].tell(message, payload)

    # ------------------------------------------------------------ what goes wrong

    def _watch(self) -> None:
        """Replaces workers that hold too much memory."""
        for share in self.shares:
            held = self.worker_processes.members[share.index].memory()
            if held > self.max_memory and share.pending is None:
                text = f"the worker held {held:.0f} MB, and env.max_memory allows {self.max_memory:.0f}"
                self._recover(share, LostError("memory", text))
        self._looked = monotonic()

    def _recover(self, share: Share, error: LostError, begun: bool = True) -> None:
        """Puts another worker in the place of a lost one: its slots are where they were before the step that was lost,
        but for the one that was being stepped, whose episode is cut; then the step is asked for again. Not `begun`: it
        was lost in the first reset, which is asked for again."""
        began = perf_counter()
        words = self.worker_processes.bury(share, error)
        culprit = self._culprit(share)
        share.doomed += () if culprit is None else (culprit,)
        self._blame(share, culprit, error, words)
        if share.pending is not None:  # not before its slots are where they were
            self._asked[share.index] = self._ready[share.index] = self._block.begun[share.index] = share.tick - 1
        cheap = self.replay and share.pace * sum(self._lengths(share)) < REPLAY
        for attempt in range(TRIES):
            try:
                self._restore(share, self._place(share, cheap and attempt == 0) if begun else None)
                break
            except (LostError, UserError) as again:
                if not begun and isinstance(again, UserError):
                    raise
                lost = again if isinstance(again, LostError) else LostError("raise", last_line(str(again)))
                self._blame(share, None, lost, self.worker_processes.bury(share, lost) or str(again))
        else:
            self._do_without(share, error, begun)
            return
        if share.pending is not None:
            share.sent = perf_counter()
            self._ask(share)
        self.replaced.append(perf_counter() - began)
        self.worker_processes.hire()

    def _do_without(self, share: Share, error: LostError, begun: bool) -> None:
        """No worker can be started: the episodes of its slots are cut where they were last seen, and the next step
        tries again. So it is failures that end a run, which is saved then."""
        if not begun:
            words = self.failures[-1]["traceback"]
            raise EnvError(f"env: the first reset failed: {error.error}.\n{words}".rstrip())
        if share.pending is None:
            return
        block, part = self._block, share.part
        for own, shared in self._pairs:
            shared[part] = own[part]
        block.reward[part] = 0.0
        terminated, truncated, valid, lost, goes_on = block.flags
        terminated[part] = valid[part] = goes_on[part] = block.scored[part] = False
        truncated[part] = True
        lost[part] = [slot not in self._over for slot in share.slots]
        block.sequence[part] = self._ready[share.index] = share.tick

    def _culprit(self, share: Share) -> int | None:
        """The slot that was being stepped, if one was: its reward is not there yet."""
        if share.pending is None:
            return None
        self.rows_in_flight += sum(slot not in self._over for slot in share.slots)
        if self._block.begun[share.index] != share.tick:
            return None
        reward, doomed = self._block.reward, share.doomed  # these are ended last
        return next((slot for slot in share.slots if slot not in doomed and isnan(reward[slot])), None)

    def _blame(self, share: Share, culprit: int | None, error: LostError, words: str) -> None:
        """Reports a lost worker with the episode that was being stepped."""
        failure = {"kind": error.kind, "error": error.error, "traceback": words}
        if culprit is None:
            self._note(share, [failure | nobody(self.seed)])
            return
        acting = culprit not in self._over
        step = self._lengths(share)[culprit - share.first] if acting else 0
        self._note(
            share, [failure | episode_of(self.seed, culprit, self.episode[culprit] + (not acting), step, acting)]
        )

    def _place(self, share: Share, replay: bool) -> EpisodePlaces:
        """Where a share's slots were before the step that was lost; an episode that could not begin is passed over."""
        running, doomed = [slot not in self._over for slot in share.slots], share.doomed
        kept = [runs and replay and slot not in doomed for slot, runs in zip(share.slots, running, strict=True)]
        cut = [i for i, slot in enumerate(share.slots) if (running[i] and not kept[i]) or slot in doomed]
        episode = [self.episode[slot] + (slot in doomed and slot in self._over) for slot in share.slots]
        counts = [length if keep else 0 for length, keep in zip(self._lengths(share), kept, strict=True)]
        columns = share.log.columns(share.slots, counts, [array[:0] for array in self._block.actions])
        return EpisodePlaces(self.seed, episode, [not runs for runs in running], cut, counts, columns)

    def _restore(self, share: Share, place: EpisodePlaces | None) -> None:
        """Has another worker take a share over, from its first reset where there is no place. What does not show the
        same again is cut."""
        self._block.scored[share.part] = False  # the one that is gone can no longer take them back
        for own, shared in self._pairs:
            shared[share.part] = own[share.part]
        self.worker_processes.replace(share)
        member = self.worker_processes.members[share.index]
        if place is None:
            member.ask({"do": "reset", "seed": self.seed}, self.worker_processes.patience)
            return
        self._tell_place(share, place)
        said = member.hear(self.timeout + 10 * REPLAY)  # an environment may hang here too
        if said["wrong"]:
            for own, shared in self._pairs:
                shared[share.part] = own[share.part]
            member.ask({"do": "cut", "slots": said["wrong"]}, self.timeout)


def last_line(text: str) -> str:
    """What a traceback comes to."""
    return text.rstrip().rpartition("\n")[2]


class PoolEnv(GymEnv):
    """A pool under the contract of an environment; `pool.send` and `pool.recv` are there for loops of one's own."""

    def __init__(
        self,
        pool: Pool,
        name: str = "",
        device: str | torch.device = "cpu",
        max_failures: int = 100,
    ) -> None:
        self.pool = pool
        promise: Promise = "replay" if pool.replay else "restart"
        form = pool.worker_processes.form
        self._walk(pool, form.obs, form.action, name, device, promise, max_failures)
        self.faults.pool = pool

    def render(self) -> Any:
        """Workers draw nothing: what is to be drawn is built with `render=True`, in this process."""
        return None
