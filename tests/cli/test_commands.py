"""Commands, options and their messages; what answers without torch."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from ganglion.cli import main, train
from ganglion.cli.parser import parse
from ganglion.config.files import load
from ganglion.record.stores import located, put
from ganglion.registry import TABLE
from tests.config.sketches import TEXT

ROOT = Path(__file__).parents[2]
Captured = pytest.CaptureFixture[str]


def refused(argv: list[str], capsys: Captured) -> str:
    """The one message of a refusal."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ganglion: ")
    assert "Traceback" not in err
    return err.removeprefix("ganglion: ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "unknown command 'trian'. Accepted: train, resume, launch, explore, eval, play, "),
        (["trian"], "Did you mean 'train'?"),
        (["--vershun"], "unknown option '--vershun'. Accepted: --help, --version, -h. Did you mean '--version'?"),
        (
            ["train", "--alg", "dqn"],
            "unknown option '--alg'. Accepted: --algo, --budget, --env, --explorers, --help, --import, --learners,",
        ),
        (["train"], "nothing to train"),
        (["train", "--algo"], "argument --algo: expected one argument"),
        (["train", "cartpole/dqm"], "there is no preset or file 'cartpole/dqm'"),
        (["train", "a=1", "b"], "'b' should be path=value"),
        (["resume"], "the following arguments are required: RUN"),
        (["resume", "nowhere"], "nowhere is not the folder of a run"),
        (["eval", "nowhere", "--episodes", "many"], "argument --episodes: invalid int value: 'many'"),
        (["eval", "nowhere", "--best", "--last"], "not allowed with"),
        (["play", "nowhere", "more"], "unexpected 'more'"),
        (["list", "algo"], "cannot list 'algo'. Accepted: algos, bonuses, resets, envs,"),
        (["show", "--import", "no.such.module", "x"], "--import no.such.module failed: ModuleNotFoundError"),
        (["show", "env.id=" + "x" * 5_000], f"algo is required. Accepted: {', '.join(TABLE['algo'])}"),
        (["show", "x" * 5_000], "File name too long"),
    ],
)
def test_refusals(argv: list[str], message: str, capsys: Captured) -> None:
    assert message in refused(argv, capsys)


def test_near_runs_are_named(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "cartpole-1").mkdir()
    (tmp_path / "cartpole-1" / "config.yaml").write_text(TEXT)
    assert f"There are: {tmp_path / 'cartpole-1'}." in refused(["eval", str(tmp_path / "cartpole-2")], capsys)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["eval", "--episodes", "0"], "--episodes should be between 1 and"),
        (["eval", "--seed", "-1"], "--seed should be between 0 and"),
        (["play", "--out", "film.avi"], "--out should end in .gif or .mp4"),
        (["play", "--frames", "0"], "--frames should be between 1 and"),
    ],
)
def test_bad_options_of_a_run(option: list[str], message: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "config.yaml").write_text(TEXT)
    assert message in refused([option[0], str(tmp_path), *option[1:]], capsys)


def test_show_gives_a_file_that_loads_to_the_same(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "my.yaml").write_text(TEXT)
    assert main(["show", str(tmp_path / "my.yaml"), "algo.lr=0.25", "--import", "json", "run.seed=7"]) == 0
    shown = capsys.readouterr().out
    assert load(shown) == load(TEXT, ["algo.lr=0.25", "run.seed=7"])


def test_show_of_a_run_in_a_store_imports_too(capsys: Captured) -> None:
    url = f"memory://show-{secrets.token_hex(8)}"
    put(located(url, "test") / "config.yaml", TEXT.encode())
    assert main(["show", url, "--config", "algo.lr=0.25"]) == 0
    assert load(capsys.readouterr().out) == load(TEXT, ["algo.lr=0.25"])
    assert "--import no.such.module failed" in refused(["show", url, "--config", "--import", "no.such.module"], capsys)


@pytest.mark.parametrize(
    ("words", "early"),
    [
        (["cartpole/ppo", "--mode", "ray"], True),
        (["cartpole/ppo", "--mode", "ray", "fleet.address=10.0.0.7:6379"], False),
        (["cartpole/ppo", "--mode", "ray", "fleet={address: 10.0.0.7:6379}"], False),
        (["my.yaml", "--mode", "ray"], False),
        (["cartpole/ppo"], False),
    ],
)
def test_ray_starts_early_only_where_nothing_may_say_which(
    words: list[str], early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    monkeypatch.setattr("ganglion.fleet.ray_cluster.begin_ray", begun.append)
    monkeypatch.setattr("ganglion.fleet.fork_server.begin_fork_server", lambda: None)
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(f"{TEXT}\nfleet: {{address: '10.0.0.7:6379'}}\n")
    args = parse(["train", *words])
    assert args is not None
    train.begin_early(args)
    assert bool(begun) is early


def test_show_a_sweep(capsys: Captured) -> None:
    assert main(["show", "algo=sketch", "env=world", "log=[drum]", "sweep.run.seed=[4,5]"]) == 0
    shown = capsys.readouterr().out
    assert "# 1 of 2: World-v0-sketch-seed=4" in shown
    assert "seed: 5" in shown


@pytest.mark.parametrize(
    ("env", "expected"),
    [("world", "id: World-v0"), ("world:Other: 'x'", "id: 'Other: ''x'''"), ("NoSuchGym-v1", "id: NoSuchGym-v1")],
)
def test_flags_are_short_for_overrides(env: str, expected: str, capsys: Captured) -> None:
    assert main(["show", "--algo", "sketch", "--env", env, "log=[drum]"]) == 0
    assert expected in capsys.readouterr().out


def test_list_says_where_names_come_from(capsys: Captured) -> None:
    assert main(["list", "nets", "-v"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {words[0]: (" ".join(words[1:-2]), *words[-2:]) for words in lines}
    assert found["mlp"][0].startswith("Perceptrons over flat observations") and found["mlp"][1:] == (
        "ganglion.nn.nets",
        "ganglion",
    )
    assert found["wide"][1:] == ("tests.config.sketches", "--import")


def test_help_has_examples(capsys: Captured) -> None:
    for argv in ([], ["--help"], ["train", "--help"], ["resume", "--help"]):
        assert main(argv) == 0
        assert "ganglion resume RUN" in (out := capsys.readouterr().out) or "ganglion resume runs/" in out


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["list"],
        ["list", "-v"],
        ["list", "zoo"],
        ["train", "--help"],
        ["--version"],
        ["nonsense"],
        ["list", "x"],
    ],
    ids=" ".join,
)
def test_answers_without_heavy_imports(argv: list[str]) -> None:
    code = (
        f"import sys; from ganglion.cli import main; code = main({argv!r})\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'yaml', 'gymnasium', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == (2 if argv[-1] in ("nonsense", "x") else 0), result.stderr


def test_import_ganglion_imports_nothing_heavy() -> None:
    code = "import sys, ganglion; dir(ganglion); print({'torch', 'numpy', 'pydantic', 'argparse'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() == "set()"


def test_the_package_gives_what_it_names() -> None:
    import ganglion

    for name in ganglion.__all__:
        assert getattr(ganglion, name) is not None
    with pytest.raises(AttributeError, match="nothing_such"):
        ganglion.nothing_such  # noqa: B018


def test_as_a_module() -> None:
    command = [sys.executable, "-m", "ganglion", "trian"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("ganglion: unknown command 'trian'")


def test_no_garbage_is_looked_for_among_all_of_torch() -> None:
    """Neither while it is imported nor at the end of the process: together half a second."""
    code = (
        "import gc, sys\n"
        "from ganglion.cli.arguments import load_torch\n"
        "looked = sum(part['collections'] for part in gc.get_stats())\n"
        "load_torch()\n"
        "more = sum(part['collections'] for part in gc.get_stats()) - looked\n"
        "from ganglion.__main__ import run\n"
        "sys.argv = ['ganglion', '--version']\n"
        "code = run()\n"
        "print('torch' in sys.modules, more, gc.isenabled(), code, len(gc.get_objects()) < 100)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "True 0 True 0 True", result.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m ganglion list -v | head -n 1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_command_is_documented() -> None:
    from ganglion.cli.parser import COMMANDS

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"| `ganglion {name}` |" not in page] == []


def test_settings_of_an_evaluation_come_before_and_after_options() -> None:
    for words in (["algo.asked=-8", "--episodes", "2"], ["--episodes", "2", "algo.asked=-8"]):
        args = parse(["eval", "runs/a", *words])
        assert args is not None and (args.folder, args.words, args.episodes) == ("runs/a", ["algo.asked=-8"], 2)
