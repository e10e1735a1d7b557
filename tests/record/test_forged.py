"""Manifests that were written by others: their checksums are right, and what they say is not."""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ganglion.cli import main
from ganglion.record import manifest
from ganglion.record.checkpoint import Checkpoints
from ganglion.record.tensor_file import digest
from ganglion.runtime.run import Run
from tests.equal.runs import config, finish
from tests.record.hostile import limited

SOAK = os.environ.get("GANGLION_SOAK") == "1"
SORTS = ("dqn", "ppo", "prioritised", "recurrent", "sac") if SOAK else ("dqn",)
Body = dict[str, Any]


def reached(body: Body, path: tuple[Any, ...]) -> tuple[Any, Any]:
    """What holds an entry that is there, and its key; FIRST is the first one of a mapping."""
    here: Any = body
    *above, last = path
    for key in above:
        here = here[next(iter(here)) if key is FIRST else key]
    last = next(iter(here)) if last is FIRST else last
    here[last]  # else a KeyError: this sort of run has no such entry
    return here, last


def at(*path: Any, to: Any) -> Callable[[Body], None]:
    """Changes an entry."""

    def change(body: Body) -> None:
        here, key = reached(body, path)
        here[key] = to

    return change


def without(*path: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        here, key = reached(body, path)
        del here[key]

    return change


def more(*path: Any, to: Any) -> Callable[[Body], None]:
    """Adds an entry."""

    def change(body: Body) -> None:
        here, key = reached(body, path[:-1])
        here[key][path[-1]] = to

    return change


FIRST: Any = object()
RING = ("rings", FIRST)
NOWHERE = ["../../../../dev/zero", "/dev/zero", "..", "", "state.safetensors/x", "chunks\0x"]
DEEP: Any = json.loads("[" * 400 + "]" * 400)
FORGED: dict[str, Callable[[Body], None]] = {
    **{f"no {key}": without(key) for key in manifest.ENTRIES},
    **{f"{key} is null": at(key, to=None) for key in manifest.ENTRIES},
    **{f"{key} is text": at(key, to="x") for key in manifest.ENTRIES},
    **{f"{key} is a list": at(key, to=[1]) for key in manifest.ENTRIES},
    **{f"a file {name!r}": at("files", to={name: {"size": 1, "checksum": "0" * 32}}) for name in NOWHERE},
    **{f"a chunk {name!r}": at(*RING, "chunks", 0, 0, to=name) for name in NOWHERE},
    "no file": at("files", to={}),
    "two files": more("files", "state-" + "0" * 32 + ".safetensors", to={}),
    "another type": at("tensors", FIRST, 0, to="F4096"),
    "a type that is a list": at("tensors", FIRST, 0, to=["F32"]),
    "a negative size": at("tensors", FIRST, 1, to=[-1]),
    "a size of text": at("tensors", FIRST, 1, to=["4"]),
    "a size beyond memory": at("tensors", FIRST, 1, to=[1 << 40, 1 << 20]),
    "a size beyond numbers": at("tensors", FIRST, 1, to=[10**30]),
    "a shape that is deep": at("tensors", FIRST, 1, to=DEEP),
    "a checksum of null": at("tensors", FIRST, 2, to=None),
    "a tensor too few": without("tensors", FIRST),
    "a tensor too many": more("tensors", "more", to=["F32", [1], "0" * 32]),
    "blocks of no rows": at(*RING, "block", to=0),
    "blocks of fewer rows": at(*RING, "block", to=1),
    "blocks of text": at(*RING, "block", to="8"),
    "stamps of text": at(*RING, "stamps", to=["x"]),
    "stamps of others": at(*RING, "stamps", to=[7]),
    "too many stamps": at(*RING, "stamps", to=[1, 2, 3]),
    "no chunks": at(*RING, "chunks", to=[]),
    "a chunk without checksums": at(*RING, "chunks", 0, 1, to={}),
    "a chunk that is a number": at(*RING, "chunks", 0, to=3),
    "no arrays": at(*RING, "arrays", to={}),
    "an array beyond memory": at(*RING, "arrays", FIRST, 1, to=[175, 1 << 40, 1 << 20]),
    "an array of nothing": at(*RING, "arrays", FIRST, 1, to=[]),
    "no environment": without("meta", "environment"),
    "an environment of text": at("meta", "environment", to="x"),
    "metrics before the start": at("meta", "metrics", to=-1),
    "metrics of text": at("meta", "metrics", to="x"),
    "counters of text": at("scalars", "trainer/counters/at", to=["x"] * 5),
    "counters too few": at("scalars", "trainer/counters/at", to=[1]),
    "counters that are gone": without("scalars", "trainer/counters/at"),
    "a best of text": at("scalars", "evaluated/own/best", to="x"),
    "sums of text": at("scalars", "recorded/own/sums", to={"a": "b"}),
    "rows before the first": at("scalars", "trainer/learner/buffer/ring/pushed", to=-1),
    "rows beyond the last": at("scalars", "trainer/learner/buffer/ring/pushed", to=10**30),
    "a number of no bytes": at("scalars", "evaluated/own/best", to={"$float": "x"}),
    "a number of a list": at("scalars", "evaluated/own/best", to={"$float": [1]}),
    "scalars that are deep": at("scalars", "evaluated/own/best", to=DEEP),
    "random numbers of text": at("scalars", "trainer/explorer/noise/block/used", to="x"),
    "random numbers to come": at("scalars", "trainer/explorer/noise/block/used", to=10**9),
    "knobs of text": at("scalars", "trainer/agent/pinned/knobs", to={"epsilon": "x"}),
    "a seed of nothing": at("scalars", "trainer/explorer/env/seed", to=None),
    "episodes of text": at("scalars", "trainer/explorer/env/finished", to=[[0, "x", 1, {}]]),
    "slots of others": at("scalars", "trainer/explorer/env/ended", to=[]),
}
WORDS: dict[str, bytes] = {
    "no JSON": manifest.START + b"0" * 32 + b'", "format": "ganglion checkpoint", ',
    "a list": manifest.START + b"0" * 32 + b'"}]',
    "no end of brackets": manifest.START + b"0" * 32 + b'", "a": ' + b"[" * 200_000,
    "a number of 5000 digits": manifest.START + b"0" * 32 + b'", "step": ' + b"9" * 5_000 + b"}",
    "no format": manifest.START + b"0" * 32 + b'"}',
    "a version of text": manifest.START + b"0" * 32 + b'", "format": "ganglion checkpoint", "version": "\\u001b[2J"}',
    "no text": manifest.START + b"0" * 32 + b'", "\xff\xfe": 1}',
}


def signed(text: bytes) -> bytes:
    return manifest._signed(text, digest(text).encode())


@pytest.fixture(scope="module", params=SORTS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forged") / request.param
    finish(Run.create(config(request.param, folder, 400, eval="never"))).close()
    return folder


def newest(folder: Path) -> Path:
    path = Checkpoints(folder / "checkpoints", 1).newest()
    assert isinstance(path, Path)
    return path / "manifest.json"


@pytest.fixture
def forged(trained: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(trained, tmp_path / "run"))


def said(*words: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), limited():
        code = main(list(words))
    return code, err.getvalue()


def check_refused(*words: str) -> None:
    code, message = said(*words)
    assert code == 2, message
    assert message.startswith("ganglion: ") and message.count("ganglion: ") == 1 and len(message) < 2_000
    assert "Traceback" not in message and "\x1b" not in message


def applies(change: Callable[[Body], None], body: Body) -> bool:
    try:
        change(body)
    except (KeyError, StopIteration):
        return False
    return True


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_manifest_is_one_message(kind: str, forged: Path) -> None:
    file = newest(forged)
    body = manifest.read(file)
    if not applies(FORGED[kind], body):
        pytest.skip("not in this sort of run")
    file.write_bytes(manifest.dumps(body))
    check_refused("resume", str(forged), "train.budget=500 steps")


@pytest.mark.parametrize("kind", WORDS)
def test_forged_words_are_one_message(kind: str, forged: Path) -> None:
    newest(forged).write_bytes(signed(WORDS[kind]))
    check_refused("resume", str(forged), "train.budget=500 steps")
    check_refused("eval", str(forged), "--last", "--episodes", "1")


def test_the_manifest_that_is_forged_above_is_taken(forged: Path) -> None:
    file = newest(forged)
    file.write_bytes(manifest.dumps(manifest.read(file)))
    assert said("resume", str(forged), "train.budget=500 steps")[0] == 0


# ------------------------------------------------------------ every scalar, wrong in many ways

WRONG: list[Any] = [
    *(None, "x", [], {}, -1, 1e308, 10**30, [1, 2], {"a": "b"}, ["x"] * 5, [-1] * 5, ["x"] * 4, ["x"] * 2),
    *([[0, "x", 1, {}]], [[0, 1.0, 1, {"a": "b"}]], {"a": ["x", "y"]}, {"$float": "0"}),
]


@pytest.mark.soak
def test_any_scalar_may_be_anything(trained: Path, tmp_path: Path) -> None:
    """Refused, or without effect; never a traceback."""
    body, whole = manifest.read(newest(trained)), newest(trained).relative_to(trained)
    for entry in ("scalars", "meta"):
        for name in sorted(body[entry]):
            for number, wrong in enumerate(WRONG):
                changed = copy.deepcopy(body)
                changed[entry][name] = wrong
                case = Path(shutil.copytree(trained, tmp_path / f"{name.replace('/', '.')}-{number}"))
                (case / whole).write_bytes(manifest.dumps(changed))
                code, message = said("resume", str(case), "train.budget=460 steps")
                assert code in (0, 2) and "Traceback" not in message, (name, wrong, message)
                shutil.rmtree(case)
