"""How much code stands behind one algorithm: all that DQN and the local loop import, counted; how it holds together.

The limits only go down: a change that needs less lowers them here.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache

from tests.budgets.source import PACKAGE, SOURCES, Source, dotted

LOOP = ("algos.dqn", "runtime.agent", "runtime.explorer", "runtime.learner", "runtime.trainer")
MODULES, LINES = 65, 9_769  # without the table of names, which grows by a line with each algorithm
ASKED = {"isinstance": 217, "getattr": 34, "setattr": 7, "hasattr": 2, "cast": 0}
BORDERS = (
    "ganglion/envs/",
    "ganglion/data/",
    "ganglion/ops/trees.py",
)  # what comes from outside, and trees: asked there


def module_of(source: Source) -> str:
    path = source.path.relative_to(PACKAGE).with_suffix("")
    return ".".join(path.parts[:-1] if path.name == "__init__" else path.parts)


BY_NAME = {module_of(source): source for source in SOURCES}


@cache
def imports(name: str) -> frozenset[str]:
    """The modules of the package that a module imports when it is imported itself."""
    found: set[str] = set()
    for node in BY_NAME[name].tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ganglion":
            inner = node.module.partition(".")[2]
            parts = [".".join(filter(None, (inner, alias.name))) for alias in node.names]
            found |= {part if part in BY_NAME else inner for part in parts}
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("ganglion.")}
    return frozenset(found & BY_NAME.keys() - {"", name})


def closure(names: Iterable[str], without: frozenset[str] = frozenset()) -> set[str]:
    seen, todo = set[str](), list(names)
    while todo:
        if (name := todo.pop()) not in seen | without:
            seen.add(name)
            todo += imports(name)
    return seen


def test_what_stands_behind_dqn() -> None:
    names = closure(LOOP)
    lines = sum(len(re.sub(r"(?ms)^TABLE.*?^}\n", "", BY_NAME[name].text).splitlines()) for name in names)
    assert len(names) <= MODULES and lines <= LINES, (len(names), lines, sorted(names))


def test_no_module_imports_itself_through_others() -> None:
    """A package's `__init__` gathers its own parts, which know it by name: that is one thing, not two."""
    gather = frozenset(name for name in BY_NAME if BY_NAME[name].path.name == "__init__.py")
    assert [name for name in BY_NAME if name not in gather and name in closure(imports(name), gather)] == []


def test_capabilities_are_not_found_by_asking() -> None:
    """A contract says what a part can do; asking it is for the borders of the package, and grows no more."""
    inner = [s for s in SOURCES if not str(s.path.relative_to(PACKAGE.parent)).startswith(BORDERS)]
    words = Counter(w for s in inner for w in re.findall(r"\b(getattr|hasattr|setattr|isinstance|cast)\(", s.text))
    assert all(words[word] <= most for word, most in ASKED.items()), words


def test_a_class_has_a_name_of_its_own() -> None:
    """Whoever searches for a name finds one thing; an algorithm puts its own before it: PPOMinibatch."""
    where: dict[str, list[str]] = {}
    for source in SOURCES:
        for node in source.walk():
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(source.at(node))
    twice = {name: places for name, places in where.items() if len(places) > 1}
    assert not twice, twice


ROLES = {"Agent", "Evaluator", "Explorer", "Learner", "Trainer"}  # an Engine is what differs
TURNS = {"__call__", "begin", "learn", "run_collect", "run_train", "step", "walk"}
OTHERWISE = 2  # the Trainers of several learners


def test_there_is_one_way_to_collect_and_one_to_learn() -> None:
    """A role is the same class in every mode: who replaces a part of its turn is counted."""
    classes = {n.name: (s, n) for s in SOURCES for n in s.walk() if isinstance(n, ast.ClassDef)}

    def above(name: str) -> set[str]:
        node = classes[name][1]
        names = {dotted(b.value if isinstance(b, ast.Subscript) else b).split(".")[-1] for b in node.bases}
        return names.union(*(above(other) for other in names & classes.keys()))

    def methods(name: str) -> set[str]:
        return {f.name for f in classes[name][1].body if isinstance(f, ast.FunctionDef)} & TURNS

    replaced = {
        classes[name][0].at(classes[name][1]): sorted(methods(name) & set().union(*map(methods, roles)))
        for name in classes
        if (roles := above(name) & ROLES)
    }
    assert len({at: names for at, names in replaced.items() if names}) <= OTHERWISE, replaced
