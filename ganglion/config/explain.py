"""What settings mean: the comment beside each field in its class's source, and what the class says of itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from ganglion.config.model import Config

FIELD = re.compile(r"^    (\w+): [^#\n]*#\s*(.+)$", re.MULTILINE)  # name: type = default  # meaning
# The same over several lines, the meaning after the closing bracket.
OPENED = re.compile(r"^    (\w+): .*[(\[]\s*\n(?:        .*\n)*?    [)\]]\s*#\s*(.+)$", re.MULTILINE)
USUAL = {  # what every reader of the field knows, and so stands beside no field
    "lr": "the learning rate, over the budget",
    "gamma": "discount of later rewards",
    "lam": "how far advantages look ahead: 0 one step, 1 whole returns",
    "n_step": "rewards that are summed before the value of what follows",
    "max_norm": "of the gradient, which is scaled down to it",
    "epochs": "times that each rollout is learned from",
    "minibatches": "of each epoch",
    "clip": "how far the ratio of probabilities may leave 1",
    "entropy": "weight of the entropy, which keeps actions apart",
    "value_weight": "of the critic's loss",
    "double": "the online model chooses the next action, the target values it",
    "dueling": "the value and the advantages have heads of their own",
    "hidden": "units of each layer",
    "activation": "between layers",
    "seed": "of everything random",
    "slots": "copies of the environment that are stepped together",
    "opt_interval": "env steps between two updates",
    "warmup": "env steps before the first update",
    "keep": "checkpoints beside the best",
    "episodes": "of each evaluation",
    "every": "the interval",
    "budget": "how long to train",
    "threads": "of torch",
    "name": "what it is called",
}


@cache
def comments(kind: type[Config]) -> dict[str, str]:
    """Of each field, those that it inherits first."""
    found: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        if not issubclass(cls, Config) or cls is Config:
            continue
        try:
            source = inspect.getsource(cls)
        except (OSError, TypeError):  # made in a console
            continue
        found |= dict(OPENED.findall(source)) | dict(FIELD.findall(source))
    return found


def meanings(config: Config, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, value, meaning) of every setting, section by section."""
    said = comments(type(config))
    if config.kind:
        yield f"{prefix}kind", config.kind, first_line(type(config))
    for name, value in config:
        yield from meaning(f"{prefix}{name}", value, said.get(name) or USUAL.get(name, ""))


def meaning(path: str, value: Any, said: str) -> Iterator[tuple[str, str, str]]:
    match value:
        case Config():
            inner = list(meanings(value, f"{path}."))
            about = said or ("" if value.kind else first_line(type(value)))
            yield from [(path, "", about), *inner] if about else inner
        case _:
            yield path, "none" if value is None else str(value), said


def first_line(kind: type[Config]) -> str:
    return (kind.__doc__ or "").strip().split("\n")[0]
