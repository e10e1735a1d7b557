"""Small grids: MiniGrid's observations as numbers, and MinAtar as gymnasium environments. Numpy and gymnasium only."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ganglion.errors import UserError

# ------------------------------------------------------------ MiniGrid
#
# It shows what lies ahead as image [7, 7, 3] (object, colour and state of each cell, as indices), the compass
# direction, and the mission as text. Missions are dropped unless the wrapper `mission` encodes them: most worlds
# have only one.

KINDS = (11, 6, 3)  # objects, colours, states of a cell
LETTERS = "abcdefghijklmnopqrstuvwxyz ,"
LENGTH = 96  # letters of a mission; what is longer is cut


def cells(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Indices [H, W, 3] as ones and zeros [H, W, 20]."""
    parts = [image[..., i : i + 1] == np.arange(n) for i, n in enumerate(KINDS)]
    return np.concatenate(parts, -1).astype(np.uint8)


def letters(text: str) -> NDArray[np.uint8]:
    """Text as ones and zeros, [LENGTH * (letters + 1)]; the last of each row is any other sign."""
    codes = np.zeros((LENGTH, len(LETTERS) + 1), np.uint8)
    for place, letter in enumerate(text.lower()[:LENGTH]):
        codes[place, LETTERS.find(letter)] = 1  # -1, the last one, where it is none of ours
    return codes.reshape(-1)


class ImageWrapper(gymnasium.ObservationWrapper[Any, Any, Any]):
    """A wrapper of observations that have an image."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Dict) or not isinstance(space.spaces.get("image"), spaces.Box):
            name = type(self).__name__.lower()
            raise UserError(f"env.wrappers: {name} needs a Dict observation with an image, such as MiniGrid's")
        self.image: Any = space.spaces["image"]


class Image(ImageWrapper):
    """The image alone, as it is."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = self.image

    def observation(self, observation: Any) -> Any:
        return observation["image"]


class OneHot(ImageWrapper):
    """MiniGrid's image alone, each cell as ones and zeros: [H, W, 20] bytes."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(0, 1, (*self.image.shape[:2], sum(KINDS)), np.uint8)

    def observation(self, observation: Any) -> Any:
        return cells(observation["image"])


class Flat(ImageWrapper):
    """MiniGrid's cells and the direction as one vector of ones and zeros."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        size = int(np.prod(self.image.shape[:2])) * sum(KINDS) + 4
        self.observation_space = spaces.Box(0, 1, (size,), np.uint8)

    def observation(self, observation: Any) -> Any:
        direction = np.eye(4, dtype=np.uint8)[int(observation["direction"])]
        return np.concatenate([cells(observation["image"]).reshape(-1), direction])


class Mission(ImageWrapper):
    """MiniGrid's cells beside its mission, letter by letter, for worlds that have several missions."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        shape = (*self.image.shape[:2], sum(KINDS))
        text = spaces.Box(0, 1, (LENGTH * (len(LETTERS) + 1),), np.uint8)
        self.observation_space = spaces.Dict({"image": spaces.Box(0, 1, shape, np.uint8), "mission": text})

    def observation(self, observation: Any) -> Any:
        return {"image": cells(observation["image"]), "mission": letters(str(observation["mission"]))}


# ------------------------------------------------------------ MinAtar

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
SHADES = ((0, 0, 0), (200, 80, 80), (80, 200, 80), (90, 130, 240), (220, 200, 80), (200, 90, 200), (80, 200, 200))


class MinAtar(gymnasium.Env[Any, Any]):
    """A MinAtar game (Young and Tian 2019): 10 x 10 cells of ones and zeros, [10, 10, channels] bytes.

    MinAtar's own environment keeps the last action of one episode for the next one's sticky actions; this one forgets
    it, so that an episode follows from its seed and its actions alone.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self,
        game: str,
        minimal: bool = True,
        sticky: float = 0.1,
        ramping: bool = True,
        render_mode: str | None = None,
    ) -> None:
        from minatar import Environment

        self.game = Environment(game, sticky_action_prob=sticky, difficulty_ramping=ramping)
        self.legal: list[int] = self.game.minimal_action_set() if minimal else list(range(6))
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(self.legal))
        self.observation_space = spaces.Box(0, 1, tuple(self.game.state_shape()), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.game.seed(seed)
        self.game.last_action = 0
        self.game.reset()
        return self.game.state().astype(np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, terminated = self.game.act(self.legal[action])
        return self.game.state().astype(np.uint8), float(reward), bool(terminated), False, {}

    def render(self) -> Any:
        state = self.game.state()
        top = np.where(state.any(-1), state.shape[-1] - state[..., ::-1].argmax(-1), 0)  # the last channel that is on
        colours = np.array([SHADES[i % len(SHADES)] for i in range(state.shape[-1] + 1)], np.uint8)
        return np.kron(colours[top], np.ones((16, 16, 1), np.uint8))


def register_minatar() -> None:
    """MinAtar's ids: -v0 with all six actions, -v1 with those the game uses."""
    for game in GAMES:
        name = game.title().replace("_", "")
        for version, minimal in ((0, False), (1, True)):
            key = f"MinAtar/{name}-v{version}"
            if key not in gymnasium.registry:
                extra = {"game": game, "minimal": minimal}
                gymnasium.register(key, entry_point="ganglion.envs.grid_worlds:MinAtar", kwargs=extra)
