"""Text that is meant to do harm: in folders, options, messages, saved configs and reports of episodes."""

from __future__ import annotations

import io
import json
import logging
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ganglion.cli import main
from ganglion.cli.text import MOST, complain, hear_warnings, say
from ganglion.cli.train import chooses

Captured = pytest.CaptureFixture[str]
ENV = "env={kind: gym, id: CartPole-v1, slots: 2, workers: 0, log_episodes: 1}"
ASK = ["train", "algo=ppo", "algo.horizon=8", "algo.net.hidden=[8]", "train.budget=160 steps", "eval=never",
       "log=[jsonl]", "run.fast=eager"]  # fmt: skip


def refused(*words: str) -> str:
    """What is said of bad input."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    said = err.getvalue()
    assert code == 2 and said.startswith("ganglion: ") and said.count("\n") == 1, (code, said, out.getvalue())
    assert "\x1b" not in said and "\0" not in said and len(said) < MOST + 100
    return said


# ------------------------------------------------------------ folders, options, wrappers


@pytest.mark.parametrize("name", [r'"a\0b"', r'"a\nb"', r'"a\eb"', r'"a\rb"', "x" * 300])
def test_folders_that_nothing_can_be_called(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "run.dir: " in refused(*ASK, ENV, f"run.dir={name}")
    assert "fleet.path: " in refused(*ASK, ENV, "run.mode=files", f"fleet.path={name}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["resume", "eval", "play", "replay", "explore"])
@pytest.mark.parametrize("name", ["a\0b", "a\nb", "\x1b[31mred", "\udcff", "x" * 5_000])
def test_arguments_that_are_no_folder(command: str, name: str) -> None:
    refused(command, name)


@pytest.mark.parametrize("key", ["self", "id", "no such option", "max_episode_steps"])
@pytest.mark.parametrize("workers", [0, 1])
def test_options_that_an_environment_does_not_take(key: str, workers: int, tmp_path: Path) -> None:
    words = [ENV, f"env.options={{{key}: 1}}", f"env.workers={workers}", f"run.dir={tmp_path / 'run'}"]
    assert "env.options: " in refused(*ASK, *words)


def test_settings_that_a_wrapper_does_not_take(tmp_path: Path) -> None:
    for wrapper in ("{noop: 4611686018427387904}", "{noop: true}", "{sticky: 2.0}", "{skip: 0}", "{flat: 1}", "noop"):
        assert "env.wrappers" in refused(*ASK, ENV, f"env.wrappers=[{wrapper}]", f"run.dir={tmp_path / 'run'}")


# ------------------------------------------------------------ messages


def test_escape_codes_are_shown_as_text(capsys: Captured) -> None:
    odd, shown = "\x1b[2Ja\rb\x07\u202ec\udcffd\x9b é 空\u3000白\n\tend", r"\x1b[2Ja\rb\x07\u202ec\udcffd\x9b é 空"
    complain(odd)
    say(odd)
    for told in capsys.readouterr():
        assert shown in told and told.endswith("\u3000白\n\tend\n")


def test_long_messages_are_clipped_in_the_middle(capsys: Captured) -> None:
    complain("begin " + "x" * 100_000 + " Continue with: ganglion resume")
    told = capsys.readouterr().err
    assert len(told) < MOST + 100 and told.startswith("ganglion: begin") and "Continue with: ganglion resume" in told


def test_warnings_are_treated_alike(capsys: Captured) -> None:
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        hear_warnings()
        logging.getLogger("ganglion.test").warning("%s", "\x1b[31m" + "x" * 100_000)
    finally:
        root.handlers = before
    told = capsys.readouterr().err
    assert told.startswith(r"ganglion: \x1b[31mxxx") and len(told) < MOST + 100


# ------------------------------------------------------------ saved configs


def test_a_saved_config_is_read_with_limits(tmp_path: Path) -> None:
    """Merge keys double with every line: a reader that follows them is never ready."""
    lines = ["k0: &k0 {a: 1}", *(f"k{i}: &k{i} {{<<: [*k{i - 1}, *k{i - 1}]}}" for i in range(1, 60))]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    assert "anchors and aliases are not accepted" in refused("resume", str(tmp_path))
    assert not chooses(str(tmp_path / "config.yaml"))


# ------------------------------------------------------------ reports of episodes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd") / "run"
    assert main([*ASK, ENV, f"run.dir={folder}"]) == 0
    return folder


def reports(run: Path) -> list[Path]:
    return sorted((run / "episodes").iterdir())


DAMAGE: dict[str, Any] = {
    "slot": [-1, 2**70, "0", None, 1.5, [], {}],
    "episode": [-1, 2**70, "x", None],
    "run_seed": [-1, 2**70, "x", None],
    "actions": [None, [], [[]] * 3, [["x"]], [[{}]], [[[1, 2], [3]]], [[10**40]], [1], "x", [[float("nan")]]],
    "acting": [None, "x"],
    "step": ["x", -1],
    "total": ["x", None],
    "error": [1, ["x"]],
    "kind": [None, 1],
    "name": [None, {}],
}


@pytest.mark.parametrize("key", DAMAGE)
def test_damaged_reports(key: str, run: Path, capsys: Captured) -> None:
    file = reports(run)[0]
    whole = file.read_bytes()
    try:
        for value in DAMAGE[key]:
            file.write_text(json.dumps({**json.loads(whole), key: value}))
            code = main(["replay", str(run), file.stem])
            told = capsys.readouterr().err
            assert code == 2 and ("damaged" in told or "cannot be replayed" in told), (value, code, told)
            assert main(["replay", str(run)]) == 0, "the others are listed"
            assert len(capsys.readouterr().out.splitlines()) == len(reports(run))
    finally:
        file.write_bytes(whole)
    assert main(["replay", str(run), file.stem]) == 0 and "The same as then." in capsys.readouterr().out


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"slot": ' + b"9" * 5_000 + b"}"]
)
def test_files_that_are_no_reports(content: bytes, run: Path, capsys: Captured) -> None:
    file = run / "episodes" / "9-9.json"
    file.write_bytes(content)
    try:
        assert "9-9.json is damaged" in refused("replay", str(run), "9-9")
        assert main(["replay", str(run)]) == 0 and "9-9" in capsys.readouterr().out
    finally:
        file.unlink()


def test_a_report_commands_no_terminal(run: Path, capsys: Captured) -> None:
    file = run / "episodes" / "9-9.json"
    told = json.loads(reports(run)[0].read_bytes())
    file.write_text(json.dumps({**told, "name": "9-9", "error": "\x1b[2J" + "x" * 10_000}))
    try:
        for words in (["replay", str(run)], ["replay", str(run), "9-9"]):
            assert main(words) == 0
            assert "\x1b" not in capsys.readouterr().out
    finally:
        file.unlink()
