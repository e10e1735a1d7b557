"""A small, safe subset of YAML: mappings, lists, text, numbers. Nothing in a file can name a type or run code.

Tags, anchors, aliases, several documents, a key set twice, more than 20 levels, 100,000 values or 1 MB are refused.
Unlike YAML 1.1, 1e-3 is a number and yes / no are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isinf
from typing import Any

import yaml

from ganglion.errors import UserError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_VALUES = 100_000

_INT = re.compile(r"[-+]?\d+(_\d+)*")
_FLOAT = re.compile(r"[-+]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "True": True, "false": False, "False": False}
_WORDS |= {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # used for its events alone


def read(text: str, where: str) -> Any:
    """The value of a YAML text; `where` names it in messages."""
    try:
        if len(text.encode()) > MAX_BYTES:
            raise UserError(f"{where} is larger than {MAX_BYTES // 1_000_000} MB.")
        return _Reader(text, where).document()
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}{line}: not valid YAML: {problem or str(error).splitlines()[0]}.") from None
    except UnicodeEncodeError:
        raise UserError(f"{where} is not UTF-8 text.") from None


def scalar(text: str) -> Any:
    """What an unquoted word means; ValueError for a number too large to hold."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if len(text) > 24 or abs(int(text)) >= 2**63:
            raise ValueError("number too large")
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if isinf(number):
            raise ValueError("number too large")
        return number
    return text


class _Reader:
    """Builds plain values from the events of a parser."""

    def __init__(self, text: str, where: str) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self.where = where
        self.values = 0

    def document(self) -> Any:
        next(self.events)  # the stream starts
        first = next(self.events)
        if isinstance(first, yaml.StreamEndEvent):
            return None
        value = self.node(next(self.events), 0)
        next(self.events)  # the document ends
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise self.refuse(after, "several documents in one file")
        return value

    def node(self, event: Any, depth: int) -> Any:
        self.values += 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self.refuse(event, "anchors and aliases are not accepted; write the value out")
        if event.tag is not None:
            raise self.refuse(event, f"the tag {event.tag!r} is not accepted; write plain values")
        if depth > MAX_DEPTH:
            raise self.refuse(event, f"more than {MAX_DEPTH} levels")
        if self.values > MAX_VALUES:
            raise self.refuse(event, f"more than {MAX_VALUES:,} values")
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(depth)
        if isinstance(event, yaml.SequenceStartEvent):
            return list(self.items(depth))
        if event.style:  # quoted
            return event.value
        try:
            return scalar(event.value)
        except ValueError as error:
            raise self.refuse(event, f"{event.value[:30]}: {error}") from None

    def items(self, depth: int) -> Iterator[Any]:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self.node(event, depth + 1)

    def mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            self.node(event, depth + 1)
            if not isinstance(event, yaml.ScalarEvent):
                raise self.refuse(event, "a key should be text")
            if event.value in found:
                raise self.refuse(event, f"{event.value!r} is set twice")
            found[event.value] = self.node(next(self.events), depth + 1)
        return found

    def refuse(self, event: Any, reason: str) -> UserError:
        return UserError(f"{self.where}, line {event.start_mark.line + 1}: {reason}.")


# ------------------------------------------------------------ writing


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Text that would be read as a number or a word is quoted, and odd characters are escaped."""
    safe = value.isprintable() and value not in _WORDS and not _FLOAT.fullmatch(value)
    style = None if safe else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _number(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    word = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
    if "." not in word:
        word = word.replace("e", ".0e")  # PyYAML would write a tag before 1e-12
    return dumper.represent_scalar("tag:yaml.org,2002:float", word)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _number)


def write(value: Mapping[str, Any]) -> str:
    """Plain values as YAML; `read` gives them back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110)
