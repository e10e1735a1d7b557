"""Checkpoints of a run: atomic, checked byte by byte, and as cheap as what changed.

    checkpoints/<env steps>-<updates>/   manifest.json, state.safetensors
    checkpoints/best/                    the same, without buffers
    checkpoints/chunks/                  blocks of buffers, named by content and shared by all checkpoints

How a checkpoint becomes whole on a disk or in a store is in checkpoint_files.py. Chunks are written before
any manifest names them and removed after the last manifest that named them is gone.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from time import sleep
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ganglion.core import Json, Ring, State
from ganglion.errors import DiskError, UserError, nearest
from ganglion.mapped import Mapped, too_large
from ganglion.record import manifest
from ganglion.record.checkpoint_files import CHUNKS, Counts, counted, keeper
from ganglion.record.stores import StoreError, Where
from ganglion.record.tensor_file import TORCH, TensorForm, digest, form, pack, read_into

LOOKS = 3  # at what a run may be replacing just then
PAUSE = 0.05  # seconds between two

log = logging.getLogger(__name__)
T = TypeVar("T")


class Chunk(NamedTuple):
    """A block of a ring on disk."""

    stamp: int
    file: str
    checksums: Mapping[str, str]  # per array


Kept = dict[tuple[str, int, int, int], Chunk]  # by ring, rows, block and position


class Checkpoints:
    """The checkpoints of one run: the last `keep`, and the best."""

    def __init__(self, folder: Where, keep: int) -> None:
        if keep < 1:
            raise UserError(f"save.keep: {keep} is out of range; at least 1 checkpoint is kept.")
        self.folder, self.keeper = folder, keeper(folder)
        self.keep = keep
        self.kept: Kept = {}  # what the newest checkpoint refers to

    def save(self, state: State, step: int, meta: Mapping[str, Json], updates: int = 0) -> Where:
        """Writes a checkpoint and removes those beyond `keep`. Fails without a change to the ones already there. Its
        name is `step`, of the environment, and `updates`: learning from data makes no steps."""
        with ExitStack() as after:
            after.callback(self.keeper.forget)
            with self._all_or_nothing(state):
                kept = self._save_rings(state)
                path = self._place(f"{step}-{updates}", state, _Body(step, meta, kept))
            self.kept = kept
            with _best_effort("old checkpoints could not be removed"):
                self._prune((step, updates))
            return path

    def save_best(self, state: State, step: int, meta: Mapping[str, Json]) -> Where:
        """Replaces the best checkpoint, which holds no buffers."""
        state = state._replace(rings={})
        with ExitStack() as after:
            after.callback(self.keeper.forget)
            with self._all_or_nothing(state):
                return self._place("best", state, _Body(step, meta, {}))

    def newest(self, finite: bool = False) -> Where | None:
        """The checkpoint with the most steps, and of these the most updates, or None; on request the newest whose
        weights are all finite."""
        steps = self._steps()
        return next((steps[step] for step in reversed(steps) if not finite or _finite(steps[step])), None)

    def named(self, name: str) -> Where:
        """One by its name, `<env steps>-<updates>`."""
        found = {str(path).rsplit("/", 1)[-1]: path for path in self._steps().values()}
        if name not in found:
            known = ", ".join(found) or "none"
            raise UserError(f"no checkpoint {name[:80]!r}. Accepted: best, last, {known}.{nearest(name, found)}")
        return found[name]

    def best(self) -> Where | None:
        path = self.folder / "best"
        return path if any(self.keeper.holds(self.keeper.manifest(path)) for _ in range(LOOKS)) else None

    def load(self, path: Where) -> tuple[State, dict[str, Json]]:
        """Reads a checkpoint; the next `save` writes only the blocks that have changed since."""
        state, meta = load(path)
        ours = path.parent.resolve() == self.folder.resolve()
        self.kept = _kept(manifest.read(self.keeper.manifest(path))) if ours else {}
        return state, meta

    def estimate(self, state: State, rows: int = 0) -> int:
        """Bytes a run will need: full rings, `rows` of each changed between two saves, and everything else per copy."""
        need = (self.keep + 1) * sum(_bytes(tensor) for tensor in state.tensors.values())
        for ring in state.rings.values():
            total = max((len(array) for array in ring.arrays.values()), default=0)
            size = sum(_bytes(array) for array in ring.arrays.values())
            need += size + (size * min(rows, total) * self.keep // total if total else 0)
        return need

    # -------------------------------------------------------- inside a save

    @contextmanager
    def _all_or_nothing(self, state: State) -> Iterator[None]:
        try:
            self.keeper.recover(self.folder)
            self._check_room(state)
            self.keeper.ready(self.folder)
            yield
        except OSError as error:
            with suppress(OSError):
                self.keeper.recover(self.folder)
                self._sweep()
            what = "The checkpoint was not written; those already there are intact."
            raise disk_error(error, self.folder, what) from error

    def _check_room(self, state: State) -> None:
        free = self.keeper.free(self.folder)
        if free is None:
            return
        need = sum(_bytes(tensor) for tensor in state.tensors.values())
        for name, ring in state.rings.items():
            need += sum(_bytes(array) for k in self._changed(name, ring) for array in _rows(ring, k).values())
        if need > free:
            raise DiskError(
                f"{self.folder}: a checkpoint needs {size_text(need)} and {size_text(free)} are free. Nothing was "
                "written. Free some space, or lower save.keep or the size of the buffer."
            )

    def _changed(self, name: str, ring: Ring) -> Iterator[int]:
        for k, stamp in enumerate(ring.stamps):
            before = self.kept.get(_key(name, ring, k))
            whole = before is not None and self.keeper.holds(self.folder / CHUNKS / before.file)
            if stamp and not (before is not None and before.stamp == stamp and whole):
                yield k

    def _save_rings(self, state: State) -> Kept:
        written: dict[str, Chunk] = {}
        kept: Kept = {}
        for name, ring in state.rings.items():
            changed = set(self._changed(name, ring))
            for k, stamp in enumerate(ring.stamps):
                if k in changed:
                    packed = pack(_rows(ring, k))
                    chunk = Chunk(stamp, f"{digest(*packed.parts)}.safetensors", packed.checksums)
                    if chunk.file not in written:
                        self.keeper.write_chunk(self.folder / CHUNKS / chunk.file, packed.parts)
                    written[chunk.file] = kept[_key(name, ring, k)] = chunk
                elif stamp:
                    kept[_key(name, ring, k)] = self.kept[_key(name, ring, k)]
        if written:
            self.keeper.settle(self.folder / CHUNKS)
        return kept

    def _place(self, name: str, state: State, body: _Body) -> Where:
        packed = pack(state.tensors)
        checksum = digest(*packed.parts)
        file = self.keeper.state_name(checksum)
        entries = {
            "step": body.step,
            "meta": {key: manifest.encode(value, key) for key, value in body.meta.items()},
            "files": {file: {"size": packed.size, "checksum": checksum}},
            "tensors": {key: [*form(key, tensor), packed.checksums[key]] for key, tensor in state.tensors.items()},
            "scalars": {key: manifest.encode(value, key) for key, value in state.scalars.items()},
            "rings": {key: _describe(key, ring, body.kept) for key, ring in state.rings.items()},
        }
        self.keeper.place(self.folder / name, (file, packed.parts), manifest.dumps(entries))
        return self.folder / name

    # -------------------------------------------------------- after a save

    def _steps(self) -> dict[Counts, Any]:
        steps = {counts: path for name, path in self.keeper.found(self.folder) if (counts := counted(name))}
        return {step: path for step, path in sorted(steps.items()) if self.keeper.holds(self.keeper.manifest(path))}

    def _prune(self, step: Counts) -> None:
        """Drops all but the last `keep` and the last finite one, and any ahead of `step`: a run that was taken up
        earlier has left them."""
        steps = self._steps()
        past = [each for each in steps if each <= step]
        finite = next((each for each in reversed(past) if _finite(steps[each])), step)
        self.keeper.retire([steps[each] for each in sorted(set(steps) - {*past[-self.keep :], finite})])
        self._sweep()
        self.keeper.recover(self.folder)

    def _sweep(self) -> None:
        """Removes chunks that no checkpoint refers to; none, while a manifest cannot be read."""
        try:
            used = {
                chunk.file
                for path in self._steps().values()
                for chunk in _kept(manifest.read(self.keeper.manifest(path))).values()
            }
        except UserError:
            return
        for name in sorted(self.keeper.names(self.folder / CHUNKS)):
            if manifest.CHUNK.fullmatch(name) and name not in used:
                self.keeper.drop(self.folder / CHUNKS / name)


def disk_error(error: OSError, folder: Where, what: str) -> DiskError:
    """An operation that failed in a save: the path, why, and what follows. A disk that is full, fails (EIO), is away
    (ESTALE) or forbids (EACCES) may do better the next time."""
    if isinstance(error, StoreError):
        return DiskError(f"{error}. {what}")
    why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
    return DiskError(f"{error.filename or folder}: {why}. {what}")


class _Body(NamedTuple):
    step: int
    meta: Mapping[str, Json]
    kept: Kept


def load(path: Where, rings: bool = True) -> tuple[State, dict[str, Json]]:
    """The state and meta of a checkpoint, with every byte checked, or without its buffers. Where the run that writes it
    replaces it meanwhile, the new one is read."""
    file = keeper(path).manifest(path)
    body = manifest.read(file)
    try:
        return _filled(file, body, rings)
    except UserError:
        now = keeper(path).manifest(path)
        if now == file and manifest.read(now) == body:
            raise
    return load(path, rings)


def beside_training(read: Callable[[], T]) -> T:
    """What is read of a run that may be training: checkpoints are replaced and removed meanwhile, so a failure counts
    when it has come several times in the same words."""
    said: list[str] = []
    while True:
        try:
            return read()
        except UserError as error:
            said = [*(text for text in said if text == str(error)), str(error)]
            if len(said) == LOOKS:
                raise
            sleep(PAUSE)


def _filled(file: Where, body: Mapping[str, Json], rings: bool) -> tuple[State, dict[str, Json]]:
    """What a manifest describes."""
    (written,) = body["files"]
    try:
        tensors = {name: torch.empty(shape, dtype=TORCH[dtype]) for name, (dtype, shape, _) in body["tensors"].items()}
        checksums = {name: checksum for name, (_, _, checksum) in body["tensors"].items()}
        read_into(file.parent / written, tensors, checksums)
        named = body["rings"] if rings else {}
        held = {name: _load_ring(file.parent.parent / CHUNKS, name, entry) for name, entry in named.items()}
        return State(tensors, _decoded(body["scalars"]), held), _decoded(body["meta"])
    except (RuntimeError, MemoryError, OverflowError, ValueError) as error:  # of sizes that no machine has
        raise manifest.foreign(file, error) from error


def read_meta(path: Where) -> dict[str, Json]:
    """The meta of a checkpoint and nothing else."""
    file = keeper(path).manifest(path)
    try:
        return _decoded(manifest.read(file)["meta"])
    except ValueError as error:
        raise manifest.foreign(file, error) from error


def _finite(path: Where) -> bool:
    """Whether a checkpoint's weights are finite, as far as it says so."""
    try:
        return bool(read_meta(path).get("finite", True))
    except UserError:  # damaged: whoever loads it says so
        return True


def not_finite(state: State) -> str | None:
    """The first tensor in which a number is not finite; waits for the device."""
    tensors = ((name, x) for name, x in state.tensors.items() if x.is_floating_point())
    return next((name for name, x in tensors if not x.isfinite().all()), None)


def _decoded(entries: Mapping[str, Json]) -> dict[str, Json]:
    return {name: manifest.decode(value) for name, value in entries.items()}


def _load_ring(chunks: Where, name: str, entry: Json) -> Ring:
    arrays = {key: _zeros(TensorForm(*kind)) for key, kind in entry["arrays"].items()}
    ring = Ring(arrays, entry["block"], tuple(entry["stamps"]))
    for k, chunk in enumerate(entry["chunks"]):
        if chunk is not None:
            read_into(chunks / chunk[0], _rows(ring, k), chunk[1], f"block {k} of {name!r}, tensor")
    return ring


def _in_memory(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(np.zeros(shape, np.uint8))


def _zeros(form: TensorForm) -> Tensor:
    """Zeros [rows, slots, ...] of which a page costs memory when it is first written: blocks never saved cost none.

    Rows of one slot lie side by side, as a replay keeps them: it takes such an array without a copy. What is too large
    for memory lies in a file without a name.
    """
    rows, *slots = form.shape
    place = Mapped("run.dir") if too_large(form.size) else _in_memory
    zeros = place((form.size,), torch.uint8, torch.device("cpu")).view(TORCH[form.dtype])
    return zeros.view(*slots[:1], rows, *slots[1:]).transpose(0, 1) if slots else zeros


def _describe(name: str, ring: Ring, kept: Kept) -> Json:
    chunks = [kept.get(_key(name, ring, k)) for k in range(len(ring.stamps))]
    return {
        "block": ring.block,
        "stamps": list(ring.stamps),
        "arrays": {key: list(form(key, array)) for key, array in ring.arrays.items()},
        "chunks": [chunk and [chunk.file, dict(chunk.checksums)] for chunk in chunks],
    }


def _kept(body: Mapping[str, Json]) -> Kept:
    """The chunks a manifest refers to."""
    kept: Kept = {}
    for name, entry in body["rings"].items():
        rows = max((shape[0] for _, shape in entry["arrays"].values()), default=0)
        for k, (stamp, chunk) in enumerate(zip(entry["stamps"], entry["chunks"], strict=True)):
            if chunk is not None:
                kept[name, rows, entry["block"], k] = Chunk(stamp, chunk[0], chunk[1])
    return kept


def _key(name: str, ring: Ring, k: int) -> tuple[str, int, int, int]:
    return name, max((len(array) for array in ring.arrays.values()), default=0), ring.block, k


def _rows(ring: Ring, k: int) -> dict[str, Tensor]:
    return {name: array[k * ring.block : (k + 1) * ring.block] for name, array in ring.arrays.items()}


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def size_text(size: float) -> str:
    """Bytes for people: 12 B, 3.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


@contextmanager
def _best_effort(what: str) -> Iterator[None]:
    """A checkpoint that is written stays a success when cleaning up after it fails; the next save tries again."""
    try:
        yield
    except OSError as error:
        log.warning("%s: %s", what, error)


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
