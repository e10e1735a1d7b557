"""Ordinary gymnasium environments as slots of one process, resumed by replaying each running episode's actions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from torch import Tensor

from ganglion.core import Action, Composite, EnvSpec, Episode, Json, Obs, Promise, Space, State, Step
from ganglion.envs.arrays import MASK, Array, leaves
from ganglion.envs.slots import Slots
from ganglion.envs.spaces import Actions, from_gym, grow, mask_space, send
from ganglion.errors import UserError

log = logging.getLogger(__name__)

Make = Callable[[int], gymnasium.Env[Any, Any]]


class ActionLog:
    """The latest actions of all slots: enough to replay every running episode, and as long as the longest of them."""

    def __init__(self) -> None:
        self.rows: list[list[Array]] = []  # one list of columns, [B, ...] each, per step
        self.room = 256

    def append(self, columns: list[Array], lengths: Sequence[int]) -> None:
        """Adds a step, and now and then forgets what lies before the longest running episode."""
        self.rows.append(columns)
        if len(self.rows) >= self.room:
            longest = max(lengths)
            del self.rows[: len(self.rows) - longest]
            self.room = 2 * longest + 256

    def tail(self, leaf: int, slot: int, count: int) -> list[Array]:
        """The last `count` actions of a slot."""
        return [row[leaf][slot] for row in self.rows[len(self.rows) - count :]]


class GymEnv:
    """Slots over single gymnasium environments; every episode is seeded from (seed, slot, episode).

    `make(slot)` builds one environment. `masks`: whether info["action_mask"] comes with every reset and step; "auto"
    looks at one reset. `promise="restart"` is for environments that do not repeat an episode under the same seed.
    """

    def __init__(
        self,
        make: Make,
        slots: int,
        name: str = "",
        device: str | torch.device = "cpu",
        masks: bool | Literal["auto"] = "auto",
        promise: Promise = "replay",
        time_limit: int = 0,
    ) -> None:
        envs = [make(slot) for slot in range(slots)]
        self.promise = promise
        self._device = torch.device(device)
        self._leaves = leaves(envs[0].observation_space)
        self._plain = len(self._leaves) == 1 and not self._leaves[0].path  # one array, no tree
        self._actions = Actions(envs[0].action_space)
        masked = _mask_size(envs[0], masks)
        self.slots = Slots(envs, masked, time_limit)
        self.spec = EnvSpec(_obs_space(envs[0], masked), from_gym(envs[0].action_space), slots, name)
        self._log = ActionLog()

    # ------------------------------------------------------------ the contract

    def reset(self, seed: int) -> Step:
        self.slots.reset(seed)
        self._log = ActionLog()
        return self._step()

    def step(self, action: Action) -> Step:
        columns = self._actions.columns(action)
        self.slots.step(self._actions.each(columns))
        if self.promise == "replay":  # else nobody will ask for them, and an episode may be endless
            self._log.append(columns, self.slots.length)
        return self._step()

    def _step(self) -> Step:
        """What the slots hold now, in tensors of its own."""
        slots, tensor = self.slots, torch.from_numpy
        if self._plain:
            obs: Obs = tensor(slots.obs[0].copy())
        else:
            obs = grow(self._leaves, [tensor(array.copy()) for array in slots.obs])
        if slots.masks.shape[1]:
            obs = {"obs": obs, MASK: tensor(slots.masks.copy())}
        reward = tensor(slots.reward.astype(np.float32))
        ends = tensor(slots.terminated.copy()), tensor(slots.truncated.copy())
        return send(Step(obs, reward, *ends, tensor(slots.valid.copy())), self._device)

    def episodes(self) -> list[Episode]:
        return [Episode(*finished) for finished in self.slots.drain()]

    def render(self) -> Any:
        """Slot 0 as [H, W, 3], or None when it was not built for rendering."""
        env = self.slots.envs[0]
        try:
            return env.render() if env.render_mode == "rgb_array" else None
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(
                f'drawing {self.spec.name} needs a package: pip install "ganglion[video]" ({error})'
            ) from error

    def close(self) -> None:
        for env in self.slots.envs:
            env.close()

    # ------------------------------------------------------------ resuming

    def state(self) -> State:
        slots = self.slots
        lengths, over = [0] * len(slots.envs), list(slots.ended)
        if self.promise == "replay":  # a life lost is no end of what will be replayed
            lengths = slots.length
            over = [ended and not goes_on for ended, goes_on in zip(slots.ended, slots.goes_on, strict=True)]
        counts = [0 if ended else length for ended, length in zip(over, lengths, strict=True)]
        tensors = {f"obs{i}": torch.from_numpy(array.copy()) for i, array in enumerate(slots.obs)}
        if slots.masks.size:
            tensors["masks"] = torch.from_numpy(slots.masks.copy())
        for i, leaf in enumerate(self._actions.leaves):
            rows = [a for slot, count in enumerate(counts) for a in self._log.tail(i, slot, count)]
            empty = np.zeros((0, *leaf.shape), leaf.dtype)
            tensors[f"action{i}"] = torch.from_numpy(np.stack(rows) if rows else empty)
        scalars: dict[str, Json] = {
            "seed": slots.seed,
            "episode": list(slots.episode),
            "ended": over,
            "actions": counts,
            "finished": [list(finished) for finished in slots.finished],
        }
        return State(tensors, scalars)

    def restore(self, state: State) -> None:
        """Replays the running episodes; where that is not promised they are cut, and the next step says so."""
        slots, scalars = self.slots, state.scalars
        if len(scalars["episode"]) != len(slots.envs):
            raise UserError(
                f"env.slots: the state has {len(scalars['episode'])} slots, this environment {len(slots.envs)}"
            )
        slots.seed = scalars["seed"]
        slots.episode, slots.ended = list(scalars["episode"]), list(scalars["ended"])
        slots.goes_on = [False] * len(slots.envs)
        running = [slot for slot, ended in enumerate(slots.ended) if not ended]
        for i, array in enumerate(slots.obs):
            array[...] = state.tensors[f"obs{i}"].numpy()
        if slots.masks.size:
            slots.masks[...] = state.tensors["masks"].numpy()
        if self.promise == "replay":
            self._replay(running, scalars["actions"], state.tensors)
        else:
            self._cut(running)
        slots.finished = [(f[0], f[1], f[2], dict(f[3])) for f in scalars["finished"]]

    def _cut(self, running: list[int]) -> None:
        self._log = ActionLog()
        self.slots.cut = set(running)
        self.slots.length = [0] * len(self.slots.envs)
        log.warning(
            "%s: %d running episodes could not be resumed and are cut as truncated", self.spec.name, len(running)
        )

    def _replay(self, running: list[int], counts: list[int], tensors: Mapping[str, Tensor]) -> None:
        columns = [tensors[f"action{i}"].numpy() for i in range(len(self._actions.leaves))]
        taken = self._actions.each(columns)
        at = 0
        for slot in running:
            self.slots.replay(slot, self.slots.episode[slot], taken[at : at + counts[slot]])
            at += counts[slot]  # slots at their end have no actions to replay
        self._refill(columns, counts)
        wrong = [slot for slot in running if not self._matches(slot, tensors)]
        if wrong:
            log.warning(
                "%s does not repeat an episode under the same seed and actions (slots %s): this resume is not exact. "
                "Set env.resume to 'restart'.",
                self.spec.name,
                wrong,
            )

    def _refill(self, columns: list[Array], counts: list[int]) -> None:
        """Puts the replayed actions back into the log, each slot's at its end."""
        longest = max(counts, default=0)
        ends = np.cumsum(counts)
        self._log = ActionLog()
        for back in range(longest, 0, -1):
            rows = np.maximum(ends - back, 0)  # slots with shorter episodes get rows nobody will read
            self._log.rows.append([column[rows] for column in columns])

    def _matches(self, slot: int, tensors: Mapping[str, Tensor]) -> bool:
        over = self.slots.ended[slot] and not self.slots.goes_on[slot]
        return not over and all(
            np.array_equal(array[slot], tensors[f"obs{i}"][slot].numpy(), equal_nan=array.dtype.kind == "f")
            for i, array in enumerate(self.slots.obs)
        )


def _mask_size(env: gymnasium.Env[Any, Any], masks: bool | Literal["auto"]) -> int:
    """How many actions info's mask covers; 0 when there is none."""
    if not masks:
        return 0
    _, info = env.reset(seed=0)
    if MASK in info:
        return int(np.size(info[MASK]))
    if masks is True:
        raise UserError(f"env.masks: reset() gave no info[{MASK!r}]")
    return 0


def _obs_space(env: gymnasium.Env[Any, Any], masked: int) -> Space:
    space = from_gym(env.observation_space)
    return Composite({"obs": space, MASK: mask_space(masked)}) if masked else space
