"""What lies between agents that speak with each other: thoughts, groups, what is heard (ATOC, Jiang and Lu 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ganglion.core import Composite, EnvSpec, Memory, Obs, Past, Space
from ganglion.nn.attention import NOWHERE
from ganglion.nn.layers import LinearHead
from ganglion.nn.nets import Encoded, MLPConfig, Net
from ganglion.ops.agents import among_others, by_copy

PRESENT = "present"  # the part of an observation that says who is there: the wrapper of that name makes it


class Thoughts(NamedTuple):
    """What agents made of what they see."""

    own: Tensor  # [T, C, N, size]
    wish: Tensor  # [T, C, N] log-odds of opening a group
    there: Tensor  # [T, C, N] who can speak and be spoken to
    memory: Memory


class Speakers(Encoded):
    """An actor that agents share, in two halves, and what lies between them."""

    def __init__(
        self, net: MLPConfig, spec: EnvSpec, outputs: int, message: int, group: int | None, burn_in: int
    ) -> None:
        super().__init__(net, spec.obs, burn_in)
        self.said = PRESENT in parts(spec.obs)
        self.agents, self.message, self.group = len(spec.agents), message, group
        self.body = net.body(self.encoder.out)
        size = self.body.out
        self.attention = Net(inner := net.body(size), LinearHead(inner, 1))
        self.query, self.key = (nn.Linear(size, message, bias=False) for _ in range(2))
        self.voice = nn.Linear(size, message)
        self.last = Net(body := net.body(size + message), LinearHead(body, outputs))

    def think(self, obs: Obs, past: Past, there: Tensor | None = None) -> Thoughts:
        """`there` [T, C, N]: whose observations say something; while acting, by the observation's part `present`."""
        features, memory = self.encode(obs, past)
        own = self.body(features)[0]
        wish = self.attention(own.detach()).squeeze(-1)  # it learns what thoughts are worth, and does not bend them
        said, asked = by_copy((own, wish), self.agents)
        return Thoughts(said, asked, self.present(obs, asked) if there is None else there, memory)

    def present(self, obs: Obs, like: Tensor) -> Tensor:
        """Who is there, where the observation says so; all between episodes."""
        if not self.said:
            return torch.ones_like(like, dtype=torch.bool)
        here = by_copy(obs[PRESENT].bool(), self.agents)[:, :, 0]  # all of a copy see the same of this
        return here | ~here.any(-1, keepdim=True)

    def say(self, thoughts: Thoughts, opens: Tensor) -> Tensor:
        """What agents do, raw [T, C, N, outputs], where some of them open their groups [T, C, N]."""
        told = self.told(thoughts, opens)
        return self.last(torch.cat([thoughts.own, told], -1).flatten(1, 2)).unflatten(1, opens.shape[1:])

    def told(self, thoughts: Thoughts, opens: Tensor) -> Tensor:
        """What each agent hears, [T, C, N, message]: zeros where it is in no open group."""
        own, there = thoughts.own, thoughts.there
        links = self.links(own, opens & there, there)
        score = self.query(own) @ self.key(own).transpose(-1, -2) / self.message**0.5
        weight = torch.where(links, score, NOWHERE).softmax(-1) * links
        return weight @ self.voice(own)

    def links(self, own: Tensor, opens: Tensor, there: Tensor) -> Tensor:
        """Who hears whom, [T, C, N, N]: those who share an open group."""
        among = among_others(there)
        group = among
        if self.group is not None and self.group < self.agents:
            like = torch.where(among, own.detach() @ own.detach().transpose(-1, -2), NOWHERE)
            near = torch.zeros_like(like).scatter(-1, like.topk(self.group - 1, -1).indices, 1.0)
            group = among & (near > 0)
        members = group | torch.eye(self.agents, dtype=torch.bool, device=own.device)  # [.., opener, member]
        joint = (members & opens[..., None]).float()
        return ((joint.transpose(-1, -2) @ joint) > 0) & among


def parts(space: Space) -> Mapping[str, Space]:
    """Of an observation, by name; of one that has none, nothing."""
    match space:
        case Composite(items):
            return items
    return {}
