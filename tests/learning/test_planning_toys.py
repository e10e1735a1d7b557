"""Algorithms that learn a world's model learn small worlds whose best is known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.learning.test_toys import score, trained

pytestmark = pytest.mark.learning
REPLAY, NET = {"capacity": 5_000, "batch": 32}, {"hidden": [32]}
TDMPC2 = {"kind": "tdmpc2", "horizon": 1, "samples": 24, "own": 4, "elites": 8, "iterations": 2, "latent": 32,
          "bins": 21, "gamma": 0.5, "lr": 3e-3, "net": NET | {"norm": "layer", "activation": "silu"}, "replay": REPLAY,
          "limiter": {"warmup": 200, "opt_interval": 8}}  # fmt: skip
SAMPLED = {"kind": "sampled_muzero", "samples": 8, "simulations": 8, "unroll": 1, "horizon": 2, "gamma": 0.5,
           "lr": 3e-3, "net": NET, "replay": REPLAY, "limiter": {"warmup": 200, "opt_interval": 4}}  # fmt: skip
DREAMER = {"kind": "dreamer", "sequence": 4, "imagine": 3, "deter": 16, "groups": 4, "classes": 4, "gamma": 0.5,
           "lr": 3e-3, "lr_actor": 3e-3, "bins": 21, "net": NET | {"norm": "rms", "activation": "silu"},
           "replay": {"capacity": 5_000, "batch": 16}, "limiter": {"warmup": 200, "opt_interval": 8}}  # fmt: skip


@pytest.mark.parametrize(("algo", "steps"), [(TDMPC2, 2_000), (SAMPLED, 5_000)], ids=["tdmpc2", "sampled_muzero"])
def test_identity_with_a_planned_action(algo: dict[str, Any], steps: int) -> None:
    assert score(trained(algo, {"id": "identity", "continuous": True}, steps, 0)) > -0.4, "0 is best, -5.3 random"


def test_identity_learned_in_dreams() -> None:
    assert score(trained(DREAMER, {"id": "identity"}, 12_000, 0)) > 7.0, "8 is best, 2 random"
