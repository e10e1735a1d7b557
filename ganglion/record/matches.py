"""Whether a loaded state fits the run that is to take it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ganglion.core import State
from ganglion.errors import UserError, nearest
from ganglion.record.tensors import form

SHOWN = 5  # differences listed before "and n more"


def check_matches(template: State, loaded: State, vary: tuple[str, ...] = (), where: str = "the checkpoint") -> None:
    """Refuses a state of other names, types or shapes than `template`. Names that start with one of `vary` may differ:
    what a run in the middle of something has and a new one has not."""
    faults = _compare("tensor", _forms(template.tensors, vary), _forms(loaded.tensors, vary))
    faults += _compare("scalar", _names(template.scalars, vary), _names(loaded.scalars, vary))
    faults += _compare("buffer", _blocks(template, vary), _blocks(loaded, vary))
    for name in [name for name in template.rings if name in loaded.rings and not name.startswith(vary)]:
        ours, theirs = template.rings[name].arrays, loaded.rings[name].arrays
        faults += _compare(f"buffer {name!r}, tensor", _forms(ours, ()), _forms(theirs, ()))
    if faults:
        more = f"\n  and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        listed = "".join(f"\n  {fault}" for fault in faults[:SHOWN])
        raise UserError(f"{where} is of another configuration or algorithm than this run:{listed}{more}")


def _compare(what: str, expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    extra = [name for name in found if name not in expected]
    faults = []
    for name, text in expected.items():
        if name not in found:
            faults.append(f"{what} {name!r} ({text}) is missing from it.{nearest(name, extra)}")
        elif found[name] != text:
            faults.append(f"{what} {name!r}: expected {text}, found {found[name]}")
    missing = [name for name in expected if name not in found]
    return faults + [
        f"{what} {name!r} ({found[name]}) is not part of this run.{nearest(name, missing)}" for name in extra
    ]


def _forms(tensors: Mapping[str, Tensor], vary: tuple[str, ...]) -> dict[str, str]:
    forms = {name: form(name, tensor) for name, tensor in tensors.items() if not name.startswith(vary)}
    return {name: f"{dtype} {list(shape)}" for name, (dtype, shape) in forms.items()}


def _names(scalars: Mapping[str, object], vary: tuple[str, ...]) -> dict[str, str]:
    return {name: "a scalar" for name in scalars if not name.startswith(vary)}


def _blocks(state: State, vary: tuple[str, ...]) -> dict[str, str]:
    return {name: f"blocks of {ring.block} rows" for name, ring in state.rings.items() if not name.startswith(vary)}
