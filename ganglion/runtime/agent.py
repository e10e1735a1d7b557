"""The Agent: the bridge between a world of slots and an algorithm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Acted, Algorithm, Knobs, Noise, Obs, Past, Progress, Row, SetKnob, State, Update, join, under
from ganglion.errors import UserError, nearest
from ganglion.exchange import Weights
from ganglion.fast import Swap, Wrap


class Agent:
    """Acts on rows of B slots and learns from items; the only place where `fast` wraps an algorithm."""

    def __init__(
        self, algo: Algorithm[Any, Any], device: torch.device, wrap: Wrap = lambda f: f, swap: Swap | None = None
    ) -> None:
        self.algo, self.device, self.swap = algo, device, swap or Swap()
        self.draws = algo.draws()
        self.pinned: dict[str, float] = {}  # knobs set by hand
        self.held: dict[str, Tensor] = {}
        self.values: dict[str, float] = {}
        self.fast_explore, self.fast_learn, self.fast_late = wrap(self.explore), wrap(algo.learn), wrap(algo.learn_late)
        # on a CPU evaluation waits for its environments: not worth a compilation
        self.fast_exploit = wrap(self.exploit) if device.type == "cuda" else self.exploit

    # ------------------------------------------------------------ acting

    @torch.no_grad()
    def sample(self, obs: Obs, past: Past, noise: Noise, at: Progress) -> Acted:
        """The training action of B slots."""
        act = self.fast_explore if self.swap.on else self.explore
        return Acted(*act(self.here(obs), past, self.knobs(at), noise))

    @torch.no_grad()
    def predict(self, obs: Obs, past: Past) -> Acted:
        """The evaluation action of B slots: deterministic."""
        return Acted(*self.fast_exploit(self.here(obs), past))

    def explore(self, obs: Obs, past: Past, knobs: Knobs, noise: Noise) -> Acted:
        return leave(self.algo.explore(self.algo.predict(enter(obs), past), knobs, noise))

    def exploit(self, obs: Obs, past: Past) -> Acted:
        return leave(self.algo.exploit(self.algo.predict(enter(obs), past)))

    def here(self, obs: Obs) -> Obs:
        """Observations on the agent's device; environments run on the CPU or there."""
        return obs if self.device.type == "cpu" else ops.to_device(obs, self.device)

    def start(self, slots: int) -> Past:
        """The past of slots whose episodes are about to start."""
        return Past(self.algo.model.initial(slots), torch.ones(1, slots, dtype=torch.bool, device=self.device))

    # ------------------------------------------------------------ learning

    def learn(self, mini: Any, noise: Noise, at: Progress) -> Update:
        """One update, and what follows it at intervals: the parts that learn more rarely, targets that are copied."""
        self.swap.look(at)
        fast, algo, knobs, count = self.swap.on, self.algo, self.knobs(at), at.opt_steps + 1
        update: Update = (self.fast_learn if fast else algo.learn)(mini, knobs, noise)
        if algo.late_every and count % algo.late_every == 0:
            late = (self.fast_late if fast else algo.learn_late)(mini, knobs, noise)
            update = update._replace(metrics={**update.metrics, **late})
        if algo.sync_every and count % algo.sync_every == 0:
            algo.sync_target()
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
        return join({**parts, "pinned": State({}, {"knobs": dict(self.pinned)}), "swap": self.swap.state()})

    def restore(self, state: State) -> None:
        for name, part in self.algo.parts().items():
            part.restore(under(state, name))
        self.pinned = dict(under(state, "pinned").scalars["knobs"])
        self.swap.restore(under(state, "swap"))


def enter(obs: Obs) -> Obs:
    """[B, ...] -> [1, B, ...]: algorithms see time first."""
    return ops.map_tree(lambda x: x[None], obs)


def leave(acted: Acted) -> Acted:
    """The moment that was acted in, without the time axis; memory keeps its own."""
    action, extras = ops.map_tree(lambda x: x[0], (acted.action, acted.extras))
    return Acted(action, extras, acted.memory)
