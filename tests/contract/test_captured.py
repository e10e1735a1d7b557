"""Acting and learning as CUDA graphs: the same numbers as without, for every algorithm."""

from __future__ import annotations

import pytest
import torch

from ganglion.core import Progress
from ganglion.fast.capture import Captured
from tests.contract.worlds import CASES, Bench, Case


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_captured_is_eager_after_50_updates(case: Case, monkeypatch: pytest.MonkeyPatch):
    device = torch.device("cuda")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)  # as runtime.build has it
    eager, captured = (Bench(case, wrap=wrap, device=device) for wrap in (None, Captured))
    a, b = eager.train(50, Progress()), captured.train(50, Progress())
    assert a == b
    for name, value in eager.parameters().items():
        assert torch.equal(value, captured.parameters()[name]), name
    if case.name != "td3-bfloat16":  # which torch 2.11 cannot record, and which then runs eagerly
        fast = [captured.agent._explore.fast, captured.agent._updates[captured.agent.kinds[0]].fast]
        assert all(one is not None for function in fast for one in function.recordings.values())
