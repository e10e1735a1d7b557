"""README's commands and its script are real ones."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ganglion.cli import main
from ganglion.cli.parser import parse
from tests.docs.blocks import ROOT, code, section

TEXT = section("README.md", "## First steps")
COMMANDS = [shlex.split(line, comments=True)[1:] for block in code(TEXT, "bash") for line in block.splitlines()]


def test_there_are_commands() -> None:
    named = {"train", "launch", "explore", "resume", "eval", "play", "show", "compare", "list", "check", "bench"}
    named |= {"doctor", "export", "eject", "report", "board", "tune"}
    assert {words[0] for words in COMMANDS} == named


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_are_understood(words: list[str]) -> None:
    assert parse(words) is not None


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] == "train"], ids=" ".join)
def test_what_would_be_trained(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`show` resolves the very settings that `train` would use."""
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text("algo: dqn\nenv: {kind: gym, id: CartPole-v1}\n", encoding="utf-8")
    assert main(["show", *words[1:]]) == 0


def test_the_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (script,) = code(TEXT)
    monkeypatch.chdir(tmp_path)
    exec(compile(script.replace("20k steps", "2k steps"), "README.md", "exec"), {})
    *evaluations, interval = capsys.readouterr().out.splitlines()
    assert evaluations
    assert all("mean return" in line for line in evaluations)
    assert interval.startswith("(")


def test_links_lead_somewhere() -> None:
    import re

    for document in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / document).read_text(encoding="utf-8"))
        assert [target for target in targets if not (ROOT / target).exists()] == []
