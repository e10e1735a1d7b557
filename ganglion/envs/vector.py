"""Gymnasium's own vector environments, whatever their autoreset mode, as slots of the contract.

Next-step environments are what the contract is. A same-step environment has already started the next episode when it
reports an ending: its last observation is taken from `final_obs`, and since nothing can hold one slot still, the
ignored action is really taken in it. Where slots can be reset alone (`masked`: gymnasium's SyncVectorEnv and
AsyncVectorEnv) the slot is then reset again, seeded from (seed, slot, episode); every mode gives the same rows, and the
same as `GymEnv`. Where they cannot, an episode is seen from its second observation on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from ganglion.core import Action, Composite, Env, EnvSpec, Episode, Json, Promise, State, Step, read_count
from ganglion.envs.episode_scores import EpisodeScores
from ganglion.envs.gym_arrays import MASK, Array, flatten, inward, leaves
from ganglion.envs.gym_make import trusting
from ganglion.envs.gym_spaces import Actions, from_gym, grow, mask_space, send
from ganglion.envs.seeds import episode_seed
from ganglion.envs.step_storage import StepBlocks
from ganglion.errors import UserError
from ganglion.faults import close_all

log = logging.getLogger(__name__)

SAVED = {"CartPoleVectorEnv": ("state", "steps", "prev_done")}  # environments whose whole state we know


class VectorGymEnv(Env):
    """Slots over a gymnasium VectorEnv. Promise: state where its internals are known, else restart."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        name: str = "",
        device: str | torch.device = "cpu",
        masked: bool | None = None,
    ) -> None:
        self.env: Any = env  # its type hints know neither lists of seeds nor how frames come
        self.masked = isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)) if masked is None else masked
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        if self.mode is AutoresetMode.DISABLED and not self.masked:
            raise UserError(f"env: {name or env} neither resets its slots itself nor lets them be reset alone")
        self.native = callable(getattr(env, "send", None))  # ALE's and EnvPool's: steps begin and end by themselves
        self._sent: Any = None
        self._saved = SAVED.get(type(env.unwrapped).__name__, ())
        self.promise: Promise = "state" if self._saved else "restart"
        self._device = torch.device(device)
        self._leaves = leaves(env.single_observation_space)
        self._actions = Actions(env.single_action_space)
        _, info = env.reset(seed=0)
        self.masks = np.ones((env.num_envs, np.shape(info[MASK])[-1] if MASK in info else 0), np.bool_)
        obs_space = from_gym(env.single_observation_space)
        if self.masks.size:
            obs_space = Composite({"obs": obs_space, MASK: mask_space(self.masks.shape[1])})
        self.spec = EnvSpec(obs_space, from_gym(env.single_action_space), env.num_envs, name)
        plain = isinstance(env.single_observation_space, spaces.Box) and not self.masks.size
        self._quick = plain and self._device.type == "cpu" and self.mode is not AutoresetMode.SAME_STEP
        own = self.mode is AutoresetMode.NEXT_STEP and not self.masked and not self.native
        self._smooth = own and self._quick  # resets, too, are as the contract wants them
        self._sheets = StepBlocks((env.num_envs, *self._leaves[0].shape), self._leaves[0].dtype)
        if self._smooth and self._actions.plain:
            trusting(env)
        self._begin(0)

    @property
    def outside(self) -> Any:
        return self.env.single_observation_space, self.env.single_action_space

    def _begin(self, seed: int) -> None:
        slots = self.spec.slots
        self.seed = seed
        self.obs: list[Array] = []  # what the slots saw last
        self.ended = np.zeros(slots, np.bool_)
        self.cut = np.zeros(slots, np.bool_)  # lost in a restart: the next step says they were truncated
        self.goes_on = np.zeros(slots, np.bool_)  # ended inside a game that goes on: scores are of whole games
        self.episode = np.zeros(slots, np.int64)
        self.stirred = False  # some slot ended at the last step, or was lost
        self.scores = EpisodeScores(slots)
        self.finished: list[Episode] = []

    # ------------------------------------------------------------ the contract

    def reset(self, seed: int) -> Step:
        self._begin(seed)
        obs, info = self.env.reset(seed=self._seeds() if self.masked else episode_seed(seed, 0, 0))
        self._take_masks(info)
        self.obs = self._rows(obs)
        no = np.zeros(self.spec.slots, np.bool_)
        return self._step(np.zeros(self.spec.slots), no, no.copy())

    def step(self, action: Action) -> Step:
        self._send(action)
        step: Step = self._recv()
        return step

    def send(self, action: Action) -> None:
        """Begins a step: a native environment's threads take it while the caller does something else."""
        self._send(action)

    def recv(self) -> Step:
        """Ends the step that `send` began."""
        step: Step = self._recv()
        return step

    def _send(self, action: Action) -> None:
        if self.stirred:
            self.episode += self.ended & ~self.goes_on
            if self.mode is AutoresetMode.DISABLED and self.ended.any():
                self._reset_slots(self.ended)
        self._sent = self._actions.ready(action)
        if self.native:
            self.env.send(self._sent)

    def _recv(self) -> Any:
        if self._smooth and not (self.stirred and self.cut.any()):
            return self._recv_smooth()
        if self._quick and not self.stirred:
            return self._recv_quick()
        before, lost, masks = self.ended, self.cut, self.masks.copy()
        obs, reward, terminated, truncated, info = self.env.recv() if self.native else self.env.step(self._sent)
        rows = self._rows(obs)
        self._take_masks(info)
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        if self.masked or self.mode is AutoresetMode.SAME_STEP:  # slots that were to reset: what ended was not seen
            terminated, truncated = terminated & ~before, truncated & ~before
        if self.mode is AutoresetMode.SAME_STEP:
            self._write_last(rows, info, terminated | truncated)
        if self.masked and before.any():
            rows = _blend(before, self._reset_slots(before), rows)
        if lost.any():
            rows, terminated, truncated = _blend(lost, self.obs, rows), terminated & ~lost, truncated | lost
            self.masks[lost] = masks[lost]
        self.obs, self.ended = rows, terminated | truncated
        reward = self._account(before, reward, terminated, info)
        return self._step(reward, terminated, truncated)

    def _recv_quick(self) -> Step:
        """What most steps are: observations are one array, and no reset is anybody's but the environment's."""
        obs, reward, terminated, truncated, info = self.env.recv() if self.native else self.env.step(self._sent)
        if self.native:
            row = self._shown(np.ascontiguousarray(obs, self._leaves[0].dtype))
        else:  # which may write into the same memory again
            reward, terminated, truncated = np.array(reward), np.array(terminated), np.array(truncated)
            row = np.array(obs, self._leaves[0].dtype, order="C")
        self.scores.add_all(reward, self._told(info))
        ended = terminated | truncated
        self.obs, self.ended = [row], ended
        if True in ended.tolist():  # on a few slots quicker than any()
            self._score(terminated, info, None)
        tensor = torch.from_numpy
        given = tensor(reward.astype(np.float32)), tensor(terminated), tensor(truncated)
        return Step(tensor(row), *given, tensor(~ended))

    def _recv_smooth(self) -> Any:
        """The same where resets, too, are the environment's: all is written once, into memory of its own."""
        obs, reward, terminated, truncated, info = self.env.step(self._sent)
        sheet, now, step = self._sheets.next()
        if self.stirred:
            reward = self._start_over(reward, info)
        sheet.obs[now], sheet.reward[now] = obs, reward
        sheet.terminated[now], sheet.truncated[now] = terminated, truncated
        if not self.stirred:  # what the environment gave may be written over
            own = sheet.reward[now] if reward.dtype == np.float32 else np.array(reward)
            self.scores.add_all(own, self._told(info))
        self.obs, self.ended = [sheet.obs[now]], terminated | truncated
        valid = np.logical_not(self.ended, out=sheet.valid[now])
        if self.stirred or False in valid.tolist():  # on a few slots quicker than all()
            self._score(terminated, info, None)
        return step

    def _start_over(self, reward: Array, info: Mapping[str, Any]) -> Array:
        """Adds up a step that began the next episode of slots that had ended; the rewards of the others' actions."""
        running = ~self.ended
        reward = np.where(running, reward, 0.0)
        self.scores.clear(self.ended)
        self.scores.add(reward, self._told(info), running)
        return reward

    def episodes(self) -> list[Episode]:
        finished, self.finished = self.finished, []
        return finished

    def render(self) -> Any:
        """Slot 0 as [H, W, 3], or None when it was not built for rendering."""
        return self.env.render()[0] if self.env.render_mode == "rgb_array" else None

    def close(self) -> None:
        close_all([self.env])

    # ------------------------------------------------------------ rows

    def _seeds(self) -> list[int]:
        return [episode_seed(self.seed, slot, int(episode)) for slot, episode in enumerate(self.episode)]

    def _reset_slots(self, which: Array) -> list[Array]:
        """Starts these slots' episodes from their own seeds."""
        obs, info = self.env.reset(seed=self._seeds(), options={"reset_mask": which.copy()})
        self._take_masks(info)
        return self._rows(obs)

    def _rows(self, obs: Any) -> list[Array]:
        """A batch of observations as Ganglion's leaves, in memory of their own."""
        return [inward(leaf, part) for leaf, part in zip(self._leaves, flatten(self.env.single_observation_space, obs))]

    def _shown(self, row: Array) -> Array:
        """A native environment's observations, which may be changed, as they are shown."""
        return row

    def _write_last(self, rows: list[Array], info: Mapping[str, Any], ended: Array) -> None:
        """Puts the true last observations of ended episodes in place of the next ones' first."""
        for slot in np.flatnonzero(ended):
            last = flatten(self.env.single_observation_space, info["final_obs"][slot])
            for row, leaf, part in zip(rows, self._leaves, last):
                row[slot] = inward(leaf, np.asarray(part)[None])[0]

    def _take_masks(self, info: Mapping[str, Any]) -> None:
        if self.masks.size and MASK in info:
            given = info.get(f"_{MASK}", np.ones(self.spec.slots, np.bool_))
            self.masks[given] = np.asarray(info[MASK], np.bool_)[given]

    def _unfinished(self, terminated: Array, info: Mapping[str, Any]) -> Array:
        """Which endings are inside a game that goes on: the action after one is taken, and only learning ignores it."""
        return np.zeros(self.spec.slots, np.bool_)

    def _told(self, info: Mapping[str, Any]) -> Mapping[str, Any]:
        """What of an info is averaged over episodes."""
        return info

    def _account(self, before: Array, reward: Array, terminated: Array, info: Mapping[str, Any]) -> Array:
        """Adds up the step; returns the rewards of the actions that were slots' own."""
        fresh = before & ~self.goes_on  # slots whose next game starts now
        scored = np.where(fresh | self.cut, 0.0, reward)
        self.scores.clear(fresh)
        told, seen = self._told(info), ~fresh
        last = told.get("final_info") if self.mode is AutoresetMode.SAME_STEP else None
        self.scores.add(scored, {} if last else told, seen)
        if last:  # a same-step reset hides what an ended episode's last info said
            self.scores.add_info(last, seen & self.ended)
            self.scores.add_info(told, seen & ~self.ended)
        self._score(terminated, info, seen & ~self.cut)
        self.cut = np.zeros_like(self.cut)
        return np.where(before, 0.0, scored)

    def _score(self, terminated: Array, info: Mapping[str, Any], counted: Array | None) -> None:
        """Reports the episodes that ended, of the slots whose step counted."""
        self.stirred = bool(self.ended.any())
        self.goes_on = self._unfinished(terminated, info) & ~self.cut
        over = self.ended & ~self.goes_on
        for slot in np.flatnonzero(over if counted is None else over & counted).tolist():
            total, length = float(self.scores.total[slot]), int(self.scores.length[slot])
            self.finished.append(Episode(slot, total, length, self.scores.means(slot)))

    def _step(self, reward: Array, terminated: Array, truncated: Array) -> Step:
        obs = grow(self._leaves, [torch.from_numpy(row) for row in self.obs])  # the next step has other rows
        if self.masks.size:
            obs = {"obs": obs, MASK: torch.from_numpy(self.masks.copy())}
        flags = torch.from_numpy(terminated), torch.from_numpy(truncated), torch.from_numpy(~self.ended)
        return send(Step(obs, torch.from_numpy(reward.astype(np.float32)), *flags), self._device)

    # ------------------------------------------------------------ resuming

    def state(self) -> State:
        ended = self.ended & ~self.goes_on  # what goes on cannot be resumed either
        arrays = {"ended": ended, "episode": self.episode, "length": self.scores.length}
        arrays["total"] = self.scores.total
        arrays |= {f"obs{i}": row for i, row in enumerate(self.obs)}
        arrays |= {"masks": self.masks} if self.masks.size else {}
        arrays |= {f"env.{name}": getattr(self.env.unwrapped, name) for name in self._saved}
        scalars: dict[str, Json] = {
            "seed": self.seed,
            "sums": self.scores.sums(),
            "finished": [list(episode) for episode in self.finished],
            "random": self.env.unwrapped.np_random.bit_generator.state if self._saved else None,
        }
        return State({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, scalars)

    def restore(self, state: State) -> None:
        """Where the internals are not known, running episodes are cut: the next step says they were truncated."""
        arrays = {name: tensor.numpy().copy() for name, tensor in state.tensors.items()}
        if len(arrays["ended"]) != self.spec.slots:
            raise UserError(
                f"env.slots: the state has {len(arrays['ended'])} slots, this environment {self.spec.slots}"
            )
        self._begin(read_count(state.scalars["seed"], 1 << 64))
        self.ended, self.episode = arrays["ended"], arrays["episode"]
        self.obs = [arrays[f"obs{i}"] for i in range(len(self._leaves))]
        self.masks = arrays.get("masks", self.masks)
        self.scores.restore(arrays["total"], arrays["length"], state.scalars["sums"])
        self.stirred = True
        self.finished = [Episode.read(episode) for episode in state.scalars["finished"]]
        self.env.reset(seed=episode_seed(self.seed, self.spec.slots, int(self.episode.sum())))
        if self._saved:
            for name in self._saved:
                setattr(self.env.unwrapped, name, arrays[f"env.{name}"])
            self.env.unwrapped.np_random.bit_generator.state = state.scalars["random"]
            return
        self.cut = ~self.ended
        log.warning(
            "%s: %d running episodes cannot be resumed and are cut as truncated", self.spec.name, self.cut.sum()
        )


def _blend(which: Array, chosen: list[Array], rest: list[Array]) -> list[Array]:
    """Rows of `chosen` for these slots, of `rest` for the others."""
    return [np.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(chosen, rest)]
