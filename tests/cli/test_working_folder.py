"""What lies in the working folder is not imported, by whatever process, unless it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from ganglion.config.files import import_module
from ganglion.fast import Compiler
from ganglion.fast.compile import Compiled
from ganglion.processes import ROOT, python

INSTALLED = {"gymnasium", "numpy", "psutil", "pydantic", "ray", "sympy", "torch", "typing_extensions", "yaml"}
FROZEN = {"abc", "builtins", "codecs", "encodings", "importlib", "io", "os", "site", "stat", "sys", "zipimport"}
NAMES = {name for name in sys.stdlib_module_names | INSTALLED if name[0] != "_" and find_spec(name)} - FROZEN
PLANTED = "open({!r}, 'a').write(__name__ + '\\n')\nraise ImportError('of the working folder')\n"
MINE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("Mine-v0", CartPoleEnv, max_episode_steps=50)
"""
SMALL = ["algo.horizon=16", "algo.minibatches=1", "env.slots=2", "eval=never", "log=[]", "train.budget=200 steps"]
MODES = {
    "launch": ["launch", "local", "--learners", "2", "env.workers=1"],
    "ray": ["train", "--mode", "ray", "--explorers", "1", "--learners", "2"],
    "central": ["train", "--mode", "ray", "--explorers", "1", "fleet.inference=central"],
    "compile": ["train", "run.fast=compile"],
}
QUICK = {("launch", False), ("ray", True)}
ALL = [(mode, own) for mode in MODES for own in (False, True)]


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with a file for each module that anybody would import, which says so in `imported`."""
    (tmp_path / "here").mkdir()
    for name in NAMES:
        (tmp_path / "here" / f"{name}.py").write_text(PLANTED.format(str(tmp_path / "imported")))
    (tmp_path / "here" / "mine.py").write_text(MINE)
    return tmp_path / "here"


def imported(planted: Path) -> str:
    file = planted.parent / "imported"
    return file.read_text() if file.exists() else ""


def environ(planted: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(planted.parent / "cache")}


@pytest.mark.parametrize(
    ("mode", "own"), [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.soak) for case in ALL]
)
def test_no_process_imports_what_lies_there(planted: Path, mode: str, own: bool) -> None:
    """A module of the user's own is found, everywhere, with the same files around it."""
    if "ray" in MODES[mode] and find_spec("ray") is None:
        pytest.skip("needs the package ray: pip install 'ganglion[ray]'")
    words = ["--env", "Mine-v0", "--import", "mine"] if own else ["--env", "CartPole-v1"]
    command = python("ganglion", *MODES[mode], "--algo", "ppo", *words, *SMALL, "run.dir=run")
    ended = subprocess.run(command, cwd=planted, env=environ(planted), capture_output=True, text=True, timeout=300)
    assert imported(planted) == "" and ended.returncode == 0, ended.stderr[-2_000:]


def test_the_background_compiler_does_not_either(planted: Path) -> None:
    ended = subprocess.run(
        Compiler(planted / "config.yaml").command, cwd=planted, env=environ(planted), capture_output=True, text=True
    )
    assert imported(planted) == "" and "there is no preset or file" in ended.stderr, ended.stderr[-2_000:]


def test_nor_does_a_python_that_torch_starts(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries in one what the processor can do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(planted.parent / "cache"))
    monkeypatch.chdir(planted)
    started = Compiled(lambda: subprocess.run([sys.executable, "-c", "import json"]).returncode)
    monkeypatch.setattr(started, "build", lambda args: started.fn)
    assert started() == 0 and imported(planted) == "" and "PYTHONSAFEPATH" not in os.environ


def test_a_module_that_is_asked_for_is_the_one_that_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else has its name; what it imports is what it would be anywhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    Path("netrc.py").write_text("raise ImportError('of the working folder')\n")
    Path("colorsys.py").write_text("import netrc, beside\nMINE = beside.MINE\n")
    Path("beside.py").write_text("MINE = True\n")
    for name in ("netrc", "colorsys", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import_module("colorsys")
    assert sys.modules["colorsys"].MINE and sys.path[0] != str(tmp_path)
    for name in ("netrc", "colorsys", "beside"):
        sys.modules.pop(name)
