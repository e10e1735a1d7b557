"""Which part of the package may import which: DESIGN's arrows, also for imports inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.budgets.source import PARTS, SOURCES, Source

FREE = {"errors", "faults", "torch_private"}  # what can go wrong, and what torch calls its own: for everybody
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "faults": {"errors"},
    "spaces": set(),
    "core": {"spaces"},
    "registry": set(),
    "cpp_extension": set(),
    "processes": set(),
    "timers": set(),
    "testing": {"config", "envs", "runtime"},
    "mapped": set(),
    "torch_private": set(),
    "config": {"core", "registry", "spaces"},
    "ops": {"core"},
    "nn": {"core", "config", "cpp_extension", "ops"},
    "buffers": {"core", "config", "cpp_extension", "ops", "mapped"},
    "bonuses": {"core", "config", "ops", "nn", "buffers"},
    "search": {"core", "cpp_extension", "ops"},
    "backends": {"core", "config", "ops", "nn", "buffers"},
    "algos": {"core", "config", "ops", "nn", "bonuses", "buffers", "search"},
    "envs": {"core", "config"},
    "record": {"core", "config", "mapped"},
    "analysis": {"registry", "config", "record"},
    "league": {"core", "registry", "config", "ops", "envs", "record", "runtime", "fleet", "processes"},
    "fast": {"core", "config", "cpp_extension", "processes"},
    "runtime": {
        "core",
        "registry",
        "config",
        "ops",
        "nn",
        "buffers",
        "envs",
        "record",
        "fast",
        "processes",
        "timers",
    },
    "fleet": {
        "core",
        "registry",
        "config",
        "ops",
        "nn",
        "buffers",
        "envs",
        "record",
        "fast",
        "processes",
        "runtime",
    },
    "board": {"analysis", "record"},
    "data": {"core", "registry", "config", "ops", "nn", "buffers", "envs", "record", "runtime", "mapped"},
    "tuning": {"config", "core", "processes", "record", "runtime", "analysis", "fleet"},
    "doctor": {"core", "config", "ops", "nn", "record", "runtime"},
    "export": {"core", "ops", "envs", "runtime"},
    "eject": {"registry", "config"},
    "launch": {"fleet", "processes", "record"},
    "zoo": set(),
}
COMPOSERS = {"", "__main__", "cli"}  # the package's front doors may import anything


def imported(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Each import of a part of the package, wherever it stands."""
    for node in source.walk():
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, _, rest = alias.name.partition(".")
                if first == "ganglion":
                    yield node, rest.split(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            first, _, rest = node.module.partition(".")
            if first == "ganglion" and rest:
                yield node, rest.split(".")[0]
            elif first == "ganglion":
                yield from ((node, alias.name if alias.name in PARTS else "") for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            match node.args:
                case [ast.Constant(value=str(module)), *_] if name == "import_module" and module.startswith(
                    "ganglion."
                ):
                    yield node, module.split(".")[1]


def test_every_part_has_its_arrows() -> None:
    assert PARTS - set(ALLOWED) - COMPOSERS == set()


def test_arrows_form_no_circle() -> None:
    """Imports inside functions are arrows, too: so no package needs another that needs it."""
    left = {part: needs - {part} for part, needs in ALLOWED.items()}
    while free := [part for part, needs in left.items() if not needs & left.keys()]:
        for part in free:
            del left[part]
    assert not left


def test_imports_follow_the_arrows() -> None:
    wrong = [
        f"{source.at(node)}: {source.part} imports {part or 'the package itself'}"
        for source in SOURCES
        if source.part not in COMPOSERS
        for node, part in imported(source)
        if part not in ALLOWED.get(source.part, set()) | FREE | {source.part}
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_relative_imports() -> None:
    wrong = [s.at(n) for s in SOURCES for n in s.walk() if isinstance(n, ast.ImportFrom) and n.level > 0]
    assert not wrong, "\n" + "\n".join(wrong)


def test_core_needs_only_torch_and_the_standard_library() -> None:
    import sys

    core = next(source for source in SOURCES if source.part == "core")
    roots = {
        name.split(".")[0]
        for node in core.walk()
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert roots - set(sys.stdlib_module_names) - {"torch", "ganglion"} == set()
