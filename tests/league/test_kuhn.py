"""Kuhn poker: its rules against a plain game."""

from __future__ import annotations

import torch

from ganglion.envs.kuhn import KuhnConfig

ENDS = {"pp": (1, "show"), "bp": (1, "first"), "bb": (2, "show"), "pbp": (1, "second"), "pbb": (2, "show")}


def test_rules_against_a_plain_game() -> None:
    env = KuhnConfig(slots=64).build()
    step, generator = env.reset(5), torch.Generator().manual_seed(1)
    said, seen = [""] * 32, set()
    for _ in range(40):
        cards = step.obs["obs"][:, :3].argmax(-1).view(2, 32).T.tolist()
        assert all(a != b for a, b in cards)
        action = torch.randint(2, (64,), generator=generator)
        turn, before = step.acts.view(2, 32), step.valid.view(2, 32)[0]
        step = env.step(action)
        for copy in range(32):
            if not before[copy]:
                said[copy] = ""
                continue
            who = len(said[copy]) % 2
            assert turn[:, copy].tolist() == [who == 0, who == 1]
            said[copy] += "pb"[action.view(2, 32)[who, copy]]
            reward = step.reward.view(2, 32)[:, copy].tolist()
            over = bool(step.terminated.view(2, 32)[0, copy])
            assert over == (said[copy] in ENDS)
            amount, how = ENDS.get(said[copy], (0, "first"))
            first = (cards[copy][0] > cards[copy][1]) if how == "show" else how == "first"
            assert reward == [amount if first else -amount, -amount if first else amount]
            seen |= {said[copy]} if over else set()
    assert seen == set(ENDS)
