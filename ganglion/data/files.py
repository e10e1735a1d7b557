"""Datasets as folders of our own format:

    dataset.json               what it is: spaces, sources, and each block with the form and checksum of its arrays
    block-000000.safetensors   whole episodes, row after row, any reader of safetensors opens it

Appending writes new blocks and then the manifest, which replaces the old one in one step: a crash leaves what was
there. Nothing is unpickled, no name leads out of the folder, and nothing is allocated that is not on the disk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch

from ganglion import ops
from ganglion.buffers.storage import row_of
from ganglion.core import EnvSpec, Json, Row
from ganglion.data.dataset import Dataset, checked, from_json, joined, misfit, rows_between, to_json
from ganglion.errors import UserError
from ganglion.record import manifest
from ganglion.record.atomic_write import disk, not_plain, write_file
from ganglion.record.manifest import CHECKSUM, is_count, is_form, is_mapping, is_text
from ganglion.record.tensor_file import TORCH, digest, form, pack, raw, read_into

MANIFEST, BLOCK = "dataset.json", re.compile(r"block-\d{6}\.safetensors")
LARGE = 8 << 20  # bytes after which a block is written; an episode is never divided


def _blocks(value: Json) -> bool:
    """Each block once, with as many rows in each array as it says."""
    match value:
        case [*blocks] if all(_block(block) for block in blocks):
            return len({block["file"] for block in blocks}) == len(blocks)
    return False


def _block(block: Json) -> bool:
    if not is_mapping(block) or block.keys() != {"file", "rows", "source", "arrays"}:
        return False
    if not (is_text(block["file"], BLOCK) and is_count(block["rows"]) and is_count(block["source"])):
        return False
    return is_mapping(block["arrays"], lambda x: _array(x, block["rows"]))


def _array(value: Json, rows: int) -> bool:
    match value:
        case [dtype, shape, checksum]:
            return is_form([dtype, shape]) and shape[:1] == [rows] and is_text(checksum, CHECKSUM)
    return False


KIND = manifest.Kind(
    "dataset",
    1,
    {
        "name": lambda value: type(value) is str,
        "obs": is_mapping,
        "action": is_mapping,
        "sources": lambda value: type(value) is list and all(is_mapping(each) for each in value),
        "blocks": _blocks,
    },
)


class Contents(NamedTuple):
    """What a manifest says."""

    spec: EnvSpec
    sources: tuple[Mapping[str, Json], ...]
    blocks: tuple[Mapping[str, Json], ...]


def is_dataset(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> Contents:
    path = folder / MANIFEST
    body = manifest.read(plain(path), KIND)
    try:
        obs, action = (from_json(manifest.decode(body[name])) for name in ("obs", "action"))
        spec = EnvSpec(obs, action, 1, body["name"])
        sources = tuple(manifest.decode(each) for each in body["sources"])
    except (ValueError, TypeError, OverflowError) as error:
        raise manifest.foreign(path, error) from error
    if any(block["source"] >= len(sources) for block in body["blocks"]):
        raise manifest.foreign(path, "a block names a source that is not there")
    return Contents(spec, sources, tuple(body["blocks"]))


def plain(path: Path) -> Path:
    """Refuses a link: what it leads to was not asked for."""
    if path.is_symlink():
        raise not_plain(path)
    return path


def read_block(folder: Path, block: Mapping[str, Json], spec: EnvSpec, check: bool = True) -> Row:
    """The rows of a block, every byte checked. Its size is compared with the disk before anything is allocated."""
    path = plain(folder / block["file"])
    claimed = sum(prod(shape) * TORCH[dtype].itemsize for dtype, shape, _ in block["arrays"].values())
    there = path.stat().st_size if path.is_file() else -1
    if there < claimed:
        raise UserError(f"{path} is {'damaged: it is shorter than its manifest says' if there >= 0 else 'missing'}.")
    arrays = {name: torch.empty(shape, dtype=TORCH[dtype]) for name, (dtype, shape, _) in block["arrays"].items()}
    if why := misfit(spec, arrays):
        raise UserError(f"{path}: {why}.")
    read_into(path, arrays, {name: mark for name, (_, _, mark) in block["arrays"].items()}, "array")
    if check:
        checked(spec, arrays, str(path))
    return row_of({name: x.unsqueeze(1) for name, x in arrays.items()})


def read_blocks(folder: Path, contents: Contents, lost: list[str] | None = None, check: bool = True) -> Iterator[Row]:
    """Block after block. A damaged one is refused, or left out and named in `lost`. Without `check` rows that cannot
    be learned from are read, too."""
    for block in contents.blocks:
        try:
            rows = read_block(folder, block, contents.spec, check)
        except UserError as error:
            if lost is None:
                raise UserError(f"{error} To go on without that block: data.damaged=skip.") from error
            lost.append(str(error))
            continue
        yield rows


def read(folder: Path, skip: bool = False) -> Dataset:
    """All of a dataset. A damaged block is refused, or with `skip` left out and named."""
    contents, lost = read_manifest(folder), list[str]()
    rows = list(read_blocks(folder, contents, lost if skip else None))
    if not rows:
        raise UserError(f"{folder} has no {'block that is whole' if lost else 'rows'}.")
    parts = [Dataset(contents.spec, part) for part in rows]
    return joined(parts)._replace(about=contents.sources, skipped=tuple(lost))


def write(folder: Path, data: Dataset) -> int:
    """Writes a dataset to a new folder, or appends it to one of the same spaces; the number of new blocks."""
    old = read_manifest(folder) if is_dataset(folder) else Contents(data.spec, (), ())
    if (old.spec.obs, old.spec.action) != (data.spec.obs, data.spec.action):
        own, theirs = (f"{spec.obs} and {spec.action}" for spec in (data.spec, old.spec))
        raise UserError(f"{folder} holds other spaces: {theirs}, not {own}. Choose another folder.")
    if not is_dataset(folder) and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there, and no dataset. Choose another folder.")
    disk.make(folder)
    blocks, about = list(old.blocks), tuple(data.about or ({},))
    sources = old.sources if old.sources[-len(about) :] == about else old.sources + about
    for number, rows in enumerate(in_blocks(data), next_number(blocks)):
        arrays = {name: x.squeeze(1) for name, x in ops.flatten_names(rows).items()}
        packed, name = pack(arrays), f"block-{number:06d}.safetensors"
        write_file(folder / name, packed.parts)
        forms = {key: [*form(key, x), packed.checksums[key]] for key, x in arrays.items()}
        blocks.append({"file": name, "rows": len(rows.reward), "source": len(sources) - 1, "arrays": forms})
    write_manifest(folder, Contents(replace(data.spec, name=old.spec.name or data.spec.name), sources, tuple(blocks)))
    return len(blocks) - len(old.blocks)


def write_manifest(folder: Path, contents: Contents) -> None:
    body = {
        "name": contents.spec.name,
        "obs": manifest.encode(to_json(contents.spec.obs), "obs"),
        "action": manifest.encode(to_json(contents.spec.action), "action"),
        "sources": [manifest.encode(each, "sources") for each in contents.sources],
        "blocks": list(contents.blocks),
    }
    write_file(folder / MANIFEST, [manifest.dumps(body, KIND)])
    disk.sync(folder)


def take_back(folder: Path, source: Mapping[str, Json], kept: int) -> None:
    """Removes the blocks of one source but the first `kept`: those that its run wrote after it was saved."""
    if not is_dataset(folder):
        if kept:
            raise UserError(f"{folder} is gone: the run had written {kept} blocks of its dataset there.")
        return
    contents = read_manifest(folder)
    own = [block for block in contents.blocks if contents.sources[block["source"]] == source]
    if len(own) < kept:
        raise UserError(f"{folder} has lost blocks: the run had written {kept}, and {len(own)} are there.")
    if gone := own[kept:]:
        write_manifest(folder, contents._replace(blocks=tuple(x for x in contents.blocks if x not in gone)))
        for block in gone:
            disk.drop(folder / block["file"])


def next_number(blocks: Sequence[Mapping[str, Json]]) -> int:
    return max((int(block["file"][6:12]) + 1 for block in blocks), default=0)


def in_blocks(data: Dataset) -> Iterator[Row]:
    """Whole episodes, in pieces that are not much larger than a block should be."""
    wide = sum(x[0].numel() * x.element_size() for x in ops.leaves(data.rows))
    first = last = 0
    for length in data.lengths():
        last += length
        if (last - first) * wide >= LARGE:
            yield rows_between(data.rows, first, last)
            first = last
    if last > first:
        yield rows_between(data.rows, first, last)


def fingerprint(rows: Row) -> str:
    """Of every byte: what a resumed run compares."""
    return digest(*(raw(x) for x in ops.leaves(rows)))
