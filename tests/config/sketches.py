"""Small config classes that stand for a user's own: nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from pydantic import Field

from ganglion import registry
from ganglion.config import (
    AlgoConfig,
    BufferConfig,
    Config,
    Count,
    EnvConfig,
    NetConfig,
    Schedule,
    WriterConfig,
    linear,
    register,
)


class Pace(Config):
    opt_interval: float = Field(1.0, gt=0)
    warmup: Count = Field(100, ge=0)


class Wide(NetConfig):
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["relu", "tanh"] = "relu"


class Deep(NetConfig):
    layers: int = 3


class Store(BufferConfig):
    capacity: Count = Field(10_000, ge=1)


class Ranked(Store):
    alpha: float = 0.6
    beta: Schedule = linear(0.4, 1.0)


class Sketch(AlgoConfig):
    lr: float = Field(1e-3, gt=0, le=1)
    steps: int = Field(1, ge=1)
    double: bool = True
    loss: Literal["mse", "huber"] = "huber"
    max_norm: float | None = None
    epsilon: Schedule = linear(1.0, 0.05, until=0.5)
    net: NetConfig = Wide(hidden=(120, 84), activation="tanh")
    store: Store = Store(capacity=500)
    pace: Pace = Pace(opt_interval=10.0, warmup=1_000)


class World(EnvConfig):
    id: str = "World-v0"


class Paper(WriterConfig):
    lines: int = 10


class Drum(WriterConfig):
    pass


KINDS: dict[tuple[str, str], type[Config]] = {
    ("algo", "sketch"): Sketch,
    ("env", "world"): World,
    ("net", "wide"): Wide,
    ("net", "deep"): Deep,
    ("buffer", "store"): Store,
    ("buffer", "ranked"): Ranked,
    ("writer", "paper"): Paper,
    ("writer", "drum"): Drum,
}
TEXT = """\
algo: {kind: sketch}
env: world
log: [paper]
"""


@contextmanager
def registered() -> Iterator[None]:
    """The names exist inside, and nowhere else."""
    for (family, name), cls in KINDS.items():
        register(family, name)(cls)
    try:
        yield
    finally:
        for key in KINDS:
            registry._found.pop(key)
