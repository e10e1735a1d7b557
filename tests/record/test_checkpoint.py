from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ganglion.core import Ring, State
from ganglion.errors import UserError
from ganglion.record import atomic_write, manifest
from ganglion.record.checkpoint import Checkpoints, check_matches, load, read_meta
from ganglion.record.checkpoint_files import CHUNKS, MANIFEST, STATE
from ganglion.record.tensor_file import DTYPES, digest
from tests.record.states import chunks, example, ring, same, same_json


class Counting(atomic_write.Disk):
    """Remembers what was written."""

    def __init__(self) -> None:
        self.written: list[Path] = []
        self.room = 1 << 40

    def write(self, path, parts) -> None:
        self.written.append(path)
        super().write(path, parts)

    def free(self, folder: Path) -> int:
        return self.room


@pytest.fixture
def disk(monkeypatch) -> Counting:
    counting = Counting()
    monkeypatch.setattr(atomic_write, "disk", counting)
    return counting


# ------------------------------------------------------------ what goes in comes out

tensors = st.builds(
    lambda dtype, shape, seed: torch.randint(
        0, 2 if dtype is torch.bool else 100, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.sampled_from(list(DTYPES)),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 99),
)
jsons = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(-(2**130), 2**130),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "$a", "$float", "$$"]), inner),
    max_leaves=8,
)
names = st.text(min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(names, tensors, max_size=4), st.dictionaries(names, jsons, max_size=4), jsons, st.integers(0, 70)
)
def test_round_trip(tmp_path_factory, named, scalars, extra, pushed):
    state = State(named, scalars, {"rows": ring(pushed), "none": Ring({}, 4, ())})
    store = Checkpoints(tmp_path_factory.mktemp("run") / "checkpoints", keep=1)
    back, meta = load(store.save(state, 7, {"extra": extra}))
    assert same(state, back) and same_json({"extra": extra}, meta)


def test_every_sort_of_tensor_returns(tmp_path, real_disk):
    store = Checkpoints(tmp_path, keep=1)
    for step in (100, 100, 200):  # the first, the same again, and one that removes it
        assert same(load(store.save(example(step), step, {}))[0], example(step))


def test_values_that_json_lacks():
    for value in (math.inf, -math.inf, math.nan, -math.nan, -0.0, 5e-324, 0.1, 2**200, [{"$float": "x"}]):
        text = json.dumps(manifest.encode(value, "x"), allow_nan=False)
        assert same_json(value, manifest.decode(json.loads(text)))


@pytest.mark.parametrize("value", [{1: 2}, object(), b"", {"a": [torch.tensor(1)]}])
def test_scalars_that_would_not_return_are_refused(tmp_path, value):
    with pytest.raises(TypeError, match="'bad'"):
        Checkpoints(tmp_path, keep=1).save(State({}, {"bad": value}), 1, {})


def test_other_readers_open_our_files(tmp_path):
    state = example(1)
    path = Checkpoints(tmp_path, keep=1).save(state, 1, {})
    other = safetensors.torch.load_file(path / STATE)
    assert other.keys() == state.tensors.keys()
    assert all(torch.equal(other[name], tensor) for name, tensor in state.tensors.items())
    files = json.loads((path / MANIFEST).read_text())["files"]
    assert files[STATE] == {"size": (path / STATE).stat().st_size, "checksum": digest((path / STATE).read_bytes())}
    for chunk in (tmp_path / CHUNKS).iterdir():
        assert digest(chunk.read_bytes()) == chunk.stem
        assert safetensors.torch.load_file(chunk)["obs"].shape[1:] == (3,)


def test_parameters_with_gradients_are_saved(tmp_path):
    state = State({"w": torch.nn.Parameter(torch.ones(2))})
    assert torch.equal(load(Checkpoints(tmp_path, 1).save(state, 1, {}))[0].tensors["w"], torch.ones(2))


@pytest.mark.gpu
def test_tensors_on_a_device_return_in_main_memory(tmp_path):
    state = State({"w": torch.arange(6.0, device="cuda").reshape(2, 3).T}, {}, {"b": ring(9)})
    moved = {"b": Ring({k: v.cuda() for k, v in ring(9).arrays.items()}, *ring(9)[1:])}
    back, _ = load(Checkpoints(tmp_path, 1).save(state._replace(rings=moved), 1, {}))
    assert same(back, State({"w": state.tensors["w"].cpu()}, {}, state.rings))


# ------------------------------------------------------------ only what changed


def test_only_changed_blocks_are_written(tmp_path, disk):
    store = Checkpoints(tmp_path, keep=2)
    store.save(example(0, pushed=10), 1, {})
    assert len(chunks(tmp_path)) == 2  # the third block was never written
    disk.written.clear()
    store.save(example(1, pushed=10), 2, {})
    assert not [path for path in disk.written if path.parent.name == CHUNKS]
    store.save(example(2, pushed=11), 3, {})
    assert len([path for path in disk.written if path.parent.name == CHUNKS]) == 1


def test_a_resumed_run_does_not_write_old_blocks_again(tmp_path, disk):
    path = Checkpoints(tmp_path, keep=2).save(example(0, pushed=19), 1, {})
    disk.written.clear()
    store = Checkpoints(tmp_path, keep=2)
    assert store.newest() == path
    store.load(path)
    store.save(example(0, pushed=20), 2, {})
    assert len([path for path in disk.written if path.parent.name == CHUNKS]) == 1
    assert same(load(tmp_path / "2-0")[0], example(0, pushed=20))


def test_a_lost_chunk_is_written_again(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    store.save(example(0), 1, {})
    for path in (tmp_path / CHUNKS).iterdir():
        path.unlink()
    assert same(load(store.save(example(0), 2, {}))[0], example(0))


def test_pruning_keeps_the_last_and_what_they_refer_to(tmp_path):
    store = Checkpoints(tmp_path, keep=3)
    for step in range(1, 9):
        store.save(example(step, pushed=step * 9), step, {})
        for kept in range(max(1, step - 2), step + 1):
            assert same(load(tmp_path / f"{kept}-0")[0], example(kept, pushed=kept * 9))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6-0", "7-0", "8-0", CHUNKS]
    used = {chunk.file for step in "678" for chunk in _used(tmp_path / f"{step}-0")}
    assert chunks(tmp_path) == used


def _used(path: Path):
    store = Checkpoints(path.parent, keep=3)
    store.load(path)
    return store.kept.values()


def test_taking_up_an_earlier_checkpoint_leaves_the_later_ones_behind(tmp_path):
    store = Checkpoints(tmp_path, keep=3)
    for step in (10, 20, 30):
        store.save(example(step), step, {})
    store.load(tmp_path / "10-0")
    store.save(example(15), 15, {})
    assert store.newest() == tmp_path / "15-0"
    assert not (tmp_path / "20-0").exists()


def test_saving_the_same_step_again_replaces_it(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    store.save(example(1, pushed=5), 10, {"n": 1})
    path = store.save(example(2, pushed=30), 10, {"n": 2})
    state, meta = load(path)
    assert same(state, example(2, pushed=30)) and meta == read_meta(path) == {"n": 2}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["10-0", CHUNKS]


def test_best_has_no_buffer_and_is_not_the_newest(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    assert store.newest() is None and store.best() is None
    for seed in (1, 2):
        path = store.save_best(example(seed), seed, {"score": float(seed)})
    state, meta = load(path)
    assert same(state, example(2)._replace(rings={})) and meta == {"score": 2.0}
    assert store.best() == path and store.newest() is None and not chunks(tmp_path)


def test_foreign_files_are_left_alone(tmp_path):
    store = Checkpoints(tmp_path, keep=1)
    store.save(example(1), 1, {})
    foreign = [tmp_path / "notes.txt", tmp_path / CHUNKS / "mine.safetensors", tmp_path / "99" / "x"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    store.save(example(2, pushed=70), 2, {})
    assert store.newest() == tmp_path / "2-0"
    assert all(path.read_text() == "mine" for path in foreign)


# ------------------------------------------------------------ room


def test_without_room_nothing_is_touched(tmp_path, disk):
    store = Checkpoints(tmp_path / "checkpoints", keep=1)
    state = State({"w": torch.zeros(1000)})
    disk.room = 3000
    with pytest.raises(UserError, match=r"needs 4\.0 kB and 3\.0 kB are free"):
        store.save(state, 1, {})
    assert not list(tmp_path.iterdir())
    disk.room = 4000  # what it says is what counts: nothing beside it is kept free
    store.save(state, 1, {})


def test_estimate_counts_full_buffers_once(tmp_path):
    state = State({"w": torch.zeros(1000)}, {}, {"b": Ring({"x": torch.zeros(100, 10)}, 10, (0,) * 10)})
    assert Checkpoints(tmp_path, keep=3).estimate(state) == 4 * 4000 + 4000
    assert Checkpoints(tmp_path, keep=3).estimate(state, rows=50) == 4 * 4000 + 4000 + 3 * 2000


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(UserError, match=r"save\.keep: 0"):
        Checkpoints(tmp_path, keep=0)


# ------------------------------------------------------------ another run's checkpoint


def refusal(template: State, loaded: State, **options) -> str:
    with pytest.raises(UserError) as caught:
        check_matches(template, loaded, **options)
    return str(caught.value)


def test_a_checkpoint_that_fits_is_taken(tmp_path):
    check_matches(example(1, pushed=0), load(Checkpoints(tmp_path, 1).save(example(2), 1, {}))[0])


def test_other_shapes_types_and_names_are_named():
    ours = example(1)
    wider = {**ours.tensors, "model/weight": torch.zeros(9, 4), "flags": torch.zeros(7)}
    text = refusal(ours, ours._replace(tensors=wider))
    assert "'model/weight': expected F32 [6, 4], found F32 [9, 4]" in text
    assert "'flags': expected BOOL [7], found F32 [7]" in text
    renamed = dict(ours.tensors)
    renamed["model/weights"] = renamed.pop("model/weight")
    text = refusal(ours, ours._replace(tensors=renamed))
    assert "'model/weight' (F32 [6, 4]) is missing" in text and "Did you mean 'model/weights'?" in text
    assert "'model/weights' (F32 [6, 4]) is not part of this run" in text


def test_other_buffers_and_scalars_are_named():
    ours = example(1)
    assert "buffer 'buffer/rows' (blocks of 8 rows) is missing" in refusal(ours, ours._replace(rings={}))
    larger = Ring({"obs": torch.zeros(40, 3)}, 8, (0,) * 5)
    text = refusal(ours, ours._replace(rings={"buffer/rows": larger}))
    assert "buffer 'buffer/rows', tensor 'obs': expected F32 [20, 3], found F32 [40, 3]" in text
    assert "tensor 'reward'" in text
    assert "scalar 'rate'" in refusal(ours, ours._replace(scalars={"at": 1}))


def test_what_may_vary_does_not_matter():
    ours = example(1)
    other = {name: tensor for name, tensor in ours.tensors.items() if not name.startswith("model/")}
    check_matches(ours, ours._replace(tensors={**other, "model/new": torch.zeros(1)}), vary=("model/",))


def test_names_say_steps_and_updates(tmp_path: Path) -> None:
    """Learning from data makes no steps: the newest is the one with the most updates."""
    store = Checkpoints(tmp_path, keep=2)
    for updates in (9, 10, 100):
        assert store.save(example(updates), 0, {}, updates).name == f"0-{updates}"
    assert {path.name for path in tmp_path.iterdir() if path.name != CHUNKS} == {"0-10", "0-100"}
    assert store.newest() == tmp_path / "0-100"
    store.save(example(1), 20, {}, 3)
    assert store.newest() == tmp_path / "20-3"


def test_names_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep=1)
    store.save(example(1), 7, {}).rename(tmp_path / "7")
    assert store.newest() == tmp_path / "7" and same(load(tmp_path / "7")[0], example(1))
    store.save(example(2), 8, {}, 1)
    assert not (tmp_path / "7").exists()
