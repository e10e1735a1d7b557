"""Tensor worlds of several agents beside the packages they are written after: random play, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ganglion.core import CENTRAL, Env
from ganglion.envs.foraging import Foraging, ForagingConfig
from ganglion.envs.particles import ParticlesConfig
from ganglion.errors import UserError

STEPS = 1_500


def played(env: Any, start: Any, step: Any, actions: int, steps: int = STEPS) -> int:
    """Plays copy 0 of a world and the package side by side; counts what was compared. Actions favour the last."""
    copies, agents = env.spec.copies, len(env.spec.agents)
    generator, compared = torch.Generator().manual_seed(0), 0
    now = env.reset(7)
    start(env.world[0])
    own = slice(0, None, copies)
    for _ in range(steps):
        weights = torch.ones(actions)
        weights[-1] += 2.0
        action = torch.multinomial(weights.expand(agents * copies, -1), 1, generator=generator)[:, 0]
        ended = not bool(now.valid[0])
        now = env.step(action)
        if ended:
            start(env.world[0])
            continue
        obs, reward, over = step([int(a) for a in action[own]])
        np.testing.assert_allclose(now.reward[own].numpy(), reward, rtol=1e-4, atol=1e-5)
        for seen, theirs in zip(now.obs["obs"][own].numpy(), obs, strict=True):
            np.testing.assert_allclose(seen[: len(theirs)], theirs, rtol=1e-4, atol=1e-5)
            assert not seen[len(theirs) :].any()
        assert bool((now.terminated | now.truncated)[0]) == over
        compared += 1
    return compared


# ------------------------------------------------------------ foraging


@pytest.mark.parametrize(
    ("name", "settings", "most"),
    [
        ("Foraging-8x8-2p-2f-coop-v3", {}, 0.9),
        ("Foraging-2s-8x8-3p-3f-v3", {"players": 3, "foods": 3, "coop": False, "sight": 2}, 2.0),
        ("Foraging-5x5-2p-1f-coop-v3", {"size": 5, "foods": 1}, 2.0),
    ],
)
def test_foraging(name: str, settings: dict[str, Any], most: float) -> None:
    pytest.importorskip("lbforaging", reason="the package that plays it")
    import gymnasium

    theirs: Any = gymnasium.make(name, disable_env_checker=True).unwrapped
    theirs.reset(seed=0)
    env = ForagingConfig(**settings).build(slots=2 * settings.get("players", 2))
    assert isinstance(env, Foraging)
    total = 0.0

    def start(world: torch.Tensor) -> None:
        food, player = env.parts(world[None])
        theirs.field[:] = 0
        for row, column, level in food[0].int().tolist():
            theirs.field[row, column] = level
        for own, (row, column, level) in zip(theirs.players, player[0].int().tolist(), strict=True):
            own.setup((row, column), level, theirs.field_size)
        theirs._food_spawned, theirs.current_step = theirs.field.sum(), 0
        theirs._gen_valid_moves()

    def step(actions: list[int]) -> tuple[Any, Any, bool]:
        nonlocal total
        obs, reward, over, _, _ = theirs.step(actions)
        total += sum(reward)
        return obs, reward, over

    assert played(env, start, step, 6) > 1_300 and total > most


def test_where_foraging_starts() -> None:
    """As the package places them: nobody on another's cell, food inside and apart; levels as coop demands."""
    env = ForagingConfig(players=3, foods=3).build(slots=3 * 400)
    assert isinstance(env, Foraging)
    env.reset(3)
    food, player = env.parts(env.world[:400])
    cells = torch.cat((player[..., :2], food[..., :2]), 1)
    gaps = (cells[:, :, None] - cells[:, None]).abs()
    assert not ((gaps.sum(-1) == 0).sum((1, 2)) > 6).any()
    food_gaps = gaps[:, 3:, 3:] + 9 * torch.eye(3)[..., None]
    assert (food_gaps.amax(-1) >= 2).all() and (food_gaps.sum(-1) >= 3).all()
    assert (food[..., :2] >= 1).all() and (food[..., :2] <= 6).all()
    assert (food[..., 2] == player[..., 2].sum(1, keepdim=True)).all()
    assert set(player[..., 2].flatten().tolist()) == {1.0, 2.0}
    counts = torch.bincount((player[:, 0, 0] * 8 + player[:, 0, 1]).long(), minlength=64)
    assert int((counts > 0).sum()) == 64


# ------------------------------------------------------------ particles


def particles(name: str, **settings: Any) -> Any:
    pytest.importorskip("mpe2", reason="the package that plays it")
    from mpe2 import simple_speaker_listener_v4, simple_spread_v3

    made = {"spread": simple_spread_v3, "speaker_listener": simple_speaker_listener_v4}[name]
    env = made.parallel_env(max_cycles=25, **settings)
    env.reset(seed=0)
    return env


def after(theirs: Any, actions: list[int]) -> tuple[Any, Any, bool]:
    names = theirs.possible_agents
    obs, reward, _, truncated, _ = theirs.step(dict(zip(names, actions, strict=True)))
    return [obs[n] for n in names], [reward[n] for n in names], all(truncated.values())


@pytest.mark.parametrize(("agents", "ratio"), [(3, 0.5), (4, 0.0)])
def test_spread(agents: int, ratio: float) -> None:
    theirs = particles("spread", N=agents, local_ratio=ratio)
    world = theirs.unwrapped.world
    env: Any = ParticlesConfig(id="spread", agents=agents, local_ratio=ratio).build(slots=2 * agents)
    env.radius = 0.15

    def start(own: torch.Tensor) -> None:
        theirs.reset()
        place, speed, landmarks = (x[0].numpy().copy() for x in env.parts(own[None]))
        for i in range(agents):
            world.agents[i].state.p_pos, world.agents[i].state.p_vel = place[i], speed[i]
            world.landmarks[i].state.p_pos = landmarks[i]

    assert played(env, start, lambda actions: after(theirs, actions), 5) > 1_400


def test_speaker_listener() -> None:
    theirs = particles("speaker_listener")
    world = theirs.unwrapped.world
    env: Env = ParticlesConfig(id="speaker_listener").build(slots=4)

    def start(own: torch.Tensor) -> None:
        theirs.reset()
        own = own.numpy().copy()
        world.agents[1].state.p_pos, world.agents[1].state.p_vel = own[:2], own[2:4]
        for i in range(3):
            world.landmarks[i].state.p_pos = own[4 + 2 * i : 6 + 2 * i]
        world.agents[0].goal_b = world.landmarks[int(own[10])]

    def step(actions: list[int]) -> tuple[Any, Any, bool]:
        return after(theirs, [min(actions[0], 2), actions[1]])

    assert played(env, start, step, 5) > 1_400


def test_settings_of_particles() -> None:
    with pytest.raises(UserError, match=r"env\.agents: speaker_listener has no such setting"):
        ParticlesConfig(id="speaker_listener", agents=3).build()


@pytest.mark.parametrize("kind", ["spread", "speaker_listener", "foraging"])
def test_what_is_central_is_of_the_same_copy_at_the_same_time(kind: str) -> None:
    env: Any = ForagingConfig().build(slots=10) if kind == "foraging" else ParticlesConfig(id=kind).build(slots=30)
    generator = torch.Generator().manual_seed(0)
    step, agents = env.reset(5), len(env.spec.agents)
    for _ in range(60):
        state = step.obs[CENTRAL].unflatten(0, (agents, -1))
        assert torch.equal(state, state[:1].expand_as(state))
        assert torch.equal(state[0], env.show(env._one(env.world))[CENTRAL][0])
        step = env.step(torch.randint(0, 3, (env.spec.slots,), generator=generator))
