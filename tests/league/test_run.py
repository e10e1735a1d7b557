"""A league as a run: who has which slots, whose games are counted for whom, what is refused."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import ganglion
import tests.league.worlds  # noqa: F401  registers one
from ganglion.config import RunConfig
from ganglion.core import Box, Discrete, EnvSpec, Noise, Past, Progress
from ganglion.errors import UserError
from ganglion.league.league_env import order, places
from ganglion.league.learning_player import LearningPlayer
from ganglion.league.source import LeagueSource
from ganglion.runtime.build import build
from ganglion.runtime.trainer import Trainer

PPO = "{kind: ppo, horizon: 8, epochs: 1, minibatches: 1, net: {hidden: [8]}}"
ROCK, PAPER, SCISSORS = range(3)


def config(*more: str) -> RunConfig:
    words = [f"algo={PPO}", "env={kind: uneven, slots: 32}", "league={kind: uniform, players: {main: main}}",
             "run.device=cpu", "run.fast=eager", "eval={every: never, episodes: 8}", "save=never",
             "log={writers: [jsonl]}"]  # fmt: skip
    return ganglion.load_config(None, [*words, *more])


def league_source(trainer: Trainer) -> LeagueSource:
    assert isinstance(trainer.source, LeagueSource)
    return trainer.source


def always(player: LearningPlayer, action: int) -> None:
    """Makes a player do the same from now on."""
    bias = next(x for n, x in player.agent.algo.model.named_parameters() if n.startswith("actor") and x.shape == (3,))
    with torch.no_grad():
        bias.zero_()
        bias[action] = 1e4


def test_every_learner_plays_every_agent_and_nobody_shares_a_slot() -> None:
    spec = EnvSpec(Box((1,)), Discrete(2), 36, "three", ("a", "b", "c"))
    seats = order(spec, 2)
    assert sorted(seats.tolist()) == list(range(36))
    for number in range(2):
        home, away = places(spec, 2, number)
        mine, theirs = seats[home], seats[away].view(2, -1)
        assert Counter((mine // 12).tolist()) == {0: 2, 1: 2, 2: 2}, "of each agent as many slots"
        for k in range(6):  # copies: the same one, and all its agents
            assert len({int(x) % 12 for x in (mine[k], *theirs[:, k])}) == 1
            assert len({int(x) // 12 for x in (mine[k], *theirs[:, k])}) == 3


@pytest.mark.parametrize("matches", [1, 3])
def test_games_are_counted_for_those_who_played_them(matches: int) -> None:
    """Each snapshot always does the same, so the result of a game says whom it was played against."""
    made = build(config(f"league.matches={matches}", "league.games=5", "train.budget=10k steps", "algo.lr=1e-9"))
    source = league_source(made)
    (player,) = source.players
    for action in (PAPER, SCISSORS, ROCK):  # main-1, main-2, main-3; it goes on with the last
        always(player, action)
        source.snapshot(player, Progress())
    met = Counter[str]()
    for log in made():
        met["games"] += sum(episode.many for episode in log.episodes)
        met["won"] += sum(round(episode.many * episode.info["win"]) for episode in log.episodes)
    made.close()
    payoff = source.league.payoff
    assert payoff.win_rates("main", ["main-1", "main-2", "main-3"]).tolist() == [0.0, 1.0, 0.5]
    counts = [int(payoff.met[0, k]) for k in range(1, 4)]
    assert sum(counts) == met["games"] == source.league.games > 500 and counts[1] == met["won"]
    assert min(counts) > 0.2 * sum(counts), "uniform"
    assert payoff.gain[0, 1] < -counts[0] and payoff.gain[0, 3] == 0.0


def test_a_game_is_played_by_one_opponent_to_its_end() -> None:
    """What a slot carries changes only where its episode starts."""
    made = build(config("league.matches=2", "league.games=3", "train.budget=3k steps"))
    source, changed = league_source(made), 0
    (player,) = source.players
    for action in (PAPER, SCISSORS):
        always(player, action)
        source.snapshot(player, Progress())
    made.run_collect()
    for _ in range(200):
        before, start = player.away.past.carried[0].clone(), player.away.past.start.clone()
        made.run_collect() if not made.owes() else made.run_train()
        after = player.away.past.carried[0]
        changed += int((before != after).sum())
        assert (before == after)[~start].all()
    assert changed > 10


def test_each_slot_does_what_its_opponent_alone_would() -> None:
    made = build(config("league={kind: league, players: {main: main, other: {role: league_exploiter, algo: {kind: ppo, "
                        "horizon: 8, minibatches: 1, net: {hidden: [8], memory: gru, memory_size: 4}}}}}"))  # fmt: skip
    player = league_source(made).players[0]
    opponents, count = player.opponents, player.away.count
    assert [len(kind) for kind in opponents.kinds] == [5, 5]
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(10, (1, count), generator=generator)
    obs = torch.randn(1, count, 2, generator=generator)
    noise = Noise(
        torch.rand(1, count, opponents.draws().explore.uniform, generator=generator), torch.empty(1, count, 0)
    )
    memory = tuple(torch.randn(x.shape, generator=generator) for x in opponents.model.initial(count))
    past = Past(memory, torch.zeros(1, count, dtype=torch.bool), (index,))
    knobs = player.away.agent.knobs(Progress())
    with torch.no_grad():
        acted = opponents.explore(opponents.predict(obs, past, noise), knobs, noise)
        for k, algo in enumerate(opponents.algos):
            own = past._replace(memory=memory if k >= 5 else (), carried=())
            alone = algo.explore(algo.predict(obs, own, noise), knobs, noise)
            here = index[0] == k
            assert torch.equal(acted.action[:, here], alone.action[:, here])
            if k >= 5:
                assert torch.equal(acted.memory[0][:, here], alone.memory[0][:, here])


def test_a_match_is_against_the_weights_that_it_began_with() -> None:
    made = build(config("league.kind=self", "league.games=1000", "train.budget=2k steps"))
    source = league_source(made)
    (player,) = source.players
    made.run_collect()
    first = {n: x.clone() for n, x in player.agent.state().tensors.items() if n.startswith("model/")}
    for _ in made():
        pass
    playing = player.opponents.algos[player.matches[0].index]
    for name, tensor in playing.model.state().tensors.items():
        assert torch.equal(tensor, first[f"model/{name}"])
    assert made.at.opt_steps > 5 and source.league.payoff.met.sum() == 0, "games against itself say nothing"


def test_a_reset_player_is_as_it_was_at_first() -> None:
    made = build(
        config("league={kind: league, players: {main: main, e: main_exploiter}, phase: 40}", "train.budget=3k steps")
    )
    source = league_source(made)
    player = source.players[1]
    first = {n: x.clone() for n, x in player.agent.state().tensors.items()}
    for _ in made():
        pass
    assert source.league.players["e"].resets >= 1 and "e-1" in source.frozen
    player.begin_anew()
    assert all(torch.equal(x, first[n]) for n, x in player.agent.state().tensors.items())
    assert any(
        not torch.equal(x, source.frozen["e-1"].tensors[n]) for n, x in player.agent.command(made.at).tensors.items()
    )


def test_evaluated_against_all_snapshots() -> None:
    made = build(config("league.measured=16", "eval.episodes=24"))
    source = league_source(made)
    (player,) = source.players
    assert made.run_evaluate()[1]["eval/episodes"] >= 24, "against itself"
    for action in (PAPER, SCISSORS, ROCK):
        always(player, action)
        source.snapshot(player, Progress())
    always(player, PAPER)
    state = made.state().tensors
    before = {name: tensor.clone() for name, tensor in state.items()}
    episodes, metrics = made.run_evaluate()
    assert metrics["eval/win_rate"] == pytest.approx(0.5) and len(episodes) == 48  # a draw, a loss and a win
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.state().tensors.items())
    assert source.league.payoff.win_rates("main-1", ["main-2", "main-3"]).tolist() == [0.0, 1.0], "measured"
    assert made.run_evaluate()[0] == episodes, "the same games again"


def test_compiled_in_blocks_counts_the_same_games() -> None:
    """Where functions are compiled, several steps pass between two looks at results."""
    from ganglion.runtime.engine import Engine, as_it_is

    made = build(
        config("league.games=5", "train.budget=4k steps", "algo.lr=1e-9"), Engine(torch.device("cpu"), as_it_is)
    )
    source = league_source(made)
    (player,) = source.players
    for action in (PAPER, SCISSORS, ROCK):
        always(player, action)
        source.snapshot(player, Progress())
    for _ in made():
        pass
    assert source.league.payoff.win_rates("main", ["main-1", "main-2", "main-3"]).tolist() == [0.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env.slots=34"], "multiple of 4 .*no seat"),
        (["league.matches=17"], "league.matches: 17 is more than the 16"),
        (["env={kind: toy, id: identity}"], "one agent"),
        (["league.kind=unifrm"], "Did you mean 'uniform'"),
        (["run.mode=threads"], "run.mode local"),
        (
            ["league.kind=pfsp", "league.weight=hard"],
            "'squared', 'variance', 'linear' or 'capped'",
        ),
        (["algo=sac"], "algo.kind: sac needs a Box"),
    ],
)
def test_what_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build(config(*words))


@pytest.mark.learning
def test_the_best_response_to_a_frozen_player_is_learned() -> None:
    """In Kuhn poker, of both sides: against play almost by chance it wins 0.458 a game, and no more."""
    ppo = "{kind: ppo, lr: 3e-3, horizon: 8, epochs: 2, minibatches: 2, gamma: 1.0, lam: 1.0, entropy: 0.02}"
    made = build(config(f"algo={ppo}", "env={kind: kuhn, slots: 512}", "league.phase=1M", "train.budget=200k steps"))
    source = league_source(made)
    source.snapshot(source.players[0], Progress())
    episodes = [e for log in made() if log.at.fraction > 0.75 for e in log.episodes]
    games = sum(e.many for e in episodes)
    assert games > 10_000
    assert sum(e.total * e.many for e in episodes) / games == pytest.approx(0.458, abs=0.08)
