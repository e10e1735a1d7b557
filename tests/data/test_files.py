"""Datasets as folders: what is written is read back, appended to, and refused where it is damaged or forged."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ganglion import ops
from ganglion.core import Box, Composite, Discrete, EnvSpec, MultiBinary
from ganglion.data import files
from ganglion.data.dataset import Dataset, episode, fitted, from_json, joined, to_json
from ganglion.errors import UserError
from ganglion.record import manifest

PLAIN = EnvSpec(Box((3,)), Discrete(2), name="Plain-v0")
NESTED = EnvSpec(
    Composite({"image": Box((1, 4, 4), torch.uint8, (0.0,), (255.0,)), "lamps": MultiBinary(2)}),
    Box((2,), low=(-1.0, -2.0), high=(1.0, 2.0)),
    name="Nested-v0",
)


def made(spec: EnvSpec = PLAIN, lengths: tuple[int, ...] = (4, 1, 6), seed: int = 0) -> Dataset:
    g = torch.Generator().manual_seed(seed)
    parts = []
    for k, count in enumerate(lengths):
        obs: Any = torch.randn(count + 1, 3, generator=g)
        action: Any = torch.randint(0, 2, (count,), generator=g)
        if spec is NESTED:
            image = torch.randint(0, 256, (count + 1, 1, 4, 4), generator=g, dtype=torch.uint8)
            obs = {"image": image, "lamps": torch.randint(0, 2, (count + 1, 2), generator=g)}
            action = torch.rand(count, 2, generator=g)
        logp = {"logp": -torch.rand(count, generator=g)}
        parts.append(Dataset(spec, episode(obs, action, torch.randn(count, generator=g), k % 2 == 0, logp)))
    return joined(parts)._replace(about=({"seed": seed},))


def equal(one: Any, other: Any) -> bool:
    first, second = ops.flatten_names(one), ops.flatten_names(other)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize("spec", [PLAIN, NESTED], ids=["plain", "nested"])
def test_what_is_written_is_read(spec: EnvSpec, tmp_path: Path) -> None:
    data = made(spec)
    files.write(tmp_path / "d", data)
    again = files.read(tmp_path / "d")
    assert equal(again.rows, data.rows) and again.spec == spec and again.about == data.about
    assert again.steps == 11 and again.lengths() == [5, 2, 7]
    assert int(again.rows.terminated.sum()) == 2 and int(again.rows.truncated.sum()) == 1


def test_appending_keeps_what_was_there(tmp_path: Path) -> None:
    one, two = made(), made(seed=1)
    files.write(tmp_path / "d", one)
    before = (tmp_path / "d" / "block-000000.safetensors").read_bytes()
    files.write(tmp_path / "d", two)
    assert (tmp_path / "d" / "block-000000.safetensors").read_bytes() == before
    again = files.read(tmp_path / "d")
    assert equal(again.rows, ops.concat([one.rows, two.rows])) and again.about == ({"seed": 0}, {"seed": 1})


def test_blocks_hold_whole_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGE", 1)
    files.write(tmp_path / "d", made())
    assert len(list((tmp_path / "d").glob("block-*"))) == 3
    assert equal(files.read(tmp_path / "d").rows, made().rows)


def test_returns_are_of_each_episode() -> None:
    data = made()
    sums = [float(part.reward[part.valid].double().sum()) for part in data.episodes()]
    assert data.returns().tolist() == pytest.approx(sums)


def test_other_spaces_are_not_appended(tmp_path: Path) -> None:
    files.write(tmp_path / "d", made())
    with pytest.raises(UserError, match="holds other spaces"):
        files.write(tmp_path / "d", made(NESTED))


def test_a_folder_that_is_used_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is there, and no dataset"):
        files.write(tmp_path, made())


# ------------------------------------------------------------ damage


def several(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "LARGE", 1)
    files.write(folder, made())
    return folder / "block-000001.safetensors"


@pytest.mark.parametrize("how", ["flipped", "short", "long", "gone"])
def test_a_damaged_block_is_named(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = several(tmp_path / "d", monkeypatch)
    text = bytearray(path.read_bytes())
    text[-1] ^= 1
    path.write_bytes({"flipped": bytes(text), "short": text[:-9], "long": text + b"x", "gone": b""}[how])
    if how == "gone":
        path.unlink()
    with pytest.raises(UserError, match=r"block-000001.safetensors is (damaged|missing).*data.damaged=skip"):
        files.read(tmp_path / "d")
    rest = files.read(tmp_path / "d", skip=True)
    assert rest.lengths() == [5, 7] and "block-000001" in rest.skipped[0]


def forged(folder: Path, change: Any) -> None:
    """A manifest with its own checksum, that says something else."""
    path = folder / files.MANIFEST
    body = json.loads(path.read_bytes())
    change(body)
    entries = {name: body[name] for name in files.KIND.entries if name in body}
    path.write_bytes(manifest.dumps(entries, files.KIND))


def at(*keys: Any, to: Any) -> Any:
    def change(body: Any) -> None:
        for key in keys[:-1]:
            body = body[key]
        body[keys[-1]] = to

    return change


HUGE = 1 << 50
FORGERIES = {
    "a name that leads out": at("blocks", 0, "file", to="../block-000000.safetensors"),
    "an absolute name": at("blocks", 0, "file", to="/etc/passwd"),
    "rows that are not there": at("blocks", 0, "rows", to=HUGE),
    "a huge array": at("blocks", 0, "arrays", "reward", to=["F32", [14, HUGE], "0" * 32]),
    "a type of objects": at("blocks", 0, "arrays", "reward", to=["O", [14], "0" * 32]),
    "a negative size": at("blocks", 0, "arrays", "reward", to=["F32", [-1], "0" * 32]),
    "a source that is not there": at("blocks", 0, "source", to=7),
    "no space": at("obs", to={"pickle": "x"}),
    "a space of huge size": at("obs", to={"box": [HUGE], "dtype": "float32", "low": [0], "high": [1]}),
    "another space": at("obs", to={"discrete": 3}),
    "blocks that are text": at("blocks", to="x"),
    "an array nobody asked for": at("blocks", 0, "arrays", "more", to=["F32", [14], "0" * 32]),
    "a block twice": lambda body: body["blocks"].append(body["blocks"][0]),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_manifest_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    files.write(tmp_path / "d", made())
    forged(tmp_path / "d", FORGERIES[name])
    with pytest.raises(UserError) as refused:
        files.read(tmp_path / "d")
    assert "\n" not in str(refused.value)


def test_a_manifest_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    files.write(tmp_path / "d", made())
    path = tmp_path / "d" / files.MANIFEST
    path.write_bytes(path.read_bytes().replace(b"Plain-v0", b"Other-v0"))
    with pytest.raises(UserError, match="does not have its own checksum"):
        files.read(tmp_path / "d")


def test_links_are_not_followed(tmp_path: Path) -> None:
    files.write(tmp_path / "d", made())
    block = tmp_path / "d" / "block-000000.safetensors"
    block.rename(tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", block)
    with pytest.raises(UserError, match="is a link"):
        files.read(tmp_path / "d")


BROKEN = {
    "reward that is not finite": ("reward", 1, float("nan")),
    "obs that is not finite": ("obs", 2, float("inf")),
    "action outside of": ("action", 0, 5),
    "start inside of an episode": ("start", 2, True),
    "an episode that does not end": ("truncated", 5, False),
}


@pytest.mark.parametrize("what", BROKEN)
def test_rows_that_cannot_be_learned_from_are_named(what: str, tmp_path: Path) -> None:
    name, row, value = BROKEN[what]
    data = made()
    getattr(data.rows, name)[row] = value
    files.write(tmp_path / "d", data)
    with pytest.raises(UserError, match=what):
        files.read(tmp_path / "d")


# ------------------------------------------------------------ spaces


def test_spaces_come_back() -> None:
    for space in (PLAIN.obs, NESTED.obs, NESTED.action, Discrete(3)):
        assert from_json(manifest.decode(json.loads(json.dumps(manifest.encode(to_json(space), "x"))))) == space


def test_another_environments_rows_are_refused() -> None:
    with pytest.raises(UserError, match=r"data.path: its observations are .* those of Nested-v0"):
        fitted(made(), NESTED)
    other = EnvSpec(Box((3,), low=(-9.0,), high=(9.0,)), Discrete(2), 8, "Bounded-v0")
    assert fitted(made(), other).spec.slots == 1
