"""The agents of a copy beside each other: rows of slots [T, B, ...], all copies of the first agent, then all of the
second, and so on, as rows of copies [T, C, N, ...], and back. What is central has N = 1."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion.core import Noise, Obs, Past, Rollout
from ganglion.ops.trees import map_tree


def by_copy(tree: Any, agents: int) -> Any:
    """[T, B, ...] -> [T, C, N, ...]."""
    return map_tree(lambda x: x.unflatten(1, (agents, -1)).transpose(1, 2), tree)


def by_slot(tree: Any) -> Any:
    """[T, C, N, ...] -> [T, B, ...]."""
    return map_tree(lambda x: x.transpose(1, 2).flatten(1, 2), tree)


def by_agent(noise: Noise, rows: int, agents: int) -> Noise:
    """Numbers of copies [T, C, N * n] as those of their agents, [rows, B, n]; beyond T rows the first come again."""
    uniform, normal = noise.uniform, noise.normal
    split = (x.unflatten(-1, (agents, x.shape[-1] // agents)) for x in (uniform, normal))
    return Noise(*(by_slot(x.repeat(-(-rows // x.shape[0]), 1, 1, 1)[:rows]) for x in split))


class CopyRows(NamedTuple):
    """A rollout by copy as networks read it: its T rows and the one after them."""

    obs: Obs  # what each agent sees, [T + 1, B, ...]
    past: Past  # of the agents, before the first row
    copies: Obs  # the same by copy, [T + 1, C, N, ...]
    there: Tensor  # [T + 1, C, N] whose observation says something: the living, and who lived until a row was cut


def whole(r: Rollout) -> CopyRows:
    """The rows of a rollout by copy, and the one that follows them."""
    obs, past = r.last
    seen = map_tree(lambda x, last: torch.cat([x, last]), r.obs, obs)
    starts, alive, survives = (r.extras[name] for name in ("starts", "alive", "survives"))
    start = torch.cat([starts, past.start[..., None].expand(-1, -1, starts.shape[2])])
    there = torch.cat([alive[:1], alive[1:] | survives[:-1], survives[-1:]])
    return CopyRows(by_slot(seen), Past(by_slot(r.past.memory), by_slot(start)), seen, there)


def team_sum(value: Tensor, counts: Tensor) -> Tensor:
    """Over those agents of a copy that count, [T, C, N] -> [T, C]; the others take no gradient."""
    return torch.where(counts, value, 0.0).sum(-1)


def blank(x: Tensor, counts: Tensor) -> Tensor:
    """[T, C, N, ...] with zeros for agents that do not count."""
    return torch.where(counts.reshape(*counts.shape, *(1,) * (x.dim() - counts.dim())), x, 0.0)


def agents_weight(weight: Tensor, counts: Tensor) -> Tensor:
    """The weight of each agent's row, [T, C, N]: that of its copy, [T, C], where it counts."""
    return torch.where(counts, weight[..., None], 0.0)


def each_own(own: Tensor, others: Tensor) -> Tensor:
    """Of each agent what it would do itself beside what the others do: [T, C, N, n] twice -> [T, C, N, N * n]."""
    agents = own.shape[2]
    itself = torch.eye(agents, dtype=torch.bool, device=own.device)[..., None]
    return torch.where(itself, own.unsqueeze(2), others.unsqueeze(2)).flatten(3)


def among_others(there: Tensor) -> Tensor:
    """Which agents have which others beside them, [..., N] -> [..., N, N]: both there, and not the same."""
    itself = torch.eye(there.shape[-1], dtype=torch.bool, device=there.device)
    return there.unsqueeze(-1) & there.unsqueeze(-2) & ~itself


def payments(r: Rollout, gamma: float, own: bool) -> tuple[Tensor, Tensor]:
    """Rewards and discounts of the team, [T, C, 1], or of each agent, [T, C, N]."""
    if not own:
        return r.reward[..., None], r.discount[..., None]
    return r.extras["rewards"], gamma * r.extras["survives"].to(r.reward.dtype)


def own_values(q: Tensor) -> Tensor:
    """Of rows that were judged once per agent, [T, C, N, heads], the values that are each agent's: [T, C, N]."""
    return q.squeeze(-1) if q.shape[-1] == 1 else q.diagonal(dim1=-2, dim2=-1)
