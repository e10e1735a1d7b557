"""Functions stay short enough to read, and an algorithm is one file."""

from __future__ import annotations

import ast

import pytest

from tests.budgets.source import SOURCES, Source, dotted

FUNCTION_LINES = 50


def test_functions_are_short() -> None:
    long = {
        f"{source.at(node)} {node.name}": lines
        for source in SOURCES
        for node in source.walk()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert not long, long


@pytest.mark.parametrize("source", [s for s in SOURCES if s.part == "algos"], ids=lambda source: source.path.stem)
def test_an_algorithm_is_one_file(source: Source) -> None:
    """No algorithm imports another: shared mathematics lives in ops, shared networks in nn."""
    others = {f"ganglion.algos.{s.path.stem}" for s in SOURCES if s.part == "algos"} - {"ganglion.algos.__init__"}
    taken = [source.at(n) for n in source.walk() if isinstance(n, ast.ImportFrom) and n.module in others]
    assert taken == []
    assert [source.at(n) for n in source.walk() if dotted(n) in others] == []
