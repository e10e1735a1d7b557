"""One word per thing, no call that stops the device in algorithms, nothing that can execute what it reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.budgets.source import SOURCES, Source, dotted

BANNED = {"done", "dones", "util", "utils", "helper", "helpers", "common", "manager", "managers", "handler", "handlers"}
BANNED_AS_CLASS_OR_FILE = BANNED | {"base", "misc"}
SYNCS = {"item", "cpu", "numpy"}
LEAVES_THE_DEVICE = {"to_numpy"}  # a function of ops made for it
PICKLERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
EXECUTES = {
    "eval",
    "exec",
    "torch.load",
    "torch.save",
    "yaml.load",
    "yaml.load_all",
    "yaml.full_load",
    "yaml.unsafe_load",
    "os.system",
}


def words(identifier: str) -> set[str]:
    """The words of snake_case and CamelCase."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


def names_given(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every identifier this file gives to something; what others named is their affair."""
    for node in source.walk():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node, node.name
        elif isinstance(node, ast.arg):
            yield node, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node, node.asname


def outside(tree: ast.AST, functions: set[str]) -> Iterator[ast.AST]:
    """Every node that is not inside one of the named functions."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.FunctionDef) and node.name in functions):
            yield node
            yield from outside(node, functions)


def test_words_are_split_as_people_read_them() -> None:
    assert words("is_done") == {"is", "done"}
    assert words("EnvManager") == {"env", "manager"}
    assert words("abandoned") == {"abandoned"}
    assert words("contextmanager") == {"contextmanager"}


def test_banned_words() -> None:
    wrong = [f"{s.at(node)} {name}" for s in SOURCES for node, name in names_given(s) if words(name) & BANNED]
    assert not wrong, "\n" + "\n".join(wrong)


def test_banned_words_of_files_and_classes() -> None:
    names = [(s.name, part) for s in SOURCES for part in s.name.removesuffix(".py").split("/")]
    names += [(s.at(node), node.name) for s in SOURCES for node in s.walk() if isinstance(node, ast.ClassDef)]
    wrong = [f"{where} {name}" for where, name in names if words(name) & BANNED_AS_CLASS_OR_FILE]
    assert not wrong, "\n" + "\n".join(wrong)


def test_algorithms_and_ops_never_wait_for_the_device() -> None:
    wrong = [
        f"{source.at(node)} .{node.func.attr}()"
        for source in SOURCES
        if source.part in {"algos", "ops"}
        for node in outside(source.tree, LEAVES_THE_DEVICE if source.part == "ops" else set())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SYNCS
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_algorithms_and_ops_draw_no_random_numbers() -> None:
    """Randomness enters as an argument; what a module initialises itself with at construction is nn's."""
    random = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "multinomial", "bernoulli", "normal"}
    wrong = [
        f"{source.at(node)} {dotted(node.func)}"
        for source in SOURCES
        if source.part in {"algos", "ops"}
        for node in source.walk()
        if isinstance(node, ast.Call) and dotted(node.func) in {f"torch.{name}" for name in random}
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_nothing_unpickles() -> None:
    wrong = []
    for source in SOURCES:
        for node in source.walk():
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots = {(node.module or "").split(".")[0]}
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                roots = set() if isinstance(node.value, ast.Constant) and node.value.value is False else {"pickle"}
            else:
                continue
            wrong += [f"{source.at(node)} {root}" for root in roots & PICKLERS]
    assert not wrong, "\n" + "\n".join(wrong)


def test_nothing_executes_what_it_reads() -> None:
    wrong = [
        f"{source.at(node)} {dotted(node.func)}"
        for source in SOURCES
        for node in source.walk()
        if isinstance(node, ast.Call) and dotted(node.func) in EXECUTES
    ]
    assert not wrong, "\n" + "\n".join(wrong)


ROOMS = ("ganglion/fast/", "ganglion/nn/kernels/", "ganglion/torch_private.py")


def test_private_names_of_torch_have_rooms_of_their_own() -> None:
    """What torch may change without a word is looked for in three places."""
    own = re.compile(r"torch(\.\w+)*?\._(?!_)")
    wrong = [
        f"{source.at(node)} {name}"
        for source in SOURCES
        if not source.name.startswith(ROOMS)
        for node in source.walk()
        for name in torch_names(node)
        if own.match(name)
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def torch_names(node: ast.AST) -> list[str]:
    """What a piece of code takes from torch, in full."""
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [dotted(node)] if isinstance(node, ast.Attribute) else []
