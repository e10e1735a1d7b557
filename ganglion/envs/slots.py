"""Gymnasium environments walked one after another under next-step autoreset; numpy only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from ganglion.envs.arrays import MASK, batch
from ganglion.envs.seeds import episode_seed

Finished = tuple[int, float, int, dict[str, float]]  # slot, total, length, info: what becomes a core.Episode
GOES_ON = (
    "_goes_on"  # in the info of an ending: the game is not over (a life was lost), and the next reset continues it
)


class Slots:
    """The slots first .. first + len(envs) - 1 of a run; the arrays hold what they saw last.

    `limit` truncates episodes after so many steps (0: never); counting here is cheaper than a wrapper per slot.
    """

    def __init__(
        self, envs: Sequence[gymnasium.Env[Any, Any]], masked: int = 0, limit: int = 0, first: int = 0
    ) -> None:
        count = len(envs)
        self.envs = list(envs)
        self._steps = [env.step for env in envs]  # bound once: this loop is the price of every slot
        self.first = first
        self.limit = limit
        self.seed = 0
        self.obs, self._write = batch(envs[0].observation_space, count)
        self.masks = np.ones((count, masked), np.bool_)  # [B, n] from info; n is 0 where there are none
        self.reward = np.zeros(count)
        self.terminated = np.zeros(count, np.bool_)
        self.truncated = np.zeros(count, np.bool_)
        self.valid = np.ones(count, np.bool_)
        self.ended = [False] * count  # the next step resets
        self.goes_on = [False] * count  # an ending inside a game: the same episode for seeds, scores and replays
        self.episode = [0] * count
        self.length = [0] * count
        self.total = [0.0] * count
        self.info: list[dict[str, list[float]]] = [{} for _ in envs]  # key -> [sum, count] over the running episode
        self.finished: list[Finished] = []
        self.cut: set[int] = set()  # running episodes lost in a restart: the next step says they were truncated

    def reset(self, seed: int) -> None:
        """Starts every slot's episode 0."""
        self.seed = seed
        self.finished = []
        self.cut = set()
        self._clear()
        for slot in range(len(self.envs)):
            self.begin(slot, 0)

    def step(self, actions: Sequence[Any]) -> None:
        """Acts in every slot, or resets it where its episode has ended."""
        self._clear()
        lost, self.cut = self.cut, set()
        self._walk([pair for pair in enumerate(actions) if pair[0] not in lost] if lost else enumerate(actions))
        for slot in lost:
            self._end_cut(slot)

    def _clear(self) -> None:
        self.terminated.fill(False)
        self.truncated.fill(False)
        self.valid.fill(True)

    def begin(self, slot: int, episode: int) -> None:
        """Resets one slot to the start of an episode."""
        obs, info = self.envs[slot].reset(seed=episode_seed(self.seed, self.first + slot, episode))
        self._write(slot, obs)
        if self.masks.shape[1]:
            self._take_mask(slot, info)
        self.reward[slot] = 0.0
        self.ended[slot] = self.goes_on[slot] = False
        self.episode[slot] = episode
        self.length[slot] = 0
        self.total[slot] = 0.0
        self.info[slot] = {}

    def _continue(self, slot: int) -> None:
        """The next life of the same game; the row that brings it counts, so that a replay takes the same steps."""
        obs, info = self.envs[slot].reset()
        self._write(slot, obs)
        if self.masks.shape[1]:
            self._take_mask(slot, info)
        self.reward[slot] = 0.0
        self.ended[slot] = self.goes_on[slot] = False
        self.length[slot] += 1

    def _walk(self, pairs: Iterable[tuple[int, Any]]) -> None:
        """The loop whose cost every row pays: hence the local names."""
        steps, write, rewards, lengths, ended = self._steps, self._write, self.reward, self.length, self.ended
        limit, masked = self.limit or sys.maxsize, self.masks.shape[1]
        for slot, action in pairs:
            if ended[slot]:
                if self.goes_on[slot]:
                    self._continue(slot)
                else:
                    self.begin(slot, self.episode[slot] + 1)
                continue
            obs, reward, terminated, truncated, info = steps[slot](action)
            write(slot, obs)
            rewards[slot] = reward
            lengths[slot] = length = lengths[slot] + 1
            self.total[slot] += float(reward)
            if info:
                if masked:
                    self._take_mask(slot, info)
                add_numbers(self.info[slot], info)
            if terminated or truncated or length >= limit:
                self._end(slot, bool(terminated), bool(truncated) or length >= limit, GOES_ON in info)

    def replay(self, slot: int, episode: int, actions: Iterable[Any]) -> None:
        """Brings one slot to the middle of an episode."""
        self.begin(slot, episode)
        self._walk((slot, action) for action in actions)

    def _end(self, slot: int, terminated: bool, truncated: bool, goes_on: bool) -> None:
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
        self.reward[slot] = 0.0
        self.truncated[slot] = True
        self.valid[slot] = False
        self.ended[slot] = True

    def _take_mask(self, slot: int, info: Mapping[str, Any]) -> None:
        mask = info.get(MASK)
        if mask is not None:  # a last observation may come without one: nobody acts on it
            self.masks[slot] = np.reshape(mask, -1)

    def drain(self) -> list[Finished]:
        """The episodes that ended since the last call."""
        finished, self.finished = self.finished, []
        return finished


def add_numbers(sums: dict[str, list[float]], info: Mapping[str, Any]) -> None:
    """Adds the plain numbers of an info to running sums; arrays, text, nested and private keys are passed over."""
    for key, value in info.items():
        if isinstance(value, (int, float, np.integer, np.floating, np.bool_)) and not key.startswith("_"):
            entry = sums.setdefault(key, [0.0, 0.0])
            entry[0] += float(value)
            entry[1] += 1.0


def means(sums: Mapping[str, list[float]]) -> dict[str, float]:
    """Running sums as averages."""
    return {key: total / count for key, (total, count) in sums.items()}
