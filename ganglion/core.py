"""The contracts: the data that flows through Ganglion and the roles that handle it.

Torch and the standard library only. Everything on the hot path is a NamedTuple of tensors, time-major [T, B, ...]:
T counts rows in time, B slots; a slot is one agent in one copy of the game.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from ganglion.faults import Faults as Faults
from ganglion.spaces import CENTRAL as CENTRAL
from ganglion.spaces import Box as Box
from ganglion.spaces import Composite as Composite
from ganglion.spaces import Discrete as Discrete
from ganglion.spaces import EnvSpec as EnvSpec
from ganglion.spaces import MultiBinary as MultiBinary
from ganglion.spaces import MultiDiscrete as MultiDiscrete
from ganglion.spaces import Rules as Rules
from ganglion.spaces import Space as Space
from ganglion.spaces import alike as alike
from ganglion.spaces import central as central
from ganglion.spaces import mask_misfit as mask_misfit

Json = Any  # what json.dumps takes


class Ring(NamedTuple):
    """Large row storage. A checkpoint writes only the blocks whose stamp has changed."""

    arrays: Mapping[str, Tensor]  # each [rows, ...]
    block: int  # rows per block
    stamps: tuple[int, ...]  # per block: rows ever pushed when it last changed, 0 when never written


class State(NamedTuple):
    """All that changes in a part: named tensors, JSON scalars, and large row storage."""

    tensors: Mapping[str, Tensor] = {}
    scalars: Mapping[str, Json] = {}
    rings: Mapping[str, Ring] = {}


def read_count(value: Json, most: int = 1 << 62) -> int:
    """A whole number of a state that was read, checked: a file may say anything."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is no number from 0 to {most}")
    return value


def read_number(value: Json) -> float:
    """Any number of a state that was read, checked."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{str(value)[:40]!r} is no number")
    return value


@runtime_checkable
class Stateful(Protocol):
    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


def join(parts: Mapping[str, State]) -> State:
    """Several states as one, names prefixed by `part/`."""
    tensors = {f"{p}/{k}": v for p, s in parts.items() for k, v in s.tensors.items()}
    scalars = {f"{p}/{k}": v for p, s in parts.items() for k, v in s.scalars.items()}
    return State(tensors, scalars, {f"{p}/{k}": v for p, s in parts.items() for k, v in s.rings.items()})


def under(state: State, part: str) -> State:
    """The state of one part of a joined state."""
    cut = len(part) + 1

    def pick(named: Mapping[str, Any]) -> dict[str, Any]:
        return {k[cut:]: v for k, v in named.items() if k.startswith(part + "/")}

    return State(pick(state.tensors), pick(state.scalars), pick(state.rings))


Obs = Any  # a tree of observations; the key "action_mask", where there is one, holds the legal actions
Action = Any  # a tree of actions, shaped like the action space
Memory = tuple[Tensor, ...]  # recurrent state, each [1, B, size]; () when there is none
Carried = tuple[Tensor, ...]  # what slots carry from action to action beside a memory, each [1, B, ...]; not stored
Knobs = Mapping[str, Tensor]  # 0-d tensors: what changes over a run (epsilon, learning rate, ...)
ALL_ROWS = torch.empty(0, 0, dtype=torch.int64)  # a plan of one update, on the whole item
Promise = Literal["state", "replay", "restart"]  # how an environment resumes; the first two are bit-exact

# ------------------------------------------------------------ data


class Step(NamedTuple):
    """What B slots saw after acting. After an ending, `obs` is the episode's true last observation and `valid` is
    False: the next action is ignored and brings the first observation of the next episode."""

    obs: Obs
    reward: Tensor  # [B] float32, for the action just taken; 0 on a reset
    terminated: Tensor  # [B] bool
    truncated: Tensor  # [B] bool
    valid: Tensor  # [B] bool: an action taken at `obs` is a decision to learn from
    acts: Tensor | tuple[()] = ()  # [B] bool, in games of turns: who decides; others wait, their action is ignored


class Past(NamedTuple):
    """What is known beside the observation: the memory before the first row, where episodes start; while acting also
    what the slots carry."""

    memory: Memory  # each [1, B, size]
    start: Tensor  # [T, B] bool
    carried: Carried = ()


class Prediction(NamedTuple):
    """What the model says of a row: a distribution over actions, a value, and the memory after it."""

    dist: Any  # see ops.distributions
    value: Tensor
    memory: Memory
    carried: Carried = ()  # while acting: `past.carried`, unless `predict` says otherwise


class Acted(NamedTuple):
    """An action, and whatever `learn` will need to know of it (log-probability, value, ...)."""

    action: Action
    extras: Mapping[str, Tensor]
    memory: Memory
    carried: Carried = ()  # for the next action; where `explore` says nothing, as before


class Row(NamedTuple):
    """Moments of B slots as storage keeps them, [T, B, ...]; the observation that follows is the next row's."""

    obs: Obs
    action: Action
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    start: Tensor
    extras: Mapping[str, Tensor]
    memory: Memory  # before each row, each [T, B, size]


class Transition(NamedTuple):
    """Rows with their n-step sums. Row t is bootstrapped from row `ahead[t]` of `next_obs`."""

    obs: Obs
    action: Action
    reward: Tensor  # [T, B] sum of up to n discounted rewards
    discount: Tensor  # [T, B] gamma^n, 0 where terminated
    next_obs: Obs
    ahead: Tensor  # [T, B] int64
    past: Past
    next_past: Past
    valid: Tensor  # [T, B] bool: a decision to learn from
    cut: Tensor  # [T, B] bool: the episode ended with this row (terminated or truncated)
    extras: Mapping[str, Tensor]  # [T, B, ...] what `explore` said of each row


class Rollout(NamedTuple):
    """T consecutive rows of every slot, and the observation that follows them."""

    obs: Obs
    action: Action
    reward: Tensor
    discount: Tensor  # [T, B] gamma, 0 where terminated
    cut: Tensor  # [T, B] bool: no trace passes (terminated or truncated)
    valid: Tensor
    extras: Mapping[str, Tensor]
    past: Past
    last: tuple[Obs, Past]  # the row after the last one, [1, B, ...]


Data = TypeVar("Data")


class Sample(NamedTuple, Generic[Data]):
    """What a replay buffer gives: the data, where it came from, and its weight (0 for rows not to learn from)."""

    data: Data
    index: Tensor  # type: ignore[assignment]  # [1, B] flat position of each sequence's first row
    weight: Tensor  # [T, B]


class Update(NamedTuple):
    """One gradient step: metrics as 0-d tensors left on the device, and new priorities (empty where none)."""

    metrics: Mapping[str, Tensor]
    priority: Tensor


class Noise(NamedTuple):
    """Random numbers drawn by the caller, so that compiled, captured and eager runs agree."""

    uniform: Tensor  # [..., as many as declared]
    normal: Tensor
    update: Any = ()  # in `learn`, where declared: another Noise, of numbers [as many as declared] for all rows


class Draw(NamedTuple):
    """How many random numbers one row needs."""

    uniform: int = 0
    normal: int = 0


class Draws(NamedTuple):
    """The random numbers an algorithm takes, per row unless said otherwise."""

    predict: Draw = Draw()  # while acting; where `learn` predicts, it brings numbers of its own
    explore: Draw = Draw()
    plan: Draw = Draw()
    learn: Draw = Draw()
    update: Draw = Draw()  # once per update: `noise.update`
    hold: float = 1.0  # steps for which a slot acts with the same numbers, on average


class Episode(NamedTuple):
    """A finished episode, as the environment scored it (before any shaping or normalisation)."""

    slot: int
    total: float  # the undiscounted return
    length: float
    info: Mapping[str, float]  # numeric info keys, averaged over the episode
    many: int = 1  # episodes that ended in one block of a pure world are averaged as one, of slot -1
    player: str = ""  # who played it, where there are several

    @classmethod
    def read(cls, saved: Json) -> Episode:
        """One as a state holds it."""
        slot, total, length, info, many, player = saved if len(saved) == 6 else [*saved, *(1, "")[len(saved) - 4 :]]
        means = {name: read_number(value) for name, value in info.items()}
        counts = read_count(slot + 1) - 1, read_number(total), read_number(length)
        return cls(*counts, means, read_count(many), str(player))


class Progress(NamedTuple):
    """The counters a turn follows from."""

    env_steps: int = 0  # valid rows, over all slots
    opt_steps: int = 0
    episodes: int = 0
    seconds: float = 0.0  # spent training, evaluation and saving excluded
    fraction: float = 0.0  # of the budget

    @classmethod
    def read(cls, saved: Json) -> Progress:
        """Counters as a state holds them."""
        *counts, seconds, fraction = saved
        env_steps, opt_steps, episodes = map(read_count, counts)
        return cls(env_steps, opt_steps, episodes, read_number(seconds), read_number(fraction))


class LogData(NamedTuple):
    """One event of a run: what happened, when, and its numbers."""

    kind: str  # collect, learn, evaluate, record, save; interrupted: an evaluation that a signal ended
    at: Progress
    metrics: Mapping[str, Any]
    episodes: tuple[Episode, ...] = ()


# ------------------------------------------------------------ commands a Trainer takes through send()


class Stop(NamedTuple):
    """Ends the stream. A finished run is evaluated and recorded once more; an interrupted one only saved."""

    reason: str = "interrupted"
    finished: bool = False


class Save(NamedTuple):
    """Saves a checkpoint now."""


class Evaluate(NamedTuple):
    """Evaluates now."""


class SetKnob(NamedTuple):
    """Pins a knob to a value; None gives it back to its schedule."""

    name: str
    value: float | None


Command = Stop | Save | Evaluate | SetKnob

# ------------------------------------------------------------ roles


class Model(nn.Module):
    """Networks only, raw outputs: action parameters, values."""

    recurrent: bool = False

    def initial(self, slots: int) -> Memory:
        """The memory of slots that have seen nothing."""
        return ()

    def action(self, obs: Obs, past: Past) -> tuple[Tensor, Memory]:
        raise TypeError(f"{type(self).__name__} has no action network")

    def value(self, obs: Obs, past: Past, action: Action | None = None) -> tuple[Tensor, Memory]:
        raise TypeError(f"{type(self).__name__} has no value network")

    def observe(self, obs: Obs, valid: Tensor) -> None:
        """Advances the statistics of normalisers by new rows; called once per row, never in `learn`."""
        for part in self.children():
            if isinstance(part, Model):
                part.observe(obs, valid)

    @property
    def watches(self) -> bool:
        """Whether `observe` changes anything: one of its own does, unless it says otherwise here."""
        parts = [part for part in self.children() if isinstance(part, Model)]
        return type(self).observe is not Model.observe or any(part.watches for part in parts)

    def state(self) -> State:
        return State(dict(self.state_dict()))

    @torch.no_grad()
    def restore(self, state: State) -> None:
        own = self.state_dict()
        for name, tensor in own.items():
            tensor.copy_(state.tensors[name])  # in place: captured graphs hold these tensors


Item = TypeVar("Item")
Mini = TypeVar("Mini")


class Phase(NamedTuple):
    """A kind of learning phase: what is computed once per item, its minibatches, and one update."""

    prepare: Callable[[Any], Any]
    plan: Callable[[int, Noise], Tensor]
    learn: Callable[[Any, Knobs, Noise], Update]
    rollouts: int = 1  # it comes after every so many rollouts, and learns from all of them as one item


class Algorithm(ABC, Generic[Item, Mini]):
    """How a model is read and updated. All methods on tensors are pure, of fixed shape, without random calls."""

    model: Model
    sync_every: int = 0  # updates between two calls of sync_target; 0: never
    reset_every: int = 0  # updates between two calls of reset; 0: never
    late_every: int = 0  # updates between two calls of learn_late; 0: never
    share: tuple[int, int] = (0, 1)  # which of how many explorers it acts for
    passes: int = 1  # over an item in one learning phase; `enough` is read after each

    @abstractmethod
    def predict(self, obs: Obs, past: Past, noise: Noise) -> Prediction:
        """Reads the model: the one place, beside `learn`, where parameters are read."""

    def carry(self, slots: int) -> Carried:
        """What slots carry when an episode starts (the state of coloured noise, an option, a return still to come).
        It is handed from action to action in `past.carried` and `prediction.carried`, and saved with the slots."""
        return ()

    def paid(self, carried: Carried, reward: Tensor) -> Carried:
        """What slots carry, once it is known what their last action brought, [B]."""
        return carried

    def neutral(self, rows: Tensor) -> Noise:
        """What `predict` is given where nothing may be random, as in evaluation: medians, for rows like [T, B, ...]."""
        uniform, normal = (rows.new_empty((*rows.shape[:2], n), dtype=torch.float32) for n in self.draws().predict)
        return Noise(torch.full_like(uniform, 0.5), torch.zeros_like(normal))

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        """The training action, independent per slot."""
        action = prediction.dist.sample(noise)
        extras = {"logp": prediction.dist.log_prob(action), "value": prediction.value}
        return Acted(action, extras, prediction.memory)

    def exploit(self, prediction: Prediction) -> Acted:
        """The evaluation action: deterministic, always."""
        return Acted(prediction.dist.mode(), {}, prediction.memory)

    def prepare(self, item: Item) -> Mini:
        """What is computed once per item: advantages, returns."""
        return item  # type: ignore[return-value]

    def plan(self, rows: int, noise: Noise) -> Tensor:
        """The minibatches of a learning phase, [updates, rows each]; empty: one update on the whole item."""
        return ALL_ROWS

    def enough(self, update: Update) -> Tensor | None:
        """A true tensor ends the phase early; None never does. Read once per pass over the item."""
        return None

    @abstractmethod
    def learn(self, mini: Mini, knobs: Knobs, noise: Noise) -> Update:
        """One gradient step: target, loss, update, metrics."""

    def phases(self) -> Mapping[str, Phase]:
        """The kinds of learning phases, in the order in which an item is learned from; most algorithms have one."""
        return {"learn": Phase(self.prepare, self.plan, self.learn)}

    def learn_late(self, mini: Mini, knobs: Knobs, noise: Noise) -> Mapping[str, Tensor]:
        """What is learned only every `late_every` updates, after an update of the first kind and from the same
        minibatch: its metrics."""
        return {}

    def observe(self, rows: Row) -> None:
        """Sees every new row once ([T, B, ...]), outside `learn`: normaliser statistics."""
        self.model.observe(rows.obs, rows.valid)

    def sync_target(self) -> None:
        """Copies the model onto its target; Polyak steps belong at the end of `learn`."""

    def reset(self, updates: int) -> None:
        """Networks begin anew, after so many updates."""

    def knobs(self, at: Progress) -> Mapping[str, float]:
        """What changes over a run."""
        return {}

    def draws(self) -> Draws:
        """The random numbers that explore, plan and learn take per row."""
        return Draws()

    def parts(self) -> Mapping[str, Stateful]:
        """All that a checkpoint must hold."""
        return {"model": self.model}

    def acting(self) -> Mapping[str, Stateful]:
        """What `predict`, `explore` and `exploit` read: its tensors travel to explorers in other processes."""
        return {"model": self.model}


class Pure(Protocol):
    """A world as pure functions of tensors: its steps can be compiled, captured and batched over runs."""

    def now(self) -> Any:
        """The world as it is: a tree of its own tensors, [B, ...] each."""
        ...

    def keep(self, world: Any) -> None:
        """Goes on from there."""
        ...

    def turn(self, world: Any, action: Action) -> tuple[Any, Step]:
        """One step of every slot."""
        ...

    def score(self, world: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Which slots' episodes ended with the step that led here, their returns and lengths, [B] each."""
        ...


class Env(Protocol):
    """B slots of a world, next-step autoreset. Classes that extend it inherit what most environments share."""

    spec: EnvSpec
    promise: Promise

    @property
    def pure(self) -> Pure | None:
        """The same world as pure functions; None where there are none."""
        return None

    @property
    def outside(self) -> Any:
        """Gymnasium's spaces of observations and actions, where the environment has such; else None."""
        return None

    @cached_property
    def faults(self) -> Faults:
        """What went wrong in it."""
        return Faults("", 0)

    def reset(self, seed: int) -> Step: ...

    def step(self, action: Action) -> Step: ...

    def episodes(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        ...

    def render(self) -> Any:
        """The current frame of slot 0, [H, W, 3] uint8 numpy, or None where the world cannot be drawn."""
        return None

    def close(self) -> None: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Processor(Stateful, Protocol):
    """The one place where steps become rows: reward shaping, relabelling. All it takes and gives is [T, B, ...]."""

    def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
        """T consecutive steps of B slots as rows; `past.memory` is what each row began with, each [T, B, size]."""
        ...

    def close(self) -> None:
        """No more rows come: what was kept back is written."""
        ...


class Sink(Protocol):
    """Where an Explorer puts its rows [T, B, ...]: a Learner, or what sends them to one."""

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        """`ahead`: the observation and the past that follow the last row."""
        ...

    def room(self, at: Progress, slots: int) -> int:
        """How many rows may come before it is somebody else's turn."""
        ...


class Source(Stateful, Protocol):
    """What a Trainer draws experience from: an Explorer, items of explorers in other processes, a data set."""

    spec: EnvSpec

    @property
    def faults(self) -> Faults:
        """What went wrong in its environments."""
        ...

    def step(self, at: Progress) -> LogData:
        """Brings some rows to the learner."""
        ...

    def numbers(self) -> Mapping[str, float]:
        """What is recorded beside averages."""
        ...

    def summary(self) -> Mapping[str, str]:
        """What is said of it when a run ends."""
        ...

    def close(self) -> None: ...


class Buffer(Stateful, Protocol):
    """Where rows are kept until they are learned from."""

    fresh: bool  # an item is learned from in one phase and then forgotten (rollouts)

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        """Takes rows [T, B, ...] that follow those before; `ahead` is the observation [B, ...] and the Past that follow
        the last one."""
        ...

    @property
    def wants(self) -> int:
        """How many uniform random numbers `take` needs."""
        ...

    @property
    def history(self) -> int:
        """How many earlier rows an observation is put together from; 0 where every row is kept whole."""
        ...

    def room(self) -> int:
        """How many rows can still be pushed before an item is complete; sys.maxsize where `fresh` is False."""
        ...

    def restarted(self, rows: Row) -> Row:
        """Rows [T, B, ...] that do not follow those pushed before, as they should be pushed: the first is a start, or
        comes after the `history` rows that it needs."""
        ...

    def skip_check(self) -> None:
        """Rows have been compared with the environment's spec before they come here."""
        ...

    def ready(self) -> bool:
        """Whether an item can be taken."""
        ...

    def take(self, uniform: Tensor, at: Progress) -> Any:
        """The next item to learn from; `uniform` has `wants` numbers. It may lie in memory that the next call uses."""
        ...

    def recent(self, rollouts: int) -> Any:
        """The last so many rollouts beside each other, [T, rollouts * B, ...], where `fresh` and as many are kept."""
        ...

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        """New priorities [B] of what was taken at `index` [1, B]."""
        ...

    def rows(self) -> Row:
        """The rows [T, B, ...] of the item being learned from, where `fresh`."""
        ...

    def release(self) -> None:
        """The phase is over: a fresh buffer forgets its rows."""
        ...

    def metrics(self) -> Mapping[str, float]: ...


class Limiter(Protocol):
    """How many updates the steps so far allow."""

    @property
    def opt_interval(self) -> float:
        """Env steps that each update waits for; 0 where it waits for none, or for a whole item."""
        ...

    def owes(self, at: Progress, ready: bool) -> bool: ...


class Writer(Protocol):
    """Where recorded numbers go."""

    def write(self, log: LogData) -> None: ...

    def close(self) -> None: ...


Made = TypeVar("Made", covariant=True)


class Builder(Protocol[Made]):
    """A config of something that is built once the environment is known."""

    def build(self, spec: EnvSpec, device: torch.device) -> Made: ...


@dataclass(frozen=True)
class Recipe:
    """What to plug around an algorithm."""

    processor: Builder[Processor]
    buffer: Builder[Buffer]
    limiter: Builder[Limiter]
    max_lag: int | None = None  # updates behind which an item of a remote explorer is dropped


class Weights(NamedTuple):
    """What a remote Explorer needs to act as the Learner's Agent would: parameters and knobs of one version."""

    version: int  # opt steps
    knobs: Mapping[str, float]
    tensors: Mapping[str, Tensor]
    fast: bool = False  # whether the Learner's own functions are compiled by now


class Origin(NamedTuple):
    """Where an item comes from; no two items of a run have the same."""

    player: str
    explorer: int
    incarnation: int  # how often this explorer has been started anew
    sequence: int  # items of this incarnation before it
    version: int  # of the weights it was collected with


class Packet(NamedTuple):
    """An item on its way: its origin, and one contiguous piece of bytes."""

    origin: Origin
    body: Any  # bytes, or anything that shows memory as bytes


class Broker(Protocol):
    """Stands between Explorers and Learners: experience bounded, one way; weights by version, the newest wins."""

    def push(self, item: Any, origin: Origin) -> bool:
        """Hands an item over; waits while the queue is full. False: the broker is closed, and nothing was taken."""
        ...

    def pull(self, timeout: float) -> Packet | None:
        """The next item, whoever it is from; None if there was none in time. Its bytes are good until the next pull."""
        ...

    def publish(self, weights: Weights, player: str) -> None:
        """The weights to act with from now on."""
        ...

    def latest(self, player: str, newer_than: int) -> Weights | None:
        """The newest weights, None where they are not newer than a version."""
        ...

    def waiting(self) -> int:
        """How many items wait to be pulled."""
        ...

    def close(self) -> None: ...
