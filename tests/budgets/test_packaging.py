"""What a user installs: pinned versions, and a wheel that holds the presets."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.budgets.source import PACKAGE, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK = [line for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
BARE = {"greenlet", "torch", "numpy", "gymnasium", "pydantic", "pyyaml", "rich", "safetensors"}


def test_the_lock_holds_plain_pins() -> None:
    assert [line for line in LOCK if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)] == []
    assert "torch==2.13.0" in LOCK


def test_the_lock_holds_every_dependency() -> None:
    """Direct and transitive, as far as they are installed here as pinned; those of torch itself are torch's affair."""
    pinned = {canonicalize_name(name): version for name, version in (line.split("==") for line in LOCK)}
    waiting = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]]
    seen: set[tuple[str, frozenset[str]]] = set()
    missing: set[str] = set()
    while waiting:
        need = waiting.pop()
        name, extras = canonicalize_name(need.name), frozenset(need.extras)
        if (name, extras) in seen or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        seen.add((name, extras))
        if name == "ganglion":
            waiting += [Requirement(text) for extra in extras for text in PROJECT["optional-dependencies"][extra]]
            continue
        if name not in pinned:
            missing.add(name)
        try:
            known = name != "torch" and metadata.version(name) == pinned.get(name)
        except metadata.PackageNotFoundError:
            continue
        further = [Requirement(text) for text in metadata.requires(name) or []] if known else []
        for one in further:
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras | {""}):
                one.marker = None
                waiting.append(one)
    assert missing == set()


def test_a_bare_run_needs_little() -> None:
    assert {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]} == BARE


def test_the_wheel_holds_the_presets(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(PACKAGE, tmp_path / "ganglion", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "out", "."]
    subprocess.run(build, cwd=tmp_path, check=True, timeout=120, capture_output=True)
    (wheel,) = (tmp_path / "out").glob("ganglion-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f.relative_to(ROOT).as_posix() for f in PACKAGE.rglob("*") if f.suffix in {".py", ".yaml", ".typed"}}
    assert wanted - held == set()
    assert any(name.startswith("ganglion/zoo/") and name.endswith(".yaml") for name in held)
