"""docs/ops.md: every public name has an entry, and every example runs."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ganglion import ops

TEXT = (Path(__file__).parents[2] / "docs" / "ops.md").read_text(encoding="utf-8")
SETUP = re.search(r"```python setup\n(.*?)```", TEXT, re.DOTALL)
ENTRIES = re.findall(r"^### (.*?)\n(.*?)```python\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE)


def test_every_public_name_has_an_entry() -> None:
    headings = " ".join(re.findall(r"^### (.*)$", TEXT, re.MULTILINE))
    named = set(re.findall(r"`(\w+)", headings)) | set(re.findall(r"-> `(\w+)", headings))
    assert set(ops.__all__) <= named, sorted(set(ops.__all__) - named)
    assert named <= set(ops.__all__), sorted(named - set(ops.__all__))
    assert len(ENTRIES) == len(re.findall(r"^### ", TEXT, re.MULTILINE))  # each with an example


TYPES = {"Dist", "Grads", "NStep", "Transitions", "Tree", "VTrace"}
WITHOUT_A_PAPER = {"Product", "decisions", "dist", "add_draws", "mask", "pick", "weighted_mean", "shuffled", "within"}
WITHOUT_A_PAPER |= {"anywhere"}
WITHOUT_A_PAPER |= {"map_tree", "stack", "take", "fold", "to_dtype", "to_device", "same_shape", "nest", "Adder"}


@pytest.mark.parametrize(("heading", "text", "example"), ENTRIES, ids=[h for h, _, _ in ENTRIES])
def test_an_entry_has_shapes_a_paper_and_an_example_of_every_function(heading: str, text: str, example: str) -> None:
    names = re.findall(r"`(\w+)", heading)
    for name in set(names) - TYPES:
        assert re.search(rf"\bops\.{name}\b", example), f"the example does not use {name}"
    assert "[" in text
    assert re.search(r"\b(19|20)\d\d", text) or names[0] in WITHOUT_A_PAPER


@pytest.mark.parametrize(("heading", "example"), [(h, e) for h, _, e in ENTRIES], ids=[h for h, _, _ in ENTRIES])
def test_examples_run(heading: str, example: str) -> None:
    assert SETUP is not None
    assert len(example.strip().splitlines()) <= 3
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(SETUP.group(1), names)
    exec(example, names)


SIGNATURES = re.findall(r"`(\w+)\((.*?)\)`", " ".join(re.findall(r"^### (.*)$", TEXT, re.MULTILINE)))


@pytest.mark.parametrize(("name", "arguments"), SIGNATURES, ids=[name for name, _ in SIGNATURES])
def test_signatures_are_the_real_ones(name: str, arguments: str) -> None:
    (written,) = ast.parse(f"def f({arguments}): ...").body
    assert isinstance(written, ast.FunctionDef)
    every = [*written.args.args, *filter(None, [written.args.vararg])]
    real = inspect.signature(getattr(ops, name)).parameters
    assert [a.arg for a in every] == list(real)
    defaults = [p.default for p in real.values() if p.default is not inspect.Parameter.empty]
    assert [ast.literal_eval(d) for d in written.args.defaults] == defaults
