"""Frozen, typed configs, and the families whose members are chosen by a `kind`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_serializer,
    model_validator,
)  # fmt: skip
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from ganglion import registry
from ganglion.errors import UserError, nearest

if TYPE_CHECKING:
    import torch

    from ganglion.config.values import At
    from ganglion.core import Algorithm, Buffer, Env, EnvSpec, Limiter, Processor, Recipe, Space


class Config(BaseModel):
    """Settings that never change: unknown keys, wrong types, NaN and infinities are refused.

    A mapping given for a field whose default is a config changes only what it names. Sequences are tuples.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False, protected_namespaces=()
    )
    family: ClassVar[str] = ""
    kind: ClassVar[str] = ""  # set by @register
    shorthand: ClassVar[str] = ""  # the field that a bare value stands for

    def __init_subclass__(cls, *, family: str = "", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.kind = ""
        if family:
            cls.family = family
            cls.shorthand = "kind"

    @classmethod
    def is_open(cls) -> bool:
        """Whether a `kind` must choose the class."""
        return bool(cls.__dict__.get("family"))

    @classmethod
    def expand(cls, value: object) -> object:
        """A bare value as the mapping it stands for."""
        if cls.shorthand and not isinstance(value, (Mapping, Config)):
            return {cls.shorthand: value}
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, value: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, Config):
            return check(value)
        value = cls.expand(value)
        if not isinstance(value, Mapping):
            raise PydanticCustomError("mapping", "should be a mapping of settings")
        target = cls._target(value)
        if target is not cls:
            return target.model_validate(value)
        own = {name: _as_tuple(given) for name, given in value.items() if not (cls.family and name == "kind")}
        for name, field in cls.model_fields.items():
            if name in own:
                own[name] = _onto(field.default, _listed(field, own[name]))
        try:
            return check(own)
        except ValidationError as error:
            raise cls._explain(error) from None

    @classmethod
    def _target(cls, value: Mapping[str, Any]) -> type[Self]:
        """The class that a mapping's `kind` asks for."""
        if not cls.family or ("kind" not in value and not cls.is_open()):
            return cls
        kind = value.get("kind")
        if not isinstance(kind, str):
            known = ", ".join(registry.names(cls.family))
            raise PydanticCustomError("kind", f"needs a kind. Accepted: {known}.")
        try:
            found = registry.lookup(cls.family, kind)
        except UserError as error:
            raise PydanticCustomError("kind", str(error)) from error
        if not issubclass(found, cls):
            raise PydanticCustomError("kind", f"{cls.family} {kind!r} does not fit here: it is no {cls.__name__}.")
        return found

    @classmethod
    def _explain(cls, error: ValidationError) -> ValidationError:
        """The same errors, with the accepted keys beside an unknown one."""
        lines = []
        for line in error.errors(include_url=False):
            message = line["msg"]
            if line["type"] == "extra_forbidden" and len(line["loc"]) == 1:
                message = cls.unknown(str(line["loc"][0]))
            kind = PydanticCustomError(line["type"], message)
            lines.append(InitErrorDetails(type=kind, loc=line["loc"], input=line["input"]))
        return ValidationError.from_exception_data(error.title, lines)

    @classmethod
    def unknown(cls, key: str) -> str:
        """What to say of a key that it has not."""
        owner = f" of {cls.family} {cls.kind!r}" if cls.kind else ""
        known = list(cls.model_fields)
        return f"unknown key{owner}. Accepted: {', '.join(known) or 'none'}.{nearest(key, known)}"

    @model_serializer(mode="plain")
    def plain(self) -> dict[str, Any]:
        """Mappings, lists, text and numbers alone, `kind` first."""
        first = {"kind": self.kind} if self.kind else {}
        return first | {name: _plain(getattr(self, name)) for name in type(self).model_fields}


class Part(Config):
    """A config that makes something, chosen by its `kind` within a family."""

    def build(self, *args: Any, **rest: Any) -> Any:
        """Makes what this config describes."""
        raise NotImplementedError(f"{type(self).__name__} has no build")


class BonusConfig(Part, family="bonus"):
    """A second reward, for what is new."""

    def build(self, inner: Algorithm[Any, Any], spec: EnvSpec) -> Algorithm[Any, Any]:
        """The algorithm, learning from richer rewards."""
        raise NotImplementedError(f"{type(self).__name__} has no build")


class ResetsConfig(Part, family="resets"):
    """Networks that begin anew at intervals."""

    def build(self, inner: Algorithm[Any, Any], cfg: AlgoConfig, spec: EnvSpec) -> Algorithm[Any, Any]:
        """The algorithm, with its resets; `cfg` makes new networks."""
        raise NotImplementedError(f"{type(self).__name__} has no build")


# What algorithms lack that learn from what they have just collected.
FRESH = {
    "n_step": "its returns weigh sums of every length (lam) over whole rollouts",
    "replay": "it learns from what it has just collected, which has no priorities",
}


class AlgoConfig(Part, family="algo"):
    """Every knob of an algorithm, and what to plug around it."""

    actions: ClassVar[Literal["any", "discrete", "bounded", "single", "hybrid"]] = "any"  # that it can act in
    library: ClassVar[str] = "torch"  # that computes its networks
    imitates: ClassVar[bool] = False  # whether it learns from demonstrations beside an environment
    offline: ClassVar[bool] = False  # whether it learns from datasets alone
    lacks: ClassVar[Mapping[str, str]] = {}  # settings that others have and it has not, and why
    bonus: BonusConfig | None = None  # a second reward, for what is new
    resets: ResetsConfig | None = None  # at intervals networks begin anew

    @classmethod
    def expand(cls, value: object) -> object:
        """`horizon: episode` is short for whole episodes of up to 1,000 rows."""
        match value:
            case {"horizon": "episode", **rest}:
                return {"horizon": 1_000, "episodes": True, **rest}
        return super().expand(value)

    @classmethod
    def unknown(cls, key: str) -> str:
        """With the reason, where it is known why there is none, and the algorithms that have it."""
        if key not in cls.lacks:
            return super().unknown(key)
        able = [name for name, kind in _algorithms().items() if key in kind.model_fields and key not in kind.lacks]
        return f"{cls.kind} has none: {cls.lacks[key]}. Algorithms with it: {', '.join(able)}."

    def whole(self, spec: EnvSpec) -> Algorithm[Any, Any]:
        """The algorithm with what is around it."""
        if self.bonus is not None and "bonus" in self.lacks:
            raise UserError(f"algo.bonus: {self.unknown('bonus')}")
        made = self.build(spec)
        made = made if self.bonus is None else self.bonus.build(made, spec)
        return made if self.resets is None else self.resets.build(made, self, spec)

    @classmethod
    def accepts(cls, space: Space) -> bool:
        """Whether it can act in such an action space."""
        from ganglion.spaces import Box, Composite, Discrete  # with torch, which is not needed to read configs

        if cls.actions == "hybrid":
            parts = list(space.items.values()) if type(space) is Composite else []
            boxes = sum(type(part) is Box and part.bounded for part in parts)
            return sum(type(part) is Discrete for part in parts) == 1 and boxes == len(parts) - 1 > 0
        choice, real = isinstance(space, Discrete), isinstance(space, Box) and space.bounded
        return {"any": True, "discrete": choice, "bounded": real, "single": choice or real}[cls.actions]

    def check_actions(self, spec: EnvSpec) -> None:
        """Refuses other action spaces, and says which algorithms of the package would do."""
        if self.accepts(spec.action):
            return
        needs = {"discrete": "a Discrete action space", "single": "a Discrete or bounded Box action space"}
        needs["hybrid"] = "a Dict or Tuple action space of one Discrete part and Boxes with finite bounds"
        one = ", or make one choice of all: env.wrap=[joint]" if self.actions in ("discrete", "single") else ""
        able = [name for name, kind in _algorithms().items() if kind.accepts(spec.action) and not kind.imitates]
        needed = f"{needs.get(self.actions, 'a Box action space with finite bounds')}; {spec.name} has {spec.action}"
        raise UserError(f"algo.kind: {self.kind} needs {needed}. Try {' or '.join(able)}{one}.")

    def build(self, spec: EnvSpec) -> Algorithm[Any, Any]:
        raise NotImplementedError(f"{type(self).__name__} has no build")

    def recipe(self, spec: EnvSpec) -> Recipe:
        """Processor, buffer and limiter around the algorithm, as configs."""
        raise NotImplementedError(f"{type(self).__name__} has no recipe")


class WrapperConfig(Part, family="wrapper"):
    """A change to what an environment shows, or to what is done in it, for all slots at once."""

    def build(self, env: Env) -> Env:
        raise NotImplementedError(f"{type(self).__name__} has no build")


class EnvConfig(Part, family="env"):
    """A world of slots."""

    @classmethod
    def expand(cls, value: object) -> object:
        """CartPole-v1 is gymnasium's, torch:cartpole a kind and its id; an id without a kind is gymnasium's, too."""
        match value:
            case str(name) if name not in registry.names("env"):
                kind, colon, inner = name.partition(":")
                known = colon and kind in registry.names("env")
                return {"kind": kind, "id": inner} if known else {"kind": "gym", "id": name}
            case {"id": name, **rest} if cls is EnvConfig and "kind" not in rest:
                return {"kind": "gym", "id": name, **rest}
        return super().expand(value)

    slots: int = Field(default=8, ge=1, le=65_536)
    wrap: tuple[WrapperConfig, ...] = ()  # around it, innermost first

    def whole(self, slots: int | None = None, device: str = "cpu", render: bool = False) -> Env:
        """The environment with what is around it."""
        shown = {"render": True} if render else {}
        env: Env = self.build(slots=slots, device=device, **shown)
        for wrapper in self.wrap:
            env = wrapper.build(env)
        return env

    def settled(self) -> tuple[Self, str]:
        """The settings with every choice made that is left to the machine, and a line that says why."""
        return self, ""


def _algorithms() -> dict[str, type[AlgoConfig]]:
    """Those of the package, by name."""
    return {name: registry.lookup("algo", name) for name in registry.TABLE["algo"]}


class NetConfig(Part, family="net"):
    """A network body: observations to features."""


class Fold(NamedTuple):
    """What an algorithm learns from: transitions, whose n rewards are summed under gamma, or rollouts."""

    gamma: float
    n: int = 1
    length: int = 0  # rows in time; 0: as the buffer's settings say
    recurrent: bool = False
    rollouts: bool = False
    keep: int = 1  # rollouts that stay at hand
    episodes: bool = False  # rollouts are whole episodes

    @property
    def reach(self) -> int:
        """How many later rows a sampled row needs."""
        return self.length - 1 + self.n


@dataclass(frozen=True)
class Folded:
    """A buffer's settings and what the algorithm asks of it: what a recipe plugs in."""

    cfg: BufferConfig
    fold: Fold

    def build(self, spec: EnvSpec, device: torch.device) -> Buffer:
        return self.cfg.build(spec, device, self.fold)


class RelabelConfig(Part, family="relabel"):
    """What is changed in transitions when a replay is sampled."""

    def build(self, spec: EnvSpec, ring: Any, history: int) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no build")


class BufferConfig(Part, family="buffer"):
    """Where rows are kept until they are learned from."""

    @property
    def rated(self) -> bool:
        """Whether rows should bring `q` and `value` in their extras: what whoever explored expected."""
        return False

    @property
    def warms(self) -> int:
        """First rows of a sequence that only warm the memory up: no gradient should pass through them."""
        return 0

    def folded(self, n: int, gamma: float, recurrent: bool) -> Folded:
        """A buffer of transitions over n steps."""
        return Folded(self, self.fitted(Fold(gamma, n, recurrent=recurrent)))

    def rollouts(self, gamma: float, length: int, keep: int = 1) -> Folded:
        """A buffer of rollouts of so many rows, of which the last `keep` stay at hand."""
        return Folded(self, self.fitted(Fold(gamma, length=length, rollouts=True, keep=keep)))

    def fitted(self, fold: Fold) -> Fold:
        """The same with what these settings decide of it; what they cannot give is refused."""
        return fold

    def build(self, spec: EnvSpec, device: torch.device, fold: Fold) -> Buffer:
        raise NotImplementedError(f"{type(self).__name__} has no build")


class LimiterConfig(Part, family="limiter"):
    """How many updates the steps so far allow."""

    @property
    def begins(self) -> int:
        """Env steps before which no update is made."""
        return 0

    def build(self, spec: EnvSpec, device: torch.device) -> Limiter:
        raise NotImplementedError(f"{type(self).__name__} has no build")


class ProcessorConfig(Part, family="processor"):
    """How steps become rows."""

    def build(self, spec: EnvSpec, device: torch.device) -> Processor:
        raise NotImplementedError(f"{type(self).__name__} has no build")


class MatchmakerConfig(Part, family="matchmaker"):
    """A league: its players, and how their opponents are chosen. See `league.settings`."""


class WriterConfig(Part, family="writer"):
    """Where recorded numbers go."""

    package: ClassVar[str | None] = None  # that it needs; the extra that brings it has its kind's name

    def check(self) -> None:
        """Refuses to do without its package, before a run leaves anything behind."""
        if self.package is not None and find_spec(self.package) is None:
            raise UserError(f"log.writers: {self.kind!r} needs: pip install 'ganglion[{self.kind}]'")


class Schedule(Part, family="schedule"):
    """A number that follows the fraction of the budget spent, 0 to 1. A bare number is a constant."""

    @classmethod
    def expand(cls, value: object) -> object:
        if type(value) in (int, float):
            return {"kind": "constant", "value": value}
        return super().expand(value)

    def at(self, now: At) -> float:
        """What it is worth now."""
        return self(now.fraction)

    def __call__(self, fraction: float) -> float:
        raise NotImplementedError(f"{type(self).__name__} has no value")


def _listed(field: FieldInfo, given: Any) -> Any:
    """One number for a list of them is a list of one: `hidden: 64`."""
    return (given,) if type(given) in (int, float) and get_origin(field.annotation) is tuple else given


def _onto(default: object, given: Any) -> Any:
    """A given value laid over a default config: what it does not name stays."""
    if not isinstance(default, Config):
        return given
    over = default.expand(given)
    if not isinstance(over, Mapping) or over.get("kind", default.kind) != default.kind:
        return given
    merged: dict[str, Any] = {"kind": default.kind} if default.kind else {}
    merged |= {name: getattr(default, name) for name in type(default).model_fields}
    return merged | {name: _onto(merged.get(name), value) for name, value in over.items()}


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(item) for item in value) if isinstance(value, (list, tuple)) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.plain()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)
