"""Reports: whole, harmless whatever a run is called, of damaged and unfinished runs too."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from ganglion.analysis import svg
from ganglion.analysis.report import card, facts, html, markdown
from ganglion.analysis.runs import find_runs
from ganglion.cli import main
from tests.analysis.test_compare import make

EVIL = "<script>alert(1)</script>|x"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for seed in range(3):
        make(tmp_path / f"good-{seed}", "ppo", seed, [10, 100 + seed, 120])
        make(tmp_path / f"poor-{seed}", "ppo", seed, [10, 50 + seed, 60], lr=0.2)
    return tmp_path


def test_a_page_needs_nothing_else(study: Path) -> None:
    text = html(facts(find_runs([str(study)])))
    assert not re.search(r"<script|https?://|src=|<link|@import|url\(", text)
    assert "is better than" in text and "algo.lr" in text and text.count("<svg") == 2  # curves, profiles
    assert text.count("<details>") == 6
    picture = ElementTree.fromstring(re.findall(r"<svg.*?</svg>", text)[0])
    assert len(picture.findall("polyline")) == 2 and len(picture.findall("polygon")) == 2


def test_names_are_text(tmp_path: Path) -> None:
    make(tmp_path / "a", "ppo", 0, [1, 2], env=f'"{EVIL}"')
    for text in (html(found := facts(find_runs([str(tmp_path)]))), markdown(found)):
        assert "<script>" not in text.replace("\\<script", "")
    assert EVIL not in markdown(found)


def test_curves_are_where_they_should_be() -> None:
    """The first and the last point, and the highest, in the corners of the plot."""
    line = svg.Line("a", "#000", [0, 50, 100], [0.0, 10.0, 5.0])
    (shape,) = ElementTree.fromstring(svg.chart([line], 400, 200)).findall("polyline")
    points = [tuple(map(float, pair.split(","))) for pair in str(shape.get("points")).split()]
    assert points[0][0] == svg.LEFT and points[-1][0] == 400 - svg.RIGHT
    assert points[0][1] > points[2][1] > points[1][1]
    assert points[0][1] <= 200 - svg.BOTTOM and points[1][1] >= svg.TOP
    assert svg.ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert svg.ticks(-0.3, 0.31, 5)[0] == pytest.approx(-0.2)


def test_runs_that_are_not_whole(tmp_path: Path) -> None:
    nan = make(tmp_path / "nan", "ppo", 0, [1.0, 2.0])
    with open(nan / "metrics.jsonl", "a") as file:
        file.write('{"kind": "record", "env_steps": 9, "learn/loss": "nan"}\n{"kind": \n')
    empty = make(tmp_path / "empty", "ppo", 1, [])
    text = html(facts(find_runs([str(tmp_path)])))
    assert "not finite" in text and "could not be read" in text
    assert "nothing" in html(facts(find_runs([str(empty)]))) or "has no" in html(facts(find_runs([str(empty)])))


def test_a_card_is_what_the_hub_reads(study: Path) -> None:
    (run,) = find_runs([str(study / "good-0")])
    head, _, body = card(run).removeprefix("---\n").partition("\n---\n")
    meta = yaml.safe_load(head)
    (result,) = meta["model-index"][0]["results"]
    assert result["metrics"][0]["value"].startswith("120.00 +/-")
    assert "CartPole-v1" in meta["tags"] and "ganglion.load" in body


def test_the_command(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(study)]) == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert main(["report", str(study), "--out", "x.md"]) == 0
    assert "| group |" in (tmp_path / "x.md").read_text()
    capsys.readouterr()
    for words, told in (
        ([str(study), "--out", "x.pdf"], ".html or .md"),
        ([str(study), "--out", "no/x.md"], "cannot be written"),
        ([str(study), "--card"], "one run has a card"),
        ([str(study), "--metric", "eval/return_mea"], "Did you mean 'eval/return_mean'?"),
        ([str(tmp_path / "nowhere")], "is not the folder of a run"),
    ):
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1
