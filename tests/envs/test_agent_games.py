"""Games of several agents that other packages play: rows, endings, the dead and the absent, turns, spaces, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ganglion.config import RunConfig
from ganglion.config.files import load
from ganglion.core import CENTRAL, Discrete
from ganglion.envs.agent_games import ParallelGame, TurnGame
from ganglion.envs.agent_slots import AgentGames
from ganglion.envs.check.check_env import check_env
from ganglion.errors import EnvError, UserError
from ganglion.runtime.run import Run
from tests.equal.runs import fingerprint


class Hunt:
    """A parallel game as PettingZoo's: a, b and, in odd episodes, c; b dies at step 2, all others at step 4 in time."""

    possible_agents = ("a", "b", "c")

    def __init__(self) -> None:
        self.turn, self.seed = 0, 0

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9.0, 9.0, (2,) if agent == "a" else (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2 if agent == "a" else 4)

    def seen(self) -> dict[str, Any]:
        size = {"a": 2, "b": 3, "c": 3}
        return {n: np.full(size[n], self.turn + ord(n) - ord("a"), np.float32) for n in self.agents}

    def reset(self, seed: int | None = None) -> Any:
        self.turn = 0
        self.agents = ["a", "b", "c"] if (seed or 0) % 2 else ["a", "b"]
        return self.seen(), {}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents) and actions["a"] < 2
        self.turn += 1
        reward = {n: float(actions[n] + 1) for n in self.agents}
        over = {n: n == "b" and self.turn == 2 for n in self.agents}
        cut = dict.fromkeys(self.agents, self.turn == 4)
        obs = self.seen()
        self.agents = [n for n in self.agents if not over[n] and not cut[n]]
        return obs, reward, over, cut, {}

    def close(self) -> None: ...


def hunt(slots: int = 3) -> AgentGames:
    return AgentGames(lambda: ParallelGame(Hunt()), slots, "hunt", "cpu")


def test_the_dead_and_the_absent() -> None:
    env = hunt()
    step = env.reset(0)
    there = [step.valid.tolist()]
    rows = [step]
    for _ in range(40):
        rows.append(env.step(torch.tensor([1, 3, 2])))
        there.append(rows[-1].valid.tolist())
    episodes = env.episodes()
    starts = [t for t, row in enumerate(rows) if row.valid[0] and (t == 0 or not rows[t - 1].valid.any())]
    assert starts == list(range(0, 41, 5)) and len({tuple(there[t]) for t in starts}) == 2  # with and without c
    for t in starts[:-1]:
        game = rows[t : t + 5]
        assert [bool(row.valid[1]) for row in game] == [True, True, False, False, False]
        assert [bool(row.terminated[1]) for row in game] == [False, False, True, False, False]
        assert [float(row.reward[1]) for row in game] == [0.0, 4.0, 4.0, 0.0, 0.0]
        assert [bool(row.valid[0]) for row in game] == [True] * 4 + [False]
        assert bool(game[4].truncated[0]) and not bool(game[4].terminated[0])
        assert float(game[4].obs["obs"][0, 0]) == 4.0  # the true last observation
        absent = not bool(game[0].valid[2])
        assert not absent or (not any(bool(row.valid[2]) for row in game) and not game[2].obs["obs"][2].any())
    assert {(e.slot, e.total, e.length) for e in episodes} == {(0, 8.0, 4), (1, 8.0, 2), (2, 12.0, 4), (2, 0.0, 0)}


def test_agents_that_differ() -> None:
    env = hunt()
    step = env.reset(1)
    assert env.spec.action == Discrete(4) and step.obs["obs"].shape == (3, 3)
    assert step.obs["action_mask"][:2].tolist() == [[True, True, False, False], [True] * 4]
    assert step.obs["obs"][0, 2] == 0
    assert step.obs["obs"].dtype == torch.float32


class Count:
    """An AEC game as PettingZoo's: each adds to a sum in turn; who reaches 5 wins, and both are paid then."""

    possible_agents = ("x", "y")

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict({"observation": spaces.Box(0, 9, (1,), np.float32), "action_mask": spaces.MultiBinary(3)})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None) -> None:
        self.sum, self.agents, self.agent_selection = 0, ["x", "y"], "x"
        self.rewards, self.terminations = {"x": 0, "y": 0}, {"x": False, "y": False}
        self.truncations = {"x": False, "y": False}

    def observe(self, agent: str) -> Any:
        legal = np.array([0, 1, 1], np.int8) * (agent == self.agent_selection)
        return {"observation": np.array([self.sum], np.float32), "action_mask": legal}

    def step(self, action: int | None) -> None:
        own = self.agent_selection
        if action is None:
            self.agents.remove(own)
            self.agent_selection = self.agents[0] if self.agents else own
            return
        assert action in (1, 2)
        self.sum += action
        other = "y" if own == "x" else "x"
        self.rewards = {own: 0.0, other: 0.0}
        if self.sum >= 5:
            self.rewards, self.terminations = {own: 1.0, other: -1.0}, {"x": True, "y": True}
        self.agent_selection = other

    def close(self) -> None: ...


def test_turns() -> None:
    env = AgentGames(lambda: TurnGame(Count()), 2, "count", "cpu")
    step = env.reset(0)
    assert env.spec.turns
    turns = [step.acts.tolist()]  # type: ignore[union-attr]
    for k in range(3):
        legal = step.obs["action_mask"].int().tolist()
        waits = k % 2 == 0
        assert legal == ([[0, 1, 1], [1, 0, 0]] if waits else [[1, 0, 0], [0, 1, 1]])
        step = env.step(torch.tensor([2, 0] if waits else [0, 2]))
        turns.append(step.acts.tolist())  # type: ignore[union-attr]
    assert turns == [[True, False], [False, True], [True, False], [False, False]]
    assert step.reward.tolist() == [1.0, -1.0] and step.terminated.all() and not step.valid.any()
    assert step.obs["obs"][:, 0].tolist() == [6.0, 6.0]
    step = env.step(torch.tensor([0, 0]))
    assert step.valid.all() and step.obs["obs"][:, 0].tolist() == [0.0, 0.0]
    assert [(e.slot, e.total, e.length) for e in env.episodes()] == [(0, 1.0, 3), (1, -1.0, 3)]


def test_a_game_that_fails_loses_its_episode_alone() -> None:
    env, calm = hunt(6), hunt(6)
    env.reset(0), calm.reset(0)
    action = torch.ones(6, dtype=torch.int64)
    env.env.slots.envs[0].game.env.agents = []
    step, other = env.step(action), calm.step(action)
    assert env.faults.lost.tolist() == [True, False] * 3 and env.faults.rows_lost == 3
    first, second = slice(0, None, 2), slice(1, None, 2)
    was = calm.reset(0).valid[first]  # who was there
    assert torch.equal(step.truncated[first], was) and not step.valid[first].any() and not step.reward[first].any()
    for part, whole in zip(step[1:5], other[1:5], strict=True):
        assert torch.equal(part[second], whole[second])
    again = env.step(action)
    assert again.valid[first].any() and env.faults.lost is None
    assert all(e.slot % 2 for e in env.episodes())  # nobody knows the score of the lost one


def test_a_game_that_fails_is_named() -> None:
    env = hunt()
    env.faults.most = 0
    env.reset(0)
    env.env.slots.envs[0].game.env.agents = []
    env.step(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(EnvError, match=r"env\.max_failures: hunt failed 1 times"):
        env.step(torch.zeros(3, dtype=torch.int64))


def test_workers_play_the_same_games() -> None:
    """Also when one of them is killed in between: its copies are replayed."""
    walks = []
    for workers in (0, 2):
        env = config("lbforaging", f"env.workers={workers}", "env.slots=8").env.whole()
        assert isinstance(env, AgentGames)
        rows, g = [env.reset(4)], torch.Generator().manual_seed(0)
        for t in range(70):
            if workers and t == 33:
                env.env.walk.worker_processes.members[1].process.kill()  # type: ignore[attr-defined]
            rows.append(env.step(torch.randint(6, (8,), generator=g)))
        walks.append((rows, env.episodes(), env.faults.rows_lost))
        env.close()
    (here, scores, _), (there, same, lost) = walks
    assert lost == 0 and scores == same and len(scores) >= 8
    for a, b in zip(here, there, strict=True):
        assert torch.equal(a.obs, b.obs) and all(torch.equal(x, y) for x, y in zip(a[1:5], b[1:5], strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("game", ["mpe2", "lbforaging"])
def test_the_checker_has_nothing_to_say(game: str) -> None:
    report = check_env(config(game).env, steps=300, seconds=1.0)
    assert not [finding for finding in report.findings if finding.verdict == "fail"]


def test_resumed_in_the_middle() -> None:
    one, two = hunt(6), hunt(6)
    one.reset(3)
    for t in range(13):
        one.step(torch.tensor([t % 2] * 2 + [3 - t % 4] * 4))
    two.restore(one.state())
    for _ in range(12):
        a, b = one.step(torch.ones(6, dtype=torch.int64)), two.step(torch.ones(6, dtype=torch.int64))
        assert all(torch.equal(x, y) for x, y in zip(a[1:5], b[1:5], strict=True))  # type: ignore[arg-type]
        assert torch.equal(a.obs["obs"][a.valid], b.obs["obs"][b.valid])
    assert one.episodes() == two.episodes()


# ------------------------------------------------------------ the packages

GAMES = {
    "mpe2": "{kind: pettingzoo, id: mpe2.simple_speaker_listener_v4, slots: 4}",
    "aec": "{kind: pettingzoo, id: mpe2.simple_tag_v3, slots: 4, turns: true}",
    "lbforaging": "{kind: lbforaging, id: Foraging-8x8-2p-2f-coop-v3, slots: 4}",
    "rware": "{kind: rware, id: rware-tiny-2ag-v2, slots: 4, time_limit: 30}",
    "pyspiel": "{kind: openspiel, id: leduc_poker, slots: 4}",
}


def config(game: str, *more: str) -> RunConfig:
    pytest.importorskip("mpe2" if game == "aec" else game, reason="the package that plays it")
    algo = "{kind: mappo, horizon: 10, minibatches: 2, epochs: 1, net: {hidden: [8]}, critic: {hidden: [8]}}"
    quiet = ["log.writers=[]", "eval=never", "run.device=cpu", "train.budget=240 steps", "save={every: 70 steps}"]
    return load(None, [f"algo={algo}", f"env={GAMES[game]}", *quiet, *more])


@pytest.mark.parametrize("game", GAMES)
def test_a_run_resumes_exactly(game: str, tmp_path: Path) -> None:
    runs = [Run.create(config(game, f"run.dir={tmp_path / name}")) for name in ("whole", "left")]
    for _ in runs[0].stream():
        pass
    for log in runs[1].stream():
        if log.kind == "save" and log.at.env_steps > 100:
            break
    runs[1].close()
    again = Run.open(tmp_path / "left")
    assert again.trainer.at.env_steps < 240
    for _ in again.stream():
        pass
    assert fingerprint(again.state()) == fingerprint(runs[0].state())


def test_central_states_of_packages() -> None:
    env = config("mpe2").env.whole()
    step = env.reset(0)
    state = step.obs[CENTRAL].unflatten(0, (2, 2))
    assert torch.equal(state[0], state[1]) and not torch.equal(state[0, 0], state[0, 1])
    assert torch.equal(state[0, :, 3:], step.obs["obs"][2:])  # what the listener sees


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("{kind: pettingzoo, id: os.path}", "should begin with mpe2 or pettingzoo"),
        ("{kind: pettingzoo, id: mpe2.simple_sprad_v3}", "there is no 'mpe2.simple_sprad_v3'"),
        ("{kind: pettingzoo, id: mpe2}", "makes no environment"),
        ("{kind: lbforaging, id: Foraging-9x8}", "lbforaging has no 'Foraging-9x8'"),
        ("{kind: pettingzoo, id: mpe2.simple_spread_v3, options: {n: 3}}", "did not take them"),
        ("{kind: pettingzoo, id: mpe2.simple_spread_v3, slots: 4}", "no whole copies of a game of 3 agents"),
    ],
)
def test_what_is_refused(env: str, said: str) -> None:
    pytest.importorskip("mpe2", reason="the package that plays it")
    pytest.importorskip("lbforaging", reason="the package that plays it")
    with pytest.raises(UserError, match=said):
        load(None, ["algo=dqn", f"env={env}"]).env.whole()
