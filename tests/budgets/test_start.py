"""Importing the package and asking the command line for help must not wait for torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.budgets.source import ROOT

# None in sys.modules makes `import torch` fail: what answers here never asked for it.
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; sys.argv = {argv!r}; "


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_import_ganglion_does_not_import_torch() -> None:
    result = run("import sys, ganglion; print(sorted({'torch', 'numpy', 'gymnasium'} & set(sys.modules)))")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("words", [["--help"], ["list"], ["train", "--help"]], ids=" ".join)
def test_the_command_line_answers_without_torch(words: list[str]) -> None:
    start = WITHOUT_TORCH.format(argv=["ganglion", *words])
    result = run(start + "from ganglion.cli import main; sys.exit(main())")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_algorithms_do_not_import_torchs_compiler() -> None:
    """Which takes a second, and is for runs that are long enough."""
    result = run("import sys, ganglion.algos, ganglion.runtime.run; print('torch._dynamo' in sys.modules)")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "False"
