"""A league on Ray, without Ray: processes are objects here, and die when a test says so."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ganglion
from ganglion.config import RunConfig
from ganglion.errors import UserError
from ganglion.fleet.ray_actor import ProcessDiedError
from ganglion.league import build_ray, ray_league
from ganglion.league.match_book import MatchBook
from ganglion.league.player_explorer import ExplorerCalls
from ganglion.league.player_learner import LearnerCalls
from ganglion.league.ray_actors import EXPLORE, LEARN
from ganglion.runtime.build import build
from ganglion.runtime.run import Run
from ganglion.runtime.trainer import Trainer

PPO = "{kind: ppo, lr: 1e-2, horizon: 8, epochs: 1, minibatches: 1, net: {hidden: [8]}}"
DQN = "{kind: dqn, net: {hidden: [8]}, replay: {capacity: 2000, batch: 16}, limiter: {opt_interval: 32, warmup: 64}}"
PLAYERS = f"{{main: main, e: {{role: main_exploiter, algo: {DQN}}}}}"
LEAGUE = f"{{kind: league, players: {PLAYERS}, matches: 2, games: 9, phase: 60}}"
WORDS = [f"algo={PPO}", "env={kind: matrix, id: rock_paper_scissors, rounds: 3, slots: 16}", f"league={LEAGUE}",
         "run.mode=ray", "run.device=cpu", "run.fast=eager", "eval={every: never, episodes: 8}", "save=never",
         "log={writers: [jsonl]}", "fleet.explorers=3", "train.budget=6k steps"]  # fmt: skip


class DeadError(Exception):
    pass


class TaskError(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Ref:
    """What a call will bring; it is worked out when somebody asks."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work, self.made = work, False

    def get(self) -> Any:
        if not self.made:
            self.value, self.made = self.work(), True
        return self.value


class Actor:
    """An actor with its process in this one: calls are done in order, and none after its death."""

    def __init__(self, cfg: RunConfig, role: str) -> None:
        self.do: Any = (LearnerCalls if role == LEARN else ExplorerCalls)(cfg)
        self.role, self.dead, self.process_dead, self.queue = role, False, False, list[Ref]()

    @property
    def call(self) -> Any:
        return SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=self.remote))

    def remote(self, order: dict[str, Any], body: Any) -> list[Ref]:
        whole = Ref(lambda: self.run(order, body))
        self.queue.append(whole)
        return [Ref(lambda k=k: self.upto(whole)[k]) for k in range(2)]

    def upto(self, ref: Ref) -> Any:
        for earlier in self.queue[: self.queue.index(ref) + 1]:
            earlier.get()
        return ref.get()

    def run(self, order: dict[str, Any], body: Any) -> Any:
        if self.dead:
            raise DeadError("the actor died")
        if self.process_dead:
            raise TaskError(ProcessDiedError("it ended"))
        return self.do(order, body.get() if isinstance(body, Ref) else body)


class FakeRay:
    """As much of Ray as a league calls; `actors` are all that were made."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.actors = dice, list[Actor]()
        names = ("RayActorError", "OutOfMemoryError", "NodeDiedError", "ObjectLostError")
        kinds = dict.fromkeys(names, DeadError)
        self.exceptions = SimpleNamespace(**kinds, RayTaskError=TaskError)

    def remote(self, **options: Any) -> Any:
        def make(brief: list[Any], role: str) -> Actor:
            self.actors.append(Actor(self.cfg, role))
            return self.actors[-1]

        return lambda kind: SimpleNamespace(remote=make)

    def wait(self, calls: list[Ref], num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        chosen = self.dice.choice(calls)
        return [chosen], [call for call in calls if call is not chosen]

    def get(self, ref: Ref) -> Any:
        return ref.get()

    def kill(self, actor: Actor) -> None:
        actor.dead = True


class Talk:
    def __call__(self, ask: Any, limit: float = 0.0) -> Any:
        return ask()

    def look(self) -> None: ...

    def close(self, leave: Any, limit: float) -> None: ...


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay(random.Random(0))
    monkeypatch.setattr(ray_league, "join_ray", lambda site: (fake, False))
    monkeypatch.setattr(ray_league, "watch_ray", lambda found: Talk())
    monkeypatch.setattr(ray_league, "join_fork_server", lambda: SimpleNamespace(path=Path("nowhere")))
    monkeypatch.setattr(ray_league, "leave_fork_server", lambda server: None)
    monkeypatch.setattr(build_ray, "begin_fork_server", lambda: None)
    monkeypatch.setattr(build_ray, "begin_ray", lambda site: None)
    return fake


def made(ray: FakeRay, *more: str) -> Trainer:
    ray.cfg = ganglion.load_config(None, [*WORDS, *more])
    return build(ray.cfg)


def accounted(source: Any) -> None:
    """Every match is finished, lost or under way, and every game that came is in the league once."""
    book = source.book
    assert book.begun == book.finished + book.lost + len(book.under_way)
    assert book.games == source.league.games and book.strange == 0, "each game once"


def test_a_league_of_processes(ray: FakeRay) -> None:
    trainer = made(ray, "train.budget=12k steps")
    source: Any = trainer.source
    for _ in trainer():
        accounted(source)
    assert source.book.finished > 10 and source.book.lost == 0 and source.league.past
    assert {p.player for p in source.explorers} == {"main", "e"} and len(ray.actors) == 5
    assert trainer.at.opt_steps > 30 and trainer.at.env_steps >= 12_000
    assert source.items_lost == 0 and source.numbers()["fleet/received"] > 4
    for learner in source.learners:
        assert learner.published > 1
    met = source.league.payoff.met
    assert met.sum() > 50, "games against others count"
    trainer.close()


@pytest.mark.parametrize("seed", range(3))
def test_killed_explorers_and_learners_lose_no_match_from_sight(ray: FakeRay, seed: int) -> None:
    trainer, dice = made(ray, "train.budget=16k steps"), random.Random(seed)
    source: Any = trainer.source
    killed = {LEARN: 0, EXPLORE: 0}
    for _ in trainer():
        accounted(source)
        role = EXPLORE if killed[LEARN] >= killed[EXPLORE] else LEARN
        places = [place for place in (*source.learners, *source.explorers) if place.role == role and place.futile < 2]
        alive = [p.actor for p in places if p.actor is not None and not (p.actor.dead or p.actor.process_dead)]
        if alive and source.book.finished and dice.random() < 0.2:
            victim = dice.choice(alive)
            killed[role] += 1
            victim.dead, victim.process_dead = (True, False) if dice.random() < 0.5 else (False, True)
    numbers = source.numbers()
    assert min(killed.values()) >= 2, "the test itself"
    assert numbers["league/matches_lost"] > 0
    assert 1 <= numbers["league/explorers_restarted"] <= killed[EXPLORE]
    assert 1 <= numbers["league/learners_restarted"] <= killed[LEARN]
    assert trainer.at.env_steps >= 6_000
    trainer.close()


def test_a_killed_learner_goes_on_with_the_weights_it_published(ray: FakeRay) -> None:
    trainer = made(ray, "train.budget=60k steps")
    source: Any = trainer.source
    run = trainer()
    while source.learner("main").published < 8:
        next(run)
    place = source.learner("main")
    actor, weights = place.actor, place.weights
    trainer.state()  # as a checkpoint does
    actor.process_dead = True
    while place.deaths == 0:
        next(run)
    before = place.published
    while place.published == before:
        next(run)
    assert place.weights.version > weights.version, "it goes on counting"
    trainer.close()


def test_learners_begin_with_the_weights_that_this_process_has(ray: FakeRay) -> None:
    trainer = made(ray)
    source: Any = trainer.source
    with torch.no_grad():
        for learner in source.learners:
            for parameter in learner.agent.algo.model.parameters():
                parameter.fill_(0.125)
    run = trainer()
    while any(learner.rows == 0 for learner in source.learners):
        next(run)
    next(run)
    for learner in source.learners:
        learner.actor.upto(learner.actor.queue[1])
        assert all((x == 0.125).all() for x in learner.actor.do.made.agent.algo.model.parameters())
    trainer.close()


def test_one_that_dies_at_once_every_time_ends_the_run(ray: FakeRay) -> None:
    trainer = made(ray)
    source: Any = trainer.source
    with pytest.raises(UserError, match=r"run.mode: explorer of main died 5 times before it brought anything"):
        for _ in trainer():
            if source.explorers[0].actor is not None:
                source.explorers[0].actor.dead = True
    trainer.close()


def test_stopped_and_resumed(ray: FakeRay, tmp_path: Path) -> None:
    """Learners and players go on; what was under way is lost, and counted so."""
    words = [*WORDS, f"run.dir={tmp_path / 'run'}", "save=1k steps", "fleet.explorers=2"]
    ray.cfg = ganglion.load_config(None, words)
    run = Run.create(ray.cfg)
    for _ in run.stream():
        if run.trainer.at.env_steps > 3_000:
            break
    run.save()
    source: Any = run.trainer.source
    begun, league, version = source.book.begun, source.league.state(), source.learner("main").weights.version
    under_way = len(source.book.under_way)
    run.close()
    again = Run.open(tmp_path / "run")
    other: Any = again.trainer.source
    assert other.league.state() == league and other.book.begun == begun and other.book.lost == under_way
    assert other.frozen.keys() == source.frozen.keys()
    assert other.learner("main").weights.version >= version
    for _ in again.stream():
        accounted(other)
    assert again.trainer.at.env_steps >= 6_000 and other.book.begun > begun
    assert other.explorers[0].incarnation > source.explorers[0].incarnation
    again.close()
    from ganglion.league.saved_league import SavedLeague, score_games

    saved = SavedLeague(tmp_path / "run")
    assert saved.league.games == other.league.games
    saved.close()
    assert score_games(tmp_path / "run", "main", "e", 8, 0)["episodes"] >= 8


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fleet.explorers=1"], "fleet.explorers: 1 for 2 learning players .main, e.*somebody has no explorer"),
        (["env.slots=18"], "multiple of 4"),
        (["league.matches=9"], "league.matches: 9 is more than the 8 copies of each explorer"),
        (["fleet.learners=2"], "one fleet.learners"),
        (["fleet.inference=central"], "predict themselves"),
        (["run.mode=threads"], "run.mode local or ray"),
    ],
)
def test_what_is_refused(ray: FakeRay, words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        made(ray, *words)


def test_a_book_of_matches() -> None:
    book = MatchBook()
    labels = [book.begin("main", "main-1", k % 2, k) for k in range(4)]
    assert book.report(labels[0]) == "main-1" and book.report("99:nobody") is None and book.strange == 1
    book.finish(labels[0])
    assert book.report(labels[0]) == "main-1", "its last games"
    after = book.begin("main", "main-2", 0, 0)
    book.finish(after)
    assert book.report(labels[0]) is None and book.report(after) == "main-2" and book.strange == 2
    book.lose(1)
    assert (book.begun, book.finished, book.lost, len(book.under_way), book.games) == (5, 2, 2, 1, 3)
    book.lose(0)
    assert book.report(after) is None and (book.lost, book.under_way) == (3, {})
    again = MatchBook()
    again.restore(book.state())
    assert (again.begun, again.finished, again.lost, again.under_way) == (5, 2, 3, {})
