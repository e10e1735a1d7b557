"""`check_env` finds each fault of a zoo of broken environments, and none in sound ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ganglion
from ganglion.cli import main
from ganglion.envs import GymConfig, ToyConfig
from ganglion.envs.check import cost
from ganglion.envs.check.rows import problem
from tests.envs import broken, broken_tensors

STEPS = 400
ROOT = Path(__file__).parents[2]


FOLLOWS = {  # what cannot but follow from a fault
    "ResetsItself": {"repeats"},  # its own reset has no seed
    "LineUnseeded": {"autoreset"},
    "LineNeverDead": {"episodes"},
}


@pytest.mark.parametrize("case", broken.BROKEN + broken_tensors.CONTRACT, ids=lambda case: case[0].__name__)
def test_each_fault_is_named_and_no_other(case: tuple[Any, str, str, str]) -> None:
    world, verdict, name, word = case
    report = ganglion.check_env(world, steps=STEPS)
    found = {f.name: f for f in report.findings}
    assert name in found, report
    assert found[name].verdict == verdict and word in found[name].seen, report
    assert found[name].fix
    assert report.passed == (verdict != "fail"), report
    others = {f.name for f in report.findings if f.verdict != "pass"} - {name}
    assert others <= FOLLOWS.get(world.__name__, set()), report


def test_a_sound_environment_of_your_own() -> None:
    for world in (broken.Sound, broken.Masked, broken_tensors.Line):
        report = ganglion.check_env(world, steps=STEPS)
        assert not report.of("warn") and not report.of("fail"), report


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3"])
def test_real_environments_pass(name: str) -> None:
    if name.startswith("Lunar"):
        pytest.importorskip("Box2D")
    report = ganglion.check_env(name, steps=800)
    assert not report.of("warn") and not report.of("fail"), report


@pytest.mark.parametrize("name", ["identity", "chain", "bandit", "memory", "masked", "truncation"])
def test_toys_pass(name: str) -> None:
    report = ganglion.check_env(ToyConfig.model_validate({"id": name}), steps=STEPS)
    assert not report.of("warn") and not report.of("fail"), report


def test_configs_are_checked_as_they_would_be_built() -> None:
    report = ganglion.check_env(GymConfig(id="CartPole-v1", keep=(0, 2), time_limit=7, frame_stack=3), steps=STEPS)
    assert not report.of("warn") and not report.of("fail"), report
    (endings,) = (f for f in report.findings if f.name == "endings")
    assert "truncated" in endings.seen and "7 to 7" in endings.seen


def test_the_leak_names_its_line() -> None:
    (memory,) = (f for f in ganglion.check_env(broken.Leaks, steps=STEPS).findings if f.name == "memory")
    line = next(i for i, text in enumerate(Path(broken.__file__).read_text().splitlines(), 1) if "8 kB a step" in text)
    assert f"broken.py, line {line}" in memory.fix
    grown = float(memory.seen.split("by ")[1].split(" kB")[0].replace(",", ""))
    assert 7_000 < grown < 9_500  # 8 kB a step


def test_an_exception_names_its_line_seed_and_action() -> None:
    (calls,) = (f for f in ganglion.check_env(broken.Raises, steps=STEPS).findings if f.name == "calls")
    assert "step(" in calls.seen and "the 17. of episode seed" in calls.seen and "broken.py, line" in calls.fix


def test_what_close_raises_is_said() -> None:
    class Stuck(broken.Sound):
        def close(self) -> None:
            raise OSError("port 5005 is gone")

    (close,) = ganglion.check_env(Stuck, steps=300).of("warn")
    assert close.name == "close" and "port 5005" in close.seen


def test_every_copy_is_closed() -> None:
    count = [0, 0]

    class Counted(broken.Sound):
        def __init__(self) -> None:
            count[0] += 1

        def close(self) -> None:
            count[1] += 1

    assert ganglion.check_env(Counted, steps=300).passed
    assert count[1] == count[0] > 5


def test_large_observations_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from ganglion.envs.check import check_env

    monkeypatch.setattr(check_env, "ROOM", 100 * 8)  # a hundred of these
    (calls,) = (f for f in ganglion.check_env(broken.Sound, steps=500).findings if f.name == "calls")
    assert "100 calls" in calls.seen


def test_times_in_plain_words() -> None:
    assert cost.span(3e-5) == "30 us" and cost.span(0.25) == "250 ms" and cost.span(600.0) == "10 min"
    assert cost.speed(cost.Pace(1e-5, 1e-3, 1e-5, 1e-5)).verdict == "pass"
    assert cost.speed(cost.Pace(0.1, 0.1, 0.1)).verdict == "warn"
    assert "mostly resets" in cost.speed(cost.Pace(1e-4, 1.0, 1e-4, 5e-3)).seen
    assert "mostly resets" not in cost.speed(cost.Pace(1e-4, 1.0, 5e-3)).seen  # uneven steps, few resets


def test_bounds_allow_for_rounding() -> None:
    import numpy as np
    from gymnasium import spaces

    box = spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert problem(box, np.array([1.0000002], np.float32)) is None
    assert problem(box, np.array([1.01], np.float32)) is not None


# ------------------------------------------------------------ the command

Captured = pytest.CaptureFixture[str]


def test_the_command_says_pass(capsys: Captured) -> None:
    assert main(["check", "CartPole-v1", "--steps", "300"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("CartPole-v1: Box[4] float32 -> Discrete(2), limit 500")
    assert lines[-1] == "CartPole-v1 passed: nothing to mend"
    assert all(line.startswith("pass  ") for line in lines[1:-1])


def test_the_command_says_fail(capsys: Captured) -> None:
    assert main(["check", "tests.envs.broken:OutOfBounds", "--steps", "300", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is False and report["subject"] == "OutOfBounds"
    assert {f["name"]: f["verdict"] for f in report["findings"]}["observation"] == "fail"


def test_presets_overrides_and_kinds(capsys: Captured) -> None:
    assert main(["check", "cartpole/dqn", "env.time_limit=9", "--steps", "300"]) == 0
    assert "limit 9" in capsys.readouterr().out
    assert main(["check", "toy:chain", "env.size=4", "--steps", "300"]) == 0
    assert "Box[4]" in capsys.readouterr().out
    assert main(["check", "env={kind: toy, id: bandit}", "--steps", "300"]) == 0
    assert main(["check", "tests.envs.broken:Sound", "env.time_limit=5", "--steps", "300"]) == 0
    assert "limit 5" in capsys.readouterr().out


def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["check", "tests.envs.broken:OutOfBounds", "--steps", "100"]) == 1
    out = capsys.readouterr().out
    assert "fix: widen the bounds" in out and "OutOfBounds failed: 1 failure" in out


def test_a_class_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worlds_of_mine.py").write_text("from tests.envs.broken import Sound as Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", "worlds_of_mine.py:Mine", "--steps", "100"]) == 0


def test_vector_and_old_environments() -> None:
    import gymnasium

    report = ganglion.check_env(lambda: gymnasium.make_vec("CartPole-v1", 2, "vector_entry_point"), steps=400)
    assert report.passed and "2 slots" in report.about, report

    class Old:
        def reset(self) -> int:
            return 0

        def step(self, action: int) -> Any:
            return 0, 0.0, False, {}

    (old,) = ganglion.check_env(Old).findings
    assert "OldGym" in old.fix


def test_registered_by_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_worlds.py").write_text(
        "import gymnasium\nfrom tests.envs.broken import Sound\ngymnasium.register('Own-v0', Sound)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", "Own-v0", "--import", "own_worlds", "--steps", "300"]) == 0
    assert capsys.readouterr().out.startswith("Own-v0: ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "nothing to check"),
        (["CartPole-v9"], "gymnasium has no environment 'CartPole-v9'"),
        (["cartpole/dqn", "env.nothing=1"], "env.nothing"),
        (["tests.envs.broken:Sond"], "has no class or function 'Sond'. Did you mean 'Sound'?"),
        (["no.such.module:Env"], "no.such.module failed: ModuleNotFoundError"),
        (["tests.envs.broken:NotAnEnv", "env.time_limit=3"], "settings need a subclass of gymnasium.Env"),
        (["CartPole-v1", "--steps", "3"], "--steps should be between"),
        (["CartPole-v1", "--seed", "-1"], "--seed should be between"),
        (["CartPole-v1", "--seconds", "0"], "--seconds should be between"),
    ],
)
def test_bad_input_is_one_message(argv: list[str], message: str, capsys: Captured) -> None:
    assert main(["check", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err
