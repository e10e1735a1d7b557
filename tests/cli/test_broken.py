"""Generated broken configs: exit code 2, one message, no traceback, nothing imported or executed."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ganglion.cli import main
from tests.config.sketches import TEXT

VALID: dict[str, Any] = {
    "algo": {
        "kind": "sketch",
        "lr": 0.001,
        "steps": 1,
        "double": True,
        "loss": "huber",
        "epsilon": {"kind": "linear", "start": 1.0, "end": 0.1, "until": 0.5},
        "net": {"kind": "wide", "hidden": [64, 64], "activation": "relu"},
        "store": {"kind": "ranked", "capacity": 1000, "alpha": 0.5, "beta": 0.4},
        "pace": {"opt_interval": 10.0, "warmup": "1k"},
    },
    "env": {"kind": "world", "id": "World-v1", "slots": 4},
    "train": {"budget": "10k steps", "target": 475.0},
    "eval": {"every": "5k steps", "episodes": 20},
    "save": {"every": "10k steps", "keep": 3},
    "log": {"every": "1k steps", "writers": [{"kind": "paper", "lines": 3}, "drum"]},
    "run": {"seed": 0, "device": "cpu", "mode": "local", "name": "x", "threads": 1, "fast": "eager"},
}
HOLE = "__hole__"  # where raw YAML goes
SENTINEL = "executed-by-a-config"


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a tree."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in inner for place in paths(item, (*at, key)))]


PLACES = [place for place in paths(VALID) if place]
MAPPINGS = [place for place in paths(VALID) if isinstance(reduce(lambda value, key: value[key], place, VALID), dict)]


def changed(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The valid config with one place replaced, or added."""
    tree: dict[str, Any] = json.loads(json.dumps(VALID))
    here: Any = tree
    for key in place[:-1]:
        here = here[key]
    here[place[-1]] = value
    return tree


def written(place: tuple[Any, ...], raw: str) -> str:
    """A file whose `place` holds raw YAML."""
    return json.dumps(changed(place, HOLE)).replace(f'"{HOLE}"', raw) + "\n"


WRONG = st.sampled_from(
    ["{'§': 1}", "[[1]]", ".nan", "[.nan]", "[null, {a: 1}]", "{kind: nothing}", "{kind: 3}", "{kind: [a]}"]
)
HUGE = st.one_of(
    st.integers(25, 6_000).map(lambda digits: "9" * digits),
    st.integers(400, 99_999).map(lambda exponent: f"1e{exponent}"),
    st.integers(400, 999).map(lambda exponent: f"-1e{exponent}"),
    st.just("x" * 1_000_001),
    st.just("[" + "0," * 100_001 + "]"),
)
DEEP = st.integers(21, 5_000).flatmap(
    lambda n: st.sampled_from(["[" * n + "]" * n, "{a: " * n + "1" + "}" * n, "[" * n, "{" * n, "- " * n])
)
CALLS = [
    f"!!python/object/apply:os.system ['touch {SENTINEL}']",
    f"!!python/object/apply:subprocess.check_output [[touch, {SENTINEL}]]",
    f"!!python/object/new:os.system ['touch {SENTINEL}']",
    "!!python/name:os.system ''",
    "!!python/module:antigravity ''",
    f"!<tag:yaml.org,2002:python/object/apply:builtins.eval> [\"open('{SENTINEL}', 'w')\"]",
    "!!python/tuple [1]",
    "!!binary aGVsbG8=",
    "!!set {a}",
    "!!timestamp 2024-01-01",
    "!custom {a: 1}",
    "! 1",
]
BOMB = (
    "{a: &a [x,x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], d: [*c,*c,*c]}"
)
TRICKS = st.sampled_from(
    [*CALLS, BOMB, "&a [*a]", "*missing", "&anchor 1", "{<<: *x}", "{a: 1, a: 2}", "{? [a] : b}", "%TAG ! x"]
)
KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).map(lambda text: f"§{text}")
NAMES = st.sampled_from(
    ["__class__", "__import__('os')", "os.system", "lr ", "LR", "kind.x", "model_config", "family", "build"]
)


def files() -> st.SearchStrategy[bytes]:
    """Files, each wrong in at least one way."""
    raw = st.builds(written, st.sampled_from(PLACES), WRONG | HUGE | DEEP | TRICKS)
    keys = st.builds(lambda at, key: json.dumps(changed((*at, key), 1)), st.sampled_from(MAPPINGS), KEYS | NAMES)
    repeated = st.sampled_from(list(VALID)).map(lambda key: f"{TEXT}\n{key}: 1\n{key}: 2\n")
    noise = st.binary(max_size=200) | st.text(st.characters(codec="utf-8"), max_size=200).map(str.encode)
    cut = st.integers(0, len(json.dumps(VALID)) - 1).map(lambda n: json.dumps(VALID)[:n].encode())
    return st.one_of((raw | keys | repeated).map(str.encode), noise, cut)


# ------------------------------------------------------------ watching what the interpreter does

HEARD: list[str] = []
listening = False


def hear(event: str, args: tuple[Any, ...]) -> None:
    if listening and event in (
        "import",
        "exec",
        "compile",
        "os.system",
        "subprocess.Popen",
        "os.exec",
        "os.posix_spawn",
    ):
        HEARD.append(f"{event} {args[:1]!r}")


def check_refused(argv: list[str]) -> None:
    """Runs a command and asks for one message, exit code 2, and a quiet interpreter."""
    global listening
    out, err = io.StringIO(), io.StringIO()
    HEARD.clear()
    listening = True
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(argv)
    finally:
        listening = False
    message = err.getvalue()
    assert code == 2, (code, out.getvalue()[:500], message)
    assert out.getvalue() == ""
    assert message.startswith("ganglion: ") and message.endswith("\n")
    assert message.count("ganglion: ") == 1 and "Traceback" not in message
    assert len(message) < 5_000, "a message is to be read"
    assert HEARD == []


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What refusals import once (difflib, ...) is imported here; afterwards nothing may be."""
    sys.addaudithook(hear)
    for words in (["algo=sketch", "env=world"], [f"env={{kind: {kind}}}" for kind in ("gym", "torch", "toy")]):
        main(["show", *words])  # the package's own modules, among them the writers of the default log
    assert main(["show", "algo=sketch", "env=world", "log=[paper]"]) == 0
    for words in (["algo.lr=x"], ["algo.net=x"], ["algo.x=1"], ["algo.loss=x"], ["x=["]):
        assert main(["show", "algo=sketch", "env=world", "log=[paper]", *words]) == 2


def check_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.yaml").write_bytes(content)
    check_refused(["show", str(tmp_path / "broken.yaml")])
    assert not Path(SENTINEL).exists()


QUICK = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
LONG = settings(max_examples=2_000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def test_the_config_that_is_broken_below_is_valid(tmp_path: Path) -> None:
    (tmp_path / "valid.yaml").write_text(json.dumps(VALID))
    assert main(["show", str(tmp_path / "valid.yaml")]) == 0


@QUICK
@given(content=files())
def test_broken_files(tmp_path: Path, content: bytes) -> None:
    check_file(tmp_path, content)


@QUICK
@given(
    place=st.sampled_from([p for p in PLACES if all(isinstance(k, str) for k in p)]), raw=WRONG | HUGE | DEEP | TRICKS
)
def test_broken_overrides(tmp_path: Path, place: tuple[str, ...], raw: str) -> None:
    (tmp_path / "valid.yaml").write_text(json.dumps(VALID))
    check_refused(["show", str(tmp_path / "valid.yaml"), f"{'.'.join(place)}={raw}"])


@pytest.mark.soak
@LONG
@given(content=files())
def test_two_thousand_broken_files(tmp_path: Path, content: bytes) -> None:
    check_file(tmp_path, content)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("place", [("algo",), ("algo", "lr"), ("env", "id"), ("run", "name"), ("log", "writers")])
def test_nothing_is_ever_called(place: tuple[str, ...], call: str, tmp_path: Path) -> None:
    check_file(tmp_path, written(place, call).encode())


@pytest.mark.parametrize(
    "kind", ["os.system", "subprocess.Popen", "tests.config.sketches", "__main__", "ganglion.algos.dqn", ""]
)
def test_a_kind_is_a_name_and_never_a_module(kind: str, tmp_path: Path) -> None:
    check_file(tmp_path, written(("algo", "kind"), json.dumps(kind)).encode())
