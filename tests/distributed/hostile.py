"""Items, sessions and weights that no explorer and no learner would write; and everything around them, listed."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ganglion.fleet.files_broker import seal
from ganglion.fleet.wire import MAGIC, begin, pack

About = dict[str, Any]
Tensors = dict[str, Tensor]
Change = Callable[[About, Tensors], Any]  # changes them in place, or gives the bytes
REPORT = {"kind": "raise", "slot": 0, "episode": 3, "step": 1, "error": "e", "traceback": "", "acting": True}


def told(**more: Any) -> Change:
    return lambda about, tensors: about.update(more)


def turned(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda about, tensors: tensors.update({name: change(tensors[name])})


def failed(**more: Any) -> Change:
    return told(failures=[{**REPORT, **more}])


def cut(rows: int) -> Change:
    return lambda about, tensors: tensors.update({k: v[:rows] for k, v in tensors.items() if k.startswith("rows/")})


def header(text: bytes) -> bytes:
    return MAGIC + bytes(4) + len(text).to_bytes(8, "little") + text + bytes(64)


def split(parcel: bytes) -> tuple[dict[str, Any], bytes]:
    """A parcel's header, and what follows it."""
    length = int.from_bytes(parcel[8:16], "little")
    return json.loads(parcel[16 : 16 + length]), parcel[-(-(16 + length) // 64) * 64 :]


def joined(head: dict[str, Any], rest: bytes) -> bytes:
    first, parcel = begin(head, len(rest), lambda size: np.zeros(size, np.uint8))
    parcel[first:] = np.frombuffer(rest, np.uint8)
    return parcel.tobytes()


def relabelled(**more: Any) -> Change:
    """A parcel whose header says something else of the bytes in it."""

    def make(about: About, tensors: Tensors) -> bytes:
        head, rest = split(pack(about, tensors).tobytes())
        return joined({**head, **more}, rest)

    return make


def zeros(size: int, says: Callable[[int], int]) -> Change:
    """Zeros, compressed a thousandfold, and what the header says of their size, given the one that would be right."""

    def make(about: About, tensors: Tensors) -> bytes:
        head, rest = split(pack(about, tensors).tobytes())
        squeeze = zlib.compressobj(1)
        raw = b"".join(squeeze.compress(bytes(1 << 22)) for _ in range(size >> 22)) + squeeze.flush()
        return joined({**head, "codec": "zlib", "size": says(len(rest))}, raw)

    return make


BOMB = 1 << 28
ESCAPE = "z/../../../home/.config/tool/settings"
OBS = "rows/obs"

# What lies in a file of an honest name, under a checksum that is right.
ITEMS: dict[str, Change] = {
    "observations of another width": turned(OBS, lambda x: torch.zeros(*x.shape[:-1], 9)),
    "observations of another type": turned(OBS, lambda x: x.double()),
    "observations that are nan": turned(OBS, lambda x: x * float("nan")),
    "rewards that are infinite": turned("rows/reward", lambda x: x + float("inf")),
    "rewards of another type": turned("rows/reward", lambda x: x.long()),
    "rewards of another rank": turned("rows/reward", lambda x: x[..., None]),
    "flags that are neither": turned("rows/valid", lambda x: torch.full_like(x, 7, dtype=torch.uint8).view(torch.bool)),
    "no rows": cut(0),
    "one row": cut(1),
    "other slots": lambda about, tensors: tensors.update(
        {k: torch.cat([v, v], 1) for k, v in tensors.items() if k.startswith("rows/")}
    ),
    "nothing ahead": lambda about, tensors: tensors.pop("ahead/obs"),
    "another width ahead": turned("ahead/obs", lambda x: torch.zeros(len(x), 9)),
    "a tensor more": lambda about, tensors: tensors.update(more=torch.zeros(3)),
    "a tensor twice": relabelled(leaves=[["rows/reward", "float32", [16, 2], 0, 128]] * 9),
    "a shape that lies": relabelled(leaves=[[OBS, "float32", [10**9, 10**9], 0, 4 * 10**18]]),
    "leaves that are text": relabelled(leaves="all"),
    "episodes that are text": told(episodes=[["x", "y", 1, {}, 1]]),
    "an episode of no slot": told(episodes=[[10**6, 1.0, 1.0, {}, 1]]),
    "an episode with text": told(episodes=[[0, 1.0, 1.0, {"k": "text"}, 1]]),
    "a failure without a kind": told(failures=[{}]),
    "failures that are text": told(failures="boo"),
    "a failure that names a path": failed(episode=ESCAPE, hooks={"onStart": "run this"}),
    "a failure of a slot that names a path": failed(slot="../../../home/.config/tool/settings", episode=0),
    "a failure of a kind that is a path": failed(kind="../../x"),
    "an episode to be kept that names a path": told(logged=[{**REPORT, "episode": ESCAPE}]),
    "more failures than there can be": told(failures=[REPORT] * 20_000),
    "rows lost as text": told(rows_lost="x"),
    "another origin inside": told(origin=["main", 0, 0, 10**6, 0]),
    "nothing told": lambda about, tensors: about.clear(),
    "no parcel": lambda about, tensors: bytes(range(256)) * 16,
    "a header too deep": lambda about, tensors: header(b"[" * 200_000),
    "a header of nothing": lambda about, tensors: header(b"{}"),
    "a header that is a list": lambda about, tensors: header(b"[1, 2]"),
    "a header too large": lambda about, tensors: header(b'{"about": {}, "x": "' + b"x" * (1 << 24) + b'"}'),
    "a bomb": zeros(BOMB, lambda right: BOMB),
    "a bomb that says less": zeros(BOMB, lambda right: 64),
    "too few bytes, compressed": zeros(0, lambda right: right),
    "an unknown codec": relabelled(codec="lz5", size=64),
    "a codec that is none": relabelled(codec="none", size=64),
}
ACTIONS: dict[str, Change] = {  # of a Discrete
    "an action that there is not": turned("rows/action", lambda x: x * 0 + 10**6),
    "an action below all": turned("rows/action", lambda x: x * 0 - 1),
}
# Who says to have sent it, given the origin that would be due.
ORIGINS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "an explorer without a place": lambda o: [o[0], 7, 0, 0, o[4]],
    "another incarnation": lambda o: [*o[:2], 3, 0, o[4]],
    "another player": lambda o: ["other", *o[1:]],
    "a far number": lambda o: [*o[:3], 10**17, o[4]],
    "a version to come": lambda o: [*o[:4], 10**17],
}


def plant(items: Path, name: str, kind: str, outside: Path) -> None:
    """Something in an item's place that is no file of bytes."""
    place = items / name
    items.mkdir(parents=True, exist_ok=True)
    match kind:
        case "a folder":
            place.mkdir()
            (place / "inside").symlink_to(outside.parent)
        case "a link to a file":
            place.symlink_to(outside)
        case "a link to what never ends":
            place.symlink_to("/dev/zero")
        case "a link to nothing":
            place.symlink_to(outside.parent / "nowhere")
        case "a pipe":
            os.mkfifo(place)
        case "a file without end":
            with place.open("wb") as file:
                file.truncate(1 << 40)
        case "an empty file":
            place.touch()
        case "bytes without a checksum":
            place.write_bytes(bytes(5_000))
        case "a file that cannot be read":
            place.write_bytes(seal(b"x"))
            place.chmod(0)


PLANTED = (
    "a folder", "a link to a file", "a link to what never ends", "a link to nothing", "a pipe", "a file without end",
    "an empty file", "bytes without a checksum", "a file that cannot be read",
)  # fmt: skip


def listing(folder: Path, *but: Path) -> dict[str, str]:
    """Everything in a folder with its checksum, or where it leads; without some folders."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if any(path == other or other in path.parents for other in but):
            continue
        kind = os.readlink(path) if path.is_symlink() else "folder" if path.is_dir() else ""
        found[str(path.relative_to(folder))] = kind or hashlib.sha256(path.read_bytes()).hexdigest()
    return found
