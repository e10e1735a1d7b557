from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.config.sketches import registered


@pytest.fixture(autouse=True, scope="module")
def sketches() -> Iterator[None]:
    with registered():
        yield
