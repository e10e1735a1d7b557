"""Parcels: what goes in comes out, and nothing that is not a parcel is taken for one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ganglion.errors import UserError
from ganglion.fleet.wire import CODECS, LINE, Codec, check_codec, pack, unpack

TENSORS = {
    "rows/obs": torch.arange(24, dtype=torch.float32).reshape(2, 3, 4),
    "flag": torch.tensor([True, False, True]),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "none": torch.empty(0, 3, dtype=torch.int64),
    "one": torch.tensor(7, dtype=torch.int64),
    "wide": torch.arange(6, dtype=torch.uint8).reshape(2, 3).t(),  # not contiguous
}


PRESSED = [Codec(name, 0) for name in CODECS if name != "none"]


@pytest.mark.parametrize("codec", [Codec(), *PRESSED, Codec("zlib", 1 << 30)])
def test_round_trip(codec: Codec) -> None:
    about, tensors = unpack(pack({"origin": ["main", 0, 1, 2, 3], "nan": float("inf")}, TENSORS, codec))
    assert about == {"origin": ["main", 0, 1, 2, 3], "nan": float("inf")}
    assert list(tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype and torch.equal(tensors[name], tensor), name


def test_reading_copies_nothing() -> None:
    parcel = pack({}, TENSORS)
    first = unpack(parcel)[1]["rows/obs"]
    assert first.data_ptr() % LINE == parcel.ctypes.data % LINE
    first.zero_()
    assert unpack(parcel)[1]["rows/obs"].sum() == 0


def test_memory_that_cannot_be_written_is_copied() -> None:
    parcel = pack({}, TENSORS)
    parcel.flags.writeable = False
    assert torch.equal(unpack(parcel)[1]["one"], TENSORS["one"])
    assert torch.equal(unpack(parcel.tobytes())[1]["wide"], TENSORS["wide"])


def test_a_parcel_is_one_piece_with_a_readable_header() -> None:
    parcel = pack({"a": 1}, TENSORS)
    assert parcel.dtype == np.uint8 and parcel.flags.c_contiguous
    header = json.loads(parcel[16 : 16 + int.from_bytes(parcel[8:16].tobytes(), "little")].tobytes())
    assert header["about"] == {"a": 1} and header["leaves"][0][:3] == ["rows/obs", "float32", [2, 3, 4]]


@pytest.mark.parametrize("codec", PRESSED)
def test_compression_makes_it_smaller(codec: Codec) -> None:
    zeros = {"x": torch.zeros(1 << 16)}
    assert pack({}, zeros, codec).nbytes < pack({}, zeros).nbytes / 100


@pytest.mark.parametrize("codec", PRESSED)
@pytest.mark.parametrize("damage", ["promise", "nothing", "flipped", "short"])
def test_damage_of_compressed_bytes_is_refused(codec: Codec, damage: str) -> None:
    """Also bytes that would become more than the header says."""
    parcel = pack({}, {"x": torch.zeros(1 << 14)}, codec)
    length = int.from_bytes(parcel[8:16].tobytes(), "little")
    text = parcel[16 : 16 + length].tobytes()
    first = -(-(16 + length) // LINE) * LINE
    other = {"promise": b'"size":   64', "nothing": b'"size":    0'}.get(damage, b"")
    if damage == "flipped":
        parcel[first + 2 : first + 6] ^= 0xFF
    elif damage == "short":
        parcel = parcel[:-8]
    else:
        parcel[16 : 16 + length] = np.frombuffer(text.replace(b'"size":65536', other), np.uint8)
    with pytest.raises(ValueError):
        unpack(parcel)


@pytest.mark.parametrize("damage", ["short", "magic", "header", "size", "dtype", "bomb"])
def test_damage_is_refused(damage: str) -> None:
    parcel = pack({}, {"x": torch.zeros(100)}, Codec("zlib", 0) if damage == "bomb" else Codec())
    if damage == "short":
        parcel = parcel[:20]
    elif damage == "magic":
        parcel[0] = 0
    elif damage == "header":
        parcel[8:16] = 255
    else:
        length = int.from_bytes(parcel[8:16].tobytes(), "little")
        text = parcel[16 : 16 + length].tobytes()
        change = {
            "size": (b",400]", b",404]"),
            "dtype": (b"float32", b"FloatXX"),
            "bomb": (b'"size":448', b'"size":100'),
        }
        other = text.replace(*change[damage])
        assert other != text and len(other) == len(text)
        parcel[16 : 16 + length] = np.frombuffer(other, np.uint8)
    with pytest.raises(ValueError):
        unpack(parcel)


def test_a_codec_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lz4.frame", None)
    with pytest.raises(UserError, match=r"fleet\.compress: lz4 is not installed\. Try: pip install lz4"):
        check_codec("lz4")
    check_codec("zlib")
