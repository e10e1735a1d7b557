"""What every test shares: one thread, reproducible hypothesis, and what is skipped where."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of compilers beside the two test processes
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import pytest
from hypothesis import settings

SOAK = os.environ.get("GANGLION_SOAK") == "1"

# The same examples every time; a soak looks further.
settings.register_profile("test", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile("soak" if SOAK else "test")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("soak") and not SOAK:
            item.add_marker(pytest.mark.skip(reason="a soak test: make soak"))
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def modules_of_its_own() -> Iterator[None]:
    """A process remembers the user's modules and hands them to its explorers: no test hands on another's."""
    yield
    files = sys.modules.get("ganglion.config.files")
    if files is not None:
        files.IMPORTED.clear()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small networks are slower on two threads than on one, and results depend on the count."""
    import torch

    torch.set_num_threads(1)
