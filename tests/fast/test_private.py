"""Compiled code is run: so it is taken from nowhere that others can write to."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from ganglion import cpp_extension
from ganglion.fast.compile import Compiled
from ganglion.fast.direct import Fn

KEPT = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's caches are; the temporary folder is another one, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv(KEPT, "")  # so that it is put back
    monkeypatch.delenv(KEPT)
    cpp_extension.temporary.cache_clear()
    return tmp_path / "cache"


class Looks(Compiled):
    """Instead of compiling, asks torch where it would look for compiled code, and keep it."""

    def build(self, args: tuple[Any, ...]) -> Fn:
        from torch._inductor.runtime.cache_dir_utils import cache_dir

        where = Path(cache_dir())
        return lambda: where


def mode(folder: Path) -> int:
    return folder.stat().st_mode & 0o777


@pytest.mark.parametrize("named", [False, True])  # torch writes down what it has chosen, where code of the user's asked
def test_torch_keeps_what_it_compiles_where_nobody_else_can_write(
    cache: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """Not in a folder of the temporary one that another user has made first."""
    made_first = Path(tempfile.gettempdir()) / f"torchinductor_{getuser()}"
    made_first.mkdir()
    made_first.chmod(0o777)
    if named:
        monkeypatch.setenv(KEPT, str(made_first))
    where = Looks(lambda: None)()
    assert where == cache / "ganglion" / "torchinductor" and mode(where.parent) == 0o700


def test_a_folder_that_the_user_names_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEPT, str(tmp_path / "mine"))
    assert Looks(lambda: None)() == tmp_path / "mine"


def test_whatever_the_umask_says(cache: Path) -> None:
    before = os.umask(0)
    try:
        assert cpp_extension.folder() == cache / "ganglion"
    finally:
        os.umask(before)
    assert mode(cache) == mode(cache / "ganglion") == 0o700


def writable(kept: Path) -> None:
    kept.mkdir(parents=True)
    kept.chmod(0o777)


def by_group(kept: Path) -> None:
    kept.mkdir(parents=True)
    kept.chmod(0o770)


def below_writable(kept: Path) -> None:
    kept.mkdir(parents=True, mode=0o700)
    kept.parent.chmod(0o777)


def elsewhere(kept: Path) -> None:
    kept.parent.mkdir()
    (kept.parent.parent / "theirs").mkdir()
    kept.symlink_to(kept.parent.parent / "theirs")


def file(kept: Path) -> None:
    kept.parent.mkdir()
    kept.touch()


@pytest.mark.parametrize("made", [writable, by_group, below_writable, elsewhere, file])
def test_a_folder_in_the_hands_of_others_is_not_used(
    cache: Path, made: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, and what is compiled is kept for this process alone."""
    made(cache / "ganglion")
    with caplog.at_level(logging.WARNING):
        private = cpp_extension.folder()
        assert cpp_extension.folder() == private and Looks(lambda: None)() == private / "torchinductor"
    assert private.parent == Path(tempfile.gettempdir()) and mode(private) == 0o700
    assert len(caplog.records) == 1 and str(cache) in caplog.text and "for this process alone" in caplog.text


def test_the_folder_of_another_user_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "ganglion").mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cpp_extension.folder().parent == Path(tempfile.gettempdir())
