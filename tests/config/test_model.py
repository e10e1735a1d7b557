"""Frozen configs, families and kinds."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ganglion import registry
from ganglion.config import NetConfig, RunConfig, linear, register
from ganglion.errors import UserError
from tests.config.sketches import Deep, Drum, Pace, Paper, Ranked, Sketch, Store, Wide, World


def algo(**settings: Any) -> Sketch:
    found = RunConfig.model_validate({"algo": {"kind": "sketch", **settings}, "env": "world", "log": ["paper"]}).algo
    assert isinstance(found, Sketch)
    return found


def test_configs_never_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Sketch().lr = 0.5  # type: ignore[misc]
    assert hash(Sketch()) == hash(Sketch())


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        ("wide", Wide(hidden=(120, 84), activation="tanh")),
        ({"hidden": [32]}, Wide(hidden=(32,), activation="tanh")),
        ({"kind": "wide", "hidden": [32]}, Wide(hidden=(32,), activation="tanh")),
        ("deep", Deep()),
        ({"kind": "deep", "layers": 5}, Deep(layers=5)),
        (Deep(layers=7), Deep(layers=7)),
    ],
)
def test_ways_to_choose_a_part(net: object, expected: NetConfig) -> None:
    assert algo(net=net).net == expected


def test_what_a_mapping_does_not_name_keeps_its_default() -> None:
    changed = algo(pace={"warmup": "2k"}, epsilon={"end": 0.1}, store={"capacity": "1k"})
    assert changed.pace == Pace(opt_interval=10.0, warmup=2_000)
    assert changed.epsilon == linear(1.0, 0.1, until=0.5)
    assert changed.store == Store(capacity=1_000)


def test_a_field_of_a_concrete_class_takes_its_descendants() -> None:
    assert algo(store={"kind": "ranked", "beta": {"start": 0.5}}).store == Ranked(beta=linear(0.5, 1.0))
    with pytest.raises(ValidationError, match="unknown buffer 'deep'"):
        algo(store="deep")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lrr": 1}, r"unknown key of algo 'sketch'. Accepted: bonus, resets, lr, steps, .*Did you mean 'lr'"),
        ({"net": {"hiden": [1]}}, r"Did you mean 'hidden'"),
        ({"net": "wyde"}, r"unknown net 'wyde'. Accepted: mlp, .*Did you mean 'wide'"),
        ({"lr": "fast"}, "valid number"),
        ({"lr": True}, "valid number"),
        ({"lr": float("nan")}, "finite"),
        ({"lr": -1.0}, "greater than 0"),
        ({"steps": 1.0}, "valid integer"),
        ({"steps": "1"}, "valid integer"),
        ({"double": 1}, "valid boolean"),
        ({"net": 3}, "needs a kind"),
        ({"pace": 3}, "mapping"),
        ({"net": Drum()}, "instance of NetConfig"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        algo(**settings)


def test_plain_values_say_their_kind_first() -> None:
    plain = Sketch().plain()
    assert list(plain)[:4] == ["kind", "bonus", "resets", "lr"]
    assert plain["net"] == {"kind": "wide", "hidden": [120, 84], "activation": "tanh"}
    assert plain == Sketch().model_dump()


def test_sections_and_their_short_forms() -> None:
    config = RunConfig.model_validate(
        {
            "algo": "sketch",
            "env": {"kind": "world", "slots": 2},
            "eval": "never",
            "save": "10 min",
            "log": ["paper", "drum"],
        }
    )
    assert (config.eval.every.unit, str(config.save.every), config.save.keep) == ("never", "10 min", 3)
    assert config.log.writers == (Paper(), Drum())
    assert config.env == World(slots=2)
    assert config.title == "World-v0-sketch"


@pytest.mark.parametrize(
    ("family", "name", "error"),
    [
        ("net", "mlp", "ganglion.nn.nets has"),
        ("net", "wide", "tests.config.sketches has"),
        ("nett", "x", "Did you mean 'net'"),
    ],
)
def test_names_that_are_taken(family: str, name: str, error: str) -> None:
    class Other(NetConfig):
        pass

    with pytest.raises(UserError, match=error):
        register(family, name)(Other)


def test_inside_the_package_a_name_needs_its_line() -> None:
    class Other(NetConfig):
        pass

    Other.__module__ = "ganglion.nn.other"
    for name in ("mlp", "unlisted"):
        with pytest.raises(TypeError, match="needs its line"):
            register("net", name)(Other)


def test_where_names_come_from() -> None:
    assert registry.origin("algo", "dqn") == ("ganglion.algos.dqn", "ganglion")
    assert registry.origin("net", "wide") == ("tests.config.sketches", "--import")
    assert "wide" in registry.names("net")
