"""The same searches by mctx. `python -m tests.search.with_mctx` writes what it found to mctx.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.search.world import CASES, Case, tables

FILE = Path(__file__).with_name("mctx.json")


def by_mctx(case: Case) -> dict[str, Any]:
    """Visits, weights, the value of the root, and the Gumbel numbers that were drawn."""
    import jax
    import jax.numpy as jnp
    import mctx

    t = tables(case)
    slot = jnp.arange(case.slots)
    after, reward, discount, logits, value = (jnp.asarray(x) for x in t[:5])

    def recurrent(params: Any, key: Any, action: Any, state: Any) -> tuple[Any, Any]:
        new = after[slot, state, action]
        edge = {"reward": reward[slot, state, action], "discount": discount[slot, state, action]}
        return mctx.RecurrentFnOutput(**edge, prior_logits=logits[slot, new], value=value[slot, new]), new

    root = mctx.RootFnOutput(prior_logits=logits[:, 0], value=value[:, 0], embedding=jnp.zeros(case.slots, jnp.int32))
    given: dict[str, Any] = {"invalid_actions": jnp.asarray(~t.legal[:, 0])} if case.masked else {}
    if case.rule == "puct":
        given["dirichlet_fraction"] = 0.0
        search = mctx.muzero_policy
    else:
        given["max_num_considered_actions"] = case.considered
        search = mctx.gumbel_muzero_policy
    got = search(None, jax.random.PRNGKey(case.seed), root, recurrent, case.simulations, **given)
    summary = got.search_tree.summary()
    shake = got.search_tree.extra_data.root_gumbel if case.rule == "gumbel" else jnp.zeros_like(logits[:, 0])
    said = {"visits": summary.visit_counts, "weights": got.action_weights, "value": summary.value, "shake": shake}
    if case.rule == "gumbel":
        said["action"] = got.action
    return {name: np.asarray(x).round(7).tolist() for name, x in said.items()}


if __name__ == "__main__":
    FILE.write_text("[" + ",\n".join(json.dumps(by_mctx(case)) for case in CASES) + "]\n")
