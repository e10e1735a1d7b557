"""From text to configs and back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ganglion.config import RunConfig, constant, cosine, every, linear, piecewise, text
from ganglion.config.files import cases, dump, load, modules, resolve
from ganglion.errors import UserError
from ganglion.registry import presets
from tests.config.sketches import TEXT, Deep, Drum, Paper, Ranked, Sketch, Store, Wide, World

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SINGLES = st.floats(-1e30, 1e30)  # what a schedule takes
WORDS = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(
    ["1e-3", "null", "yes", "~", "1_0", "- a", "a: b", "#", "=", "<<"]
)


def sections() -> st.SearchStrategy[dict[str, Any]]:
    intervals = st.sampled_from(["5k steps", "7 updates", "10 min", "0.25 s", "never", "1234567 steps"]).map(every)
    log = st.builds(dict, every=intervals, writers=st.permutations([Paper(lines=3), Drum()]).map(tuple))
    run = st.builds(
        dict,
        seed=st.integers(0, 2**31 - 1),
        dir=st.none() | WORDS.filter(lambda word: word and not re.search(r"[\x00-\x1f\x7f-\x9f]", word)),
        device=st.sampled_from(["cpu", "cuda:1"]),
    )
    return st.builds(
        dict, eval=st.builds(dict, every=intervals), save=st.builds(dict, every=intervals), log=log, run=run
    )


def algos() -> st.SearchStrategy[Sketch]:
    schedules = (
        st.builds(linear, SINGLES, SINGLES)
        | st.builds(constant, SINGLES)
        | st.builds(cosine, SINGLES, SINGLES, st.just(0.5))
    )
    schedules |= st.just(piecewise((0.0, 1.0), (0.5, 1e-12)))
    nets = st.builds(Wide, hidden=st.lists(st.integers(1, 10**12), max_size=4).map(tuple)) | st.builds(
        Deep, layers=st.integers()
    )
    nets = nets.filter(lambda net: abs(getattr(net, "layers", 0)) < 2**63)
    stores = st.builds(Store, capacity=st.integers(1, 10**9)) | st.builds(Ranked, alpha=NUMBERS, beta=schedules)
    rates = st.floats(0, 1, exclude_min=True)
    return st.builds(
        Sketch, lr=rates, max_norm=st.none() | NUMBERS, double=st.booleans(), epsilon=schedules, net=nets, store=stores
    )


@given(algos(), st.builds(World, id=WORDS, slots=st.integers(1, 65_536)), sections())
def test_what_is_written_is_read_back(algo: Sketch, env: World, rest: dict[str, Any]) -> None:
    config = RunConfig.model_validate({"algo": algo, "env": env, **rest})
    assert load(dump(config)) == config
    assert dump(load(dump(config))) == dump(config)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**62), 2**62) | NUMBERS | WORDS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
        max_leaves=12,
    )
)
def test_plain_values_round_trip(value: Any) -> None:
    assert text.read(text.write(value), "here") == value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("1_000", 1000),
        ("007", 7),
        ("1.", 1.0),
        ("yes", "yes"),
        ("true", True),
        ("~", None),
        ("'1'", "1"),
        ("0x10", "0x10"),
        ("12:30:00", "12:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("[64, 64]", [64, 64]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("5k steps", "5k steps"),
        ("<<", "<<"),
    ],
)
def test_what_words_mean(written: str, value: object) -> None:
    found = text.read(written, "here")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("a: &x 1", "anchors"),
        ("a: *x", "anchors|undefined alias"),
        ("a: !!python/object/apply:os.system [ls]", "tag"),
        ("a: !local 1", "tag"),
        ("a: ! 1", "tag"),
        ("!!map {a: 1}", "tag"),
        ("{!!str a: 1}", "tag"),
        ("a: 1\nb: 2\na: 3", "line 3: 'a' is set twice"),
        ("a: {b: 1, b: 1}", "'b' is set twice"),
        ("a: 1\n---\nb: 2", "several documents"),
        ("[" * 22 + "]" * 22, "20 levels"),
        ("[" * 100_000, "20 levels"),
        ("{" * 100_000, "20 levels"),
        ("? [a]\n: 1", "key should be text"),
        ("9" * 5_000, "too large"),
        ("1e999", "too large"),
        ("[" + "1," * 100_001 + "]", "100,000 values"),
        ("a: " + "x" * 1_000_001, "larger than 1 MB"),
        ("a: [1", "line [12]: not valid YAML"),
        ("a: b: c", "not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ("a: \ud800", "UTF-8"),
    ],
)
def test_what_text_is_refused(written: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        text.read(written, "here")


# ------------------------------------------------------------ overrides


def test_later_overrides_win() -> None:
    assert load(TEXT, ["algo.lr=0.1", "run.seed=3", "algo.lr=0.2"]).algo == Sketch(lr=0.2)


@pytest.mark.parametrize(
    ("overrides", "algo"),
    [
        (["algo.net.hidden=[64,64]"], Sketch(net=Wide(hidden=(64, 64), activation="tanh"))),
        (["algo.net=deep", "algo.net.layers=5"], Sketch(net=Deep(layers=5))),
        (["algo.epsilon=0.1"], Sketch(epsilon=constant(0.1))),
        (["algo.epsilon.until=0.9"], Sketch(epsilon=linear(1.0, 0.05, until=0.9))),
        (["algo.store.kind=ranked"], Sketch(store=Ranked())),
        (["algo=sketch"], Sketch()),
        (["algo={kind: sketch, lr: 1e-2}", "algo.steps=3"], Sketch(lr=1e-2, steps=3)),
        (["algo.max_norm=null"], Sketch()),
    ],
)
def test_overrides(overrides: list[str], algo: Sketch) -> None:
    assert load(TEXT, overrides).algo == algo


def test_an_override_reaches_into_short_forms() -> None:
    config = load(TEXT + "eval: never\n", ["log.every=2k steps", "env.slots=3", "eval.episodes=7"])
    assert (str(config.log.every), config.log.writers) == ("2k steps", (Paper(),))
    assert config.env == World(slots=3)
    assert (config.eval.every.unit, config.eval.episodes) == ("never", 7)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo.lr"], "path=value"),
        (["algo.lr="], "path=value"),
        (["=3"], "path=value"),
        (["algo..lr=3"], "path=value"),
        (["algo.lr=!!python/name:os.system x"], "value of algo.lr.*tag"),
        (["algo.epsilon=0.3", "algo.epsilon.until=0.5"], "algo.epsilon is 0.3, which has no settings"),
        (["run.seed.more=1"], "run.seed: should be a valid integer, got a mapping"),
        (["algo.lr=[1,2]"], r"algo.lr: should be a valid number, got \[1, 2\]"),
        (["algo.loss=hubert"], "algo.loss: should be 'mse' or 'huber', got 'hubert'. Did you mean 'huber'"),
        (["env.slots=0"], "env.slots: should be greater than or equal to 1, got 0"),
        (
            ["agent.lr=1"],
            "agent: unknown key. Accepted: algo, env, players, league, train, eval, save, log, init, run, fleet, data",
        ),
        (["log.writers=[paper, papr]"], r"log.writers\[1\]: unknown writer 'papr'.*Did you mean 'paper'"),
        (["log.writers=[paper, paper]"], "log.writers: should name each writer once"),
        (["train.budget=never"], "train.budget: should be an amount"),
        (["run.device=gpu"], "run.device: should be 'auto', 'cpu'"),
        (["run.name=../x"], "run.name: should be"),
        (["train.target=1", "eval=never"], "train.target needs evaluations"),
        ([".".join("a" * 30) + "=1"], "20 levels"),
    ],
)
def test_bad_overrides(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(TEXT, overrides)


def test_all_problems_in_one_message() -> None:
    with pytest.raises(UserError) as caught:
        resolve({"algo": {"kind": "sketch", "lr": -1, "lrr": 0, "net": {"hidden": ["x"]}}, "log": ["paper"]}, "here")
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 problems in here:"
    for start in ("algo.lr: ", "algo.lrr: unknown key", "algo.net.hidden[0]: ", "env is required. Accepted: gym, "):
        assert any(line.strip().startswith(start) for line in lines[1:]), lines


# ------------------------------------------------------------ sources and sweeps


def test_files(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(TEXT)
    assert load(tmp_path / "my.yaml") == load(TEXT) == load(str(tmp_path / "my.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for source, message in [
        ("binary.yaml", "UTF-8"),
        (".", "folder"),
        ("other.yaml", "no preset or file"),
        ("x" * 5_000, "long"),
    ]:
        with pytest.raises(UserError, match=message):
            load(tmp_path / source)


def test_the_example_of_the_design() -> None:
    config = load(
        "algo: {kind: dqn, lr: 1e-3, limiter: {opt_interval: 10, warmup: 1k}}\n"
        "env:  {kind: gym, id: CartPole-v1, slots: 8}\n"
        "train: {budget: 50k steps}\n"
        "eval: {every: 5k steps, episodes: 20}\n"
        "save: {every: 10k steps, keep: 3}\n"
        "log:  [console, jsonl, tensorboard]\n"
        "run:  {seed: 0, device: auto, mode: local}\n"
    )
    assert [writer.kind for writer in config.log.writers] == ["console", "jsonl", "tensorboard"]
    assert config.algo.plain()["limiter"]["warmup"] == 1_000
    assert load(dump(config)) == config


@pytest.mark.parametrize("name", presets())
def test_presets(name: str) -> None:
    config = load(name)
    assert config.title == name.replace("/", "-")
    assert load(dump(config)) == config


def test_a_sweep_is_every_combination() -> None:
    found = cases(TEXT + "sweep: {algo.lr: [1e-3, 3e-4], run.seed: [0, 1, 2]}\n")
    assert [(c.algo.plain()["lr"], c.run.seed) for c in found] == [
        (lr, seed) for lr in (1e-3, 3e-4) for seed in (0, 1, 2)
    ]
    assert found[0].run.name == "World-v0-sketch-lr=0.001,seed=0"
    assert len({c.run.name for c in found}) == 6


def test_a_sweep_of_parts_and_from_the_command_line() -> None:
    found = cases(TEXT, ["sweep.algo.net=[deep, {hidden: [8]}]", "run.dir=out", "run.name=mine"])
    assert [c.algo.plain()["net"]["kind"] for c in found] == ["deep", "wide"]
    assert [c.run.name for c in found] == ["mine-net=deep", "mine-case=1"]
    assert [c.run.dir for c in found] == ["out/net=deep", "out/case=1"]


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("3", "mapping from paths to lists"),
        ("{algo.lr: 3}", "list of values"),
        ("{algo.lr: []}", "list of values"),
        ("{'algo lr': [1]}", "should be a path"),
        ("{algo.lrr: [1]}", "algo.lrr: unknown key"),
        ("{algo.lr: [1e-3, fast]}", "algo.lr: should be a valid number, got 'fast'"),
        ("{run.seed: [" + ",".join(map(str, range(1_001))) + "]}", "1,000 cases"),
        ("{algo.lr: [1e-3, 1e-4]}", "sweep of 2 runs"),
    ],
)
def test_bad_sweeps(sweep: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(TEXT + f"sweep: {sweep}\n")


def test_a_swept_setting_is_not_also_set() -> None:
    with pytest.raises(UserError, match=r"run\.seed is swept"):
        cases(TEXT + "sweep: {run.seed: [0, 1]}\n", ["run.seed=3"])


# ------------------------------------------------------------ user modules


def test_modules_of_inner_parts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes elsewhere import them: the buffer's of a config that was made in Python."""
    from tests.contract import plugs  # noqa: F401  registers a buffer

    monkeypatch.setattr("ganglion.config.files.IMPORTED", {})
    config = load(None, ["algo=dqn", "env={kind: toy, id: chain}", "algo.replay=newest"])
    assert modules(config) == ["tests.contract.plugs"]


def test_user_modules_enter_by_import_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_names.py").write_text(
        "from ganglion.config import NetConfig, register\n"
        "@register('net', 'mine')\n"
        "class Mine(NetConfig):\n"
        "    size: int = 3\n"
    )
    (tmp_path / "my_fault.py").write_text("x = 1\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"unknown net 'mine'.*--import"):
        load(TEXT, ["algo.net=mine"])
    assert load(TEXT, ["algo.net=mine"], ["my_names"]).algo.plain()["net"] == {"kind": "mine", "size": 3}
    with pytest.raises(UserError, match=r"--import my_fault failed: ZeroDivisionError.*my_fault.py, line 2"):
        load(TEXT, imports=["my_fault"])
    with pytest.raises(UserError, match="--import nosuch failed: ModuleNotFoundError"):
        load(TEXT, imports=["nosuch"])
