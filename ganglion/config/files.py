"""From YAML files, presets and `path=value` to configs, and back to text."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ganglion.config import text
from ganglion.config.model import Config
from ganglion.config.run import RunConfig
from ganglion.errors import UserError, nearest
from ganglion.registry import TABLE, names, presets

MAX_CASES = 1_000
IMPORTED: dict[str, None] = {}  # the user's modules that were asked for, in order: remote explorers need them, too
_PATH = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


Source = str | Path | Mapping[str, Any] | None


def load(source: Source, overrides: Iterable[str] = (), imports: Iterable[str] = ()) -> RunConfig:
    """One run: from a preset's name, a file, YAML text (it holds a newline), a mapping or nothing, then `path=value` in
    order."""
    found = cases(source, overrides, imports)
    if len(found) > 1:
        raise UserError(f"{_where(source)} is a sweep of {len(found)} runs, and one run was asked for.")
    return found[0]


def cases(source: Source, overrides: Iterable[str] = (), imports: Iterable[str] = ()) -> list[RunConfig]:
    """Every run of a sweep (`sweep: {algo.lr: [1e-3, 3e-4], run.seed: [0, 1]}`); a single one without."""
    for module in imports:
        import_module(module)
    raw, where, overrides = read_raw(source), _where(source), list(overrides)
    for override in overrides:
        _override(raw, override)
    if overrides and source is not None:
        where += " and the command line"
    swept = _sweep(raw.pop("sweep", {}), overrides, where)
    if not swept:
        return [resolve(raw, where)]
    combinations = [dict(zip(swept, values)) for values in product(*swept.values())]
    return [_case(raw, chosen, number, where) for number, chosen in enumerate(combinations)]


def resolve(raw: Mapping[str, Any], where: str = "the config") -> RunConfig:
    """Plain values as a checked config; all problems in one message."""
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        raise UserError(explain(error, where)) from None


def dump(config: Config) -> str:
    """A config as YAML, every setting written out; `load` gives an equal one back."""
    return text.write(config.plain())


# ------------------------------------------------------------ sources


def import_module(name: str) -> None:
    """Imports a user's module, so that its names can be used; the working directory is searched too: for this module
    first, for all else last, so that what lies there stands in for nothing that is installed."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    sys.meta_path.insert(0, first := First(name.partition(".")[0], here))
    try:
        importlib.import_module(name)
        IMPORTED[name] = None
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = "" if "importlib" in last.filename else f" ({last.filename}, line {last.lineno})"
        raise UserError(f"--import {name} failed: {type(error).__name__}: {error}{at}") from error
    finally:
        sys.meta_path.remove(first)


def modules(cfg: Config) -> list[str]:
    """The user's own modules that a config needs, those of its inner parts too."""
    names = {**IMPORTED, **{type(part).__module__: None for part in _parts(cfg)}}
    return [name for name in names if name != "__main__" and not name.startswith("ganglion.")]


def _parts(value: Any) -> Iterator[Config]:
    if isinstance(value, Config):
        yield value
        value = [getattr(value, name) for name in type(value).model_fields]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for one in inner:
        yield from _parts(one)


class First(MetaPathFinder):
    """Looks for one module in one folder."""

    def __init__(self, name: str, folder: str) -> None:
        self.name, self.folder = name, folder

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, [self.folder]) if name == self.name else None
        return found if found and found.origin else None  # a folder without code is no module that was asked for


def _where(source: Source) -> str:
    if source is None:
        return "the command line"
    match source:
        case Mapping():
            return "the settings"
    return "the text" if "\n" in str(source) else str(source)


def read_raw(source: Source) -> dict[str, Any]:
    """The plain values that a source holds, not yet checked."""
    match source:
        case None:
            return {}
        case Mapping():
            return dict(_copy(source))
    where = _where(source)
    raw = text.read(str(source) if where == "the text" else _file(source), where)
    if not isinstance(raw, dict):
        raise UserError(f"{where} should hold a mapping with the keys {', '.join(RunConfig.model_fields)}.")
    if isinstance(source, str) and source in presets() and isinstance(raw.setdefault("run", {}), dict):
        raw["run"].setdefault("name", source.replace("/", "-"))
    return raw


def _file(source: str | Path) -> str:
    path = Path(presets().get(str(source), source))
    try:
        if path.is_dir():
            raise UserError(f"{source} is a folder, and a config file was expected.")
        with path.open("rb") as file:
            return file.read(text.MAX_BYTES + 1).decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{source} is not UTF-8 text.") from None
    except (FileNotFoundError, ValueError):
        known, asked = presets(), str(source)[:200]
        accepted = ", ".join(["a YAML file", *known])
        raise UserError(f"there is no preset or file {asked!r}. Accepted: {accepted}.{nearest(asked, known)}") from None
    except OSError as error:
        raise UserError(f"{source} cannot be read: {error.strerror}.") from None


# ------------------------------------------------------------ overrides and sweeps


def _override(raw: dict[str, Any], override: str) -> None:
    path, equals, value = override.partition("=")
    if not equals or not value or not _PATH.fullmatch(path):
        raise UserError(f"{override[:80]!r} should be path=value, such as algo.lr=3e-4.")
    _set(raw, path, text.read(value, f"the value of {path}"))


def _set(raw: dict[str, Any], path: str, value: Any) -> None:
    """Sets one path of nested mappings; what stood there is replaced."""
    keys = path.split(".")
    if len(keys) > text.MAX_DEPTH:
        raise UserError(f"{path[:80]}: more than {text.MAX_DEPTH} levels.")
    if keys[0] == "sweep" and len(keys) > 1:  # the keys of a sweep are paths themselves
        keys = ["sweep", path.partition(".")[2]]
    here = raw
    for depth, key in enumerate(keys[:-1]):
        inner = here.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = _expand(keys[: depth + 1], inner)
            here[key] = inner
        here = inner
    here[keys[-1]] = value


def _expand(keys: Sequence[str], value: Any) -> dict[str, Any]:
    """A bare value as a mapping, so that an override can reach into it: `log: [console]`, `algo: dqn`."""
    section = (
        RunConfig.model_fields[keys[0]].annotation if len(keys) == 1 and keys[0] in RunConfig.model_fields else None
    )
    if isinstance(section, type) and issubclass(section, Config):
        expanded = section.expand(value)
        if isinstance(expanded, dict):
            return expanded
    if isinstance(value, str):
        return {"kind": value}
    raise UserError(f"{'.'.join(keys)} is {_short(value)}, which has no settings inside; set {'.'.join(keys)} itself.")


def _sweep(sweep: Any, overrides: Iterable[str], where: str) -> dict[str, list[Any]]:
    if not isinstance(sweep, dict):
        raise UserError(f"sweep of {where} should be a mapping from paths to lists of values.")
    set_by_hand = {override.partition("=")[0] for override in overrides}
    for path, values in sweep.items():
        if not _PATH.fullmatch(path):
            raise UserError(f"sweep of {where}: {path[:80]!r} should be a path such as algo.lr.")
        if not isinstance(values, list) or not values:
            raise UserError(f"sweep of {where}: {path} should be a list of values, got {_short(values)}.")
        if path in set_by_hand:
            raise UserError(f"{path} is swept by {where} and set on the command line; use sweep.{path}=[...] instead.")
    if prod(len(values) for values in sweep.values()) > MAX_CASES:
        raise UserError(f"sweep of {where} has more than {MAX_CASES:,} cases.")
    return sweep


def _case(raw: Mapping[str, Any], chosen: Mapping[str, Any], number: int, where: str) -> RunConfig:
    """One run of a sweep, its case appended to its name."""
    case = _copy(raw)
    for path, value in chosen.items():
        _set(case, path, _copy(value))
    config = resolve(case, f"{where} with {', '.join(f'{path}={_short(value)}' for path, value in chosen.items())}")
    last = [path.split(".")[-1] for path in chosen]
    labels = [path if last.count(end) > 1 else end for path, end in zip(chosen, last)]
    parts = [f"{label}={v}" for label, v in zip(labels, chosen.values()) if isinstance(v, (str, int, float))]
    suffix = ",".join(parts if len(parts) == len(chosen) else [f"case={number}", *parts])
    _set(case, "run.name", _safe(f"{config.title}-{suffix}"))
    if config.run.dir is not None:
        _set(case, "run.dir", f"{config.run.dir.rstrip('/')}/{_safe(suffix)}")
    return resolve(case, where)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "-", name)[:200]


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


# ------------------------------------------------------------ messages


def explain(error: ValidationError, where: str) -> str:
    """One message for everything that is wrong."""
    lines = list(dict.fromkeys(_line(line) for line in error.errors(include_url=False)))
    if len(lines) == 1:
        return f"{lines[0]} (in {where})"
    more = [f"... and {len(lines) - 20} more"] if len(lines) > 20 else []
    return f"{len(lines)} problems in {where}:\n" + "\n".join(f"  {line}" for line in lines[:20] + more)


def _line(line: Any) -> str:
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key[:80]}" for key in line["loc"]).lstrip(".")
    kind, given, message = line["type"], line["input"], line["msg"]
    if kind == "missing":
        return f"{path} is required" + (f". Accepted: {', '.join(names(path))}." if path in TABLE else "")
    if kind in ("extra_forbidden", "kind"):
        return f"{path}: {message}"
    message = re.sub(r"^(Value error, |Input |String |Tuple |Dictionary )", "", message)
    got = "" if kind == "value_error" and isinstance(given, (Mapping, Config)) else f", got {_short(given)}"
    offered = re.findall(r"'([^']*)'", message) if kind == "literal_error" and isinstance(given, str) else []
    return f"{path}: {message}{got}.{nearest(given, offered) if offered else ''}".removeprefix(": ")


def _short(value: Any) -> str:
    """A value as a message shows it."""
    if isinstance(value, (list, tuple)):
        shown = f"[{', '.join(_short(item) for item in value[:5])}{', ...' if len(value) > 5 else ''}]"
    elif isinstance(value, Mapping):
        shown = "a mapping"
    else:
        shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
