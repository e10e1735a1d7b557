"""Named tensors as safetensors files, written without copies and read back with every byte checked.

The layout is that of safetensors (header length, JSON header, data), which any of its readers opens. It is written here
because a damaged file must be blamed on a tensor, and because rows are read straight into their place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion.errors import UserError
from ganglion.record.stores import Where

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
TORCH = {name: dtype for dtype, name in DTYPES.items()}


class TensorForm(NamedTuple):
    """Type and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape) * TORCH[self.dtype].itemsize


def form(name: str, tensor: Tensor) -> TensorForm:
    if tensor.dtype not in DTYPES:
        raise TypeError(f"tensor {name!r}: {tensor.dtype} cannot be saved; one of {', '.join(map(str, DTYPES))} can")
    return TensorForm(DTYPES[tensor.dtype], tuple(tensor.shape))


def digest(*parts: bytes | memoryview) -> str:
    """blake2b of 128 bits, as `b2sum -l 128` prints it."""
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def raw(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, without a copy when it lies contiguous in main memory."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def header(forms: Mapping[str, TensorForm]) -> bytes:
    """The start of a safetensors file: the same tensors always give the same bytes."""
    entries: dict[str, Any] = {}
    start = 0
    for name, (dtype, shape) in forms.items():
        end = start + forms[name].size
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def order(forms: Mapping[str, TensorForm]) -> dict[str, TensorForm]:
    """Widest type first, then by name: every tensor of the file is aligned."""
    return {name: forms[name] for name in sorted(forms, key=lambda name: (-TORCH[forms[name].dtype].itemsize, name))}


class Packed(NamedTuple):
    """A safetensors file ready to be written."""

    parts: list[bytes | memoryview]
    checksums: dict[str, str]

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.parts)


def pack(tensors: Mapping[str, Tensor]) -> Packed:
    forms = order({name: form(name, tensor) for name, tensor in tensors.items()})
    views = {name: raw(tensors[name]) for name in forms}
    return Packed([header(forms), *views.values()], {name: digest(view) for name, view in views.items()})


def read_into(path: Where, targets: Mapping[str, Tensor], checksums: Mapping[str, str], what: str = "tensor") -> None:
    """Fills tensors in main memory in place from a file that must hold exactly them."""
    forms = order({name: form(name, tensor) for name, tensor in targets.items()})
    start = header(forms)
    size = len(start) + sum(each.size for each in forms.values())
    try:
        with path.open("rb") as file:
            if file.read(len(start)) != start:
                raise UserError(f"{path} is damaged: its header is not the one that was written.")
            for name in forms:
                target = targets[name]
                room = target if target.is_contiguous() else torch.empty(target.shape, dtype=target.dtype)
                view = raw(room)
                if (len(view) and file.readinto(view) != len(view)) or digest(view) != checksums[name]:
                    raise UserError(f"{path} is damaged: {what} {name!r} does not have its checksum.")
                if room is not target:
                    target.copy_(room)
            if file.read(1):
                raise UserError(f"{path} is damaged: it is longer than the {size} bytes that were written.")
    except FileNotFoundError:
        raise UserError(f"{path} is missing; it holds {what} {next(iter(forms), '')!r}.") from None
