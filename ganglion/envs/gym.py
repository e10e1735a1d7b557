"""Ordinary gymnasium environments as slots, resumed by replaying each running episode's actions."""

from __future__ import annotations

import logging
from typing import Any, Literal, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from ganglion.core import Action, Composite, Env, EnvSpec, Episode, Json, Promise, State, Step, read_count
from ganglion.envs.gym_arrays import MASK, Array, leaves
from ganglion.envs.gym_spaces import Actions, from_gym, grow, mask_space, send
from ganglion.envs.slots import ActionLog, EpisodePlaces, Finished, Make, Slots, check_alike, episode_of, mask_size
from ganglion.envs.step_storage import StepBlocks
from ganglion.errors import EnvError, UserError
from ganglion.faults import Faults, told, unusable

log = logging.getLogger(__name__)


class SlotArrays(Protocol):
    """What slots saw last, [B, ...] each: of all of them (Slots, Pool) or of some (Views)."""

    @property
    def obs(self) -> list[Array]: ...

    @property
    def masks(self) -> Array: ...

    @property
    def reward(self) -> Array: ...

    @property
    def terminated(self) -> Array: ...

    @property
    def truncated(self) -> Array: ...

    @property
    def valid(self) -> Array: ...

    @property
    def lost(self) -> Array: ...


class SteppedSlots(SlotArrays, Protocol):
    """Slots that are walked together: by this process (Slots) or by workers (Pool)."""

    seed: int
    hurt: bool
    finished: list[Finished]
    failures: list[dict[str, Any]]

    @property
    def episode(self) -> list[int]: ...

    @property
    def length(self) -> list[int]: ...

    def over(self, slot: int) -> bool: ...

    def reset(self, seed: int) -> None: ...

    def act(self, columns: list[Array]) -> None: ...

    def bring(self, place: EpisodePlaces) -> list[int]: ...

    def tail(self, leaf: int, slot: int, count: int) -> list[Array]: ...

    def drain(self) -> list[Finished]: ...

    def close(self) -> None: ...


class GymEnv(Env):
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
        max_failures: int = 100,
    ) -> None:
        envs = [make(slot) for slot in range(slots)]
        for slot, env in enumerate(envs):
            check_alike(slot, env, envs[0])
        walked = Slots(envs, mask_size(envs[0], masks), time_limit, make=make)
        walked.log = ActionLog() if promise == "replay" else None  # else nobody will ask, and an episode may be endless
        self.slots: Any = walked
        first = envs[0]
        self._walk(walked, first.observation_space, first.action_space, name, device, promise, max_failures)

    def _walk(
        self,
        walk: SteppedSlots,
        obs: spaces.Space[Any],
        action: spaces.Space[Any],
        name: str,
        device: str | torch.device,
        promise: Promise,
        max_failures: int,
    ) -> None:
        self.walk = walk
        self.promise: Promise = promise
        self.faults: Faults = Faults(name, max_failures)
        self.log_every = 0  # of each slot's episodes, one in so many is logged; 0: none
        self._kept: dict[int, int] = {}  # slot -> the episode logged last
        self._device = torch.device(device)
        self._leaves, self._spaces = leaves(obs), (obs, action)
        self._actions = Actions(action)
        masked, inner = walk.masks.shape[1], from_gym(obs)
        tree = len(self._leaves) > 1 or self._leaves[0].path or masked
        self._plain = not tree and self._device.type == "cpu"  # a step is five arrays, and they stay where they are
        self._sheets = StepBlocks(walk.obs[0].shape, walk.obs[0].dtype)
        seen = Composite({"obs": inner, MASK: mask_space(masked)}) if masked else inner
        self.spec = EnvSpec(seen, from_gym(action), len(walk.reward), name)

    # ------------------------------------------------------------ the contract

    @property
    def outside(self) -> Any:
        return self._spaces

    def reset(self, seed: int) -> Step:
        try:
            self.walk.reset(seed)
        except SystemExit as error:  # which would end this process, as if all were well
            raise EnvError(f"env: the first reset of {self.spec.name} failed: {told(error)}") from error
        self.faults.lost = None
        return self._step(self.walk)

    def step(self, action: Action) -> Step:
        walk, faults = self.walk, self.faults
        if faults.count:
            faults.check()
        walk.act(self._actions.columns(action))
        if walk.failures or walk.hurt or faults.lost is not None:
            self._report()
        if self.log_every and walk.finished:
            self._keep()
        return self._step(walk)

    def _report(self) -> None:
        """Passes on what went wrong, and which rows were lost by it."""
        failures, self.walk.failures = self.walk.failures, []
        self._tell(failures, self.spec.slots)
        lost = torch.from_numpy(self.walk.lost.copy()) if self.walk.hurt else None
        self.faults.seen(None if lost is None else lost.to(self._device), 0 if lost is None else int(lost.sum()))

    def _tell(self, failures: list[dict[str, Any]], slots: int) -> None:
        """Passes failures on. Where the first step of every slot returned what nobody can take, no other would do."""
        self.faults.add(failures)
        first = [f for f in failures if f["kind"] == "value" and f["acting"] and f["episode"] == f["step"] == 0]
        if len(first) == slots:
            raise unusable(self.spec.name, f"step() does not do what gymnasium says: {first[0]['error']}")

    def _keep(self) -> None:
        """Logs what was done in episodes that have just ended, so that they can be run again."""
        walk = self.walk
        for slot, total, length, _ in walk.finished:
            episode = walk.episode[slot]
            if episode % self.log_every or not walk.over(slot) or self._kept.get(slot) == episode:
                continue
            self._kept[slot] = episode
            own = episode_of(walk.seed, slot, episode, length, True)
            taken = [[a.tolist() for a in walk.tail(i, slot, length)] for i in range(len(self._actions.leaves))]
            self.faults.logged.append(
                {"kind": "ended", "error": "", "traceback": "", "total": total, **own, "actions": taken}
            )

    def _step(self, seen: SlotArrays) -> Step:
        """What the slots hold now, or some of them, in tensors of its own."""
        if self._plain and seen is self.walk:
            return self._sheets.step(seen.obs[0], seen.reward, seen.terminated, seen.truncated, seen.valid)
        tensor = torch.from_numpy
        reward, valid = tensor(seen.reward.astype(np.float32)), tensor(seen.valid.copy())
        terminated, truncated = tensor(seen.terminated.copy()), tensor(seen.truncated.copy())
        if self._plain:
            return Step(tensor(seen.obs[0].copy()), reward, terminated, truncated, valid)
        obs = grow(self._leaves, [tensor(array.copy()) for array in seen.obs])
        if seen.masks.shape[1]:
            obs = {"obs": obs, MASK: tensor(seen.masks.copy())}
        return send(Step(obs, reward, terminated, truncated, valid), self._device)

    def episodes(self) -> list[Episode]:
        return [Episode(*finished) for finished in self.walk.drain()]

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
        self.walk.close()

    # ------------------------------------------------------------ resuming

    def state(self) -> State:
        walk = self.walk
        over = [bool(walk.over(slot)) for slot in range(self.spec.slots)]
        lengths = walk.length if self.promise == "replay" else [0] * self.spec.slots
        counts = [0 if ended else length for ended, length in zip(over, lengths, strict=True)]
        tensors = {f"obs{i}": torch.from_numpy(array.copy()) for i, array in enumerate(walk.obs)}
        if walk.masks.size:
            tensors["masks"] = torch.from_numpy(walk.masks.copy())
        for i, leaf in enumerate(self._actions.leaves):
            rows = [a for slot, count in enumerate(counts) for a in walk.tail(i, slot, count)]
            empty = np.zeros((0, *leaf.shape), leaf.dtype)
            tensors[f"action{i}"] = torch.from_numpy(np.stack(rows) if rows else empty)
        scalars: dict[str, Json] = {
            "seed": walk.seed,
            "episode": list(walk.episode),
            "ended": over,
            "actions": counts,
            "finished": [list(finished) for finished in walk.finished],
        }
        return State(tensors, scalars)

    def restore(self, state: State) -> None:
        """Replays the running episodes; where that is not promised they are cut, and the next step says so."""
        walk, scalars = self.walk, state.scalars
        if len(scalars["episode"]) != self.spec.slots:
            raise UserError(
                f"env.slots: the state has {len(scalars['episode'])} slots, this environment {self.spec.slots}"
            )
        if any(len(scalars[name]) != self.spec.slots for name in ("ended", "actions")):
            raise ValueError("the endings or actions of the slots are not as many as the slots")
        for i, array in enumerate(walk.obs):
            array[...] = state.tensors[f"obs{i}"].numpy()
        if walk.masks.size:
            walk.masks[...] = state.tensors["masks"].numpy()
        cut = [] if self.promise == "replay" else [slot for slot, ended in enumerate(scalars["ended"]) if not ended]
        columns = [state.tensors[f"action{i}"].numpy() for i in range(len(self._actions.leaves))]
        episodes, counts = ([read_count(each) for each in scalars[name]] for name in ("episode", "actions"))
        place = EpisodePlaces(read_count(scalars["seed"], 1 << 64), episodes, scalars["ended"], cut, counts, columns)
        wrong = walk.bring(place)
        ended = [Episode.read(each) for each in scalars["finished"]]
        walk.finished = [(each.slot, each.total, int(each.length), dict(each.info)) for each in ended]
        if cut:
            text = "%s: %d running episodes could not be resumed and are cut as truncated"
            log.warning(text, self.spec.name, len(cut))
        if wrong:
            log.warning(
                "%s does not repeat an episode under the same seed and actions (slots %s): this resume is not exact. "
                "Set env.resume to 'restart'.",
                self.spec.name,
                wrong,
            )
