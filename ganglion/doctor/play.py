"""Plays a few episodes with a saved agent, and keeps what the examination looks at."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Acted, Past, Processor, Step
from ganglion.nn.layers import ACTIVATIONS, MLP
from ganglion.runtime.agent import Agent, enter
from ganglion.runtime.build import build_env
from ganglion.runtime.randomness import SlotNoise, Stream, derive
from ganglion.runtime.run import TrainedAgents

SLOTS, STEPS, SECONDS = 8, 700, 20.0
FULL = 0.99  # of a saturated activation between -1 and 1


class Played(NamedTuple):
    """T steps of B slots as an agent played them, [T, B, ...]."""

    obs: Mapping[str, Tensor]  # leaves of observations
    action: Mapping[str, Tensor]  # leaves of actions
    raw: Tensor  # rewards as the environment gave them
    reward: Tensor  # as the algorithm is given them
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    value: Tensor  # NaN where the algorithm has none
    layers: Mapping[str, float]  # hidden layer -> share of units that never move
    lengths: list[tuple[int, bool]]  # of finished episodes, and whether they were terminated


def play(trained: TrainedAgents, steps: int = STEPS, seconds: float = SECONDS) -> Played:
    """As it acts in training where its values are of that, else deterministically."""
    cfg, agent = trained.cfg, trained.made[0][1]
    slots = max(1, min(SLOTS, cfg.env.slots))
    env = build_env(cfg, slots)
    processor = cfg.algo.recipe(trained.spec).processor.build(env.spec, agent.device)
    sampled = "replay" not in type(cfg.algo).model_fields
    noise = SlotNoise(Stream(cfg.run.seed, "doctor", agent.device), agent.draws, slots)
    step, past = env.reset(derive(cfg.run.seed, "doctor")), agent.start(slots)
    units, rows, begin = Units(agent), list[dict[str, Tensor]](), monotonic()
    try:
        with torch.no_grad():
            while len(rows) < steps and (monotonic() - begin < seconds or len(rows) < 2):
                obs = agent.here(step.obs)
                acted = agent.sample(obs, past, noise.next(), trained.at) if sampled else agent.predict(obs, past)
                value, before = valued(agent, obs, past, acted.action), step
                step = env.step(acted.action)
                rows.append(row(before, step, acted, value, shaped(processor, before, past, acted, step)))
                past = Past(acted.memory, ~step.valid.to(agent.device)[None], acted.carried)
    finally:
        units.close()
        env.close()
    whole = {name: torch.stack([one[name].cpu() for one in rows]) for name in rows[0]}
    obs, action = ({k: v for k, v in whole.items() if k.startswith(part)} for part in ("obs", "action"))
    flags = (whole["terminated"], whole["truncated"], whole["valid"])
    rewards = (whole["raw"], whole["reward"])
    return Played(obs, action, *rewards, *flags, whole["value"], units.still(), ended(*flags))


def row(before: Step, after: Step, acted: Acted, value: Tensor, reward: Tensor) -> dict[str, Tensor]:
    """One step; environments may write the next observation where this one lies."""
    trees = ops.flatten_names({"obs": before.obs, "action": acted.action})
    flags = {"terminated": after.terminated, "truncated": after.truncated, "valid": before.valid, "raw": after.reward}
    return {**{name: x.clone() for name, x in trees.items()}, **flags, "value": value, "reward": reward}


def shaped(processor: Processor, before: Step, past: Past, acted: Acted, after: Step) -> Tensor:
    """The reward as the run's processor shapes it; as it is, where that keeps steps back."""
    first, second, one = (ops.map_tree(lambda x: x[None], x) for x in (before, after, acted._replace(memory=())))
    reward = processor(first, past, one, second).reward
    return reward[0] if reward.shape == second.reward.shape else after.reward


def valued(agent: Agent, obs: Any, past: Past, action: Any) -> Tensor:
    """What the algorithm thinks that a row is worth, [B]; the lower one of several critics."""
    past, nothing = agent.begun(past), past.start[0].new_full(past.start[0].shape, 0.0, dtype=torch.float32) / 0
    prediction = agent.algo.predict(enter(obs), past, agent.algo.neutral(past.start))
    value = prediction.value
    if not value.numel():
        try:
            value = agent.algo.model.value(enter(obs), past, ops.map_tree(lambda x: x[None], action))[0]
        except (TypeError, ValueError, RuntimeError, AssertionError):
            return nothing
        value = value.amin(0) if value.dim() == 3 else value
    return value[0] if value.shape == past.start.shape else nothing


def ended(terminated: Tensor, truncated: Tensor, valid: Tensor) -> list[tuple[int, bool]]:
    """The lengths of the episodes that ended, and whether they were terminated."""
    found = []
    for slot in range(valid.shape[1]):
        length = 0
        for term, trunc, real in zip(*(x[:, slot].tolist() for x in (terminated, truncated, valid)), strict=True):
            length += bool(real)
            if (term or trunc) and real:
                found.append((length, bool(term)))
                length = 0
    return found


class Units:
    """Watches what goes into perceptrons while the agent plays."""

    def __init__(self, agent: Agent) -> None:
        named = agent.algo.model.named_modules()
        self.seen: dict[str, tuple[MLP, list[Tensor]]] = {n: (m, []) for n, m in named if type(m) is MLP}
        self.hooks = [m.register_forward_pre_hook(self.hook(x)) for m, x in self.seen.values()]

    @staticmethod
    def hook(into: list[Tensor]) -> Any:
        def keep(module: torch.nn.Module, given: tuple[Tensor, ...]) -> None:
            if len(into) < 4 * STEPS:
                into.append(given[0].detach().reshape(-1, given[0].shape[-1]).clone())

        return keep

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()

    @torch.no_grad()
    def still(self) -> dict[str, float]:
        """The share of units of each hidden layer that are the same on every row: a rectifier's at zero, one between
        -1 and 1 at its ends."""
        shares: dict[str, float] = {}
        for name, (mlp, rows) in self.seen.items():
            if not rows or mlp.activation not in (ACTIVATIONS["relu"], ACTIVATIONS["tanh"]):
                continue
            y = torch.cat(rows)[None].expand(mlp.count, -1, -1)
            for number, (layer, norm) in enumerate(zip_longest(mlp.layers, mlp.norms)):
                y = mlp.activation(layer(y) if norm is None else norm(layer(y)))
                relu = mlp.activation is ACTIVATIONS["relu"]
                dead = y.amax(1) <= 0 if relu else (y.amin(1) > FULL) | (y.amax(1) < -FULL)
                shares[f"{name}.{number}"] = float(dead.float().mean())
        return shares
