"""A dataset in memory: whole episodes one after the other, as the rows that buffers take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Box, Composite, Discrete, EnvSpec, Json, MultiBinary, MultiDiscrete, Row, Space
from ganglion.errors import UserError

FLAGS = ("terminated", "truncated", "valid", "start")


class Dataset(NamedTuple):
    """Rows [N, 1, ...] of one slot: each episode ends with its dead row, which shows its last observation."""

    spec: EnvSpec
    rows: Row
    about: tuple[Mapping[str, Json], ...] = ()  # where its rows come from
    skipped: tuple[str, ...] = ()  # what was damaged, and is not here

    @property
    def steps(self) -> int:
        """Decisions, without dead rows."""
        return int(self.rows.valid.sum())

    def lengths(self) -> list[int]:
        """Rows of each episode, its dead row included."""
        starts = self.rows.start[:, 0].nonzero()[:, 0].tolist()
        return [after - first for first, after in zip(starts, [*starts[1:], len(self.rows.reward)], strict=True)]

    def episodes(self) -> Iterator[Row]:
        """The rows of each episode, [T, 1, ...]."""
        first = 0
        for length in self.lengths():
            yield rows_between(self.rows, first, first + length)
            first += length

    def returns(self) -> Tensor:
        """The undiscounted return of each episode, in float64."""
        number = self.rows.start[:, 0].cumsum(0) - 1
        totals = torch.zeros(len(self.lengths()), dtype=torch.float64)
        return totals.index_add_(0, number, self.rows.reward[:, 0].double() * self.rows.valid[:, 0])


def rows_between(rows: Row, first: int, last: int) -> Row:
    part: Row = ops.map_tree(lambda x: x[first:last], rows)
    return part


def joined(parts: Sequence[Dataset]) -> Dataset:
    """Several datasets of one environment as one."""
    extras = set.intersection(*(set(part.rows.extras) for part in parts))
    rows = [part.rows._replace(extras={k: part.rows.extras[k] for k in sorted(extras)}) for part in parts]
    about = tuple(x for part in parts for x in part.about)
    skipped = tuple(x for part in parts for x in part.skipped)
    return Dataset(parts[0].spec, ops.concat(rows), about, skipped)


def episode(obs: Any, action: Any, reward: Tensor, terminated: bool, extras: Mapping[str, Tensor]) -> Row:
    """An episode of T steps as rows [T + 1, 1, ...]: T + 1 observations, T actions and rewards; it ended by itself or
    was cut."""
    count = len(reward)
    off = torch.zeros(count + 1, 1, dtype=torch.bool)
    valid, last, start = ~off, off.clone(), off.clone()
    valid[count], last[count - 1], start[0] = False, True, True

    def padded(x: Tensor) -> Tensor:
        return torch.cat([x, torch.zeros_like(x[:1])])[:, None]

    ended = (last, off) if terminated else (off, last)
    said = {name: padded(x) for name, x in extras.items()}
    seen = ops.map_tree(lambda x: x[:, None], obs)
    return Row(seen, ops.map_tree(padded, action), padded(reward), *ended, valid, start, said, ())


# ------------------------------------------------------------ what rows may be


def forms(space: Space, name: str) -> dict[str, tuple[Space, tuple[int, ...]]]:
    """Each array of a space by its flattened name: the space that its numbers are in, and the shape of one."""
    match space:
        case Composite(items):
            return {k: v for key, part in items.items() for k, v in forms(part, f"{name}/{key}").items()}
        case Discrete():
            return {name: (space, ())}
        case MultiDiscrete(nvec):
            return {name: (space, (len(nvec),))}
        case MultiBinary(n):
            return {name: (space, (n,))}
        case Box(shape):
            return {name: (space, tuple(shape))}


def misfit(spec: EnvSpec, arrays: Mapping[str, Tensor]) -> str:
    """Why arrays [N, ...] are not rows of such an environment, or "": names, shapes and types, not what is in them."""
    wanted = forms(spec.obs, "obs") | forms(spec.action, "action")
    named = {"reward", *FLAGS, *wanted}
    if missing := named - arrays.keys():
        return f"it has no array {min(missing)!r}"
    if extra := [name for name in arrays if name not in named and not name.startswith("extras/")]:
        return f"it has an array {extra[0][:80]!r}, which nobody asked for"
    for name, (space, shape) in wanted.items():
        x = arrays[name]
        if tuple(x.shape[1:]) != shape:
            return f"{name} has shape {list(x.shape[1:])}, not {list(shape)}"
        real = space.dtype.is_floating_point if type(space) is Box else False
        if x.is_floating_point() != real:
            return f"{name} is {x.dtype}, which {space} does not hold"
    if any(arrays[name].dtype != torch.bool or arrays[name].dim() != 1 for name in FLAGS):
        return f"{', '.join(FLAGS)} should be one truth value per row"
    said = [arrays[name] for name in arrays if name.startswith("extras/")]
    if any(not x.is_floating_point() for x in (arrays["reward"], *said)) or arrays["reward"].dim() != 1:
        return "reward and extras should be real numbers, one reward per row"
    return ""


def broken(spec: EnvSpec, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rows that cannot be learned from, by what is wrong with them, [N] truth values each; only what there is."""
    valid = arrays["valid"]
    found = {"a reward that is not finite": valid & ~arrays["reward"].isfinite()}
    for name, (space, _) in forms(spec.obs, "obs").items():
        found[f"{name} that is not finite"] = ~flat(arrays[name]).isfinite().all(1)
        found[f"{name} outside of {space}"] = outside(space, arrays[name])
    for name, (space, _) in forms(spec.action, "action").items():
        found[f"{name} outside of {space}"] = valid & (outside(space, arrays[name]) | beyond(space, arrays[name]))
    cut = arrays["terminated"] | arrays["truncated"]
    after = torch.cat([torch.ones_like(cut[:1]), ~arrays["valid"][:-1]])  # rows where an episode should start
    found["an episode that does not end"] = ~arrays["valid"] & ~torch.cat([torch.zeros_like(cut[:1]), cut[:-1]])
    found["a start inside of an episode"] = arrays["start"] != after
    last = torch.zeros_like(valid)
    last[-1] = True
    found["an ending without its last observation"] = (cut & torch.cat([valid[1:], last[-1:]])) | (valid & last)
    return {what: rows for what, rows in found.items() if bool(rows.any())}


def flat(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1)


def outside(space: Space, x: Tensor) -> Tensor:
    """Choices that there are not, and bits that are none, [N]."""
    match space:
        case Discrete(n):
            return (x < 0) | (x >= n)
        case MultiDiscrete(nvec):
            return ((x < 0) | (x >= torch.tensor(nvec))).any(1)
        case MultiBinary():
            return ((x != 0) & (x != 1)).any(1)
        case _:
            return torch.zeros(len(x), dtype=torch.bool)


def beyond(space: Space, x: Tensor) -> Tensor:
    """Real actions that are not finite, [N]; those beyond their bounds are clipped by environments, and stay."""
    return ~flat(x).isfinite().all(1) if x.is_floating_point() else torch.zeros(len(x), dtype=torch.bool)


def checked(spec: EnvSpec, arrays: Mapping[str, Tensor], where: str) -> None:
    """Refuses arrays that are no rows of whole episodes."""
    if why := misfit(spec, arrays):
        raise UserError(f"{where}: {why}.")
    if wrong := broken(spec, arrays):
        what, rows = next(iter(wrong.items()))
        raise UserError(f"{where}: row {int(rows.nonzero()[0, 0])} has {what}.")


def fitted(data: Dataset, spec: EnvSpec) -> Dataset:
    """The dataset as rows of an environment, one slot of it; refused where it is another's."""
    check_spaces(data.spec, spec)
    return data._replace(spec=replace(spec, slots=1, frame=None), rows=typed(data.rows, spec))


def check_spaces(of_data: EnvSpec, spec: EnvSpec, setting: str = "data.path") -> None:
    """Refuses the rows of another environment."""
    for part, own, theirs in (("observations", of_data.obs, spec.obs), ("actions", of_data.action, spec.action)):
        mine, yours = forms(own, ""), forms(theirs, "")
        same = mine.keys() == yours.keys() and all(alike(mine[k][0], yours[k][0]) for k in mine)
        if not same:
            raise UserError(f"{setting}: its {part} are {own}, those of {spec.name or 'the environment'} are {theirs}.")


def typed(rows: Row, spec: EnvSpec) -> Row:
    """Rows with numbers of an environment's types."""

    def as_spaces(name: str, tree: Any, space: Space) -> Any:
        wanted = forms(space, name)
        named = ops.flatten_names({name: tree})
        return ops.nest({k: as_space(x, wanted[k][0]) for k, x in named.items()})[name]

    return rows._replace(obs=as_spaces("obs", rows.obs, spec.obs), action=as_spaces("action", rows.action, spec.action))


def returns_to_go(rows: Row) -> Tensor:
    """The rewards from each row to the end of its episode, [T, 1] float64; 0 in dead rows."""
    reward = (rows.reward * rows.valid).double()
    left = reward.flip(0).cumsum(0).flip(0)  # to the last row of all
    number = rows.start[:, 0].cumsum(0)
    after = torch.cat([left[rows.start[:, 0]], left.new_zeros(1, 1)])  # where each next episode begins
    return (left - after[number]) * rows.valid


def alike(one: Space, other: Space) -> bool:
    """Whether numbers of one space can be taken for those of another; bounds may differ, and choices may be fewer."""
    if type(one) is Box and type(other) is Box:
        return tuple(one.shape) == tuple(other.shape)
    if type(one) is Discrete and type(other) is Discrete:
        return one.n <= other.n
    return type(one) is type(other) and one == other


def as_space(x: Tensor, space: Space) -> Tensor:
    match space:
        case Box():
            return x.to(space.dtype)
        case Discrete() | MultiDiscrete():
            return x.long()
    return x


# ------------------------------------------------------------ spaces as JSON


def to_json(space: Space) -> Json:
    match space:
        case Box(shape, dtype, low, high):
            return {
                "box": list(shape),
                "dtype": str(dtype).removeprefix("torch."),
                "low": list(low),
                "high": list(high),
            }
        case Discrete(n):
            return {"discrete": n}
        case MultiDiscrete(nvec):
            return {"multi_discrete": list(nvec)}
        case MultiBinary(n):
            return {"multi_binary": n}
        case Composite(items):
            return {"composite": {key: to_json(part) for key, part in items.items()}}


TYPES = {"float32": torch.float32, "float64": torch.float64, "uint8": torch.uint8, "int64": torch.int64}
TYPES |= {"float16": torch.float16, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "bool": torch.bool}
MOST = 1 << 31  # elements of one observation or action


def from_json(value: Json, depth: int = 0) -> Space:
    """A space that a file describes, checked; ValueError where it is none."""
    match value:
        case {"box": [*shape], "dtype": str(name), "low": [*low], "high": [*high]} if name in TYPES:
            made = Box(tuple(map(size, shape)), TYPES[name], tuple(map(float, low)), tuple(map(float, high)))
            if prod(made.shape) <= MOST and {len(made.low), len(made.high)} <= {1, made.size}:
                return made
        case {"discrete": n}:
            return Discrete(size(n, 1))
        case {"multi_discrete": [*nvec]}:
            return MultiDiscrete(tuple(size(n, 1) for n in nvec))
        case {"multi_binary": n}:
            return MultiBinary(size(n, 1))
        case {"composite": {**items}} if depth < 8:
            if all(type(key) is str and key and "/" not in key for key in items):
                return Composite({str(key): from_json(part, depth + 1) for key, part in items.items()})
    raise ValueError(f"{str(value)[:80]} is no space")


def size(value: Json, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= MOST:
        raise ValueError(f"{str(value)[:40]!r} is no size from {least} to {MOST}")
    return value
