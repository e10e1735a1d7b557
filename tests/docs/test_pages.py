"""The pages of docs/: their Python runs, their commands are understood, their links, names and settings exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from ganglion import registry
from ganglion.cli.parser import parse
from ganglion.config import AlgoConfig
from ganglion.config.files import load
from ganglion.errors import UserError
from tests.docs.blocks import ROOT, code

DOCS = ROOT / "docs"
ELSEWHERE = {"ops.md", "zoo.md"}  # ops.md: tests/ops/test_docs.py
PAGES = sorted(path.name for path in DOCS.glob("*.md") if path.name not in ELSEWHERE)
FENCES = {"python", "bash", "yaml", "text"}
NOT_OURS = {"env.env_type", "algo.lrr"}  # a name of nerveX's, and one misspelt on purpose
each_page = pytest.mark.parametrize("page", PAGES)


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    return re.sub(r"^```.*?^```$", "", text(page), flags=re.MULTILINE | re.DOTALL)


@each_page
def test_every_block_says_what_it_is(page: str) -> None:
    """Only Python claims to run; the rest are commands, settings or plain text."""
    opening = re.findall(r"^```(.*)$", text(page), flags=re.MULTILINE)[::2]
    assert set(opening) <= FENCES, opening


@each_page
def test_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block, each on its own."""
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(code(text(page))):
        exec(compile(block, f"{page}, block {number}", "exec"), {"__name__": f"page_{number}"})


@each_page
def test_commands_are_understood(page: str) -> None:
    for line in (line for block in code(text(page), "bash") for line in block.splitlines()):
        words = shlex.split(line, comments=True)
        if words and words[0] == "ganglion":
            assert parse(words[1:]) is not None, line


@each_page
def test_yaml_is_a_config(page: str) -> None:
    for block in code(text(page), "yaml"):
        load(block)


@each_page
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", text(page))
    assert [target for target in targets if not (DOCS / target).exists()] == []


@each_page
def test_files_named_exist(page: str) -> None:
    named = re.findall(r"`((?:ganglion|tests|examples|docs)/[\w./-]+)`", text(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


# ------------------------------------------------------------ names in code spans

PARTS = "ops|nn|buffers|envs|core|runtime|record|config"


def resolve(name: str) -> Any:
    first, *rest = name.split(".")
    found = import_module(f"ganglion.{first}")
    for attribute in rest:
        if not hasattr(found, attribute):
            found = import_module(f"{found.__name__}.{attribute}")
        else:
            found = getattr(found, attribute)
    return found


@each_page
def test_names_exist(page: str) -> None:
    """`ops.gae`, `nn.Lagged`, `core.Sample`, `runtime.build.build` and the like."""
    names = set(re.findall(rf"`((?:{PARTS})(?:\.[A-Za-z_]\w*)+)", prose(page))) - {"config.yaml"}
    missing = []
    for name in sorted(names):
        try:
            resolve(name)
        except (AttributeError, ModuleNotFoundError):
            missing.append(name)
    assert missing == []


@each_page
def test_settings_exist(page: str) -> None:
    """`algo.replay.max_use`, `run.fast` and the like are settings of some config."""
    known = settings()
    named = re.findall(r"`((?:algo|env|train|eval|save|log|run)(?:\.[a-z_]+)+)(?=[`:= ])", prose(page))
    assert sorted(set(named) - known - NOT_OURS) == []


KINDS = (
    "{kind: gym, id: x}",
    "{kind: atari, id: x}",
    "{kind: envpool, id: x}",
    "{kind: torch, id: cartpole}",
    "{kind: toy, id: chain}",
    "{kind: matrix, id: penalty}",
    "{kind: colours}",
    "{kind: foraging}",
    "{kind: openspiel, id: x}",
    "{kind: vmas, id: x}",
    "{kind: pettingzoo, id: x}",
    "{kind: particles, id: spread}",
    "{kind: remote}",
    "{kind: sumo, id: single}",
    "{kind: starcraft, id: x}",
)


def settings() -> set[str]:
    """Every path of every shipped algorithm on every kind of environment."""
    found: set[str] = set()
    for algo in registry.TABLE["algo"]:
        for env in KINDS:
            found |= set(paths(load(None, [f"algo={algo}", f"env={env}"]).plain()))
    for replay in ("prioritised", "{relabel: hindsight}"):
        found |= set(paths(load(None, [f"algo={{kind: dqn, replay: {replay}}}", "env={kind: toy, id: goal}"]).plain()))
    return found


def paths(tree: Any, before: str = "") -> Iterator[str]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield f"{before}{key}"
        yield from paths(value, f"{before}{key}.")


# ------------------------------------------------------------ tables that say what is so


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    after = text(page).partition(f"\n{heading}\n")[2]
    table = re.search(r"(?:^\|.*\|\n)+", after, flags=re.MULTILINE)
    assert table, heading
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[0].splitlines()[2:]]


@pytest.mark.parametrize(("given", "message"), rows("config.md", "## Bad input"), ids=lambda cell: cell[:20])
def test_messages_are_the_real_ones(given: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name, cls in registry._found.items() if not cls.__module__.startswith("ganglion.")]:
        monkeypatch.delitem(registry._found, name)  # other tests have names of their own
    with pytest.raises(UserError) as caught:
        load("cartpole/dqn", [given.strip("`")])
    assert str(caught.value).startswith(message.strip("`"))


@pytest.mark.parametrize("kind", registry.TABLE["algo"])
def test_every_option_of_an_algorithm_is_documented(kind: str) -> None:
    """In its table, or named as being those of another algorithm; what all have is in a section of its own."""
    heading = f"### Options of {kind}"
    section = text("algorithms.md").partition(f"\n{heading}\n")[2].partition("\n#")[0]
    others = "".join(re.findall(r"^`[^|]*?as in\s\[\w+\]\(#options-of-\w+\)", section, re.MULTILINE))
    cells = [row[0] for row in rows("algorithms.md", heading)]
    options = [name for named in (*cells, others) for name in re.findall(r"`(\w+)`", named)]
    assert sorted(options) == sorted(registry.lookup("algo", kind).model_fields.keys() - AlgoConfig.model_fields.keys())
    assert all(f"`algo.{name}`" in text("algorithms.md") for name in AlgoConfig.model_fields)


def test_every_preset_is_named_with_its_algorithm_and_its_curve() -> None:
    for name, file in registry.presets().items():
        kind = yaml.safe_load(file.read_text(encoding="utf-8")).get("algo", {}).get("kind")
        curve = f"results/curves/{name.replace('/', '-')}.csv"
        shown = f"`{name}` ([curve]({curve}))" if (DOCS / curve).exists() else f"`{name}`"
        section = text("algorithms.md").partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
        assert kind is None or shown in section, f"the section of {kind} should name {shown}"


def test_every_writer_and_schedule_is_documented() -> None:
    for heading, family in (("## Writers", "writer"), ("## Schedules", "schedule")):
        named = {name for row in rows("config.md", heading) for name in re.findall(r"`(\w+)`", row[0])}
        assert named == set(registry.TABLE[family])


def test_the_readers_path_is_there() -> None:
    files = [row[0].strip("`") for row in rows("architecture.md", "## Reading DQN")]
    assert files[0] == "ganglion/algos/dqn.py" and all((DOCS.parent / file).exists() for file in files)


def test_every_page_is_in_the_index() -> None:
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"({page})" not in text("README.md")} == set()


SOURCES_NAMES = {
    "abcdrl": "Model.value Model.action Algorithm.predict Algorithm.learn Algorithm.sync_target BufferSamples "
    "Agent.predict Agent.sample Agent.learn Trainer.__init__ Trainer.__call__ _run_collect _run_train _run_evaluate",
    "nerveX": "serial_pipeline read_config policy.use_cuda env.env_type import_names env_id evaluator.stop_val "
    "policy.policy_type on_policy SingleMachineRunner BaseEnv env.info() SubprocessEnvManager PrioritizedBuffer "
    "append sample BaseCompGraph BaseLearner _setup_agent _setup_computation_graph rl_utils create_dqn_learner_agent "
    "create_dqn_actor_agent create_dqn_evaluator_agent epsilon_greedy Adder _init_learn _forward_learn _init_collect "
    "_forward_collect _process_transition _get_train_sample _init_eval _forward_eval _init_command "
    "_get_setting_collect _create_model_from_cfg register_policy argmax_sample eps_greedy_sample multinomial_sample "
    "hidden_state action_noise assign momentum grad mode reset ray fleet league",
    "XingTian": "Registers.algorithm alg_para model_para agent_para env_para prepare_data train_ready "
    "update_weights_map checkpoint_ready predict save restore train create_model infer_action use_explore "
    "handle_env_feedback init_env reset step Learner Explorer Broker",
    "Border": "TrainerConfig opt_interval record_interval eval_interval save_interval max_opts model_dir SyncSampler "
    "StepProcessor ReplayBufferBase Recorder Record Evaluator Step best fps opt_steps_per_sec train_step "
    "Trainer::train agent.opt agent.train() agent.eval() reset_with_index",
}


@pytest.mark.parametrize("source", SOURCES_NAMES)
def test_every_name_of_a_source_is_mapped(source: str) -> None:
    """In a code span of its section, or in its first column."""
    section = text("coming-from.md").partition(f"\n## {source}\n")[2].split("\n## ")[0]
    theirs = " ".join(line.split(" | ")[0] + line.split(" | ")[1] for line in section.splitlines() if " | " in line)
    assert [name for name in SOURCES_NAMES[source].split() if name not in theirs] == []


def test_every_example_of_the_sources_is_in_the_table() -> None:
    page = text("coming-from.md")
    assert [path.name for path in (ROOT / "examples").glob("from_*") if f"../examples/{path.name}" not in page] == []
