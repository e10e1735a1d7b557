"""MiniGrid's observations as numbers, MinAtar, and the convolution that reads small grids."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from ganglion import nn
from ganglion.core import Box, Past
from ganglion.envs import GymConfig, wrapped
from ganglion.envs.grid_worlds import KINDS, LENGTH, LETTERS, letters
from ganglion.errors import UserError
from ganglion.nn.inputs import channels_first
from tests.envs.worlds import random_action, same_step

DOORKEY = "MiniGrid-DoorKey-5x5-v0"


def play(config: GymConfig, steps: int = 120) -> None:
    """Walks, saves in the middle, and finds the same rows again."""
    env, other = config.build(), config.build()
    env.reset(1)
    for t in range(steps):
        env.step(random_action(env.spec.action, config.slots, t))
    other.restore(env.state())
    for t in range(steps, steps + 40):
        action = random_action(env.spec.action, config.slots, t)
        assert same_step(env.step(action), other.step(action)), t


# ------------------------------------------------------------ MiniGrid


def test_one_hot_is_minigrids_own() -> None:
    minigrid = pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
    gymnasium.register_envs(minigrid)
    theirs = minigrid.wrappers.ImgObsWrapper(minigrid.wrappers.OneHotPartialObsWrapper(gymnasium.make(DOORKEY)))
    ours = wrapped(gymnasium.make(DOORKEY), [["one_hot"]])
    assert ours.observation_space.shape == (7, 7, sum(KINDS))
    a, b = ours.reset(seed=2)[0], theirs.reset(seed=2)[0]
    for t in range(60):
        assert np.array_equal(a, b) and a.dtype == np.uint8, t
        assert ours.observation_space.contains(a)
        a, b = ours.step(t % 5)[0], theirs.step(t % 5)[0]


@pytest.mark.parametrize(
    ("name", "shape"), [("image", (7, 7, 3)), ("one_hot", (7, 7, 20)), ("flat", (984,)), ("mission", None)]
)
def test_minigrid_without_its_text(name: str, shape: tuple[int, ...] | None) -> None:
    pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
    config = GymConfig(id=DOORKEY, slots=2, wrappers=(name,))
    space: Any = config.build().spec.obs
    assert space.shape == shape if shape else set(space.items) == {"image", "mission"}
    play(config)


def test_text_is_refused_with_what_helps() -> None:
    pytest.importorskip("minigrid", reason="the extra minigrid is not installed")
    with pytest.raises(UserError, match=r"mission.*env\.wrappers"):
        GymConfig(id=DOORKEY).build()


def test_grid_wrappers_need_an_image() -> None:
    with pytest.raises(UserError, match=r"onehot needs a Dict"):
        GymConfig(id="CartPole-v1", wrappers=("one_hot",)).build()


def test_missions_letter_by_letter() -> None:
    codes = letters("Go, é").reshape(LENGTH, len(LETTERS) + 1)
    assert codes.sum() == 5 and codes[5:].sum() == 0
    assert [int(row.argmax()) for row in codes[:5]] == [LETTERS.find(x) for x in "go, "] + [len(LETTERS)]
    assert letters("x" * 500).sum() == LENGTH


# ------------------------------------------------------------ MinAtar


@pytest.mark.parametrize("game", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_minatar_repeats_under_its_seed(game: str) -> None:
    pytest.importorskip("minatar", reason="the extra minatar is not installed")
    config = GymConfig(id=f"MinAtar/{game}-v1", slots=2)
    assert config.build().promise == "replay"
    play(config, 300)


def test_minatar_is_its_own_game() -> None:
    """Cell by cell and reward by reward what MinAtar's own interface gives."""
    minatar = pytest.importorskip("minatar", reason="the extra minatar is not installed")
    config = GymConfig(id="MinAtar/Breakout-v0", slots=1, options={"sticky": 0.0})
    env = config.build()
    step = env.reset(0)
    own = minatar.Environment("breakout", sticky_action_prob=0.0)
    from ganglion.envs import episode_seed

    own.seed(episode_seed(0, 0, 0))
    own.reset()
    assert env.spec.obs == Box((10, 10, 4), torch.uint8, (0.0,), (1.0,)) and env.spec.action.n == 6  # type: ignore[union-attr]
    for t in range(200):
        assert np.array_equal(step.obs[0].numpy(), own.state())
        action = random_action(env.spec.action, 1, t)
        step, (reward, ended) = env.step(action), own.act(int(action))
        assert float(step.reward) == reward and bool(step.terminated) == ended
        if ended:
            break
    assert ended and not step.truncated.any()


def test_minatar_can_be_drawn() -> None:
    pytest.importorskip("minatar", reason="the extra minatar is not installed")
    env = GymConfig(id="MinAtar/Breakout-v1").build(slots=1, render=True)
    env.reset(0)
    frame = env.render()
    assert frame.shape == (160, 160, 3) and frame.dtype == np.uint8 and frame.any()


# ------------------------------------------------------------ the convolution


def test_channels_are_the_end_beside_the_square() -> None:
    assert channels_first((7, 7, 20)) == (20, 7, 7) == channels_first((20, 7, 7))
    assert channels_first((10, 10, 4)) == (4, 10, 10) == channels_first((4, 10, 10))
    assert channels_first((84, 84, 3)) == (3, 84, 84) == channels_first((3, 84, 84))
    assert channels_first((40, 44, 3)) == (3, 40, 44) == channels_first((3, 40, 44))


def test_grids_are_flat_unless_asked() -> None:
    space = Box((10, 10, 4), torch.uint8, (0.0,), (1.0,))
    flat, conv = (nn.MLPConfig(grid=grid).encoder(space) for grid in ("flat", "conv"))
    assert flat.out == 400 and not list(flat.parameters())
    assert conv.out == 16 * 8 * 8 and sum(p.numel() for p in conv.parameters()) == 16 * 4 * 9 + 16


def test_the_convolution_sees_cells_as_they_are() -> None:
    space = Box((6, 6, 3), torch.uint8, (0.0,), (1.0,))
    encoder = nn.MLPConfig(grid="conv").encoder(space)
    grid = torch.randint(0, 2, (2, 5, 6, 6, 3), dtype=torch.uint8)
    past = Past((), torch.zeros(2, 5, dtype=torch.bool))
    seen, _ = encoder(grid, past)
    wanted = torch.relu(encoder.pixels[0].conv(grid.flatten(0, 1).permute(0, 3, 1, 2).float()))  # type: ignore[union-attr]
    assert torch.equal(seen, wanted.flatten(1).unflatten(0, (2, 5)))
    tiny = nn.MLPConfig(grid="conv").encoder(Box((4, 4, 3), torch.uint8))
    assert tiny.out == 48  # too small for a convolution to be worth it


def test_bytes_of_a_grid_are_scaled_by_what_the_space_says() -> None:
    space = Box((6, 6, 3), torch.uint8, (0.0,), (255.0,))
    encoder = nn.MLPConfig(grid="conv").encoder(space)
    other = nn.MLPConfig(grid="conv").encoder(Box((6, 6, 3)))
    other.load_state_dict(encoder.state_dict())
    grid = torch.randint(0, 256, (1, 5, 6, 6, 3), dtype=torch.uint8)
    past = Past((), torch.zeros(1, 5, dtype=torch.bool))
    assert torch.allclose(encoder(grid, past)[0], other(grid.float() / 255, past)[0], atol=1e-6)
