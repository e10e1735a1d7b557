"""Parcels: named tensors and a small JSON header in one contiguous piece of bytes. Nothing is pickled.

b"GNGL", 4 bytes spare, 8 bytes: size of the header | header | tensors, each on a 64-byte boundary

Whoever reads a parcel of unknown origin says with a WireForm what its tensors must be: nothing is decompressed, and no
memory taken for it, before its header has been compared with that.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from ganglion.core import Ring, State, Weights, under
from ganglion.errors import UserError

MAGIC = b"GNGL"
LINE = 64
HEADER = 1 << 24  # bytes of a header at most, where a WireForm is given
CODECS = ("none", "zlib", "lz4", "zstd")
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Room = Callable[[int], Bytes]


class Codec(NamedTuple):
    """How the tensors of a parcel are compressed, where they are larger than `least` bytes."""

    name: str = "none"
    least: int = 1 << 20


PLAIN = Codec()
Leaf = list[Any]  # of a header: a tensor's name, type, shape, where it begins, and its size in bytes


class WireForm:
    """What the tensors of a parcel must be: their names, types and shapes, and so their size. The order is free."""

    def __init__(self, tensors: Mapping[str, Tensor], codec: str = "none") -> None:
        leaves, self.size = leaves_of(tensors)
        self.known = {leaf[0]: leaf for leaf in leaves}
        self.codec = codec

    @property
    def most(self) -> int:
        """Bytes of a parcel at most."""
        return self.size + HEADER

    def check(self, header: Mapping[str, Any]) -> list[Leaf]:
        """The leaves that a header tells of, in words of our own; ValueError where they are others."""
        if "codec" in header and (header["codec"] != self.codec or header.get("size") != self.size):
            told = f"{header.get('size')!r:.40} bytes, compressed by {header['codec']!r:.40}"
            raise ValueError(f"it should have {self.size} bytes, compressed by {self.codec}, and says {told}")
        given = header.get("leaves")
        if not isinstance(given, list) or len(given) != len(self.known):
            raise ValueError(f"it should have these tensors: {', '.join(self.known)}")
        leaves: list[Leaf] = []
        end = 0
        for leaf in given:
            own = self.known.get(leaf[0]) if isinstance(leaf, list) and leaf and isinstance(leaf[0], str) else None
            if own is None or leaf != [*own[:3], end, own[4]]:
                wanted = f"{own[0]} should be {own[1]} {own[2]}, and is" if own else "it should not have"
                raise ValueError(f"{wanted} {leaf!s:.120}")
            leaves.append([*own[:3], end, own[4]])
            end += padded(own[4])
        if len({leaf[0] for leaf in leaves}) != len(self.known):
            raise ValueError("it has a tensor twice")
        return leaves


def padded(size: int) -> int:
    return -(-size // LINE) * LINE


def leaves_of(tensors: Mapping[str, Tensor]) -> tuple[list[Leaf], int]:
    """What a header says of tensors, and how many bytes they take."""
    leaves: list[Leaf] = []
    end = 0
    for name, tensor in tensors.items():
        leaves.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end, tensor.nbytes])
        end += padded(tensor.nbytes)
    return leaves, end


def pack(
    about: Mapping[str, Any], tensors: Mapping[str, Tensor], codec: Codec = PLAIN, room: Room | None = None
) -> Bytes:
    """A parcel, in memory that `room` gives for its size."""
    leaves, end = leaves_of(tensors)
    room = room or (lambda size: np.empty(size, np.uint8))
    if codec.name == "none" or end < codec.least:
        first, parcel = begin({"about": dict(about), "leaves": leaves}, end, room)
        fill(parcel[first:], leaves, tensors)
        return parcel
    whole = np.zeros(end, np.uint8)
    fill(whole, leaves, tensors)
    small = squeeze(codec.name)(whole)
    first, parcel = begin({"about": dict(about), "leaves": leaves, "codec": codec.name, "size": end}, len(small), room)
    parcel[first:] = np.frombuffer(small, np.uint8)
    return parcel


def begin(header: Mapping[str, Any], size: int, room: Room) -> tuple[int, Bytes]:
    """Room for a parcel with its header written, and where its tensors begin."""
    text = json.dumps(header, separators=(",", ":")).encode()
    first = padded(16 + len(text))
    parcel = room(first + size)
    parcel[:first] = 0
    parcel[:4] = np.frombuffer(MAGIC, np.uint8)
    parcel[8:16] = np.frombuffer(len(text).to_bytes(8, "little"), np.uint8)
    parcel[16 : 16 + len(text)] = np.frombuffer(text, np.uint8)
    return first, parcel


def fill(place: Bytes, leaves: list[Leaf], tensors: Mapping[str, Tensor]) -> None:
    for name, _, _, start, size in leaves:
        flat = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        place[start : start + size] = flat.numpy()


def unpack(body: Any, form: WireForm | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header's own part, and the tensors: views of the parcel's memory where it can be written and is not
    compressed, else of a copy. ValueError where they are not a parcel's, or not of this form."""
    parcel = np.frombuffer(body, np.uint8)
    if len(parcel) < LINE or parcel[:4].tobytes() != MAGIC:
        raise ValueError("these bytes are not a parcel of Ganglion's")
    length = int.from_bytes(parcel[8:16].tobytes(), "little")
    if length > len(parcel) - 16:
        raise ValueError(f"a parcel's header should have {length} bytes, and there are {len(parcel) - 16}")
    header = read_header(parcel[16 : 16 + length].tobytes(), HEADER if form else length)
    leaves = form.check(header) if form else header["leaves"]
    place = parcel[padded(16 + length) :]
    if "codec" in header:
        place = np.frombuffer(bytearray(stretch(header["codec"], place.tobytes(), header["size"])), np.uint8)
    elif not place.flags.writeable:  # torch does not know memory that cannot be written
        place = place.copy()
    return header["about"], {leaf[0]: view(place, *leaf[1:]) for leaf in leaves}


def read_header(text: bytes, most: int) -> dict[str, Any]:
    if len(text) > most:
        raise ValueError(f"a parcel's header has {len(text):,} bytes, and {most:,} are allowed")
    try:
        header = json.loads(text)
    except RecursionError:
        raise ValueError("a parcel's header is nested too deeply") from None
    if not isinstance(header, dict) or not isinstance(header.get("about"), dict):
        raise ValueError("a parcel's header is something else")
    return header


def view(place: Bytes, dtype: str, shape: list[int], start: int, size: int) -> Tensor:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or prod(shape) * kind.itemsize != size or start + size > len(place):
        raise ValueError(f"a parcel's tensor of {dtype} {shape} does not fit its {size} bytes")
    return torch.from_numpy(place[start : start + size]).view(kind).reshape(shape)


def pack_weights(weights: Weights) -> Bytes:
    about = {"version": weights.version, "knobs": dict(weights.knobs), "fast": weights.fast}
    return pack(about, weights.tensors)


KNOBS = TypeAdapter(tuple[int, dict[str, float], bool])


def unpack_weights(body: Any, form: WireForm | None = None) -> Weights:
    about, tensors = unpack(body, form)
    version, knobs, fast = KNOBS.validate_python(tuple(map(about.get, ("version", "knobs", "fast"))), strict=True)
    return Weights(version, knobs, tensors, fast)


def pack_state(state: State) -> Bytes:
    """All that a part is, on its way to another process."""
    rings = {name: [ring.block, list(ring.stamps), list(ring.arrays)] for name, ring in state.rings.items()}
    tensors = {f"tensors/{name}": tensor for name, tensor in state.tensors.items()}
    tensors |= {
        f"rings/{name}/{k}": x for name, ring in state.rings.items() for k, x in enumerate(ring.arrays.values())
    }
    return pack({"scalars": dict(state.scalars), "rings": rings}, tensors)


def unpack_state(body: Any) -> State:
    """Of bytes of our own."""
    about, tensors = unpack(body)
    rings = {
        name: Ring({key: tensors[f"rings/{name}/{k}"] for k, key in enumerate(keys)}, block, tuple(stamps))
        for name, (block, stamps, keys) in about["rings"].items()
    }
    return State(under(State(tensors), "tensors").tensors, about["scalars"], rings)


# ------------------------------------------------------------ compression


def squeeze(codec: str) -> Callable[[Any], bytes]:
    """What compresses bytes. Speed is the point: items live for a moment."""
    if codec == "zlib":
        return lambda raw: zlib.compress(raw, 1)
    if codec == "lz4":
        return lambda raw: bytes(module("lz4.frame", "lz4").compress(raw))
    return lambda raw: bytes(module("zstandard", "zstandard").ZstdCompressor(level=1).compress(raw))


def stretch(codec: str, raw: bytes, size: int) -> bytes:
    """The bytes that were compressed; never more than the header promised, whatever they themselves promise."""
    if codec not in CODECS[1:] or not isinstance(size, int) or size <= 0:
        known = ", ".join(CODECS[1:])
        raise ValueError(f"a parcel of {size!r:.40} bytes is compressed by {codec!r:.40}. Known: {known}")
    try:
        whole = inflate(codec, raw, size)
    except UserError:
        raise
    except Exception as error:  # each package has errors of its own
        raise ValueError(f"a parcel is not what {codec} makes: {error}") from error
    if len(whole) != size:
        raise ValueError(f"a parcel should have {size} bytes, and has {len(whole)}")
    return bytes(whole)


def inflate(codec: str, raw: bytes, size: int) -> Any:
    if codec == "zlib":
        return zlib.decompressobj().decompress(raw, size)
    if codec == "lz4":
        return module("lz4.frame", "lz4").LZ4FrameDecompressor().decompress(raw, size)
    zstd = module("zstandard", "zstandard")
    if zstd.frame_content_size(raw) != size:  # it would be believed
        raise ValueError("it promises another size")
    return zstd.ZstdDecompressor().decompress(raw)


def module(name: str, package: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UserError(f"fleet.compress: {name.split('.')[0]} is not installed. Try: pip install {package}") from error


def check_codec(codec: str) -> None:
    """Refuses a codec that cannot be used here, before anything is sent."""
    if codec != "none":
        squeeze(codec)(b"")
