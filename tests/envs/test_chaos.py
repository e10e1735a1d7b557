"""The short form of benchmarks/chaos.py: workers are lost while PPO trains, and every row is accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import chaos


@pytest.mark.parametrize(("kind", "failure"), [("kill", "death"), ("hang", "timeout")])
def test_every_row_is_accounted_for(kind: str, failure: str, tmp_path: Path) -> None:
    told = chaos(kind, seconds=3.0, turn=0.75, folder=tmp_path, timeout=1.0 if kind == "hang" else 60.0)
    assert told["rows"] == told["acknowledged"] > 0
    assert told["wrong"] == 0 and told["calm_wrong"] == 0  # none lost, doubled or out of place
    assert told["lost"] == told["cut"] == told["reported_lost"]
    assert told["kinds"].get(failure, 0) >= 3
    assert len(told["replaced"]) <= told["failures"]  # fewer where one hung again while it was brought to its place
    assert max(told["replaced"]) < 10 and told["lost"] <= told["in_flight"]
