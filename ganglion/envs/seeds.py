"""Stateless random numbers: an episode's seed follows from (run seed, slot, episode index) and nothing else.

Integers only, so that a worker process can use it without torch; `world.py` holds the same mixing on tensors.
"""

from __future__ import annotations

from functools import lru_cache

GOLDEN = 0x9E3779B97F4A7C15  # the three constants of splitmix64 (Steele, Lea and Flood 2014)
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """One round of splitmix64: 64 bits in, 64 well-mixed bits out."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * FIRST) & MASK
    x = ((x ^ (x >> 27)) * SECOND) & MASK
    return x ^ (x >> 31)


@lru_cache(65_536)
def slot_key(seed: int, slot: int) -> int:
    """64 bits that name one slot of one run."""
    return mix(mix(seed & MASK) ^ slot)


def episode_key(seed: int, slot: int, episode: int) -> int:
    """64 bits that name one episode of one slot of one run."""
    return mix(slot_key(seed, slot) ^ episode)


def episode_seed(seed: int, slot: int, episode: int) -> int:
    """The seed an episode is reset with: 31 bits, which every simulator takes."""
    return episode_key(seed, slot, episode) >> 33
