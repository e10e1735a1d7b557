"""What the board shows: runs below a folder, read again where their files have changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from ganglion.analysis.report import MORE, ailment, curves, facts, row, rows, table
from ganglion.analysis.runs import EVAL, TRAIN, RunData, RunGroup, differences, grouped, read_run
from ganglion.errors import UserError
from ganglion.record.health import findings
from ganglion.record.run_folder import CONFIG
from ganglion.record.writers.jsonl import FILE

VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
MOST = 500  # runs
Stamp = tuple[tuple[int, int], ...]


class Chosen(NamedTuple):
    """What the reader of the page has chosen."""

    metric: str = ""
    word: str = ""  # in the names of runs
    hidden: frozenset[str] = frozenset()  # groups


class Runs:
    """The runs below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[Path, tuple[Stamp, RunData]] = {}
        self.damaged: dict[Path, str] = {}
        self.videos: dict[str, Path] = {}  # by what the page calls them: nothing else is ever sent

    def read(self) -> list[RunData]:
        found: dict[Path, tuple[Stamp, RunData]] = {}
        damaged: dict[Path, str] = {}
        videos: dict[str, Path] = {}
        for config in sorted(self.folder.glob(f"**/{CONFIG}"))[:MOST]:
            place = config.parent
            try:
                stamp = stamped(place)
                kept = self.kept.get(place)
                found[place] = kept if kept is not None and kept[0] == stamp else (stamp, read_run(place))
                videos |= {f"{place.relative_to(self.folder)}/{path.name}": path for path in filmed(place)}
            except (UserError, OSError) as error:
                damaged[place] = str(error)
        self.kept, self.damaged, self.videos = found, damaged, videos
        return [run for _, run in found.values()]


def stamped(place: Path) -> Stamp:
    """When the files of a run were last written, and how long they are."""
    found = []
    for name in (CONFIG, FILE):
        try:
            about = (place / name).stat()
            found.append((about.st_mtime_ns, about.st_size))
        except FileNotFoundError:
            found.append((0, 0))
    return tuple(found)


def filmed(place: Path) -> list[Path]:
    """Videos in a run's folder, or in `videos` below it; no links."""
    found = [path for folder in (place, place / "videos") for path in sorted(folder.glob("*"))]
    return [path for path in found if path.suffix in VIDEOS and path.is_file() and not path.is_symlink()]


def parts(runs: Runs, chosen: Chosen) -> dict[str, Any]:
    """The parts of the page, each as HTML, and what there is to choose from."""
    every = [run for run in runs.read() if chosen.word.lower() in f"{run.name} {run.task} {run.folder}".lower()]
    groups = grouped(every)
    shown = [group for group in groups if group.name not in chosen.hidden]
    metrics = sorted({name for run in every for name in run.metrics()})
    metric = chosen.metric if chosen.metric in metrics else EVAL if EVAL in metrics else TRAIN
    notes = [f"{place.name}: {why}" for place, why in runs.damaged.items()]
    notes += [f"{run.name}: {run.broken} lines of metrics could not be read" for run in every if run.broken]
    return {
        "metrics": metrics,
        "metric": metric,
        "groups": [group.name for group in groups],
        "parts": {
            "load": load(runs.folder),
            "table": listed(shown, metric) if shown else nothing(runs.folder),
            "curves": charts(shown, metric) if shown else "",
            "health": health(shown),
            "settings": apart(shown),
            "videos": films(runs, shown),
            "notes": "".join(f'<p class="soft">Note: {escape(note)}</p>' for note in notes),
        },
    }


def nothing(folder: Path) -> str:
    return f"<p>No runs below {escape(str(folder))} yet, or none that is chosen. They appear here as they begin.</p>"


def listed(groups: Sequence[RunGroup], metric: str) -> str:
    """Groups with their scores where they can be compared, then every run."""
    every = [run for group in groups for run in group.runs]
    found = facts(every, metric)
    head: list[tuple[str, ...]] = [("run", "seed", metric, "best", "env steps", "updates", "trained", "budget")]
    for run in every:
        _, values = run.curve(metric)
        numbers = (f"{values[-1]:.4g}", f"{max(values):.4g}") if values else ("-", "-")
        spent = (
            f"{run.steps:,}",
            f"{run.updates:,}",
            f"{run.seconds:,.0f} s",
            str(section(run, "train").get("budget")),
        )
        head.append((run.name, str(run.seed), *numbers, *spent))
    told = "".join(f"<p>{escape(pair.verdict)}.</p>" for pair in found.compared.pairs) if found.compared else ""
    return f"{table(rows(found))}{told}<h2>Runs</h2>{table(head)}"


def section(run: RunData, name: str) -> Mapping[str, Any]:
    match run.config.get(name):
        case dict() as found:
            return found
    return {}


def charts(groups: Sequence[RunGroup], metric: str) -> str:
    others = [name for name in MORE if name != metric and any(r.curve(name)[0] for g in groups for r in g.runs)]
    small = "".join(curves(groups, name, 360, 190) for name in others)
    return row(curves(groups, metric)) + row(small)


def health(groups: Sequence[RunGroup]) -> str:
    shown = []
    for run in (run for group in groups for run in group.runs):
        found = findings(run.events, run.config)
        shown += [f"<h3>{escape(run.name)}</h3>", *(ailment(one) for one in found)] if found else []
    return f"<h2>Health</h2>{''.join(shown)}" if shown else ""


def apart(groups: Sequence[RunGroup]) -> str:
    """Configs side by side: what differs."""
    differ = differences(groups) if len(groups) > 1 else {}
    told = [(path, *("-" if v is None else str(v) for v in values)) for path, values in differ.items()]
    head = ("setting", *(group.name for group in groups))
    return f"<h2>Settings that differ</h2>{table([head, *told])}" if told else ""


def films(runs: Runs, groups: Sequence[RunGroup]) -> str:
    folders = {Path(str(run.folder)) for group in groups for run in group.runs}
    shown = []
    for name, path in runs.videos.items():
        if {path.parent, path.parent.parent} & folders:
            where, label = f"/video/{quote(name)}", escape(name)
            film = (
                f'<img src="{where}" alt="{label}">'
                if path.suffix == ".gif"
                else f'<video src="{where}" controls muted></video>'
            )
            shown.append(f"<div>{film}<p class=soft>{label}</p></div>")
    return f"<h2>Videos</h2>{row(''.join(shown))}" if shown else ""


def load(folder: Path) -> str:
    """How busy the machine is."""
    told = [f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"]
    memory = meminfo()
    if memory:
        told.append(f"memory {memory[0]:.1f} of {memory[1]:.1f} GiB used")
    told.append(f"disk {shutil.disk_usage(folder).free / 2**30:,.1f} GiB free")
    return escape(", ".join(told))


def meminfo() -> tuple[float, float] | None:
    """GiB used and there; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines[:5]}
        return (kib["MemTotal"] - kib["MemAvailable"]) / 2**20, kib["MemTotal"] / 2**20
    except (OSError, KeyError, ValueError, IndexError):
        return None
