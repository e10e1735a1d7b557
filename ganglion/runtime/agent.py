"""The Agent: the bridge between a world of slots and an algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import (
    Acted,
    Algorithm,
    Knobs,
    Noise,
    Obs,
    Past,
    Progress,
    Row,
    SetKnob,
    State,
    Update,
    join,
    under,
)  # fmt: skip
from ganglion.errors import UserError, nearest

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Weights(NamedTuple):
    """What an Explorer elsewhere needs to act as this Agent would: parameters and knobs of one version."""

    version: int
    knobs: Mapping[str, float]
    tensors: Mapping[str, Tensor]


class Agent:
    """Acts on rows of B slots and learns from items; the only place where `fast` wraps an algorithm."""

    def __init__(self, algo: Algorithm[Any, Any], device: torch.device, wrap: Wrap = lambda f: f) -> None:
        self.algo, self.device = algo, device
        self.draws = algo.draws()
        self.pinned: dict[str, float] = {}  # knobs set by hand
        self.held: dict[str, Tensor] = {}
        self.values: dict[str, float] = {}
        self._explore = wrap(lambda obs, past, knobs, noise: algo.explore(algo.predict(obs, past), knobs, noise))
        self._exploit = wrap(lambda obs, past: algo.exploit(algo.predict(obs, past)))
        self._learn = wrap(algo.learn)
        self._learn_late = wrap(algo.learn_late)

    # ------------------------------------------------------------ acting

    @torch.no_grad()
    def sample(self, obs: Obs, past: Past, noise: Noise, at: Progress) -> Acted:
        """The training action of B slots."""
        return self.leave(self._explore(self.enter(obs), past, self.knobs(at), noise))

    @torch.no_grad()
    def predict(self, obs: Obs, past: Past) -> Acted:
        """The evaluation action of B slots: deterministic."""
        return self.leave(self._exploit(self.enter(obs), past))

    def enter(self, obs: Obs) -> Obs:
        """[B, ...] of any device -> [1, B, ...] here."""
        return ops.map_tree(lambda x: x.to(self.device)[None], obs)

    def leave(self, acted: Acted) -> Acted:
        action, extras = ops.map_tree(lambda x: x[0], (acted.action, acted.extras))
        return Acted(action, extras, acted.memory)

    def start(self, slots: int) -> Past:
        """The past of slots whose episodes are about to start."""
        return Past(self.algo.model.initial(slots), torch.ones(1, slots, dtype=torch.bool, device=self.device))

    # ------------------------------------------------------------ learning

    def learn(self, mini: Any, noise: Noise, at: Progress) -> Update:
        """One update, and what follows it at intervals: the parts that learn more rarely, targets that are copied."""
        update: Update = self._learn(mini, self.knobs(at), noise)
        count, late, sync = at.opt_steps + 1, self.algo.late_every, self.algo.sync_every
        if late and count % late == 0:
            update = update._replace(metrics={**update.metrics, **self._learn_late(mini, self.knobs(at), noise)})
        if sync and count % sync == 0:
            self.algo.sync_target()
        return update

    @torch.no_grad()
    def observe(self, rows: Row) -> None:
        """Shows rows [T, B, ...] to the normalisers."""
        self.algo.observe(rows)

    # ------------------------------------------------------------ commanding

    def settings(self, at: Progress) -> dict[str, float]:
        """What each knob is worth: by its schedule, or as pinned by hand."""
        return {**self.algo.knobs(at), **self.pinned}

    def knobs(self, at: Progress) -> Knobs:
        """What changes over a run, as tensors that change in place."""
        values = self.settings(at)
        if values != self.values:
            for name, value in values.items():
                self.held.setdefault(name, torch.zeros((), device=self.device)).fill_(value)
            self.values = values
        return self.held

    def pin(self, command: SetKnob) -> None:
        known = self.algo.knobs(Progress())
        if command.name not in known:
            accepted = ", ".join(known) or "none"
            raise UserError(f"no knob {command.name!r}. Accepted: {accepted}.{nearest(command.name, known)}")
        if command.value is None:
            self.pinned.pop(command.name, None)
        else:
            self.pinned[command.name] = command.value

    def command(self, at: Progress) -> Weights:
        """The weights of now, for whoever acts elsewhere."""
        tensors = {k: v.detach().clone() for k, v in self.algo.model.state().tensors.items()}
        return Weights(at.opt_steps, self.settings(at), tensors)

    def obey(self, weights: Weights) -> None:
        """Takes weights over, in place."""
        self.algo.model.restore(State(weights.tensors))
        self.pinned = dict(weights.knobs)

    def state(self) -> State:
        parts = {name: part.state() for name, part in self.algo.parts().items()}
        return join({**parts, "pinned": State({}, {"knobs": dict(self.pinned)})})

    def restore(self, state: State) -> None:
        for name, part in self.algo.parts().items():
            part.restore(under(state, name))
        self.pinned = dict(under(state, "pinned").scalars["knobs"])
