"""The support matrix: which algorithm goes with which feature, found out by doing it.

`python -m tests.contract.support` writes the table of docs/support.md anew. A new algorithm is one line in ROWS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ganglion import registry
from ganglion.config import AlgoConfig, RunConfig
from ganglion.config.files import resolve
from ganglion.core import Box, Composite, Discrete, EnvSpec, MultiDiscrete, Space
from ganglion.envs.board_games import rules_of
from ganglion.envs.joint_actions import Joint
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.check_algorithm import Bench
from ganglion.runtime.random_world import RandomWorld
from ganglion.runtime.seeds import rehearse
from tests.contract.worlds import (
    ACER,
    ALPHA,
    ARM,
    CASES,
    DQN,
    DREAM,
    DT,
    FLASH,
    GEARS,
    IMPALA,
    MASKED,
    MPC,
    PARTS,
    PPG,
    PPO,
    RND,
    ROLLOUT,
    SAC,
    SAMPLED,
    THREE,
    THREE_IN_A_ROW,
    TRPO,
    over,
)  # fmt: skip

PAGE = Path(__file__).parents[2] / "docs" / "support.md"
Settings = dict[str, Any]
NOTHING: Settings = {}

WITHIN: Settings = {"inner": {"kind": "discrete_sac", **SAC}}  # of algorithms that hold another
ROWS: dict[str, Settings] = {
    "a2c": ROLLOUT,
    "acer": ACER,
    "airl": WITHIN,
    "alphazero": ALPHA,
    "atoc": SAC,
    "awac": SAC,
    "bc": SAC,
    "bcq": over(SAC, looks=2),
    "bootstrapped_dqn": DQN,
    "c51": DQN,
    "coma": ROLLOUT,
    "cql": over(SAC, looks=2),
    "crossq": FLASH,
    "d4pg": SAC,
    "dagger": {"inner": {"kind": "bc", **SAC, "processor": "self-labelled"}},
    "ddpg": SAC,
    "decision_transformer": DT,
    "discrete_bcq": DQN,
    "discrete_sac": SAC,
    "dqfd": DQN,
    "dqn": DQN,
    "dreamer": DREAM,
    "edac": over(SAC, critics=3),
    "flashsac": FLASH,
    "fqf": over(DQN, fractions=4),
    "gail": WITHIN,
    "hybrid_sac": SAC,
    "impala": IMPALA,
    "iql": SAC,
    "iqn": DQN,
    "maddpg": SAC,
    "mappo": PPO,
    "masac": SAC,
    "muzero": over(ALPHA, unroll=2),
    "nfsp": over(DQN, reservoir=64, average_batch=8),
    "ppg": PPG,
    "ppo": PPO,
    "pqn": PPO,
    "pqn_vdn": PPO,
    "qmix": DQN,
    "qrdqn": DQN,
    "r2d2": over(DQN, replay={"sequence": 6, "burn_in": 2}, net={"memory_size": 8}),
    "rainbow": DQN,
    "rebrac": SAC,
    "redq": over(SAC, critics=3, delay=2),
    "reinforce": ROLLOUT,
    "sac": SAC,
    "sampled_muzero": SAMPLED,
    "sqil": WITHIN,
    "td3": SAC,
    "td3_bc": SAC,
    "tdmpc2": MPC,
    "tqc": SAC,
    "trpo": TRPO,
    "vdn": DQN,
}


class Feature(NamedTuple):
    """A column: what changes where it is asked for, and which test does the same."""

    title: str
    settings: Settings = {}
    obs: Space = Box((4,))
    action: Space | None = None  # None: one that the algorithm accepts
    slots: int = 4
    hybrid: Space | None = None  # the observation for algorithms of hybrid actions, where theirs is another
    run: Callable[[AlgoConfig, EnvSpec], None] | None = None  # None: two updates in a made-up world


def world_of(algo: str, slots: int = 4) -> EnvSpec:
    """A small world that an algorithm can act in."""
    if algo in ON_BOARDS:
        return EnvSpec(slots=slots, name="tictactoe", **BOARD)
    return EnvSpec(Box((4,)), NATIVE[registry.lookup("algo", algo).actions], slots, "world")


def updates(cfg: AlgoConfig, spec: EnvSpec) -> None:
    Bench(cfg, spec).train(2)


def joined(cfg: AlgoConfig, spec: EnvSpec) -> None:
    """With the wrapper that makes one choice of all."""
    env = Joint(RandomWorld(spec), bins=3)
    bench = Bench(cfg, env.spec)
    bench.explorer.env = env
    bench.train(2)


def run_config(cfg: AlgoConfig, spec: EnvSpec, seed: int = 0, **run: Any) -> RunConfig:
    """Of a run in a small world with such actions."""
    continuous = isinstance(spec.action, Box)
    env: Settings = {"kind": "toy", "id": "identity", "slots": spec.slots, "continuous": continuous}
    if spec.rules is not None:
        env = {"kind": "board", "id": "tictactoe", "slots": spec.slots}
    if isinstance(spec.action, Composite):
        env = {"kind": "toy", "id": "hybrid", "slots": spec.slots}
    chosen = {"seed": seed, "device": "cpu", "fast": "eager", **run}
    return RunConfig.model_validate({"algo": cfg, "env": env, "train": {"budget": "400 steps"}, "run": chosen})


def seeds(cfg: AlgoConfig, spec: EnvSpec) -> None:
    """As --seeds begins: acting and learning once, two runs as one batched model."""
    rehearse([run_config(cfg, spec, seed) for seed in range(2)])


def through_broker(cfg: AlgoConfig, spec: EnvSpec) -> None:
    """An explorer beside the learner, with items and weights between them as every distributed mode has them."""
    trainer = build(run_config(cfg, spec, mode="sync"))
    for _ in trainer():
        if trainer.at.opt_steps >= 2:
            break
    trainer.close()
    assert trainer.at.opt_steps >= 2


def has_case(cfg: AlgoConfig, spec: EnvSpec) -> None:
    """Those of tests/contract/test_algorithms.py and test_captured.py run over all cases."""
    assert any(case.algo == cfg.kind for case in CASES), f"no case of {cfg.kind} in tests/contract/worlds.py"


HYBRID = Composite({"gear": THREE, "steer": ARM})
FEATURES: dict[str, Feature] = {
    "mask": Feature("action masks", obs=MASKED, action=THREE, hybrid=GEARS),
    "memory": Feature("recurrent networks", {"net": {"memory": "gru", "memory_size": 8}}),
    "dict": Feature("observations of several parts", obs=PARTS),
    "image": Feature("images", obs=Box((1, 36, 36), torch.uint8)),
    "multi": Feature("MultiDiscrete actions", action=MultiDiscrete((2, 3))),
    "hybrid": Feature("Dict and Tuple actions", action=HYBRID),
    "n-step": Feature("sums of several rewards", {"n_step": 3}),
    "priority": Feature("prioritised replay", {"replay": {"kind": "prioritised"}}),
    "bonus": Feature("exploration bonuses", {"bonus": RND}),
    "slots": Feature("several slots", slots=6),
    "compiled": Feature("compiled updates", run=has_case),
    "captured": Feature("CUDA graphs", run=has_case),
    "seeds": Feature("--seeds", run=seeds),
    "ray": Feature("distributed runs", run=through_broker),
    "resume": Feature("bit-exact resume", run=has_case),
}
BOARD: dict[str, Any] = {"obs": THREE_IN_A_ROW, "action": Discrete(9), "rules": rules_of("tictactoe")}
ON_BOARDS = {"alphazero"}  # asked there for all that does not ask for other observations or actions
NATIVE: Mapping[str, Space] = {"any": THREE, "discrete": Discrete(4), "bounded": ARM, "single": THREE, "hybrid": HYBRID}


class Cell(NamedTuple):
    mark: str  # yes, no, or the wrapper that it takes
    why: str = ""  # of a no: what a user is told


def resolved(algo: str, more: Settings = NOTHING) -> RunConfig:
    """The small settings of an algorithm with others laid over them, or over those of the algorithm that it holds."""
    own = ROWS[algo]
    laid = {"inner": over(own["inner"], **more)} if "inner" in own and "bonus" not in more else over(own, **more)
    return resolve({"algo": {"kind": algo, **laid}, "env": {"kind": "toy", "id": "chain"}})


def attempt(algo: str, name: str) -> Cell:
    """What comes of a feature asked of an algorithm: it works, or it is refused in a line. All else is raised."""
    feature, kind = FEATURES[name], registry.lookup("algo", algo)
    if (kind.imitates or kind.offline) and feature.run in (seeds, through_broker):
        return Cell("-")
    action, obs = feature.action or NATIVE[kind.actions], feature.obs
    if kind.actions == "hybrid" and feature.hybrid is not None:
        action, obs = HYBRID, feature.hybrid
    spec = EnvSpec(obs, action, feature.slots, "world")
    if algo in ON_BOARDS and (name == "mask" or (obs == Box((4,)) and feature.action is None)):
        spec = EnvSpec(slots=feature.slots, name="tictactoe", **BOARD)
    try:
        cfg = resolved(algo, feature.settings).algo
        (feature.run or updates)(cfg, spec)
    except UserError as error:
        if "env.wrap=[joint]" not in str(error) or feature.action is None:
            return Cell("no", str(error))
        joined(cfg, spec)
        return Cell("joint")
    return Cell("yes")


# ------------------------------------------------------------ the page

BEGIN, END = "<!-- made by tests/contract/support.py -->", "<!-- end -->"


def reason(why: str) -> str:
    """What a user is told, in short: without the setting before it and the alternatives after."""
    text = why.split(": ", 1)[1].split(". Algorithms with it")[0].split(". Try ")[0].split("; accepted")[0]
    return text.split(": ", 1)[1] if " has none: " in text else text.split("; world")[0].split(" ", 1)[1]


def line(algo: str, cells: Mapping[str, Cell]) -> str:
    return f"| `{algo}` | " + " | ".join(cell.mark for cell in cells.values()) + " |"


def noes(cells: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    """Each reason once, with the algorithms and features it is given for."""
    given: dict[tuple[str, str], list[str]] = {}
    for algo, own in cells.items():
        for name, cell in own.items():
            if cell.mark == "no":
                given.setdefault((name, reason(cell.why)), []).append(f"`{algo}`")
    return [f"| {name} | {', '.join(algos)} | {why} |" for (name, why), algos in given.items()]


def made() -> str:
    """The table, and why each no is one."""
    cells = {algo: {name: attempt(algo, name) for name in FEATURES} for algo in ROWS}
    head = ["| algorithm | " + " | ".join(FEATURES) + " |", "|---" * (len(FEATURES) + 1) + "|"]
    table = [*head, *(line(algo, own) for algo, own in cells.items())]
    return "\n".join([*table, "", "| no | of | why |", "|---|---|---|", *noes(cells)])


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{made()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
