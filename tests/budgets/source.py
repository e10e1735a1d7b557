"""The package's source, parsed once: what the budgets look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ganglion"


@dataclass(frozen=True)
class Source:
    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def part(self) -> str:
        """The first name below `ganglion`: core, config, ops, nn, ...; "" for the package itself."""
        first = self.path.relative_to(PACKAGE).parts[0]
        return "" if first == "__init__.py" else first.removesuffix(".py")

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 0)}"

    def walk(self) -> Iterator[ast.AST]:
        return ast.walk(self.tree)


SOURCES = tuple(Source(path) for path in sorted(PACKAGE.rglob("*.py")))
PARTS = {source.part for source in SOURCES}


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute chain, "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""
