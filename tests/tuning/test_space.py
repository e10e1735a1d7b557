"""What is searched, by types and ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ganglion
from ganglion import registry
from ganglion.errors import UserError
from ganglion.tuning.space import OneOf, Range, asked, changed, space_of, value_at, values_of
from tests.tuning.inline import base


def test_ranges_follow_the_types() -> None:
    space = space_of(ganglion.load_config("cartpole/ppo"))
    assert space["algo.lr.start"] == Range(1e-5, 1e-1, "log")  # whatever stands there: it may be wrong
    assert space["algo.gamma"].scale == "from one"  # type: ignore[union-attr]
    assert space["algo.horizon"] == Range(8, 128, "log", whole=True)
    assert "algo.entropy" not in space  # 0: what is off stays off
    assert "algo.max_kl" not in space and "algo.net.hidden" not in space
    wrong = space_of(ganglion.load_config("cartpole/ppo", ["algo.lr.start=1e-7"]))
    assert wrong["algo.lr.start"] == Range(1e-7, 1e-1, "log")


@pytest.mark.parametrize("name", registry.names("algo"))
def test_every_end_of_every_range_is_accepted(name: str) -> None:
    """Of each algorithm's defaults: nothing is searched that the config would refuse."""
    cfg = base()
    raw = cfg.plain() | {"algo": {"kind": name}}
    try:
        if registry.lookup("algo", name).model_fields.get("inner"):  # around another algorithm
            raw["algo"]["inner"] = {"kind": "dqn"}
        cfg = ganglion.load_config(raw)
    except UserError as error:
        pytest.skip(f"has no defaults here: {error}")
    for path, one in space_of(cfg).items():
        for unit in (0.0, 1.0):
            try:
                assert value_at(changed(cfg, {path: one.value(unit)}), path) == one.value(unit), path
            except UserError as error:  # what does not go with another setting is a trial that failed
                assert not str(error).startswith(path), error


@given(st.floats(0, 1), st.sampled_from([Range(1e-5, 1e-1, "log"), Range(0.8, 0.999, "from one"), Range(-3, 5)]))
def test_coordinates_and_back(unit: float, one: Range) -> None:
    value = one.value(unit)
    assert one.low <= value <= one.high
    assert one.unit(value) == pytest.approx(unit, abs=0.01)  # three digits


def test_whole_numbers_and_choices() -> None:
    assert {Range(1, 4, "log", whole=True).value(k / 100) for k in range(101)} == {1, 2, 3, 4}
    one = OneOf(([64], [64, 64]))
    assert [one.value(unit) for unit in (0, 0.49, 0.5, 1)] == [[64], [64], [64, 64], [64, 64]]
    assert one.value(one.unit([64, 64])) == [64, 64]


def test_what_is_asked_for() -> None:
    cfg = ganglion.load_config("cartpole/ppo")
    space = asked(cfg, ["algo.lr.start=1e-4..1e-2", "algo.epochs=[4, 10]", "algo.gamma", "env.slots=4..16"])
    assert list(space) == ["algo.lr.start", "algo.epochs", "algo.gamma", "env.slots"]
    assert space["algo.lr.start"] == Range(1e-4, 1e-2, "log") and space["env.slots"] == Range(4, 16, whole=True)
    assert values_of(cfg, space) == {"algo.lr.start": 1e-3, "algo.epochs": 20, "algo.gamma": 0.98, "env.slots": 8}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algo.lrr=1e-5..1e-3", "Did you mean 'lr'?"),
        ("algo.gamma=0.9..1.5", "algo.gamma: should be less than or equal to 1, got 1.5"),
        ("algo.gama", "Did you mean 'algo.gamma'?"),
        ("algo.epochs=[4]", "should be PATH=LOW..HIGH or PATH=[A, B, ...]"),
        ("algo.lr.start=1e-2..1e-4", "should rise from LOW to HIGH"),
        ("algo.lr.start=a..b", "with two numbers"),
    ],
)
def test_refusals(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace("[", r"\[").replace("?", r"\?")):
        asked(ganglion.load_config("cartpole/ppo"), [word])
