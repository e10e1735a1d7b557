"""Several players in one run: two algorithms on rock-paper-scissors, and a game of turns in which players wait."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ganglion
import tests.contract.games  # noqa: F401  registers them
from ganglion import ops
from ganglion.config import RunConfig
from ganglion.config.run import PlayerSection
from ganglion.core import LogData, Row, SetKnob
from ganglion.errors import UserError
from ganglion.runtime.build import build
from ganglion.runtime.engine import Engine
from ganglion.runtime.explorer import Explorer
from ganglion.runtime.run import Run, evaluate
from ganglion.runtime.seats import seated
from ganglion.runtime.seeds import Seeds
from ganglion.runtime.trainer import Trainer
from tests.contract.test_own_algorithms import close
from tests.contract.worlds import one_graph

PPO = "{kind: ppo, horizon: 8, epochs: 2, minibatches: 2, net: {hidden: [16]}}"
DQN = "{kind: dqn, replay: {capacity: 400, batch: 16}, limiter: {opt_interval: 8, warmup: 40}, net: {hidden: [16]}}"
GAMES = {
    "rock-paper-scissors": f"players={{left: {{algo: {PPO}}}, right: {{algo: {DQN}}}}}",
    "nim": f"players={{first: {{algo: {PPO}}}, second: {{algo: {DQN}}}}}",
}
REST = ["train.budget=400 steps", "eval={every: 200 steps, episodes: 4}", "save={every: 150 steps}",
        "log={every: 200 steps, writers: [jsonl]}", "run.device=cpu"]  # fmt: skip
each = pytest.mark.parametrize("game", GAMES)


def config(game: str, *more: str) -> RunConfig:
    words = [f"algo={PPO}", f"env={{kind: {game}, slots: 8}}", GAMES[game], *REST, "run.fast=eager", *more]
    return ganglion.load_config(None, words)


def trained(made: Trainer) -> dict[str, torch.Tensor]:
    for _ in made():
        pass
    made.close()
    assert all(count > 7 for count in made.made.values()), made.made
    state = made.state().tensors
    return {name: x.clone() for name, x in state.items() if name.startswith("agents/")}


@each
def test_each_learns_with_its_own_algorithm(game: str) -> None:
    names = ganglion.load_config(None, [f"algo={PPO}", f"env={game}", GAMES[game]]).players
    made = build(config(game))
    assert [type(learner.agent.algo).__name__ for learner in made.learners] == ["PPO", "DQN"]
    logs: list[LogData] = list(made())
    told = {name for log in logs if log.kind == "learn" for name in log.metrics}
    assert {f"{next(iter(names))}/entropy", f"{list(names)[1]}/loss"} <= told
    assert {episode.player for log in logs for episode in log.episodes} == set(names)
    assert sum(made.made.values()) == made.at.opt_steps


@each
def test_through_a_broker(game: str) -> None:
    close(trained(build(config(game))), trained(build(config(game, "run.mode=sync"))))


@each
def test_as_one_graph(game: str) -> None:
    torch._dynamo.reset()
    shape = ["train.budget=40 updates"]  # blocks are larger where a pure world is walked
    compiled = build(config(game, *shape), Engine(torch.device("cpu"), one_graph))
    plain = build(config(game, *shape))
    assert isinstance(compiled.source, Explorer)
    compiled.source.stride = 1  # the same turns
    close(trained(plain), trained(compiled), exactly=False)


@each
def test_resumed(game: str, tmp_path: Path) -> None:
    whole = Run.create(config(game, f"run.dir={tmp_path / 'whole'}"))
    for _ in whole.stream():
        pass
    left = Run.create(config(game, f"run.dir={tmp_path / 'left'}"))
    for log in left.stream():
        if log.kind == "save" and log.at.env_steps > 250:
            break
    left.close()
    again = Run.open(tmp_path / "left")
    assert 250 < again.trainer.at.env_steps < 400
    for _ in again.stream():
        pass
    close(whole.state().tensors, again.state().tensors)
    assert len(evaluate(tmp_path / "left", 4, 0)["returns"]) == 4


@each
def test_batched_over_runs(game: str, tmp_path: Path) -> None:
    folders = [f"run.dir={tmp_path / str(k)}" for k in range(2)]
    seeds = Seeds([config(game, folder, f"run.seed={k}") for k, folder in enumerate(folders)])
    for _ in seeds.stream():
        pass
    for k, run in enumerate(seeds.runs):
        own = {n: x for n, x in run.trainer.state().tensors.items() if n.startswith("agents/")}
        alone = build(config(game, f"run.seed={k}", "run.fast=eager"))
        if isinstance(run.trainer.source, Explorer) and isinstance(alone.source, Explorer):
            assert run.trainer.source.stride == alone.source.stride
        close(trained(alone), own, exactly=False)


def test_waiting_is_no_decision_and_no_end() -> None:
    """Half of the rows of a game of turns; only those that decide are counted, and move the policy."""
    made = build(config("nim", "train.budget=200 steps"))
    seen: list[Row] = []
    assert isinstance(made.source, Explorer)
    seat = made.source.seats[0]
    inner = seat.sink.push
    seat.sink.push = lambda rows, ahead, at: (seen.append(rows), inner(rows, ahead, at))[1]  # type: ignore[method-assign]
    trained_steps = [log.at.env_steps for log in made()][-1]
    rows = ops.concat(seen)
    waits = rows.valid & ~rows.extras["acts"]
    assert waits.any() and not rows.start[1:][waits[:-1]].any()  # its episode goes on after it
    assert (rows.obs["action_mask"][waits].sum(-1) == 1).all() and (rows.action[waits] == 0).all()
    own = int(ops.decisions(rows.valid, rows.extras).sum())
    assert own < int(rows.valid.sum()) and own < trained_steps


def test_a_player_may_stay_as_it_is() -> None:
    frozen = "players={left: {}, right: {learn: false}}"
    made = build(config("rock-paper-scissors", frozen))
    before = {n: x.clone() for n, x in made.agents[1].state().tensors.items()}
    for _ in made():
        pass
    assert len(made.learners) == 1 and made.at.opt_steps > 15
    close(before, dict(made.agents[1].state().tensors))


def test_one_player_for_all_agents() -> None:
    made = build(config("rock-paper-scissors", "players={}"))
    for _ in made():
        pass
    assert [agent.player for agent in made.agents] == ["main"] and made.at.opt_steps > 15


def test_a_game_of_turns_is_won() -> None:
    """Who begins can always leave a multiple of three; against one that stays as it is PPO learns to."""
    made = build(config("nim", "players={first: {}, second: {learn: false}}", "train.budget=8k steps", "algo.lr=3e-3"))
    for _ in made():
        pass
    episodes, metrics = made.run_evaluate()
    assert metrics["eval/first/return_mean"] == metrics["eval/return_mean"] == 1.0
    assert {episode.player for episode in episodes} == {"first", "second"}


@pytest.mark.parametrize(
    ("players", "said"),
    [
        ("{left: {}}", "nobody plays right"),
        ("{left: {}, wright: {agents: [rigt]}}", "no agent .rigt.. Accepted: left, right.*right"),
        ("{left: {agents: [left, right]}, right: {}}", "'right' is played by another"),
        ("{left: {agents: [right, left]}}", "should follow each other"),
    ],
)
def test_players_that_do_not_fit(players: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(config("rock-paper-scissors", f"players={players}"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["players={left: {learn: false}, right: {learn: false}}"], "one player that learns"),
        (["run.mode=threads"], "run.mode local or sync"),
        (["players={'a b': {}}"], "letters, digits"),
    ],
)
def test_players_that_are_refused(more: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        config("rock-paper-scissors", *more)


def test_knobs_of_a_player() -> None:
    made = build(config("rock-paper-scissors"))
    made.pin(SetKnob("right/epsilon", 0.5))
    assert made.learners[1].agent.settings(made.at)["epsilon"] == 0.5
    with pytest.raises(UserError, match=r"no player ''. Accepted: PLAYER/KNOB with left, right"):
        made.pin(SetKnob("epsilon", 0.5))


def test_a_player_for_each_agent_or_role() -> None:
    """By a word: their agents, a run of it, and what does not fit."""
    agents = ("red_0", "red_1", "blue0", "ghost", "main_0", "main_1")
    still = PlayerSection(learn=False)
    assert {name: (own.agents, own.learn) for name, own in seated({"roles": still}, agents).items()} == {
        "red": (("red_0", "red_1"), False), "blue": (("blue0",), False), "ghost": (("ghost",), False),
        "mains": (("main_0", "main_1"), False),
    }  # fmt: skip
    assert [(name, own.agents) for name, own in seated({"each": PlayerSection()}, agents[:2]).items()] == [
        ("red_0", ("red_0",)), ("red_1", ("red_1",)),
    ]  # fmt: skip
    named = {"each": PlayerSection(agents=("red_0",)), "b": PlayerSection(agents=("red_1",))}
    assert seated(named, agents[:2]) == named
    words = [f"algo={PPO}", "env={kind: rock-paper-scissors, slots: 8}", *REST, "run.fast=eager"]
    made = build(ganglion.load_config(None, [*words, "players={each: {}}"]))
    told = {name for log in made() if log.kind == "learn" for name in log.metrics}
    assert {"left/entropy", "right/entropy"} <= told and len(made.learners) == 2
    spread = [f"algo={PPO}", "env={kind: particles, id: spread, slots: 6}", "players={roles: {}}", *REST]
    assert [learner.agent.algo.spec.agents for learner in build(ganglion.load_config(None, spread)).learners] == [
        ("agent_0", "agent_1", "agent_2")
    ]
    with pytest.raises(UserError, match="players: each stands for all players"):
        build(ganglion.load_config(None, [*words, "players={each: {}, left: {}}"]))
