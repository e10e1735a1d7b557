"""The Agent: the bridge between a world of slots and an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ganglion import nn, ops
from ganglion.core import (
    Acted, Algorithm, Carried, Knobs, Memory, Noise, Obs, Past, Prediction, Progress, Row, SetKnob, State, Update,
    Weights, join, read_number, under,
)  # fmt: skip
from ganglion.errors import UserError, nearest
from ganglion.fast.direct import Fn
from ganglion.runtime.engine import Engine

Rows = Tensor | tuple[()]  # numbers of rows; (): all of them
PLAYER = "main"  # who plays where there is one player


class Agent:
    """Acts on rows of B slots and learns from items. Its Engine says how the algorithm's functions are run."""

    def __init__(self, algo: Algorithm[Any, Any], engine: Engine, player: str = PLAYER) -> None:
        self.algo, self.engine, self.device, self.player = algo, engine, engine.device, player
        self.draws = algo.draws()
        self.fresh: dict[int, Carried] = {}  # what so many slots carry at first
        self.held, self.modes = KnobTensors(self.device), nn.Modes(algo.model)
        self._explore = engine.wrap(self.explore, f"{player}/explore")
        self.kinds = tuple(algo.phases())
        self._updates = {kind: self.wrap(self.update, "update", kind) for kind in self.kinds}
        self._late = engine.wrap(self.late, f"{player}/late")
        self._prepares = {kind: self.wrap_prepare(kind) for kind in self.kinds}
        # on a CPU evaluation waits for its environments: not worth a compilation
        self._exploit = engine.wrap_own(self.exploit) if self.device.type == "cuda" else self.exploit

    # ------------------------------------------------------------ acting

    def sample(self, obs: Obs, past: Past, noise: Noise, at: Progress) -> Acted:
        """The training action of B slots."""
        return self.act(obs, past, self.knobs(at), noise)

    def act(self, obs: Obs, past: Past, knobs: Knobs, noise: Noise) -> Acted:
        """The same where knobs are at hand."""
        acted: Acted = self._explore(self.here(obs), past, knobs, noise)
        return acted

    def predict(self, obs: Obs, past: Past) -> Acted:
        """The evaluation action of B slots: deterministic."""
        acted: Acted = self._exploit(self.here(obs), past)
        return acted

    @torch.no_grad()
    def explore(self, obs: Obs, past: Past, knobs: Knobs, noise: Noise) -> Acted:
        first, second = self.parted(noise)
        past = self.begun(past)
        prediction = self.algo.predict(enter(obs), past, first)
        return leave(self.algo.explore(carrying(prediction, past), knobs, second), past)

    @torch.no_grad()
    def exploit(self, obs: Obs, past: Past) -> Acted:
        past = self.begun(past)
        prediction = self.algo.predict(enter(obs), past, self.algo.neutral(past.start))
        return leave(self.algo.exploit(carrying(prediction, past)), past)

    def parted(self, noise: Noise) -> tuple[Noise, Noise]:
        """A slot's numbers: those of `predict`, those of `explore`."""
        uniform, normal = self.draws.predict
        if not uniform and not normal:
            return noise, noise
        first = Noise(noise.uniform[..., :uniform], noise.normal[..., :normal])
        return first, Noise(noise.uniform[..., uniform:], noise.normal[..., normal:])

    def here(self, obs: Obs) -> Obs:
        """Observations on the agent's device; environments run on the CPU or there."""
        return obs if self.device.type == "cpu" else ops.to_device(obs, self.device)

    def start(self, slots: int) -> Past:
        """The past of slots whose episodes are about to start."""
        start = torch.ones(1, slots, dtype=torch.bool, device=self.device)
        self.fresh[slots] = tuple(x.to(self.device) for x in self.algo.carry(slots))
        return Past(laid_out(self.algo.model.initial(slots)), start, self.fresh[slots])

    def paid(self, past: Past, reward: Tensor) -> Past:
        """The past of slots, once it is known what their last action brought, [B]; on any device."""
        return past._replace(carried=self.algo.paid(past.carried, reward.to(self.device))) if past.carried else past

    def begun(self, past: Past) -> Past:
        """The same, where an episode starts with what a slot carries then."""
        fresh = self.fresh[past.start.shape[1]] if past.carried else ()
        return past._replace(carried=tuple(map(partial(begin, past.start), fresh, past.carried)))

    # ------------------------------------------------------------ learning

    def wrap(self, fn: Fn, name: str, kind: str) -> Fn:
        """A function of one kind of phase, as the engine runs it."""
        whose = f"{self.player}/{name}" if kind == self.kinds[0] else f"{self.player}/{name}/{kind}"
        return self.engine.wrap(partial(fn, kind), whose)

    def wrap_prepare(self, kind: str) -> Fn:
        same = type(self.algo).prepare is Algorithm.prepare and self.algo.phases()[kind].prepare == self.algo.prepare
        return self.algo.prepare if same else self.wrap(self.prepared, "prepare", kind)

    def prepare(self, item: Any, kind: str) -> Any:
        """What is computed once per item."""
        return self._prepares[kind](item)

    @torch.no_grad()
    def prepared(self, kind: str, item: Any) -> Any:
        return self.algo.phases()[kind].prepare(item)

    def learn(self, mini: Any, noise: Noise, at: Progress, rows: Rows = (), kind: str = "") -> Update:
        """One update from some rows of what was prepared, or all, and what follows it at intervals: the parts that
        learn more rarely, targets that are copied. `kind`: of the phase; the first where none is named."""
        kind = kind or self.kinds[0]
        self.engine.look(at)
        algo, knobs, count = self.algo, self.knobs(at), at.opt_steps + 1
        update: Update = self._updates[kind](mini, rows, knobs, noise)
        if algo.late_every and kind == self.kinds[0] and count % algo.late_every == 0:
            late = self._late(mini, rows, knobs, noise)
            update = update._replace(metrics={**update.metrics, **late})
        if algo.sync_every and count % algo.sync_every == 0:
            algo.sync_target()
        if algo.reset_every and count % algo.reset_every == 0:
            algo.reset(count)
        return update

    def update(self, kind: str, mini: Any, rows: Rows, knobs: Knobs, noise: Noise) -> Update:
        with self.modes.learning():
            return self.algo.phases()[kind].learn(some(mini, rows), knobs, noise)

    def late(self, mini: Any, rows: Rows, knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        with self.modes.learning():
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
        """The weights of now, for whoever acts in another process."""
        parts = join({name: part.state() for name, part in self.algo.acting().items()})
        tensors = {name: tensor.detach().clone() for name, tensor in parts.tensors.items()}
        return Weights(at.opt_steps, self.settings(at), tensors, self.engine.went)

    def obey(self, weights: Weights) -> None:
        """Takes weights over, in place."""
        for name, part in self.algo.acting().items():
            part.restore(under(State(weights.tensors), name))
        self.held.pinned = dict(weights.knobs)

    def state(self) -> State:
        parts = {name: part.state() for name, part in self.algo.parts().items()}
        return join({**parts, "pinned": State({}, {"knobs": dict(self.held.pinned)}), "engine": self.engine.state()})

    def restore(self, state: State) -> None:
        for name, part in self.algo.parts().items():
            part.restore(under(state, name))
        self.held.pinned = {name: read_number(value) for name, value in under(state, "pinned").scalars["knobs"].items()}
        self.engine.restore(under(state, "engine"))


class KnobTensors:
    """Knobs as an algorithm reads them: 0-d tensors that change in place, so that compiled functions see it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pinned: dict[str, float] = {}  # by hand
        self.values: Mapping[str, float] = {}
        self.tensors: dict[str, Tensor] = {}
        self.line: Any = None  # on a CPU: the same numbers as one array, which is quicker to write

    def at(self, values: Mapping[str, float]) -> Knobs:
        """The tensors, holding these values."""
        if values == self.values:
            return self.tensors
        if values.keys() != self.tensors.keys():
            self.make(list(values))
        self.values = values
        if self.line is not None:
            self.line[:] = list(values.values())
        else:
            for name, value in values.items():
                self.tensors[name].fill_(value)
        return self.tensors

    def pin(self, command: SetKnob, known: Mapping[str, float]) -> None:
        if command.name not in known:
            accepted = ", ".join(known) or "none"
            raise UserError(f"no knob {command.name!r}. Accepted: {accepted}.{nearest(command.name, known)}")
        if command.value is None:
            self.pinned.pop(command.name, None)
        else:
            self.pinned[command.name] = command.value

    def make(self, names: list[str]) -> None:
        if self.device.type == "cpu":
            together = torch.zeros(len(names))
            self.tensors, self.line = dict(zip(names, together.unbind(), strict=True)), together.numpy()
        else:
            self.tensors = {name: torch.zeros((), device=self.device) for name in names}


def some(mini: Any, rows: Rows) -> Any:
    """A minibatch of what was prepared: gathered inside the graph that learns from it."""
    return ops.take(mini, rows, dim=1) if isinstance(rows, Tensor) else mini


def enter(obs: Obs) -> Obs:
    """[B, ...] -> [1, B, ...]: algorithms, processors and buffers see time first."""
    return ops.map_tree(lambda x: x.unsqueeze(0), obs)


def leave(acted: Acted, past: Past) -> Acted:
    """The moment that was acted in, without the time axis; memory and what is carried keep theirs."""
    action = ops.select(acted.action, 0)
    extras = ops.select(acted.extras, 0) if acted.extras else acted.extras
    return Acted(action, extras, laid_out(acted.memory), acted.carried or past.carried)


def carrying(prediction: Prediction, past: Past) -> Prediction:
    """With what the slots carry."""
    return prediction if prediction.carried or not past.carried else prediction._replace(carried=past.carried)


def begin(start: Tensor, fresh: Tensor, carried: Tensor) -> Tensor:
    """`fresh` where an episode starts."""
    return torch.where(start.reshape(*start.shape, *(1,) * (carried.ndim - 2)), fresh, carried)


def laid_out(memory: Memory) -> Memory:
    """Memory with the strides that it always has: compiled functions take no others, and it is what they return."""
    return tuple(part.contiguous() for part in memory)
