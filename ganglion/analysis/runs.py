"""Runs read for analysis: their configs, curves and scores; several seeds of one config are one group."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from ganglion.config import text
from ganglion.errors import UserError
from ganglion.record.run_folder import CONFIG, open_folder
from ganglion.record.stores import Where
from ganglion.record.writers.jsonl import FILE, numbers

EVAL, TRAIN = "eval/return_mean", "episode/return"
APART = (("run", "seed"), ("run", "dir"), ("run", "name"))  # in what seeds of one group differ
Curve = tuple[list[float], list[float]]


@dataclass
class RunData:
    """What a run has left behind so far."""

    folder: Where
    config: Mapping[str, Any]  # plain values
    events: list[dict[str, Any]] = field(default_factory=list)
    broken: int = 0  # lines that could not be read

    @property
    def name(self) -> str:
        return str(self.config.get("run", {}).get("name") or self.folder.name)

    @property
    def seed(self) -> int:
        return int(self.config.get("run", {}).get("seed", 0))

    @property
    def task(self) -> str:
        env = self.config.get("env", {})
        return env if isinstance(env, str) else str(env.get("id") or env.get("kind", "?"))

    def curve(self, metric: str = EVAL, x: str = "env_steps") -> Curve:
        """Where it was recorded, and what it was."""
        pairs = [(e[x], e[metric]) for e in self.events if metric in e and x in e]
        return [a for a, _ in pairs], [b for _, b in pairs]

    def metrics(self) -> list[str]:
        """The names of all that was recorded."""
        apart = ("kind", "env_steps", "opt_steps", "episodes", "seconds")
        return sorted({name for event in self.events for name in event} - {*apart})

    def last(self, metric: str, default: float = float("nan")) -> float:
        values = self.curve(metric)[1]
        return values[-1] if values else default

    @property
    def steps(self) -> int:
        return int(max((e["env_steps"] for e in self.events if "env_steps" in e), default=0))

    @property
    def updates(self) -> int:
        return int(max((e["opt_steps"] for e in self.events if "opt_steps" in e), default=0))

    @property
    def seconds(self) -> float:
        return float(max((e["seconds"] for e in self.events if "seconds" in e), default=0.0))


def read_run(place: Where | str) -> RunData:
    """One run, also while it is training: lines that are not whole are left out and counted."""
    folder = open_folder(place, "RUN")
    config = text.read((folder / CONFIG).read_text(), f"{folder}/{CONFIG}")
    found = RunData(folder, config if type(config) is dict else {})
    file = folder / FILE
    if not file.exists():
        return found
    for line in file.read_bytes().split(b"\n")[:-1]:
        try:
            event = numbers(json.loads(line))
            found.events.append({name: value for name, value in event.items() if type(value) in (int, float, str)})
        except (ValueError, AttributeError):
            found.broken += 1
    return found


def find_runs(places: Iterable[str]) -> list[RunData]:
    """The runs that are named, and all below folders that are no runs themselves."""
    found: list[RunData] = []
    for place in places:
        below = [] if "://" in place else sorted(Path(place).glob(f"**/{CONFIG}"))
        if "://" in place or (Path(place) / CONFIG).exists() or not below:
            found.append(read_run(place))
        else:
            found += [read_run(str(path.parent)) for path in below]
    return found


@dataclass
class RunGroup:
    """Runs that differ in their seed and world alone."""

    name: str
    runs: list[RunData]
    number: int = 0  # among those it was found with

    @property
    def tasks(self) -> list[str]:
        return sorted({run.task for run in self.runs})


def grouped(runs: Sequence[RunData]) -> list[RunGroup]:
    """Runs of the same settings, but for seed and environment, as groups."""
    groups: dict[str, RunGroup] = {}
    for run in runs:
        key = json.dumps(settings(run, tasks=False), sort_keys=True, default=str)
        groups.setdefault(key, RunGroup("", [])).runs.append(run)
    found = list(groups.values())
    for number, group in enumerate(found):
        group.name, group.number = name_of(group), number
    for name in {group.name for group in found}:
        same = [group for group in found if group.name == name]
        for group, what in zip(same, told_apart(same) if len(same) > 1 else [""], strict=True):
            group.name = f"{name} {what}".strip()
    return found


def name_of(group: RunGroup) -> str:
    algo = group.runs[0].config.get("algo", {}).get("kind", "?")
    return f"{group.tasks[0]}/{algo}" if len(group.tasks) == 1 else str(algo)


def settings(run: RunData, tasks: bool = True) -> dict[str, Any]:
    """All settings as one level, `algo.net.hidden`; without what seeds differ in, and without the world if asked."""
    apart = {".".join(path) for path in APART}
    level = flat(run.config)
    return {k: v for k, v in level.items() if k not in apart and (tasks or not k.startswith("env."))}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        match value:
            case dict():
                found |= flat(value, f"{prefix}{key}.")
            case _:
                found[f"{prefix}{key}"] = value
    return found


def differences(groups: Sequence[RunGroup]) -> dict[str, list[Any]]:
    """Settings that are not the same in all groups: path -> a value for each group."""
    each = [settings(group.runs[0], tasks=len(group.tasks) == 1) for group in groups]
    paths = dict.fromkeys(path for one in each for path in one)
    found = {path: [one.get(path) for one in each] for path in paths}
    return {path: values for path, values in found.items() if any(value != values[0] for value in values)}


def told_apart(groups: Sequence[RunGroup]) -> list[str]:
    """Short names for groups that would have the same: by the settings in which they differ."""
    apart = differences(groups)
    shown = list(apart.items())[:2]
    names = [" ".join(f"{path.split('.')[-1]}={values[k]}" for path, values in shown) for k in range(len(groups))]
    return names if len(set(names)) == len(names) else [f"{name} #{k}" for k, name in enumerate(names, 1)]


def scores(group: RunGroup, metric: str, which: str, tasks: Sequence[str]) -> list[list[float]]:
    """The last, best or mean value of each run, task by task: [task][run]."""
    kinds: dict[str, Callable[[list[float]], float]] = {"last": lambda v: v[-1], "best": max, "mean": fmean}
    of = kinds[which]
    found = []
    for task in tasks:
        values = [run.curve(metric)[1] for run in group.runs if run.task == task]
        if not values or not all(values):
            raise UserError(f"{group.name}: a run on {task} has no {metric!r} yet.{recorded(group)}")
        found.append([float(of(value)) for value in values])
    return found


def recorded(group: RunGroup) -> str:
    names = group.runs[0].metrics()
    return f" Recorded are: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}." if names else ""
