"""Documents register names and import examples; the next test must not know them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from ganglion import registry


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Names and modules that a test brought leave with it."""
    names, modules = set(registry._found), set(sys.modules)
    yield
    for name in set(registry._found) - names:
        if not registry._found[name].__module__.startswith("ganglion."):
            del registry._found[name]
    for module in set(sys.modules) - modules:
        if module.split(".")[0] == "examples":
            del sys.modules[module]
