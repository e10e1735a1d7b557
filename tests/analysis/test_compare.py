"""`compare` and `show RUN` on runs made up for it: what is shown, what is refused, what is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ganglion.analysis.compare import compare
from ganglion.analysis.runs import find_runs, grouped
from ganglion.analysis.terminal_plot import plot
from ganglion.cli import main


def make(folder: Path, algo: str, seed: int, returns: list[float], env: str = "CartPole-v1", lr: float = 0.1) -> Path:
    folder.mkdir(parents=True)
    config = (
        f"algo: {{kind: {algo}, lr: {lr}}}\nenv: {{kind: gym, id: {env}}}\nrun: {{seed: {seed}, name: {folder.name}}}\n"
    )
    (folder / "config.yaml").write_text(config)
    lines = [
        {"kind": "evaluate", "env_steps": 1000 * (k + 1), "opt_steps": k, "seconds": k + 1.0, "eval/return_mean": r}
        for k, r in enumerate(returns)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Path:
    for seed in range(6):
        make(tmp_path / f"good-{seed}", "ppo", seed, [10, 100 + seed])
        make(tmp_path / f"poor-{seed}", "ppo", seed, [10, 50 + seed], lr=0.2)
    return tmp_path


def test_seeds_are_one_group_and_differences_are_named(study: Path) -> None:
    found = compare(find_runs([str(study)]))
    assert [(one.name, one.runs) for one in found.groups] == [
        ("CartPole-v1/ppo lr=0.1", 6),
        ("CartPole-v1/ppo lr=0.2", 6),
    ]
    assert found.apart == {"algo.lr": [0.1, 0.2]}
    (pair,) = found.pairs
    assert pair.chance == 1.0 and pair.gap == pytest.approx(50.0)
    assert "lr=0.1 is better than" in pair.verdict


def test_alike_runs_are_not_told_apart(tmp_path: Path) -> None:
    for seed, (a, b) in enumerate([(1, 2), (5, 4), (3, 3), (9, 8), (2, 5), (7, 7)]):
        make(tmp_path / f"a{seed}", "ppo", seed, [a])
        make(tmp_path / f"b{seed}", "dqn", seed, [b])
    (pair,) = compare(find_runs([str(tmp_path)])).pairs
    assert "cannot be told apart" in pair.verdict


def test_several_tasks_are_scaled_each_by_itself(tmp_path: Path) -> None:
    for seed in range(3):
        for task, scale in (("A-v0", 1), ("B-v0", 1000)):
            make(tmp_path / f"x-{task}-{seed}", "ppo", seed, [scale * (10 + seed)], task)
            make(tmp_path / f"y-{task}-{seed}", "dqn", seed, [scale * (5 + seed)], task)
    found = compare(find_runs([str(tmp_path)]))
    assert found.tasks == ["A-v0", "B-v0"] and [one.name for one in found.groups] == ["ppo", "dqn"]
    assert found.groups[0].scaled.max() == 1.0 and found.groups[1].scaled.min() == 0.0
    assert found.groups[0].figures["iqm"][0] > found.groups[1].figures["iqm"][0]


def test_the_command(study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", str(study)]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 or "better" in line for line in out.splitlines())
    assert "is better than" in out and "algo.lr" in out
    assert main(["compare", str(study), "--json", "--which", "best"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["iqm"][0] == pytest.approx(102.5)
    assert main(["compare", str(study), "--metric", "learn/loss"]) == 2
    assert "eval/return_mean" in capsys.readouterr().err
    assert main(["compare", str(study / "nowhere")]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_a_picture(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["compare", str(study), "--plot", str(study / "curves.svg")]) == 0
    assert (study / "curves.svg").read_text().startswith("<?xml")
    assert main(["compare", str(study), "--plot", "curves.doc"]) == 2
    assert ".png" in capsys.readouterr().err


def test_a_run_is_shown_while_it_trains_and_where_it_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "run", "ppo", 3, [1.0, 2.0, 5.0])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('not json\n{"kind": "record", "env_steps": 3500, "learn/loss": "nan"}\n{"kind": "eval')
    assert main(["show", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "seed 3" in out and "last 5, best 5, 3 values" in out and "1 lines of metrics could not be read" in out
    assert main(["show", str(folder), "--metric", "learn/los"]) == 2
    assert "learn/loss" in capsys.readouterr().err
    assert main(["show", str(make(tmp_path / "new", "ppo", 0, []))]) == 0
    assert "nothing to plot yet" in capsys.readouterr().out


def test_groups_need_no_names(tmp_path: Path) -> None:
    make(tmp_path / "one", "ppo", 0, [1.0])
    make(tmp_path / "two", "ppo", 1, [2.0])
    (group,) = grouped(find_runs([str(tmp_path / "one"), str(tmp_path / "two")]))
    assert [run.seed for run in group.runs] == [0, 1]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_plot_keeps_its_width(width: int) -> None:
    lines = plot([([0, 1, 2], [0.0, 5.0, float("nan")]), ([0, 2], [1.0, 2.0])], ["a", "b"], width)
    assert max(map(len, lines)) <= width
    assert plot([([1], [2.0])], width=width)[0].strip()
