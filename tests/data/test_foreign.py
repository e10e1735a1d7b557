"""Files of other projects: read as they are meant, and refused where they are not what they seem."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ganglion.data.dataset import fitted
from ganglion.data.foreign import write_minari
from ganglion.data.load import load
from ganglion.errors import UserError
from tests.data.test_files import NESTED, PLAIN, equal, made


def steps() -> dict[str, Any]:
    """Two episodes, the first terminated, the second cut, and a tail that does not end."""
    rng = np.random.default_rng(0)
    terminals, timeouts = np.zeros(9, bool), np.zeros(9, bool)
    terminals[2], timeouts[6] = True, True
    actions = np.array([0, 1, 0, 1, 1, 0, 1, 0, 1])
    return {"observations": rng.normal(size=(9, 3)).astype(np.float32), "actions": actions,
            "rewards": np.arange(9, dtype=np.float32), "terminals": terminals, "timeouts": timeouts}  # fmt: skip


def test_npz_without_what_follows_leaves_cut_steps_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **steps())
    data = load(tmp_path / "d.npz")
    assert data.lengths() == [4, 4, 2] and data.steps == 7
    assert data.rows.reward[data.rows.valid].tolist() == [0, 1, 2, 3, 4, 5, 7]
    assert data.rows.terminated.sum() == 1 and data.rows.truncated.sum() == 2
    assert torch.equal(data.rows.obs[7, 0], torch.from_numpy(steps()["observations"][6])), "the last one seen"


def test_npz_with_what_follows_keeps_every_step(tmp_path: Path) -> None:
    after = steps()["observations"] + 1
    np.savez_compressed(tmp_path / "d.npz", **steps(), next_observations=after)
    data = load(tmp_path / "d.npz")
    assert data.steps == 9 and torch.equal(data.rows.obs[8, 0], torch.from_numpy(after[6]))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **{k: v for k, v in steps().items() if k != "actions"})
    with pytest.raises(UserError, match=r"has no actions. Accepted names: actions, action\."):
        load(tmp_path / "d.npz")


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **{**steps(), "rewards": np.array([print] * 9, dtype=object)})
    with pytest.raises(UserError, match="holds object, not numbers"):
        load(tmp_path / "d.npz")


def test_claimed_sizes_are_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("rewards.npy", header.getvalue() + b"\0" * 64)
    with pytest.raises(UserError, match="claims"):
        load(tmp_path / "d.npz")


def test_noise_is_one_message(tmp_path: Path) -> None:
    for name in ("d.npz", "d.hdf5", "d.parquet"):
        if name != "d.npz":
            pytest.importorskip("h5py" if name == "d.hdf5" else "pyarrow")
        (tmp_path / name).write_bytes(os.urandom(400))
        with pytest.raises(UserError, match="cannot be read") as refused:
            load(tmp_path / name)
        assert "\n" not in str(refused.value)


# ------------------------------------------------------------ HDF5


@pytest.mark.parametrize("spec", [PLAIN, NESTED], ids=["plain", "nested"])
def test_minari_round_trip(spec: Any, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    data = made(spec)
    write_minari(tmp_path / "mine-v0", data)
    again = load(tmp_path / "mine-v0")
    assert equal(again.rows, data.rows._replace(extras={}))
    assert again.spec.name == "mine-v0" and fitted(again, spec).spec.action == spec.action


def test_minari_itself_opens_what_is_written(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    minari = pytest.importorskip("minari")
    write_minari(tmp_path / "mine-v0", made())
    opened = minari.MinariDataset(tmp_path / "mine-v0" / "data")
    first = next(iter(opened.iterate_episodes()))
    assert len(first.rewards) == 4 and first.observations.shape == (5, 3) and first.terminations[-1]


def test_d4rl_files(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        for name, x in steps().items():
            file[name] = x
    np.savez(tmp_path / "d.npz", **steps())
    assert equal(load(tmp_path / "d.hdf5").rows, load(tmp_path / "d.npz").rows)


@pytest.mark.parametrize("how", ["link", "external", "claimed", "objects"])
def test_hostile_hdf5_is_refused(how: str, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["rewards"] = np.zeros(9)
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        for name, x in steps().items():
            if name != "rewards":
                file[name] = x
        if how == "link":
            file["rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")
        elif how == "external":
            file.create_dataset("rewards", (9,), "f8", external=[("/etc/hostname", 0, 72)])
        elif how == "claimed":
            file.create_dataset("rewards", (1 << 40,), "f4", chunks=(1024,))
        else:
            file.create_dataset("rewards", (9,), h5py.string_dtype())
    with pytest.raises(UserError) as refused:
        load(tmp_path / "d.hdf5")
    assert "\n" not in str(refused.value)


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    given = steps()
    columns = {name: list(x) if x.ndim > 1 else x for name, x in given.items()}
    parquet.write_table(pyarrow.table(columns), tmp_path / "d.parquet")
    np.savez(tmp_path / "d.npz", **given)
    assert equal(load(tmp_path / "d.parquet").rows, load(tmp_path / "d.npz").rows)
