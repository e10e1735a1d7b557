"""Datasets of other projects: Minari's HDF5 read and written, D4RL-style HDF5, npz and Parquet read.

None of them is trusted: arrays of objects, sizes that are not on the disk, and links out of a file are refused.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ganglion import ops
from ganglion.core import Box, Composite, Discrete, EnvSpec, Json, MultiBinary, MultiDiscrete, Row, Space
from ganglion.data.dataset import Dataset, checked, episode, from_json, joined
from ganglion.errors import UserError

MINARI, ABOUT = "main_data.hdf5", "metadata.json"
NUMBERS = "biuf"  # kinds of numpy types that hold numbers
PACKED, SMALL = 1_000, 16 << 20  # how far numbers may be compressed, and bytes below which nobody asks
NAMES = {  # what each array may be called
    "observations": ("observations", "obs", "observation"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "terminals": ("terminals", "terminations", "terminated", "dones"),
    "timeouts": ("timeouts", "truncations", "truncated"),
    "next_observations": ("next_observations", "next_obs"),
}
OPTIONAL = ("timeouts", "next_observations")
Arrays = Mapping[str, Any]  # numpy arrays [N, ...], by name


def reader(path: Path) -> Callable[[Path], Dataset] | None:
    """What reads such a file or folder."""
    if path.is_dir():
        return read_minari if (path / "data" / MINARI).is_file() else None
    by_end = {".hdf5": read_hdf5, ".h5": read_hdf5, ".npz": read_npz, ".parquet": read_parquet}
    return by_end.get(path.suffix)


def needed(package: str) -> Any:
    """A package that is not always installed."""
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise UserError(f"data.path: reading it needs {package}: pip install 'ganglion[data]'") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a reader finds wrong with a file is one message."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{path} cannot be read: {type(error).__name__}: {str(error)[:160]}.".replace("\n", " ")
        ) from error


# ------------------------------------------------------------ steps one after the other


def from_steps(path: Path, arrays: Arrays) -> Dataset:
    """D4RL's layout: steps [N, ...] of all episodes, one after the other; endings by `terminals` and `timeouts`.

    Without `next_observations` what follows the last step of an episode that was cut is unknown: that step is left out,
    and its observation is the last one.
    """
    found = {name: pick(path, arrays, name) for name in NAMES}
    count = len(found["rewards"])
    if wrong := [name for name, x in found.items() if x is not None and len(x) != count]:
        raise UserError(f"{path}: {wrong[0]} and rewards should have as many rows, {len(found[wrong[0]])} and {count}.")
    terminal = found["terminals"].astype(bool)
    cut = terminal if found["timeouts"] is None else terminal | found["timeouts"].astype(bool)
    ends = [*np.flatnonzero(cut), *([count - 1] if count and not cut[-1] else [])]
    rows, first = list[Row](), 0
    for last in (int(end) for end in ends):
        rows += one_episode(found, first, last + 1, bool(terminal[last]))
        first = last + 1
    if not rows:
        raise UserError(f"{path} has no whole episode.")
    spec = EnvSpec(space_of(found["observations"]), space_of(found["actions"], choice=True), name=path.stem)
    return whole(path, [Dataset(spec, each) for each in rows])


def one_episode(found: Mapping[str, Any], first: int, last: int, terminated: bool) -> list[Row]:
    obs, action, reward = (found[name][first:last] for name in ("observations", "actions", "rewards"))
    after = found["next_observations"]
    if after is not None:
        obs = np.concatenate([obs, after[last - 1 : last]])
    elif terminated:  # nothing is bootstrapped from it
        obs = np.concatenate([obs, obs[-1:]])
    else:
        action, reward = action[:-1], reward[:-1]
    return [episode(tensor(obs), tensor(action), tensor(reward).float(), terminated, {})] if len(reward) else []


def pick(path: Path, arrays: Arrays, name: str) -> Any:
    known = [each for each in NAMES[name] if each in arrays]
    if not known and name not in OPTIONAL:
        raise UserError(f"{path} has no {name}. Accepted names: {', '.join(NAMES[name])}.")
    return arrays[known[0]] if known else None


def tensor(x: Any) -> torch.Tensor:
    """A copy that is ours; real numbers of 8 bytes as those of 4."""
    made = torch.from_numpy(np.array(x))
    return made.float() if made.dtype == torch.float64 else made.long() if made.dtype == torch.int32 else made


def space_of(x: Any, choice: bool = False) -> Space:
    """The space that numbers seem to be in; `choice`: whole numbers are choices."""
    if choice and x.dtype.kind in "iu" and x.ndim == 1:
        return Discrete(int(x.max()) + 1)
    bounds = ((float(x.min()),), (float(x.max()),)) if choice and x.size else ((-np.inf,), (np.inf,))
    return Box(tuple(x.shape[1:]), tensor(x[:1]).dtype, *bounds)


def whole(path: Path, parts: list[Dataset]) -> Dataset:
    data = joined(parts)
    checked(data.spec, {name: x.squeeze(1) for name, x in ops.flatten_names(data.rows).items()}, str(path))
    return data._replace(about=({"file": str(path)},))


# ------------------------------------------------------------ npz and Parquet


def read_npz(path: Path) -> Dataset:
    with reading(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            check_member(path, archive, member)
        with np.load(path, allow_pickle=False) as arrays:
            return from_steps(path, {name: arrays[name] for name in arrays.files})


def check_member(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Numbers, as many as are there: looked at before anything is allocated."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    check_numbers(path, member.filename, dtype, prod(shape) * dtype.itemsize, member.compress_size)
    if prod(shape) * dtype.itemsize > member.file_size:
        raise UserError(f"{path}: {member.filename} claims more numbers than it holds.")


def check_numbers(path: Path, name: str, dtype: Any, claimed: int, stored: int) -> None:
    if dtype.kind not in NUMBERS:
        raise UserError(f"{path}: {name[:80]!r} holds {dtype}, not numbers, and is not read.")
    if claimed > max(PACKED * stored, SMALL):
        raise UserError(f"{path}: {name[:80]!r} claims {claimed:,} bytes and stores {stored:,}.")


def read_parquet(path: Path) -> Dataset:
    parquet = needed("pyarrow.parquet")
    with reading(path):
        table = parquet.read_table(path)
        arrays = {}
        for name in table.column_names:
            column = table.column(name).to_numpy()
            arrays[name] = np.stack(list(column)) if column.dtype.kind == "O" and len(column) else column
            check_numbers(path, name, arrays[name].dtype, 0, 0)
        return from_steps(path, arrays)


# ------------------------------------------------------------ HDF5


def read_hdf5(path: Path) -> Dataset:
    """D4RL's layout, or Minari's where it has episodes."""
    if path.name == MINARI:
        return read_minari(path.parent.parent)
    h5py = needed("h5py")
    with reading(path), h5py.File(path, "r") as file:
        if "episode_0" in file:
            return episodes_of(path, file, None)
        known = [name for names in NAMES.values() for name in names if name in file]
        return from_steps(path, {name: numbers(path, file, name) for name in known})


def numbers(path: Path, group: Any, name: str) -> Any:
    """An array of a group; links out of the file, arrays laid out in others, and claims beyond the disk are refused."""
    h5py = needed("h5py")
    if type(group.get(name, getlink=True)) is not h5py.HardLink:
        raise UserError(f"{path}: {name!r} is a link, and is not followed.")
    found = group[name]
    if type(found) is h5py.Group:
        return {key: numbers(path, found, key) for key in found}
    if found.external or found.is_virtual:
        raise UserError(f"{path}: {name!r} lies in another file, and is not read.")
    check_numbers(path, name, found.dtype, found.nbytes, found.id.get_storage_size())
    return found[()]


def read_minari(path: Path) -> Dataset:
    h5py = needed("h5py")
    data = path / "data" / MINARI
    with reading(data), h5py.File(data, "r") as file:
        about = path / "data" / ABOUT
        told = json.loads(about.read_text()) if about.is_file() else None
        return episodes_of(data, file, told)


def episodes_of(path: Path, file: Any, told: Json) -> Dataset:
    names = sorted((name for name in file if name.startswith("episode_")), key=lambda name: int(name[8:]))
    parts = list[Row]()
    for name in names:
        group = file[name]
        keys = ("observations", "actions", "rewards", "terminations", "truncations")
        obs, action, reward, terminated, _ = (numbers(path, group, key) for key in keys)
        if len(reward):
            obs, action = (ops.map_tree(tensor, tree) for tree in (obs, action))
            parts.append(episode(obs, action, tensor(reward).float(), bool(terminated[-1]), {}))
    if not parts:
        raise UserError(f"{path} has no episode.")
    rows = joined([Dataset(EnvSpec(Discrete(1), Discrete(1)), each) for each in parts]).rows
    name = path.parent.parent.name
    if told is not None and "observation_space" in told:
        obs_space, action_space = (from_minari(told[key]) for key in ("observation_space", "action_space"))
        name = str(told.get("dataset_id", name))[:200]
    else:
        obs_space, action_space = tree_space(rows.obs), tree_space(rows.action, choice=True)
    return whole(path, [Dataset(EnvSpec(obs_space, action_space, name=name), rows)])


def tree_space(tree: Any, choice: bool = False) -> Space:
    if type(tree) is dict:
        return Composite({key: tree_space(part, choice) for key, part in tree.items()})
    return space_of(tree.squeeze(1).numpy(), choice)


def from_minari(text: Json, depth: int = 0) -> Space:
    """A space as Minari writes it."""
    match json.loads(text) if type(text) is str else text:
        case {"type": "Box", "dtype": dtype, "shape": shape, "low": low, "high": high}:
            bounds = {"low": flattened(low), "high": flattened(high)}
            dtype = "float32" if dtype == "float64" else dtype
            return from_json({"box": shape, "dtype": dtype, **bounds})
        case {"type": "Discrete", "n": n, "start": 0}:
            return from_json({"discrete": n})
        case {"type": "MultiDiscrete", "nvec": nvec}:
            return from_json({"multi_discrete": flattened(nvec)})
        case {"type": "MultiBinary", "n": n}:
            return from_json({"multi_binary": n})
        case {"type": "Dict", "subspaces": {**parts}} if depth < 8:
            return Composite({str(key): from_minari(part, depth + 1) for key, part in parts.items()})
    raise UserError(
        f"a space {str(text)[:80]} is not read. Accepted: Box, Discrete from 0, MultiBinary, Dict of these."
    )


def flattened(value: Json) -> list[Any]:
    numbers: list[Any] = np.asarray(value).reshape(-1).tolist()
    return numbers


def to_minari(space: Space) -> Json:
    match space:
        case Box(shape, dtype, low, high):
            bounds = {name: np.broadcast_to(np.reshape(x, shape if len(x) > 1 else ()), shape).tolist()
                      for name, x in (("low", low), ("high", high))}  # fmt: skip
            return {"type": "Box", "dtype": str(dtype).removeprefix("torch."), "shape": list(shape), **bounds}
        case Discrete(n):
            return {"type": "Discrete", "dtype": "int64", "start": 0, "n": n}
        case MultiDiscrete(nvec):
            return {"type": "MultiDiscrete", "dtype": "int64", "nvec": list(nvec), "start": [0] * len(nvec)}
        case MultiBinary(n):
            return {"type": "MultiBinary", "n": n}
        case Composite(items):
            return {"type": "Dict", "subspaces": {key: to_minari(part) for key, part in items.items()}}


def write_minari(path: Path, data: Dataset) -> None:
    """A folder that Minari opens; images as plain arrays."""
    h5py = needed("h5py")
    if path.exists():
        raise UserError(f"{path} is there. Choose another name.")
    (path / "data").mkdir(parents=True)
    with h5py.File(path / "data" / MINARI, "w") as file:
        for k, rows in enumerate(data.episodes()):
            count, group = len(rows.reward) - 1, file.create_group(f"episode_{k}")
            group.attrs.update({"id": k, "total_steps": count})
            named = ops.flatten_names({"observations": rows.obs, "actions": rows.action, "rewards": rows.reward})
            named |= {"terminations": rows.terminated, "truncations": rows.truncated}
            for name, x in named.items():
                own = x if name.startswith("observations") else x[:-1]
                group.create_dataset(name, data=own.squeeze(1).numpy())
    spaces = {key: json.dumps(to_minari(space))
              for key, space in (("observation_space", data.spec.obs), ("action_space", data.spec.action))}  # fmt: skip
    told = {"dataset_id": path.name, "data_format": "hdf5", "jpeg_encoding": False, "minari_version": "0.5.4", **spaces,
            "total_episodes": len(data.lengths()), "total_steps": data.steps}  # fmt: skip
    (path / "data" / ABOUT).write_text(json.dumps(told))
