"""Manifests, of checkpoints and of datasets: JSON that carries its own checksum and gives back exactly what it was
given."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from math import isfinite
from typing import NamedTuple

from ganglion.core import Json
from ganglion.errors import UserError
from ganglion.record.stores import Where
from ganglion.record.tensor_file import TORCH, digest

START = b'{\n"checksum": "'
HEX = 32
EIGHT, CHECKSUM = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{32}")
STATE, CHUNK = re.compile(r"state(-[0-9a-f]{32})?\.safetensors"), re.compile(r"[0-9a-f]{32}\.safetensors")


class Kind(NamedTuple):
    """What a manifest is of, and what each of its entries may be."""

    noun: str
    version: int
    entries: Mapping[str, Callable[[Json], bool]]

    @property
    def format(self) -> str:
        return f"ganglion {self.noun}"


def encode(value: Json, name: str) -> Json:
    """Plain JSON. inf and nan become {"$float": the 8 bytes in hexadecimal}; a real key that starts with "$" gets one
    more. Integers of any size and finite floats come back bit for bit; tuples come back as lists."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, list | tuple):
        return [encode(item, name) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {f"${key}" if key.startswith("$") else key: encode(item, name) for key, item in value.items()}
    kinds = "str, int, float, bool, None, lists, and mappings with str keys"
    raise TypeError(f"scalar {name!r}: {type(value).__name__} cannot be saved; {kinds} can")


def decode(value: Json) -> Json:
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        if list(value) == ["$float"]:
            if not (isinstance(value["$float"], str) and EIGHT.fullmatch(value["$float"])):
                raise ValueError(f"{str(value['$float'])[:40]!r} is not a number of 8 bytes")
            return struct.unpack(">d", bytes.fromhex(value["$float"]))[0]
        return {key[1:] if key.startswith("$") else key: decode(item) for key, item in value.items()}
    return value


def dumps(body: Mapping[str, Json], kind: Kind | None = None) -> bytes:
    """The manifest's bytes: one entry per line, headed by the checksum of the whole with that checksum as zeros."""
    lines = ",\n".join(f"{json.dumps(key)}: {_entries(value)}" for key, value in body.items())
    kind = kind or CHECKPOINT
    head = {"format": kind.format, "version": kind.version}
    opening = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    text = START + b"0" * HEX + f'",\n{opening},\n{lines}\n}}\n'.encode()
    return _signed(text, digest(text).encode())


def _entries(value: Json) -> str:
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()) + "\n}"
    return json.dumps(value)


def _signed(text: bytes, mark: bytes) -> bytes:
    return text[: len(START)] + mark + text[len(START) + HEX :]


def read(path: Where, kind: Kind | None = None) -> dict[str, Json]:
    """The manifest's entries, as they were given to `dumps`."""
    kind = kind or CHECKPOINT
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path.parent} is not a {kind.noun}: it has no {path.name}.") from None
    mark = text[len(START) : len(START) + HEX]
    if digest(_signed(text, b"0" * HEX)).encode() != mark or not text.startswith(START):
        if not re.search(rb"ganglion|checksum", text):
            raise UserError(f"{path} is not the manifest of a Ganglion {kind.noun}.")
        raise UserError(f"{path} is damaged: it does not have its own checksum.")
    try:
        body: dict[str, Json] = dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise foreign(path, error) from error
    found = body.pop("format", None), body.pop("version", None)
    if found != (kind.format, kind.version):
        told = [str(each)[:80] for each in found]
        read = f"{kind.format!r} of version {kind.version}"
        raise UserError(f"{path}: this Ganglion reads {read}, not {told[0]!r} of {told[1]!r}.")
    for name, fits in kind.entries.items():
        if name not in body or not fits(body[name]):
            raise foreign(path, f"{name!r} is missing, or not what it should be")
    return {name: body[name] for name in kind.entries}


def foreign(path: Where, why: object) -> UserError:
    """Of a file that was not damaged, but made by others: its checksums are right, and what it says is not."""
    return UserError(f"{path} was not written by Ganglion: {str(why)[:200]}.")


# ------------------------------------------------------------ what an entry may be


def is_count(value: Json) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def is_text(value: Json, kind: re.Pattern[str]) -> bool:
    return isinstance(value, str) and kind.fullmatch(value) is not None


def is_mapping(value: Json, fits: Callable[[Json], bool] = lambda _: True) -> bool:
    return isinstance(value, dict) and all(fits(each) for each in value.values())


def _files(value: Json) -> bool:
    """One file, in the checkpoint's own folder."""
    return is_mapping(value) and len(value) == 1 and all(is_text(name, STATE) for name in value)


def _tensor(value: Json) -> bool:
    return isinstance(value, list) and len(value) == 3 and is_form(value[:2]) and is_text(value[2], CHECKSUM)


def is_form(value: Json) -> bool:
    """Type and shape."""
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and value[0] in TORCH):
        return False
    return isinstance(value[1], list) and all(is_count(size) for size in value[1])


def _ring(value: Json) -> bool:
    """As many stamps and chunks as its arrays have blocks."""
    if not is_mapping(value) or value.keys() != {"block", "stamps", "arrays", "chunks"}:
        return False
    block, stamps, arrays, chunks = (value[name] for name in ("block", "stamps", "arrays", "chunks"))
    if not (is_count(block) and block and is_mapping(arrays, lambda x: is_form(x) and len(x[1]) > 0)):
        return False
    rows = {form[1][0] for form in arrays.values()}
    if len(rows) > 1 or not isinstance(stamps, list) or not isinstance(chunks, list):
        return False
    blocks = -(-max(rows, default=0) // block)
    fits = len(stamps) == len(chunks) == blocks and all(is_count(stamp) for stamp in stamps)
    return fits and all(chunk is None or _chunk(chunk, arrays) for chunk in chunks)


def _chunk(value: Json, arrays: Mapping[str, Json]) -> bool:
    """A file, and the checksum of each array's rows in it."""
    if not (isinstance(value, list) and len(value) == 2 and is_text(value[0], CHUNK)):
        return False
    return is_mapping(value[1], lambda x: is_text(x, CHECKSUM)) and value[1].keys() == arrays.keys()


ENTRIES: Mapping[str, Callable[[Json], bool]] = {
    "step": is_count,
    "meta": is_mapping,
    "files": _files,
    "tensors": lambda value: is_mapping(value, _tensor),
    "scalars": is_mapping,
    "rings": lambda value: is_mapping(value, _ring),
}
CHECKPOINT = Kind("checkpoint", 1, ENTRIES)
