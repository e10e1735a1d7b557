"""Files that were changed after they were written, or are not ours."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from ganglion.errors import UserError
from ganglion.record import manifest
from ganglion.record.checkpoint import Checkpoints, load
from ganglion.record.checkpoint_files import CHUNKS, MANIFEST, STATE
from tests.record.states import example

FLIPS = 1_000 if os.environ.get("GANGLION_SOAK") == "1" else 60


@pytest.fixture
def saved(tmp_path) -> Path:
    return Checkpoints(tmp_path, keep=1).save(example(1, pushed=20), 50, {"config": {"algo": "dqn"}})


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(path)
    return str(caught.value)


def blame(path: Path, at: int) -> str:
    """What the message must say about a byte of a file: from the file itself, while it is whole."""
    if path.name == MANIFEST:
        return "checksum"
    data = path.read_bytes()
    length = 8 + int.from_bytes(data[:8], "little")
    if at < length:
        return "header"
    places = {name: entry["data_offsets"] for name, entry in json.loads(data[8:length]).items()}
    return next(repr(name) for name, (start, end) in places.items() if start <= at - length < end)


def test_every_flipped_bit_is_found_and_blamed(saved):
    draw = random.Random(0)
    files = [saved / MANIFEST, saved / STATE, *sorted((saved.parent / CHUNKS).iterdir())]
    for turn in range(FLIPS):
        path = files[turn % len(files)]
        whole = path.read_bytes()
        at = draw.randrange(len(whole))
        expected = blame(path, at)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :])
        text = refusal(saved)
        assert path.name in text and expected in text, (path.name, at)
        path.write_bytes(whole)
    load(saved)


@pytest.mark.parametrize("name", [MANIFEST, STATE])
def test_short_long_and_missing_files_are_refused(saved, name):
    path = saved / name
    whole = path.read_bytes()
    for content in (whole[:-1], whole[: len(whole) // 2], whole[:4], b"", whole + b"\0"):
        path.write_bytes(content)
        assert name in refusal(saved)
    path.unlink()
    assert name in refusal(saved)


def test_a_missing_chunk_is_named_with_its_tensor(saved):
    chunk = sorted((saved.parent / CHUNKS).iterdir())[0]
    chunk.unlink()
    text = refusal(saved)
    assert chunk.name in text and "buffer/rows" in text and "is missing" in text


def test_exchanged_chunks_are_refused(saved):
    first, second, *_ = sorted((saved.parent / CHUNKS).iterdir(), key=lambda path: -path.stat().st_size)
    one, other = first.read_bytes(), second.read_bytes()
    assert len(one) == len(other)
    first.write_bytes(other), second.write_bytes(one)
    assert "block" in refusal(saved)


def test_another_checkpoints_tensors_are_refused(saved, tmp_path):
    other = Checkpoints(tmp_path / "other", keep=1).save(example(2), 50, {})
    (saved / STATE).write_bytes((other / STATE).read_bytes())
    assert STATE in refusal(saved) and "'" in refusal(saved)


def test_what_is_not_a_checkpoint_is_refused(tmp_path, saved):
    assert "no manifest.json" in refusal(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    assert "not a checkpoint" in refusal(tmp_path / "file")
    (saved / MANIFEST).write_text('{"files": []}')
    assert "not the manifest of a Ganglion checkpoint" in refusal(saved)


def test_another_version_is_refused(saved, monkeypatch):
    monkeypatch.setattr(manifest, "CHECKPOINT", manifest.CHECKPOINT._replace(version=7))
    assert "version 7" in refusal(saved)


def test_chunks_of_a_damaged_neighbour_are_not_removed(saved):
    store = Checkpoints(saved.parent, keep=2)
    before = set((saved.parent / CHUNKS).iterdir())
    (saved / MANIFEST).write_bytes(b"damaged")
    store.save(example(2, pushed=90), 60, {})
    assert before <= set((saved.parent / CHUNKS).iterdir())
