"""Tests of one's own parts in one call: they raise AssertionError with every finding and its fix.

from ganglion.testing import assert_algorithm, assert_env

def test_my_algorithm():
    import my_algorithm                                 # registers it
    assert_algorithm("mine")

def test_my_env():
    assert_env(MyEnv)                                   # or an id, a config, a function that makes one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ganglion.config import EnvConfig
from ganglion.config.files import load
from ganglion.envs.check.check_env import check_env
from ganglion.envs.check.findings import CheckReport
from ganglion.runtime.build import build_env
from ganglion.runtime.check_algorithm import SLOTS, check_algorithm, made_up


def assert_env(env: str | EnvConfig | Callable[[], Any], *, steps: int = 1_000, warnings: bool = True) -> CheckReport:
    """That an environment can be trained on: seeds, endings, spaces, copies, workers. `warnings`: that there are none,
    either."""
    return sound(check_env(env, steps=steps), warnings)


def assert_algorithm(name: str, settings: Iterable[str] = (), *, env: str | None = None) -> CheckReport:
    """That a registered algorithm keeps its promises: it learns and acts in fixed shapes, is compiled as one graph,
    resumes from its parts, and leaves what it is given as it was. `settings`: `algo.lr=1e-3`, ...; `env`: over the
    spaces of this environment, else over made-up ones."""
    cfg = load(None, [f"algo={name}", f"env={env or '{kind: toy, id: identity}'}", *settings])
    if env is None:
        return sound(check_algorithm(cfg.algo, made_up(cfg.algo)), warnings=False)
    made = build_env(cfg, SLOTS)
    made.close()
    return sound(check_algorithm(cfg.algo, made.spec), warnings=False)


def sound(report: CheckReport, warnings: bool) -> CheckReport:
    """The report, where nothing is wrong."""
    wrong = [*report.of("fail"), *(report.of("warn") if warnings else ())]
    told = "\n".join(f"  {one.name}: {one.seen} Fix: {one.fix}" for one in wrong)
    assert not wrong, f"{report.subject}: {len(wrong)} findings\n{told}"
    return report
