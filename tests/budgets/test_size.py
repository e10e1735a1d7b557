"""Files and functions stay short enough to read, and DQN can be read in one sitting."""

from __future__ import annotations

import ast

import pytest

from tests.budgets.source import ROOT, SOURCES, Source, dotted

FILE_LINES = 400
FUNCTION_LINES = 50
READER_LINES = 1_150
# All one needs to understand DQN fully.
READERS_SET = (
    "ganglion/core.py",
    "ganglion/algos/dqn.py",
    "ganglion/nn/nets.py",
    "ganglion/buffers/replay.py",
    "ganglion/runtime/agent.py",
    "ganglion/runtime/explorer.py",
    "ganglion/runtime/learner.py",
    "ganglion/runtime/trainer.py",
)


def test_files_are_short() -> None:
    long = {source.name: lines for source in SOURCES if (lines := len(source.text.splitlines())) > FILE_LINES}
    assert not long, long


def test_functions_are_short() -> None:
    long = {
        f"{source.at(node)} {node.name}": lines
        for source in SOURCES
        for node in source.walk()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert not long, long


def test_the_readers_set_of_dqn() -> None:
    missing = [name for name in READERS_SET if not (ROOT / name).exists()]
    assert missing == []
    lines = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in READERS_SET}
    assert len(lines) <= 8
    assert sum(lines.values()) <= READER_LINES, lines


@pytest.mark.parametrize("source", [s for s in SOURCES if s.part == "algos"], ids=lambda source: source.path.stem)
def test_an_algorithm_is_one_file(source: Source) -> None:
    """No algorithm imports another: shared mathematics lives in ops, shared networks in nn."""
    others = {f"ganglion.algos.{s.path.stem}" for s in SOURCES if s.part == "algos"} - {"ganglion.algos.__init__"}
    taken = [source.at(n) for n in source.walk() if isinstance(n, ast.ImportFrom) and n.module in others]
    assert taken == []
    assert [source.at(n) for n in source.walk() if dotted(n) in others] == []
