"""Scores added up many steps at a time are those of a plain loop, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from ganglion.envs.episode_scores import LATER, EpisodeScores


def test_sums_are_those_of_a_plain_loop() -> None:
    rng, scores = np.random.default_rng(0), EpisodeScores(3)
    total, length, speed = [0.0] * 3, [0] * 3, [0.0] * 3
    for t in range(3 * LATER + 7):
        reward, info = rng.standard_normal(3).astype(np.float32), {"speed": rng.standard_normal(3)}
        if t % 50 == 20:  # slot 1 starts again: this row is not a step of its next episode
            starts = np.array([False, True, False])
            scores.clear(starts)
            total[1], length[1], speed[1] = 0.0, 0, 0.0
            scores.add(reward, info, ~starts)
            counted = [0, 2]
        else:
            scores.add_all(reward, info)
            counted = [0, 1, 2]
        for slot in counted:
            total[slot] += float(reward[slot])
            length[slot] += 1
            speed[slot] += float(info["speed"][slot])
    assert scores.total.tolist() == total and scores.length.tolist() == length
    assert [scores.means(slot)["speed"] for slot in range(3)] == [s / n for s, n in zip(speed, length, strict=True)]


def test_one_slot_is_added_up_in_order() -> None:
    rng, scores, total = np.random.default_rng(1), EpisodeScores(1), 0.0
    for _ in range(5 * LATER):
        reward = rng.standard_normal(1).astype(np.float32)
        scores.add_all(reward, {})
        total += float(reward[0])
    assert scores.total.tolist() == [total] and scores.length.tolist() == [5 * LATER]


def test_what_is_no_number_is_passed_over() -> None:
    scores, everyone = EpisodeScores(2), np.ones(2, np.bool_)
    info: dict[str, Any] = {
        "lives": np.array([3, 5]),
        "_lives": np.array([True, False]),
        "mixed": np.array([np.float32(1.5), None], object),
        "image": np.zeros((2, 4, 4)),
        "word": np.array(["a", "b"]),
    }
    for _ in range(2):
        scores.add_all(np.ones(2), info)
    assert scores.sums() == [{"lives": [6.0, 2.0], "mixed": [3.0, 2.0]}, {}]
    scores.add(np.ones(2), {"late": np.array([1.0, 2.0])}, everyone)
    again = EpisodeScores(2)
    again.restore(scores.total, scores.length, scores.sums())
    assert again.sums() == scores.sums() and again.length.tolist() == [3, 3] and again.total.tolist() == [3.0, 3.0]
