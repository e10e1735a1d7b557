"""Names that installed packages bring."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from ganglion import registry
from ganglion.config.files import load
from ganglion.errors import UserError
from tests.config.sketches import TEXT


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution that brings the nets `foreign` and `lame`, and asks in vain for `mlp`."""
    info = tmp_path / "foreign_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-parts\nVersion: 1.0\n")
    points = "net.foreign = foreign_parts\nnet.lame = foreign_lame\nnet.mlp = foreign_parts\nnonsense = foreign_parts\n"
    (info / "entry_points.txt").write_text(f"[ganglion]\n{points}")
    (tmp_path / "foreign_parts.py").write_text(
        "from ganglion.config import NetConfig, register\n"
        "@register('net', 'foreign')\n"
        "class Foreign(NetConfig):\n"
        "    size: int = 5\n"
    )
    (tmp_path / "foreign_lame.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._entry_points.cache_clear()
    yield
    registry._entry_points.cache_clear()
    registry._found.pop(("net", "foreign"), None)
    sys.modules.pop("foreign_parts", None)


@pytest.mark.usefixtures("installed")
def test_a_name_of_an_installed_package_is_imported_when_used() -> None:
    assert "foreign" in registry.names("net")
    assert registry.origin("net", "foreign") == ("foreign_parts", "foreign-parts")
    assert registry.origin("net", "mlp").source == "ganglion"
    assert "foreign_parts" not in sys.modules
    assert load(TEXT, ["algo.net=foreign"]).algo.plain()["net"] == {"kind": "foreign", "size": 5}


@pytest.mark.usefixtures("installed")
def test_a_package_that_lacks_another_says_so() -> None:
    with pytest.raises(UserError, match="net 'lame' needs the package 'no_such_package'"):
        load(TEXT, ["algo.net=lame"])


def test_a_source_tree_that_is_not_installed_has_a_version_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert registry.version() == metadata.version("ganglion")
    monkeypatch.setattr(metadata, "version", missing)
    assert registry.version() == "source"
