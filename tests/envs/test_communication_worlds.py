"""Worlds that need communication, and the wrapper that says who is there."""

from __future__ import annotations

import pytest
import torch

from ganglion.core import CENTRAL, Box, Composite, Discrete, EnvSpec
from ganglion.envs.colours import ColoursConfig
from ganglion.envs.particles import ParticlesConfig
from ganglion.envs.wrappers import PresentAgents
from ganglion.errors import UserError
from ganglion.runtime.random_world import RandomWorld
from tests.envs.worlds import same_tree


def test_colours_pay_for_what_the_next_player_sees() -> None:
    env = ColoursConfig(players=4, colours=3, rounds=5, slots=40).build()
    now, generator = env.reset(3), torch.Generator().manual_seed(0)
    for turn in range(1, 13):
        seen = now.obs["obs"].view(4, 10, 7)
        colour = seen[..., :3].argmax(-1)  # [player, copy]
        assert torch.equal(seen[..., 3:], torch.eye(4)[:, None].expand(4, 10, 4)) and (seen[..., :3].sum(-1) == 1).all()
        assert torch.equal(now.obs[CENTRAL].view(4, 10, 4, 3)[2].argmax(-1), colour.T)
        named = torch.randint(3, (4, 10), generator=generator)
        now = env.step(named.flatten())
        if turn % 6:
            right = [[0.25 * float(named[i, c] == colour[(i + 1) % 4, c]) for c in range(10)] for i in range(4)]
            assert now.reward.view(4, 10).tolist() == right
        assert bool(now.truncated.all()) == (turn % 6 == 5)
    drawn = torch.cat([env.step(named.flatten()).obs["obs"][:, :3] for _ in range(200)])
    assert (drawn.mean(0) - 1 / 3).abs().max() < 0.02  # evenly


def test_a_mute_speaker_is_not_heard() -> None:
    loud, mute = (ParticlesConfig(id="speaker_listener", slots=8, mute=mute).build() for mute in (False, True))
    for env in (loud, mute):
        env.reset(1)
    for word in range(3):
        action = torch.tensor([word] * 4 + [1, 2, 3, 4])
        one, two = loud.step(action), mute.step(action)
        assert torch.equal(one.obs["obs"][4:, 8 + word], torch.ones(4)) and not two.obs["obs"][4:, 8:].any()
        assert torch.equal(one.obs["obs"][:, :8], two.obs["obs"][:, :8]) and torch.equal(one.reward, two.reward)
    with pytest.raises(UserError, match=r"env\.mute: spread has no such setting; speaker_listener has"):
        ParticlesConfig(id="spread", mute=True).build()


def test_who_is_there() -> None:
    """One number per agent of the copy, the same for all of them, by who lives now; pure worlds keep it in blocks."""
    spec = EnvSpec(Box((3,)), Discrete(2), 12, "world", ("a", "b", "c"))
    env, plain = PresentAgents(RandomWorld(spec)), RandomWorld(spec)
    assert isinstance(env.spec.obs, Composite) and list(env.spec.obs.items) == ["obs", "present"]
    step, bare, some = env.reset(2), plain.reset(2), 0
    for _ in range(60):
        there = step.obs["present"].view(3, 4, 3)
        assert torch.equal(there[0], step.valid.view(3, 4).T.float()) and torch.equal(there[0], there[2])
        assert same_tree(step.obs["obs"], bare.obs)
        some += int(((there[0].sum(-1) > 0) & (there[0].sum(-1) < 3)).sum())
        action = torch.zeros(12, dtype=torch.int64)
        step, bare = env.step(action), plain.step(action)
    assert some > 0
