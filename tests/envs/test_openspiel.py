"""Games of OpenSpiel as slots, beside the package itself; and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ganglion.config.files import load
from ganglion.errors import UserError

spiel = pytest.importorskip("pyspiel", reason="the package that plays them")


def world(id: str, slots: int, **options: Any) -> Any:
    return load(
        None, ["algo=dqn", f"env={{kind: openspiel, id: {id}, slots: {slots}, options: {options}}}"]
    ).env.whole()


@pytest.mark.parametrize(
    ("name", "options", "turns"),
    [
        ("kuhn_poker", {}, True),
        ("leduc_poker", {"players": 3}, True),
        ("tiny_hanabi", {}, True),
        ("goofspiel", {"num_cards": 3}, False),
        ("connect_four", {}, True),
    ],
)
def test_random_play_is_the_packages(name: str, options: dict[str, Any], turns: bool) -> None:
    """What players see, may do and get is what the package says of the state that they have reached."""
    env = world(name, 2 * options.get("players", 2), **options)
    assert env.spec.turns == turns
    players, generator, ended = len(env.spec.agents), torch.Generator().manual_seed(1), 0
    now, before = env.reset(4), np.zeros(players)
    for _ in range(120):
        state = env.env.slots.envs[0].game.state
        mine = now.valid.view(players, 2)[:, 0]
        if mine.all():
            acts = now.acts.view(players, 2)[:, 0].tolist() if turns else [True] * players
            assert acts == [state.is_simultaneous_node() or state.current_player() == i for i in range(players)]
            for i in range(players):
                seen = now.obs["obs"].view(players, 2, -1)[i, 0].numpy()
                shown = state.information_state_tensor if name != "connect_four" else state.observation_tensor
                np.testing.assert_allclose(seen, np.asarray(shown(i), np.float32))
                legal = now.obs["action_mask"].view(players, 2, -1)[i, 0].nonzero()[:, 0].tolist()
                assert legal == (state.legal_actions(i) if acts[i] else [0])
        else:
            assert state.is_terminal() and now.terminated.view(players, 2)[:, 0].all()
            np.testing.assert_allclose(before + now.reward.view(players, 2)[:, 0].numpy(), state.returns(), atol=1e-5)
            ended += 1
        before = np.where(mine.numpy(), before + now.reward.view(players, 2)[:, 0].numpy(), 0.0)
        mask = now.obs["action_mask"].float()
        now = env.step(torch.multinomial(mask, 1, generator=generator)[:, 0])
    assert ended > 2


def test_an_episode_is_its_seed() -> None:
    one, two = world("leduc_poker", 8), world("leduc_poker", 8)
    a, b = one.reset(3), two.reset(3)
    for _ in range(40):
        assert torch.equal(a.obs["obs"], b.obs["obs"]) and torch.equal(a.reward, b.reward)
        action = a.obs["action_mask"].float().argmax(-1)
        a, b = one.step(action), two.step(action)
    assert len({tuple(row) for row in world("leduc_poker", 40).reset(0).obs["obs"][:20].tolist()}) > 2


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("{id: kuhn_pokr}", r"env\.id: openspiel has no 'kuhn_pokr'. Did you mean 'kuhn_poker'"),
        ("{id: kuhn_poker, options: {playrs: 3}}", r"env\.options: kuhn_poker has no 'playrs'. Accepted: players"),
        ("{id: kuhn_poker, options: {players: 300}}", r"env\.options: kuhn_poker did not take them"),
        ("{id: chess, sight: information}", r"env\.sight: chess has no information; it has observation"),
        ("{id: mfg_garnet}", r"env\.id: mfg_garnet is a mean-field game"),
    ],
)
def test_what_is_refused(env: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(None, ["algo=dqn", f"env={{kind: openspiel, slots: 2, {env[1:]}"]).env.whole()
