"""The Agent: the bridge between a world of slots and an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Acted, Algorithm, Knobs, Noise, Obs, Past, Progress, Row, SetKnob, State, Update, join, under
from ganglion.exchange import Weights
from ganglion.fast import Swap, Wrap
from ganglion.runtime.knobs import Held

Rows = Tensor | tuple[()]  # numbers of rows; (): all of them


class Agent:
    """Acts on rows of B slots and learns from items; the only place where `fast` wraps an algorithm."""

    def __init__(
        self, algo: Algorithm[Any, Any], device: torch.device, wrap: Wrap = lambda f: f, swap: Swap | None = None
    ) -> None:
        self.algo, self.device, self.swap = algo, device, swap or Swap()
        self.draws = algo.draws()
        self.held = Held(device)
        self.fast_explore, self.fast_learn, self.fast_late = wrap(self.explore), wrap(self.update), wrap(self.late)
        same = type(algo).prepare is Algorithm.prepare
        self.slow_prepare = algo.prepare if same else torch.no_grad()(algo.prepare)
        self.fast_prepare = algo.prepare if same else wrap(self.slow_prepare)
        # on a CPU evaluation waits for its environments: not worth a compilation
        self.fast_exploit = wrap(self.exploit) if device.type == "cuda" else self.exploit

    # ------------------------------------------------------------ acting

    def sample(self, obs: Obs, past: Past, noise: Noise, at: Progress) -> Acted:
        """The training action of B slots."""
        act = self.fast_explore if self.swap.on else self.explore
        return Acted(*act(self.here(obs), past, self.knobs(at), noise))

    def predict(self, obs: Obs, past: Past) -> Acted:
        """The evaluation action of B slots: deterministic."""
        return Acted(*self.fast_exploit(self.here(obs), past))

    @torch.no_grad()
    def explore(self, obs: Obs, past: Past, knobs: Knobs, noise: Noise) -> Acted:
        return leave(self.algo.explore(self.algo.predict(enter(obs), past), knobs, noise))

    @torch.no_grad()
    def exploit(self, obs: Obs, past: Past) -> Acted:
        return leave(self.algo.exploit(self.algo.predict(enter(obs), past)))

    def here(self, obs: Obs) -> Obs:
        """Observations on the agent's device; environments run on the CPU or there."""
        return obs if self.device.type == "cpu" else ops.to_device(obs, self.device)

    def start(self, slots: int) -> Past:
        """The past of slots whose episodes are about to start."""
        return Past(self.algo.model.initial(slots), torch.ones(1, slots, dtype=torch.bool, device=self.device))

    # ------------------------------------------------------------ learning

    def prepare(self, item: Any) -> Any:
        """What is computed once per item."""
        return (self.fast_prepare if self.swap.on else self.slow_prepare)(item)

    def learn(self, mini: Any, noise: Noise, at: Progress, rows: Rows = ()) -> Update:
        """One update from some rows of what was prepared, or all, and what follows it at intervals: the parts that
        learn more rarely, targets that are copied."""
        self.swap.look(at)
        fast, algo, knobs, count = self.swap.on, self.algo, self.knobs(at), at.opt_steps + 1
        update: Update = (self.fast_learn if fast else self.update)(mini, rows, knobs, noise)
        if algo.late_every and count % algo.late_every == 0:
            late = (self.fast_late if fast else self.late)(mini, rows, knobs, noise)
            update = update._replace(metrics={**update.metrics, **late})
        if algo.sync_every and count % algo.sync_every == 0:
            algo.sync_target()
        return update

    def update(self, mini: Any, rows: Rows, knobs: Knobs, noise: Noise) -> Update:
        return self.algo.learn(some(mini, rows), knobs, noise)

    def late(self, mini: Any, rows: Rows, knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        return self.algo.learn_late(some(mini, rows), knobs, noise)

    @torch.no_grad()
    def observe(self, rows: Row) -> None:
        """Shows rows [T, B, ...] to the normalisers."""
        self.algo.observe(rows)

    # ------------------------------------------------------------ commanding

    def settings(self, at: Progress) -> dict[str, float]:
        """What each knob is worth: by its schedule, or as pinned by hand."""
        return {**self.algo.knobs(at), **self.held.pinned}

    def knobs(self, at: Progress) -> Knobs:
        """What changes over a run, as tensors that change in place."""
        return self.held.at(self.settings(at))

    def pin(self, command: SetKnob) -> None:
        """Sets a knob by hand."""
        self.held.pin(command, self.algo.knobs(Progress()))

    def command(self, at: Progress) -> Weights:
        """The weights of now, for whoever acts elsewhere."""
        tensors = {k: v.detach().clone() for k, v in self.algo.model.state().tensors.items()}
        return Weights(at.opt_steps, self.settings(at), tensors, self.swap.went)

    def obey(self, weights: Weights) -> None:
        """Takes weights over, in place."""
        self.algo.model.restore(State(weights.tensors))
        self.held.pinned = dict(weights.knobs)

    def state(self) -> State:
        parts = {name: part.state() for name, part in self.algo.parts().items()}
        return join({**parts, "pinned": State({}, {"knobs": dict(self.held.pinned)}), "swap": self.swap.state()})

    def restore(self, state: State) -> None:
        for name, part in self.algo.parts().items():
            part.restore(under(state, name))
        self.held.pinned = dict(under(state, "pinned").scalars["knobs"])
        self.swap.restore(under(state, "swap"))


def some(mini: Any, rows: Rows) -> Any:
    """A minibatch of what was prepared: gathered inside the graph that learns from it."""
    return ops.take(mini, rows, dim=1) if isinstance(rows, Tensor) else mini


def enter(obs: Obs) -> Obs:
    """[B, ...] -> [1, B, ...]: algorithms, processors and buffers see time first."""
    return ops.map_tree(lambda x: x[None], obs)


def leave(acted: Acted) -> Acted:
    """The moment that was acted in, without the time axis; memory keeps its own."""
    action, extras = ops.map_tree(lambda x: x[0], (acted.action, acted.extras))
    return Acted(action, extras, acted.memory)
