"""Starting from weights of another run: what has the same name and shape is taken over, and the rest is told."""

from __future__ import annotations

from collections.abc import Sequence

from ganglion.core import State, under
from ganglion.errors import UserError
from ganglion.runtime.agent import Agent
from ganglion.runtime.trainer import named

SHOWN = 5  # names of each sort


def take_over(agent: Agent, state: State, parts: Sequence[str], where: str) -> str:
    """Gives an agent the saved tensors of these parts that fit, and says which did not."""
    saved = under(state, named("agent", agent)).tensors
    fit, other, missing = list[str](), list[str](), list[str]()
    for part, own in agent.algo.parts().items():
        if part not in parts:
            continue
        before, taken = own.state(), {}
        for name, tensor in before.tensors.items():
            full = f"{part}/{name}"
            if full not in saved:
                missing.append(full)
            elif saved[full].shape != tensor.shape or saved[full].dtype != tensor.dtype:
                other.append(f"{full} {list(saved[full].shape)} there, {list(tensor.shape)} here")
            else:
                taken[name] = saved[full].to(tensor.device)
                fit.append(full)
        own.restore(before._replace(tensors={**before.tensors, **taken}))
    if not fit:
        raise UserError(
            f"init.run: no tensor of {where} has the name and shape of one here. {told(other, missing)} Its parts: "
            f"{', '.join(sorted({name.split('/')[0] for name in saved})) or 'none'}."
        )
    if agent.algo.sync_every and all(name.split("/")[0] != "target" for name in fit):
        agent.algo.sync_target()  # it was a copy of other weights
    count = len(fit) + len(other) + len(missing)
    return f"Started from {where}: {len(fit)} of {count} tensors. {told(other, missing)}".strip()


def told(other: Sequence[str], missing: Sequence[str]) -> str:
    """What was not taken over."""
    lines = []
    for what, names in (("Of another shape", other), ("Not there", missing)):
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines += [f"{what}: {', '.join(names[:SHOWN])}{more}."] if names else []
    return " ".join(lines)
