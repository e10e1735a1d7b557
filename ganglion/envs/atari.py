"""The parts of Atari's standard pre-processing, each a wrapper of its own around single gymnasium environments.

Numpy, gymnasium and OpenCV only, so that worker processes need no torch. All randomness comes from the environment's
`np_random`, which an episode's seed sets: the same seed and actions give the same frames. Two parts are elsewhere, for
any environment: frames are stacked by `env.frame_stack`, and rewards are shaped by `algo.processor.reward: sign`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from numpy.typing import NDArray

from ganglion.envs.slots import GOES_ON
from ganglion.errors import UserError

Env = gymnasium.Env[Any, Any]
Stepped = tuple[Any, Any, bool, bool, dict[str, Any]]
Started = tuple[Any, dict[str, Any]]


class Layer(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper whose reset takes a seed alone."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Started:
        return self.start(seed)

    def start(self, seed: int | None) -> Started:
        """The first observation of an episode."""
        return self.env.reset(seed=seed)


class Rewind(Layer):
    """Every game starts from one saved state of the emulator, and `np_random` from the seed.

    ALE itself loads the cartridge again for each seed, which takes as long as 400 steps. The emulator has no other
    randomness when its own sticky actions are off.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        self.game = game
        self.first, _ = env.reset(seed=0)
        self.saved = game.ale.cloneState(include_rng=True)

    def start(self, seed: int | None) -> Started:
        if seed is not None:
            self.game.np_random = seeding.np_random(seed)[0]
        self.game.ale.restoreState(self.saved)
        return self.first.copy(), {"lives": self.game.ale.lives()}


class Sticky(Layer):
    """With probability `chance` a step repeats the action before it (Machado et al. 2018)."""

    def __init__(self, env: Env, chance: float) -> None:
        super().__init__(env)
        self.chance = chance
        self.last: Any = 0  # no-op, before anything was done

    def start(self, seed: int | None) -> Started:
        self.last = 0
        return self.env.reset(seed=seed)

    def choose(self, action: Any) -> Any:
        """What is really done."""
        if self.np_random.random() >= self.chance:
            self.last = action
        return self.last

    def step(self, action: Any) -> Stepped:
        return self.env.step(self.choose(action))


class NoopStart(Layer):
    """An episode starts after 1 to `most` steps of doing nothing, how many drawn from its seed."""

    def __init__(self, env: Env, most: int) -> None:
        super().__init__(env)
        self.most = most

    def start(self, seed: int | None) -> Started:
        obs, info = self.env.reset(seed=seed)
        for _ in range(int(self.np_random.integers(1, self.most + 1))):
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset()
        return obs, info


class SkipMax(Layer):
    """An action lasts `count` steps; the observation is the brighter of the last two frames, pixel by pixel.

    Where nothing below it changes what is seen, the emulator is asked for those two frames only.
    """

    def __init__(self, env: Env, count: int) -> None:
        super().__init__(env)
        self.count = count
        below = layers(env)
        game: Any = env.unwrapped
        plain = all(isinstance(x, (Rewind, Sticky, NoopStart)) for x in below)
        quick = plain and type(game).__module__ == "ale_py.env" and game._frameskip == 1 and not game.continuous
        self.game: Any = game if quick else None
        self.sticky = next((x for x in below if isinstance(x, Sticky)), None)

    def step(self, action: Any) -> Stepped:
        return self._step_any(action) if self.game is None else self._step_quick(action)

    def _step_any(self, action: Any) -> Stepped:
        total, frames = 0.0, []
        terminated, truncated, info = False, False, dict[str, Any]()
        for _ in range(self.count):
            obs, reward, terminated, truncated, info = self.env.step(action)
            frames.append(obs)
            total += float(reward)
            if terminated or truncated:
                break
        return np.maximum.reduce(frames[-2:]), total, terminated, truncated, info

    def _step_quick(self, action: Any) -> Stepped:
        ale, legal, look = self.game.ale, self.game._action_set, self.game._get_obs
        total, before, over = 0.0, None, False
        for k in range(self.count):
            total += ale.act(legal[action if self.sticky is None else self.sticky.choose(action)])
            over = ale.game_over()
            if over or k == self.count - 1:
                break
            if k == self.count - 2:
                before = look()
        obs = look()
        if before is not None:
            np.maximum(before, obs, out=obs)
        terminated = over and ale.game_over(with_truncation=False)
        return obs, total, terminated, over and not terminated, {"lives": ale.lives()}


class EpisodicLife(Layer):
    """Losing a life is an ending, though the game goes on: the next reset without a seed plays the next life."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.lives = 0
        self.goes_on = False

    def step(self, action: Any) -> Stepped:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = int(info["lives"])
        self.goes_on = 0 < lives < self.lives and not (terminated or truncated)
        self.lives = lives
        if self.goes_on:
            return obs, reward, True, False, {**info, GOES_ON: True}
        return obs, reward, terminated, truncated, info

    def start(self, seed: int | None) -> Started:
        if self.goes_on and seed is None:
            obs, _, _, _, info = self.env.step(0)
        else:
            obs, info = self.env.reset(seed=seed)
        self.goes_on, self.lives = False, int(info["lives"])
        return obs, info


class FireStart(Layer):
    """Fires once at the start of each life, in games that wait for it."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        self.waits = game.get_action_meanings()[1:2] == ["FIRE"]

    def start(self, seed: int | None) -> Started:
        obs, info = self.env.reset(seed=seed)
        if self.waits:
            obs, _, terminated, truncated, info = self.env.step(1)
            if terminated or truncated:
                obs, info = self.env.reset()
        return obs, info


class Warp(Layer):
    """Frames in shades of grey, `size` x `size`, one channel first: [1, size, size] bytes."""

    def __init__(self, env: Env, size: int) -> None:
        super().__init__(env)
        try:
            import cv2
        except ImportError as error:
            raise UserError('env: the wrapper warp needs OpenCV. Try pip install "ganglion[atari]"') from error
        shape = env.observation_space.shape or ()
        if len(shape) not in (2, 3) or env.observation_space.dtype != np.uint8:
            raise UserError(f"env: the wrapper warp needs frames of bytes, not {env.observation_space}")
        self.size, self.colour = (size, size), len(shape) == 3
        self.resize, self.area = cv2.resize, cv2.INTER_AREA
        self.grey, self.rgb = cv2.cvtColor, cv2.COLOR_RGB2GRAY
        self.observation_space = spaces.Box(0, 255, (1, size, size), np.uint8)

    def shown(self, frame: Any) -> NDArray[np.uint8]:
        """A frame, warped."""
        frame = self.grey(frame, self.rgb) if self.colour else frame
        small: NDArray[np.uint8] = self.resize(frame, self.size, interpolation=self.area)
        return small[None]

    def start(self, seed: int | None) -> Started:
        obs, info = self.env.reset(seed=seed)
        return self.shown(obs), info

    def step(self, action: Any) -> Stepped:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self.shown(obs), reward, terminated, truncated, info


def layers(env: Env) -> list[Env]:
    """The wrappers around an environment, outermost first."""
    found: list[Env] = []
    while isinstance(env, gymnasium.Wrapper):
        found.append(env)
        env = env.env
    return found
