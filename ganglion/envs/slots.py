"""Gymnasium environments stepped one by one: seeds, limits, masks, failures, and the actions kept for a replay."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice, takewhile
from math import isfinite
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np

from ganglion.envs.gym_arrays import MASK, Acts, Array, MisfitError, batch, leaves
from ganglion.envs.gym_make import trusting
from ganglion.envs.legal_actions import entries
from ganglion.envs.seeds import episode_seed
from ganglion.errors import UserError
from ganglion.faults import TRACE, broken, close_all, misfit, name_of, told


class ActionLog:
    """The latest actions of some slots, as long as the longest of their running episodes."""

    def __init__(self) -> None:
        self.rows: list[list[Array]] = []  # one list of columns, [B, ...] each, per step
        self.room = 256

    def append(self, columns: list[Array], lengths: Callable[[], Sequence[int]]) -> None:
        """Adds a step, and now and then forgets what lies before the longest running episode."""
        self.rows.append(columns)
        if len(self.rows) >= self.room:
            longest = max(lengths()) + 1  # a failed episode is one longer than it got
            del self.rows[: max(0, len(self.rows) - longest)]
            self.room = 2 * longest + 256

    def tail(self, leaf: int, slot: int, count: int) -> list[Array]:
        """The last `count` actions of a slot."""
        return [row[leaf][slot] for row in self.rows[len(self.rows) - count :]]

    def columns(self, slots: Sequence[int], counts: Sequence[int], empty: Sequence[Array]) -> list[Array]:
        """The last actions of some slots, so many of each, slot after slot."""
        found = []
        for leaf, none in enumerate(empty):
            rows = [a for slot, count in zip(slots, counts, strict=True) for a in self.tail(leaf, slot, count)]
            found.append(np.stack(rows) if rows else none)
        return found

    def refill(self, columns: Sequence[Array], counts: Sequence[int]) -> None:
        """Holds replayed actions alone, each slot's at its end; `columns` have them slot after slot."""
        ends = np.cumsum(counts)
        self.rows, self.room = [], 2 * max(counts, default=0) + 256
        for back in range(max(counts, default=0), 0, -1):
            rows = np.maximum(ends - back, 0)  # slots with shorter episodes get rows nobody will read
            self.rows.append([column[rows] for column in columns])


class EpisodePlaces(NamedTuple):
    """Where some slots are: each in the middle of an episode, at its end, or in an episode that is lost."""

    seed: int
    episode: list[int]
    ended: list[bool]
    cut: list[int]  # slots whose running episode cannot be continued
    counts: list[int]  # actions taken since the episode began, 0 where it has ended or is cut
    columns: list[Array]  # those actions, slot after slot


Finished = tuple[int, float, int, dict[str, float]]  # slot, total, length, info: what becomes a core.Episode
Make = Callable[[int], gymnasium.Env[Any, Any]]  # a slot of the run -> its environment
GOES_ON = "_goes_on"  # in the info of an ending: the game is not over (a life was lost), the next reset continues it


class Views(NamedTuple):
    """The arrays of some slots, [B, ...] each: memory of their own, or a part of a block that processes share."""

    obs: list[Array]
    masks: Array  # [B, n] from info; n is 0 where there are none
    reward: Array  # float64; NaN while a slot is being stepped, and so of the one that was when a process died
    terminated: Array
    truncated: Array
    valid: Array
    lost: Array  # the action just taken was lost with its episode: the row before is not to be learned from
    goes_on: Array  # an ending inside a game: the same episode for seeds, scores and replays


def views(obs: list[Array], masked: int) -> Views:
    """Arrays in memory of their own."""
    count = len(obs[0])
    flags = [np.zeros(count, np.bool_) for _ in range(5)]
    return Views(obs, np.ones((count, masked), np.bool_), np.zeros(count), *flags)


def part(whole: Any, rows: slice) -> Views:
    """The arrays of some slots of a whole, which has them in `obs`, `masks`, `reward` and `flags`: the same memory."""
    return Views([array[rows] for array in whole.obs], whole.masks[rows], whole.reward[rows], *whole.flags[:, rows])


class Slots:
    """The slots first .. first + len(envs) - 1 of a run; the arrays hold what they saw last.

    `limit` truncates episodes after so many steps (0: never); counting here is cheaper than a wrapper per slot.
    An environment that raises, or returns NaN or what its spaces do not promise, loses its episode: it is cut as
    truncated, reported in `failures`, and the environment is made again by `make`.
    """

    passes: type[BaseException] | tuple[()] = KeyboardInterrupt  # which is not the environment's; nor is it a worker's

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        masked: int = 0,
        limit: int = 0,
        first: int = 0,
        make: Make | None = None,
        arrays: Views | None = None,
    ) -> None:
        count = len(envs)
        self.envs = list(envs)
        self.make = make
        self._steps = [env.step for env in envs]  # bound once: this loop is the price of every slot
        self.first = first
        self.limit = limit
        self.seed = 0
        space = envs[0].observation_space
        self.obs, self._write = batch(space, count, arrays.obs if arrays else None)
        plain = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and self.obs[0].dtype == space.dtype
        self._lines = [memoryview(row) for row in self.obs[0]] if plain else []  # by slot: the quick way to write
        own = arrays or views(self.obs, masked)
        self.masks, self.reward, self.terminated, self.truncated, self.valid, self.lost, self.goes_on = own[1:]
        reals = [array for leaf, array in zip(leaves(space), self.obs, strict=True) if array.dtype.kind == "f"]
        self._reals = [(array, array.copy(), array.reshape(-1)) for array in reals]  # with what was seen before
        self.ended = [False] * count  # the next step resets
        self.episode = [0] * count
        self.length = [0] * count
        self.total = [0.0] * count
        self.info: list[dict[str, list[float]]] = [{} for _ in envs]  # key -> [sum, count] over the running episode
        self.finished: list[Finished] = []
        self.failures: list[dict[str, Any]] = []  # what went wrong since somebody looked
        self.hurt = False  # some row of the last step was lost
        self.marked = True  # some flag of the last step is up
        self.cut: set[int] = set()  # running episodes lost in a restart: the next step says they were truncated
        self.log: ActionLog | None = None  # kept by whoever can be asked to replay
        self._acts = Acts(envs[0].action_space)
        if self._acts.plain:
            for env in envs:
                trusting(env)

    def reset(self, seed: int) -> None:
        """Starts every slot's episode 0; what goes wrong here is raised."""
        self.seed = seed
        self.finished = []
        self.failures = []
        self.cut = set()
        self._clear()
        for slot, env in enumerate(self.envs):
            with first_call(env):
                self.begin(slot, 0)
        for slot in self._unreal():
            with first_call(self.envs[slot]):
                raise MisfitError(f"the first observation of slot {self.first + slot} is not finite")

    def step(self, actions: Sequence[Any]) -> None:
        """Acts in every slot, or resets it where its episode has ended."""
        self._clear()
        before = len(self.finished)
        if self.cut:
            self._walk_uncut(actions)
        else:
            self._walk(enumerate(actions))
        for _, _, flat in self._reals:
            if not isfinite(flat.dot(flat)):  # the cheapest look at all of them
                self._refuse(before)

    def _walk_uncut(self, actions: Sequence[Any]) -> None:
        """The first step after a restart: running episodes are over, and this step says so."""
        cut, self.cut = self.cut, set()
        self._walk(pair for pair in enumerate(actions) if pair[0] not in cut)
        for slot in cut:
            self._end_cut(slot)

    def act(self, columns: list[Array]) -> None:
        """A step from columns of actions, [B, ...] each, which are logged where a log is kept."""
        known = len(self.failures)
        self.step(self._acts.each(columns))
        log = self.log
        if log is not None:
            log.append(columns, self._lengths)
            for failure in self.failures[known:] if len(self.failures) > known else ():
                add_actions(failure, log, failure["slot"] - self.first, len(columns))

    def _lengths(self) -> list[int]:
        return self.length

    def bring(self, place: EpisodePlaces) -> list[int]:
        """Brings every slot to where a state left it, whose observations `obs` holds. Says which slots did not show
        the same again: those whose episode failed or ended on the way are cut by the next step."""
        self.seed = place.seed
        self.episode, self.ended, self.cut = list(place.episode), list(place.ended), set(place.cut)
        self.length = [0] * len(self.envs)
        self._clear()
        self.goes_on.fill(False)
        taken, left = iter(self._acts.each(place.columns)), [array.copy() for array in self.obs]
        running = [slot for slot, ended in enumerate(place.ended) if not ended and slot not in self.cut]
        for slot in running:
            self.replay(slot, self.episode[slot], list(islice(taken, place.counts[slot])))
        wrong = [slot for slot in running if not self._shows(slot, left)]
        for slot in filter(self.over, wrong):
            self.ended[slot] = False
            self.cut.add(slot)
            for array, before in zip(self.obs, left, strict=True):
                array[slot] = before[slot]
        if self.log is not None:
            self.log.refill(place.columns, place.counts)
        self.finished = []
        return wrong

    def _shows(self, slot: int, seen: list[Array]) -> bool:
        """Whether a slot has not ended and shows what was seen."""
        pairs = zip(self.obs, seen, strict=True)
        same = (np.array_equal(now[slot], was[slot], equal_nan=now.dtype.kind == "f") for now, was in pairs)
        return not self.over(slot) and all(same)

    def _clear(self) -> None:
        for array, before, _ in self._reals:
            before[...] = array
        self.reward.fill(np.nan)
        if self.marked:
            self.marked = self.hurt = False
            self.terminated.fill(False)
            self.truncated.fill(False)
            self.valid.fill(True)
            self.lost.fill(False)

    def begin(self, slot: int, episode: int) -> None:
        """Resets one slot to the start of an episode."""
        self.episode[slot] = episode
        self.length[slot] = 0
        self.total[slot] = 0.0
        self.info[slot] = {}
        self._first(slot, episode_seed(self.seed, self.first + slot, episode))

    def _continue(self, slot: int) -> None:
        """The next life of the same game; the row that brings it counts, so that a replay takes the same steps."""
        self._first(slot, None)
        self.length[slot] += 1

    def _first(self, slot: int, seed: int | None) -> None:
        obs, info = self.envs[slot].reset(seed=seed)
        self._write(slot, obs)
        if self.masks.shape[1]:
            self._take_mask(slot, info)
        self.ended[slot] = self.goes_on[slot] = False
        self.reward[slot] = 0.0

    def _walk(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """The loop whose cost every row pays: hence the local names."""
        steps, rewards, totals, lengths, ended = self._steps, self.reward, self.total, self.length, self.ended
        lines, whole, limit, masked = self._lines, slice(None), self.limit or sys.maxsize, self.masks.shape[1]
        for slot, action in pairs:
            try:
                if ended[slot]:
                    if self.goes_on[slot]:
                        self._continue(slot)
                    else:
                        self.begin(slot, self.episode[slot] + 1)
                    continue
                obs, reward, terminated, truncated, info = steps[slot](action)
                worth, over = float(reward), terminated or truncated  # what these refuse has not been counted
                if worth - worth != 0.0:  # NaN or infinite
                    raise MisfitError(f"the reward is {worth}")
                try:
                    if lines:
                        lines[slot][whole] = obs  # a memoryview takes nothing but its own dtype and shape
                    else:
                        self._write(slot, obs)
                except (ValueError, TypeError):
                    self._write(slot, obs)  # which converts, or says what does not fit
                lengths[slot] = length = lengths[slot] + 1
                totals[slot] += worth
                if info:
                    if masked:
                        self._take_mask(slot, info)
                    add_numbers(self.info[slot], info)
                if over or length >= limit:
                    self._end(slot, bool(terminated), bool(truncated) or length >= limit, GOES_ON in info)
                rewards[slot] = worth
            except self.passes:
                raise
            except BaseException as error:  # sys.exit() too
                self._fail(slot, error)

    def replay(self, slot: int, episode: int, actions: Iterable[Any]) -> None:
        """Brings one slot to the middle of an episode."""
        self.episode[slot], self.ended[slot], self.goes_on[slot] = episode - 1, True, False
        self._walk([(slot, None)])  # begins it; what fails is reported, and the slot is at an end
        self._walk((slot, action) for action in takewhile(lambda _: not self.over(slot), actions))

    def over(self, slot: int) -> bool:
        """Whether a slot's episode has ended, lives that were lost aside."""
        return self.ended[slot] and not bool(self.goes_on[slot])

    def _end(self, slot: int, terminated: bool, truncated: bool, goes_on: bool) -> None:
        self.marked = True
        self.terminated[slot] = terminated
        self.truncated[slot] = truncated
        self.valid[slot] = False
        self.ended[slot] = True
        self.goes_on[slot] = goes_on and not truncated
        if self.goes_on[slot]:
            return
        self.finished.append((self.first + slot, float(self.total[slot]), self.length[slot], means(self.info[slot])))

    def _end_cut(self, slot: int) -> None:
        """Ends a lost episode where it was last seen; it is not reported, for nobody knows its total."""
        self.lost[slot] = not self.ended[slot]
        self.marked = self.hurt = True
        self.reward[slot] = 0.0
        self.terminated[slot] = False
        self.truncated[slot] = True
        self.valid[slot] = False
        self.ended[slot] = True
        self.goes_on[slot] = False

    def tail(self, leaf: int, slot: int, count: int) -> list[Array]:
        """The last `count` actions of a slot."""
        return self.log.tail(leaf, slot, count) if self.log else []

    def close(self) -> None:
        close_all(self.envs)

    # ------------------------------------------------------------ what goes wrong

    def _fail(self, slot: int, error: BaseException) -> None:
        """Reports, cuts the episode, and has the environment made again."""
        self._report(slot, error)
        self._end_cut(slot)
        if self.make is None:
            return
        close_all([self.envs[slot]])
        try:
            self.envs[slot] = self.make(self.first + slot)
        except self.passes:
            raise
        except BaseException as again:  # the old one stays; where it cannot be reset, this is tried again
            self._report(slot, again)
        if self._acts.plain:
            trusting(self.envs[slot])
        self._steps[slot] = self.envs[slot].step

    def _report(self, slot: int, error: BaseException) -> None:
        at, length = self.first + slot, self.length[slot]
        failure = episode_of(self.seed, at, self.episode[slot], length, not self.ended[slot])
        failure["kind"] = "value" if misfit(error) else "raise"
        failure["error"] = told(error)
        failure["traceback"] = "".join(traceback.format_exception(error))[-TRACE:]
        self.failures.append(failure)

    def _unreal(self) -> list[int]:
        """The slots whose observations hold NaN or infinities."""
        return [s for s in range(len(self.envs)) if not all(np.isfinite(array[s]).all() for array, _, _ in self._reals)]

    def _refuse(self, known: int) -> None:
        """Cuts the slots whose new observation is not finite: they keep what they saw before, and lose their score."""
        for slot in self._unreal():
            seen = ", ".join(str(array[slot]) for array, _, _ in self._reals)
            for array, before, _ in self._reals:
                array[slot] = before[slot]
            new = [f for f in self.finished[known:] if f[0] != self.first + slot]
            self.finished = self.finished[:known] + new
            self.ended[slot] = self.length[slot] == 0  # as it was before this step
            self.length[slot] -= not self.ended[slot]
            self._fail(slot, MisfitError(f"the observation is not finite: {seen}"))

    def _take_mask(self, slot: int, info: Mapping[str, Any]) -> None:
        mask = info.get(MASK)
        if mask is not None:  # a last observation may come without one: nobody acts on it
            self.masks[slot] = np.reshape(mask, -1)

    def drain(self) -> list[Finished]:
        """The episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished


def check_alike(slot: int, env: gymnasium.Env[Any, Any], first: gymnasium.Env[Any, Any]) -> None:
    """Refuses slots whose spaces differ: they share arrays, and one model."""
    for name in ("observation_space", "action_space"):
        own, firsts = getattr(env, name), getattr(first, name)
        if own != firsts or [leaf.path for leaf in leaves(own)] != [leaf.path for leaf in leaves(firsts)]:
            differ = f"slot {slot} has {own}, slot 0 {firsts}"
            raise UserError(f"env.per_slot: all slots need the same {name}: {differ}")


@contextmanager
def first_call(env: gymnasium.Env[Any, Any]) -> Iterator[None]:
    """What goes wrong before there is an episode to cut: one line that names the environment."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError) and not isinstance(error, MisfitError):
            raise
        raise broken(name_of(env), error, "reset()") from error


def mask_size(env: gymnasium.Env[Any, Any], masks: bool | Literal["auto"]) -> int:
    """How many actions info's mask covers; 0 when there is none."""
    if not masks:
        return 0
    with first_call(env):
        _, info = env.reset(seed=0)
        given = MASK in info
    if given:
        return entries(info[MASK])
    if masks is True:
        raise UserError(f"env.masks: reset() gave no info[{MASK!r}]")
    return 0


def episode_of(seed: int, slot: int, episode: int, step: int, acting: bool) -> dict[str, Any]:
    """What a report says of the episode that failed; not `acting`: it failed to begin."""
    own = {"slot": slot, "episode": episode, "seed": episode_seed(seed, slot, episode), "run_seed": seed}
    return {**own, "step": step, "acting": acting}


def nobody(seed: int) -> dict[str, Any]:
    """The same where no episode was running."""
    return {"slot": None, "episode": None, "seed": None, "run_seed": seed, "step": None, "acting": False}


def add_actions(failure: dict[str, Any], log: ActionLog, slot: int, leaves: int) -> None:
    """Adds to a failure what its episode was given, the action that failed last."""
    count = failure["step"] + 1 if failure["acting"] else 0
    failure["actions"] = [[a.tolist() for a in log.tail(leaf, slot, count)] for leaf in range(leaves)]
    if lost_action(failure):
        failure["error"] += " (its action was not finite: parameters may have become nan)"


def lost_action(failure: Mapping[str, Any]) -> bool:
    """Whether an episode failed by an action that was not finite: no fault of the environment's."""
    return not all(np.isfinite(taken[-1]).all() for taken in failure.get("actions") or () if taken)


def add_numbers(sums: dict[str, list[float]], info: Mapping[str, Any]) -> None:
    """Adds the plain numbers of an info to running sums; arrays, text, nested and private keys are passed over."""
    for key, value in info.items():
        if isinstance(value, (int, float, np.integer, np.floating, np.bool_)) and not key.startswith("_"):
            entry = sums.get(key) or sums.setdefault(key, [0.0, 0.0])
            entry[0] += float(value)
            entry[1] += 1.0


def means(sums: Mapping[str, list[float]]) -> dict[str, float]:
    """Running sums as averages."""
    return {key: total / count for key, (total, count) in sums.items()}
