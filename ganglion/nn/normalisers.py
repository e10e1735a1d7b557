"""Running statistics that belong to the agent: saved with it, shipped with its weights, frozen in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ganglion import ops
from ganglion.core import Row, State


class RunningMoments(nn.Module):
    """Mean and variance of all rows seen so far; float64 inside."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("var", torch.ones(size, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def observe(self, x: Tensor, valid: Tensor) -> None:
        """Adds rows x [T, B, size]; rows that are not valid count nothing."""
        before = ops.Moments(self.mean, self.var, self.count)
        after = ops.merge_moments(before, ops.moments(x.double(), valid))
        for mine, new in zip(before, after, strict=True):
            mine.copy_(new)


class ObsNormaliser(nn.Module):
    """(x - mean) / std, clipped; the statistics move only in `observe`."""

    def __init__(self, size: int, clip: float = 10.0) -> None:
        super().__init__()
        self.moments, self.clip = RunningMoments(size), clip

    def forward(self, x: Tensor) -> Tensor:
        m = self.moments
        return ((x - m.mean.float()) * (m.var + 1e-8).rsqrt().float()).clamp(-self.clip, self.clip)


class RewardScale(nn.Module):
    """Divides rewards by the standard deviation of the discounted return, as seen per slot."""

    total: Tensor

    def __init__(self, slots: int, gamma: float, clip: float = 10.0) -> None:
        super().__init__()
        self.moments, self.gamma, self.clip = RunningMoments(1), gamma, clip
        self.register_buffer("total", torch.zeros(slots, dtype=torch.float64))

    def forward(self, reward: Tensor) -> Tensor:
        return (reward * (self.moments.var + 1e-8).rsqrt().float()).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def observe(self, rows: Row) -> None:
        """Runs along rows [T, B]; the running return starts anew where an episode starts."""
        self.moments.observe(self.totals(rows)[..., None], rows.valid)

    def totals(self, rows: Row) -> Tensor:
        """The running return after each row, [T, B]."""
        totals = []
        for t in range(rows.reward.shape[0]):
            self.total.copy_(torch.where(rows.start[t], 0.0, self.total * self.gamma) + rows.reward[t])
            totals.append(self.total.clone())
        return torch.stack(totals)

    def state(self) -> State:
        return State(dict(self.state_dict()))

    @torch.no_grad()
    def restore(self, state: State) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state.tensors[name])
