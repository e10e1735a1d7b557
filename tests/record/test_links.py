"""Run folders that somebody else made, with links, pipes and sockets: nothing outside changes, nothing waits."""

from __future__ import annotations

import io
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from ganglion.cli import main
from ganglion.errors import UserError
from ganglion.record import atomic_write
from ganglion.record.checkpoint_files import counted
from ganglion.record.lock import held
from ganglion.record.writers.jsonl import Jsonl
from ganglion.runtime.run import Run
from tests.equal.runs import config, finish
from tests.record.hostile import limited, listing

VICTIM = "somebody's work\n" * 400


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links") / "run"
    finish(Run.create(config("dqn", folder, 400))).close()
    return folder


@pytest.fixture
def around(trained: Path, tmp_path: Path) -> Path:
    """A folder with a run in it, and what is not the run's beside it."""
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    for name in ("file", "deep/file", "a" * 32 + ".safetensors"):
        (tmp_path / "outside" / name).write_text(VICTIM)
    return tmp_path


def to_file(name: str) -> Callable[[Path], None]:
    """What has a name, or nothing, as a link to somebody's file."""

    def change(around: Path) -> None:
        path = newest(around / "run") / name[4:] if name.startswith("NEW/") else around / "run" / name
        path.unlink(missing_ok=True)
        path.symlink_to(around / "outside" / "file")

    return change


def to_folder(name: str) -> Callable[[Path], None]:
    """A folder with all that it holds lies outside, and is a link here."""

    def change(around: Path) -> None:
        path = around / "run" / name
        if path.exists():
            shutil.copytree(path, around / "outside", dirs_exist_ok=True)
            shutil.rmtree(path)
        path.symlink_to(around / "outside", target_is_directory=True)

    return change


def pipe(name: str) -> Callable[[Path], None]:
    def change(around: Path) -> None:
        (around / "run" / name).unlink(missing_ok=True)
        os.mkfifo(around / "run" / name)

    return change


def dangling(around: Path) -> None:
    (around / "run" / "wandb-id.txt").symlink_to(around / "outside" / "new")


def looping(around: Path) -> None:
    (around / "run" / "checkpoints" / "again").symlink_to(around / "run" / "checkpoints", target_is_directory=True)


def listens(around: Path) -> None:
    before = os.getcwd()
    os.chdir(around / "run")  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("socket")
    finally:
        os.chdir(before)


def newest(run: Path) -> Path:
    return max((path for path in (run / "checkpoints").iterdir() if counted(path.name)), key=lambda p: counted(p.name))


KINDS: dict[str, Callable[[Path], None]] = {
    ".lock": to_file(".lock"),
    "metrics.jsonl": to_file("metrics.jsonl"),
    ".new-config.yaml": to_file(".new-config.yaml"),
    "config.yaml": to_file("config.yaml"),
    "run.json": to_file("run.json"),
    "manifest.json": to_file("NEW/manifest.json"),
    "state.safetensors": to_file("NEW/state.safetensors"),
    "chunks": to_folder("checkpoints/chunks"),
    "checkpoints": to_folder("checkpoints"),
    ".new-500": to_folder("checkpoints/.new-500"),
    "failures": to_folder("failures"),
    "videos": to_folder("videos"),
    "tensorboard": to_folder("tensorboard"),
    "wandb-id.txt": dangling,
    "again": looping,
    "a pipe for .lock": pipe(".lock"),
    "a pipe for metrics.jsonl": pipe("metrics.jsonl"),
    "a pipe for a chunk": pipe(f"checkpoints/chunks/{'b' * 32}.safetensors"),
    "a pipe for config.yaml": pipe("config.yaml"),
    "socket": listens,
}


def check_refused(around: Path, *words: str) -> str:
    before, err = listing(around / "outside"), io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(err), limited():
        code = main([words[0], str(around / "run"), *words[1:]])
    message = err.getvalue()
    assert code == 2, message
    assert message.count("ganglion: ") == 1 and "Traceback" not in message
    assert listing(around / "outside") == before
    return message


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_is_refused_and_nothing_outside_changes(kind: str, around: Path) -> None:
    KINDS[kind](around)
    message = check_refused(around, "resume", "train.budget=500 steps")
    name = kind.split()[-1]
    assert name in message or "pipe" in kind
    assert "is a link, or no file" in message or "config.yaml" in kind


@pytest.mark.parametrize("words", [["eval", "--last"], ["play"], ["replay"], ["replay", "0-1"]])
@pytest.mark.parametrize("kind", ["videos", "failures", "chunks", "a pipe for metrics.jsonl"])
def test_other_commands_refuse_it_too(kind: str, words: list[str], around: Path) -> None:
    KINDS[kind](around)
    assert "is a link, or no file" in check_refused(around, *words)


def test_names_of_dots_do_no_harm(around: Path) -> None:
    """What `recover` would rename or remove."""
    for name in (".old-", ".old-.", ".old-..", ".new-", ".gone-.."):
        (around / "run" / "checkpoints" / name).mkdir()
    before = listing(around / "outside")
    assert main(["resume", str(around / "run"), "train.budget=500 steps"]) == 0
    assert listing(around / "outside") == before and not list((around / "run" / "checkpoints").glob(".*"))


def test_a_copy_made_of_hard_links_leaves_the_other_as_it_is(around: Path) -> None:
    for path in [path for path in (around / "run").rglob("*") if path.is_file()]:
        other = around / "outside" / path.relative_to(around / "run")
        other.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, other)
    before = {name: what.split()[0] for name, what in listing(around / "outside").items()}
    assert main(["resume", str(around / "run"), "train.budget=500 steps"]) == 0
    assert {name: what.split()[0] for name, what in listing(around / "outside").items()} == before


def test_links_of_wandbs_own_are_left_to_it(around: Path) -> None:
    (around / "run" / "wandb" / "run-1").mkdir(parents=True)
    (around / "run" / "wandb" / "latest-run").symlink_to("run-1", target_is_directory=True)
    assert main(["resume", str(around / "run"), "train.budget=500 steps"]) == 0


# ------------------------------------------------------------ each file by itself, for who comes after the look


def test_no_link_is_followed_by_who_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_write, "disk", atomic_write.Disk())
    (tmp_path / "outside").write_text(VICTIM)
    for name in (".lock", "metrics.jsonl", ".new-config.yaml"):
        (tmp_path / name).symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match=r"\.lock is a link"), held(tmp_path):
        pass
    with pytest.raises(UserError, match=r"metrics\.jsonl is a link"):
        Jsonl(tmp_path / "metrics.jsonl")
    atomic_write.write_file(tmp_path / "config.yaml", [b"algo: dqn"])
    assert (tmp_path / "config.yaml").read_bytes() == b"algo: dqn" and not (tmp_path / "config.yaml").is_symlink()
    assert (tmp_path / "outside").read_text() == VICTIM


def test_a_lock_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text(VICTIM)
    with held(tmp_path):
        pass
    assert (tmp_path / ".lock").read_text() == VICTIM


def test_a_pipe_in_the_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with limited(), pytest.raises(UserError, match="no file"), held(tmp_path):
        pass
