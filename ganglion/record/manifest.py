"""The manifest of a checkpoint: JSON that carries its own checksum and gives back exactly what it was given."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from math import isfinite

from ganglion.core import Json
from ganglion.errors import UserError
from ganglion.record.stores import Where
from ganglion.record.tensors import digest

FORMAT = "ganglion checkpoint"
VERSION = 1
START = b'{\n"checksum": "'
HEX = 32


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
            return struct.unpack(">d", bytes.fromhex(value["$float"]))[0]
        return {key[1:] if key.startswith("$") else key: decode(item) for key, item in value.items()}
    return value


def dumps(body: Mapping[str, Json]) -> bytes:
    """The manifest's bytes: one entry per line, headed by the checksum of the whole with that checksum as zeros."""
    lines = ",\n".join(f"{json.dumps(key)}: {_entries(value)}" for key, value in body.items())
    head = {"format": FORMAT, "version": VERSION}
    opening = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
    text = START + b"0" * HEX + f'",\n{opening},\n{lines}\n}}\n'.encode()
    return _signed(text, digest(text).encode())


def _entries(value: Json) -> str:
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()) + "\n}"
    return json.dumps(value)


def _signed(text: bytes, mark: bytes) -> bytes:
    return text[: len(START)] + mark + text[len(START) + HEX :]


def read(path: Where) -> dict[str, Json]:
    """The manifest's entries, as they were given to `dumps`."""
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path.parent} is not a checkpoint: it has no {path.name}.") from None
    mark = text[len(START) : len(START) + HEX]
    if digest(_signed(text, b"0" * HEX)).encode() != mark or not text.startswith(START):
        if not re.search(rb"ganglion|checksum", text):
            raise UserError(f"{path} is not the manifest of a Ganglion checkpoint.")
        raise UserError(f"{path} is damaged: it does not have its own checksum.")
    body: dict[str, Json] = json.loads(text)
    found = body.pop("format", None), body.pop("version", None)
    if found != (FORMAT, VERSION):
        raise UserError(f"{path}: this Ganglion reads {FORMAT!r} of version {VERSION}, not {found[0]!r} of {found[1]}.")
    del body["checksum"]
    return body
