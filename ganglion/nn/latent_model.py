"""The learned model that a search asks: latent states, what actions make of them, and what they are worth."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import EnvSpec, Memory, Obs, Past, Rollout
from ganglion.nn.cells import CellMemory, step
from ganglion.nn.layers import LinearHead
from ganglion.nn.nets import Encoded, MLPConfig
from ganglion.nn.support import Support


class LatentState(NamedTuple):
    """Where the model believes it is; with a value prefix, what that needs as well."""

    latent: Tensor  # [T, B, size]
    memory: Memory = ()  # of the cell that sums rewards up, each [T, B, size]
    total: Any = ()  # [T, B] the rewards since that began
    steps: Any = ()  # [T, B] how many


class LatentModel(Encoded):
    """obs -> latent state; latent state and action -> the next one and a reward; latent state -> policy and value.

    With `prefix` it predicts, from a memory, the sum of rewards since the first state, which begins anew after so many
    steps (Ye et al. 2021): when exactly a reward comes need not be known. The reward of a step is a difference of sums.
    """

    def __init__(
        self, net: MLPConfig, spec: EnvSpec, inputs: int, policy: int, support: Support, prefix: int = 0,
        consistency: bool = False,
    ) -> None:  # fmt: skip
        """`inputs`: numbers of an action; `policy`: of a policy; `consistency`: with what compares latent states."""
        super().__init__(net, spec.obs)
        self.support, self.prefix, self.compares = support, prefix, consistency
        self.represent = net.body(self.encoder.out)
        size = self.represent.out
        self.step, self.read = net.body(size + inputs), net.body(size)
        self.reward, self.critic = LinearHead(self.step, support.bins), LinearHead(self.read, support.bins)
        self.actor = LinearHead(self.read, policy, net.init, gain=0.01)
        if prefix:
            self.sums = CellMemory("lstm", size, size)
        if consistency:
            self.project, self.foretell = net.body(size), net.body(size)

    def see(self, obs: Obs, past: Past) -> LatentState:
        """The latent state of what is seen."""
        latent = scaled(self.represent(self.encoder(obs, past)[0])[0])
        if not self.prefix:
            return LatentState(latent)
        nothing = torch.zeros_like(latent)
        return LatentState(latent, (nothing, nothing), nothing[..., 0], nothing[..., 0])

    def imagine(self, state: LatentState, action: Tensor) -> tuple[LatentState, Tensor, Tensor]:
        """The state after an action [T, B, inputs]; the logits of its reward, or of the sum; the reward."""
        hidden = self.step(torch.cat([state.latent, action], -1))[0]
        latent = scaled(hidden + state.latent)
        if not self.prefix:
            logits = self.reward(hidden)
            return LatentState(latent), logits, self.support.number(logits)
        anew = state.steps >= self.prefix
        kept = tuple(m.masked_fill(anew[..., None], 0.0).flatten(0, 1) for m in state.memory)
        memory = tuple(m.view_as(hidden) for m in step(self.sums.cell, hidden.flatten(0, 1), kept))
        logits = self.reward(memory[0])
        total = self.support.number(logits)
        before, steps = (x.masked_fill(anew, 0.0) for x in (state.total, state.steps))
        return LatentState(latent, memory, total, steps + 1), logits, total - before

    def judge(self, state: LatentState) -> tuple[Tensor, Tensor]:
        """The numbers of a policy, and the logits of a value."""
        hidden = self.read(state.latent)[0]
        return self.actor(hidden), self.critic(hidden)

    def apart(self, told: Tensor, seen: Tensor) -> Tensor:
        """Minus the cosine between latent states that were foretold and those of what was then seen, [T, B]."""
        with torch.no_grad():
            goal = self.project(seen)[0]
        return -torch.nn.functional.cosine_similarity(self.foretell(self.project(told)[0])[0], goal, -1)


def scaled(latent: Tensor) -> Tensor:
    """From 0 to 1 in every row."""
    low, high = latent.amin(-1, keepdim=True), latent.amax(-1, keepdim=True)
    return (latent - low) / (high - low).clamp(min=1e-5)


class Unrolled(NamedTuple):
    """What the model says of the states that follow each other, [T, B, ...]."""

    latent: Tensor
    reward: Tensor  # logits of what the action before earned, or of the sum; zeros in the first row
    policy: Tensor
    value: Tensor  # logits


def unrolled(model: LatentModel, obs: Obs, past: Past, actions: Tensor) -> Unrolled:
    """What it foresees from the first row under actions [K, B, inputs]: K + 1 rows."""
    state = model.see(ops.map_tree(lambda x: x[:1], obs), Past((), past.start[:1]))
    latents, rewards = [state.latent], [state.latent.new_zeros(*state.latent.shape[:2], model.support.bins)]
    for action in actions.split(1):
        half = 0.5 * state.latent + 0.5 * state.latent.detach()  # as the paper halves the gradient of each step
        state, reward, _ = model.imagine(state._replace(latent=half), action)
        latents.append(state.latent)
        rewards.append(reward)
    whole = torch.cat(latents)
    return Unrolled(whole, torch.cat(rewards), *model.judge(LatentState(whole)))


class Goals(NamedTuple):
    """What the model should say of a sequence, [T, B]."""

    value: Tensor
    alive: Tensor  # before an ending
    over: Tensor  # after one that was no truncation: there the model should foresee nothing, for ever


@torch.no_grad()
def goals(model: LatentModel, r: Rollout, sign: float, lam: float) -> Goals:
    """Returns over what search said of later rows (extras `value`); `sign`: of what the next row is worth."""
    last = model.support.number(model.judge(model.see(*r.last))[1])
    after = torch.cat([r.extras["value"][1:], last])
    value = ops.lambda_returns(r.reward, after, sign * r.discount, r.cut, lam)
    ended = r.cut.long().cumsum(0) - r.cut.long()
    finished = (r.cut & (r.discount == 0) & (ended == 0)).long()
    return Goals(value, ended == 0, finished.cumsum(0) - finished > 0)


def wrong(model: LatentModel, seen: Unrolled, r: Rollout, goal: Goals, weight: Tensor) -> dict[str, Tensor]:
    """How wrong the model was about values and rewards (or their sums), and where it was made to compare, about what
    was seen later; `weight` [1, B]."""
    rows = slice(0, len(seen.value))
    value = model.support.cross_entropy(seen.value, torch.where(goal.alive, goal.value, 0.0)[rows])
    earned = torch.where(goal.alive, r.reward, 0.0)
    earned = (earned.cumsum(0) if model.prefix else earned)[rows][:-1]
    known = weight * (goal.alive | goal.over)[rows]
    terms = {
        "value": ops.weighted_mean(value, known),
        "reward": ops.weighted_mean(model.support.cross_entropy(seen.reward[1:], earned), known[:-1]),
    }
    if model.compares:
        with torch.no_grad():
            later = model.see(*ops.map_tree(lambda x: x[1 : len(seen.value)], (r.obs, Past((), r.past.start)))).latent
        terms["consistency"] = ops.weighted_mean(
            model.apart(seen.latent[1:], later), weight * goal.alive[1 : len(seen.value)]
        )
    return terms
