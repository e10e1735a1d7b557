"""What `ganglion data` and `ganglion check DATA` say of datasets that were made to be looked at."""

from __future__ import annotations

import json
from math import log
from pathlib import Path

import pytest
import torch

from ganglion.cli import main
from ganglion.core import Box, Discrete, EnvSpec
from ganglion.data import files
from ganglion.data.check_data import check_data
from ganglion.data.dataset import Dataset, episode, joined
from ganglion.data.report import lines, report
from tests.data.test_files import NESTED, made, several

SPEC = EnvSpec(Box((2,)), Discrete(4), name="Choices-v0")


def choices(actions: list[int], p: float = 0.25) -> Dataset:
    """An episode for each action, of one step, whose reward is the action; the second observed number never changes."""
    parts = [
        Dataset(SPEC, episode(torch.tensor([[k, 7.0], [k + 0.5, 7.0]]), torch.tensor([a]), torch.tensor([float(a)]),
                              k % 3 == 0, {"logp": torch.tensor([log(p)])}))
        for k, a in enumerate(actions)
    ]  # fmt: skip
    return joined(parts)


def test_what_is_in_it(tmp_path: Path) -> None:
    files.write(tmp_path / "d", choices([0, 0, 1, 3]))
    found = report(tmp_path / "d")
    assert found.episodes == 4 and found.steps == 4 and found.terminated == 2
    assert found.returns.tolist() == [0, 0, 1, 3] and found.lengths.tolist() == [1, 1, 1, 1]
    (action,) = found.actions
    assert action.shares == (0.5, 0.25, 0.0, 0.25) and action.covered == 0.75
    assert action.entropy == pytest.approx(1.5 * log(2))
    assert found.surprise == pytest.approx(log(4), abs=1e-6) and found.still == ("obs[1]",)
    text = "\n".join(lines(found))
    assert "4: 2 terminated, 2 cut" in text and "broken    no rows" in text


def test_real_actions_by_component(tmp_path: Path) -> None:
    files.write(tmp_path / "d", made(NESTED))
    first, second = report(tmp_path / "d").actions
    assert first.name == "action[0]" and first.beyond == 0 and first.covered <= 0.5, "they are from 0 to 1"
    assert sum(second.shares) == pytest.approx(1)


def test_broken_rows_are_counted_by_kind(tmp_path: Path) -> None:
    data = choices([0, 1, 2])
    data.rows.reward[2], data.rows.action[4] = float("nan"), 9
    files.write(tmp_path / "d", data)
    assert report(tmp_path / "d").broken == {"a reward that is not finite": 1, "action outside of Discrete(n=4)": 1}
    verdicts = {f.name: f.verdict for f in check_data(tmp_path / "d").findings}
    assert verdicts["rows"] == "fail" and not check_data(tmp_path / "d").passed


def test_damaged_blocks_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several(tmp_path / "d", monkeypatch).write_bytes(b"short")
    found = report(tmp_path / "d")
    assert found.episodes == 2 and "block-000001.safetensors is damaged" in found.damaged[0]
    assert not check_data(tmp_path / "d").passed


def test_a_time_limit_called_a_termination_is_noticed(tmp_path: Path) -> None:
    one = episode(torch.randn(9, 2), torch.arange(8) % 4, torch.ones(8), True, {})
    files.write(tmp_path / "d", joined([Dataset(SPEC, one), Dataset(SPEC, one)]))
    found = {f.name: f for f in check_data(tmp_path / "d").findings}
    assert found["endings"].verdict == "warn" and "timeouts" in found["endings"].fix
    assert found["returns"].verdict == "warn" and found["coverage"].verdict == "pass"


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(tmp_path / "d", choices([0, 1, 2, 3]))
    assert main(["data", str(tmp_path / "d"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 4
    pytest.importorskip("matplotlib", reason="pictures are of the plot extra")
    assert main(["data", str(tmp_path / "d"), "--out", str(tmp_path / "d.png")]) == 0
    assert (tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")
    assert main(["check", str(tmp_path / "d")]) == 0
    assert main(["check", str(tmp_path / "missing.npz")]) == 1
    assert "is not there" in capsys.readouterr().out
    assert main(["data", str(tmp_path / "missing")]) == 2


def test_several_checkpoints_have_equal_parts() -> None:
    from ganglion.cli.parser import parse
    from ganglion.cli.record import parts

    args = parse(["record", "run", "--out", "d", "--episodes", "5", "--checkpoint", "0-20", "--checkpoint", "last"])
    assert parts(args) == [(2, 0, "0-20"), (3, 1, "last")]
