"""Running statistics that belong to the agent: saved with it, shipped with its weights, frozen in evaluation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ganglion.core import Row, State


class Moments(nn.Module):
    """Mean and variance of all rows seen, merged batch by batch (Chan et al. 1983); float64 inside."""

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
        """Adds rows x [..., size]; rows that are not valid count nothing."""
        x = x.reshape(-1, x.shape[-1]).double()
        w = valid.reshape(-1, 1).double()
        n = w.sum()
        mean = (x * w).sum(0) / n.clamp(min=1)
        var = ((x - mean).square() * w).sum(0) / n.clamp(min=1)
        total = (self.count + n).clamp(min=1)
        delta = mean - self.mean
        both = self.var * self.count + var * n + delta.square() * self.count * n / total
        self.var.copy_(torch.where(self.count + n > 0, both / total, self.var))
        self.mean.add_(delta * n / total)
        self.count.add_(n)


class ObsNormaliser(nn.Module):
    """(x - mean) / std, clipped; the statistics move only in `observe`."""

    def __init__(self, size: int, clip: float = 10.0) -> None:
        super().__init__()
        self.moments, self.clip = Moments(size), clip

    def forward(self, x: Tensor) -> Tensor:
        m = self.moments
        return ((x - m.mean.float()) * (m.var + 1e-8).rsqrt().float()).clamp(-self.clip, self.clip)


class RewardScale(nn.Module):
    """Divides rewards by the standard deviation of the discounted return, as seen per slot."""

    total: Tensor

    def __init__(self, slots: int, gamma: float, clip: float = 10.0) -> None:
        super().__init__()
        self.moments, self.gamma, self.clip = Moments(1), gamma, clip
        self.register_buffer("total", torch.zeros(slots, dtype=torch.float64))

    def forward(self, reward: Tensor) -> Tensor:
        return (reward * (self.moments.var + 1e-8).rsqrt().float()).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def observe(self, rows: Row) -> None:
        """Runs along rows [T, B]; the running return starts anew where an episode starts."""
        totals = []
        for t in range(rows.reward.shape[0]):
            self.total.copy_(torch.where(rows.start[t], 0.0, self.total * self.gamma) + rows.reward[t])
            totals.append(self.total.clone())
        self.moments.observe(torch.stack(totals)[..., None], rows.valid)

    def state(self) -> State:
        return State(dict(self.state_dict()))

    @torch.no_grad()
    def restore(self, state: State) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state.tensors[name])
