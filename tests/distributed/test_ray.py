"""Explorers as Ray actors, for real: training, death, stillness, resuming; and who can reach them."""

from __future__ import annotations

import argparse
import os
import signal
import stat
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from ganglion.cli import resume, train
from ganglion.config import RunConfig
from ganglion.config.files import dump, load
from ganglion.errors import UserError
from ganglion.fleet import fork_server, ray_cluster
from ganglion.fleet.dealer import RULES, Dealer
from ganglion.fleet.ray_cluster import ClusterSettings, check_open, join_ray, leave_ray
from ganglion.fleet.ray_fleet import RayFleet
from ganglion.fleet.receiver import Receiver
from ganglion.runtime.build import build
from ganglion.runtime.run import Run
from ganglion.runtime.trainer import Trainer
from tests.distributed.sockets import listening
from tests.equal.runs import SORTS, config

REST = [rule for rule in RULES if rule != "equal"]
EAGER = {"log": {"writers": []}, "eval": "never", "save": "never"}


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    if find_spec("ray") is None:
        pytest.skip("needs the package ray: pip install 'ganglion[ray]'")
    yield join_ray(ClusterSettings())[0]
    leave_ray()


def trainer(sort: str, steps: int, **fleet: Any) -> tuple[Trainer, RayFleet]:
    run = {"mode": "ray", "fast": "eager"}
    given = {**SORTS[sort], **EAGER, "train": {"budget": f"{steps} steps"}, "run": run, "fleet": fleet}
    made = build(RunConfig.model_validate(given))
    assert isinstance(made.source, Receiver) and isinstance(made.source.fleet, RayFleet)
    return made, made.source.fleet


@pytest.mark.parametrize(("sort", "shared"), [("dqn", False), ("ppo", True), ("sac", True)])
def test_it_learns_and_accounts_for_every_item(ray: Any, sort: str, shared: bool) -> None:
    """Through shared memory, or through Ray's objects as between machines."""
    made, fleet = trainer(sort, 1_200, explorers=2, spares=0, rows=16, shared=shared)
    lags = [log.metrics["lag"] for log in made() if "lag" in log.metrics]
    told = made.source.numbers()  # type: ignore[union-attr]
    near = {member.near for member in fleet.members.values() if member.starting is None}
    made.close()
    assert near == {shared}
    assert made.at.env_steps >= 1_200 and made.at.opt_steps > 0
    assert told["fleet/lost"] == told["fleet/duplicated"] == 0 and told["fleet/received"] == len(lags)
    assert min(lags) >= 0 and not Path(fleet.folder).exists() and ray.is_initialized()


def test_one_is_killed_and_one_stands_still(ray: Any) -> None:
    """Nothing that was handed over is lost or taken twice, nobody waits for the one that stands still, and another
    takes the dead one's place."""
    made, fleet = trainer("dqn", 10**9, explorers=2, spares=1, rows=16)
    stream = made()

    def until(reached: Any, seconds: float = 60) -> None:
        ends = monotonic() + seconds
        while not reached():
            next(stream)
            assert monotonic() < ends

    count = lambda: fleet.account.received  # noqa: E731
    until(lambda: len(fleet.account.next) == 2 and count() > 6 and fleet.waiting)
    os.kill(fleet.members[1].pid, signal.SIGKILL)
    until(lambda: len(fleet.recoveries) == 1)
    assert fleet.members[1].incarnation == 1 and fleet.account.restarts == 1 and fleet.account.in_flight <= fleet.ahead
    still, before = fleet.members[0].pid, count()
    os.kill(still, signal.SIGSTOP)
    until(lambda: count() > before + 10)
    os.kill(still, signal.SIGCONT)
    seen = fleet.account.next[("main", 0, 0)]  # type: ignore[index]
    assert fleet.members[1].home not in (0, fleet.members[1].pid)
    os.kill(fleet.members[1].home, signal.SIGKILL)  # the actor itself, and its explorer process with it
    until(lambda: len(fleet.recoveries) == 2)
    assert fleet.members[1].incarnation == 2 and fleet.account.restarts == 2
    until(lambda: fleet.account.next[("main", 0, 0)] > seen + 2)  # type: ignore[index]
    fleet.resize(1)
    assert made.source.numbers()["fleet/explorers"] == 1  # type: ignore[union-attr]
    made.close()
    assert fleet.account.lost == fleet.account.duplicated == 0
    assert max(fleet.recoveries) < 30  # seconds; on a quiet machine a spare takes over in less than one


@pytest.mark.soak
@pytest.mark.parametrize("shared", [True, False])
def test_the_predictor_may_die(ray: Any, shared: bool) -> None:
    made, fleet = trainer("ppo", 10**9, explorers=2, spares=0, inference="central", shared=shared)
    stream, count = made(), lambda: fleet.account.received
    for wanted in (6, 16):
        if wanted > 6:
            os.kill(ray.get(fleet.inference_server.pid.remote()), signal.SIGKILL)
        ends = monotonic() + 60
        while count() < wanted:
            next(stream)
            assert monotonic() < ends
    made.close()
    assert fleet.account.lost == fleet.account.duplicated == fleet.account.restarts == 0 and made.at.opt_steps > 0


def test_a_run_is_saved_and_continued(ray: Any, tmp_path: Path) -> None:
    given = {"run": {"mode": "ray", "fast": "eager", "dir": str(tmp_path / "run")}}
    fleet = {"explorers": 1, "spares": 0, "rows": 16}
    left = Run.create(config("dqn", tmp_path / "run", 700, fleet=fleet, **given))
    for log in left.stream():
        if log.kind == "save":
            break
    left.close()
    again = Run.open(tmp_path / "run")
    scores = [log for log in again.stream() if log.kind == "evaluate"]
    again.close()
    assert scores[-1].at.opt_steps == again.trainer.at.opt_steps  # of the agent as it is in the end
    assert len(scores[-1].episodes) == 4 and again.checkpoints.best() is not None
    assert again.trainer.at.env_steps >= 700
    told = again.trainer.source.numbers()
    assert told["fleet/lost"] == told["fleet/duplicated"] == 0
    assert [source.incarnation for source in again.trainer.source.fleet.account.next] == [1]
    assert "0 lost, 0 duplicated" in again.summary()["Items"]


@pytest.mark.parametrize("rule", ["equal", *(pytest.param(r, marks=pytest.mark.soak) for r in REST)])
def test_two_learners_share_the_explorers(ray: Any, rule: str) -> None:
    """By each rule: steps are counted once, and nothing that was sent is lost."""
    made, fleet = trainer("dqn", 1_200, explorers=2, learners=2, spares=0, rows=16, rule=rule)
    assert isinstance(fleet, Dealer)
    played = sum(len(log.episodes) for log in made())
    told, given = made.source.numbers(), [queue.given for queue in fleet.queues]  # type: ignore[union-attr]
    made.close()
    assert made.at.env_steps >= 1_200 and made.at.opt_steps > 0
    assert told["fleet/lost"] == told["fleet/duplicated"] == 0 and min(given) > 0
    assert told["fleet/received"] == (given[0] if rule == "broadcast" else sum(given))
    assert made.at.episodes - 20 < played <= made.at.episodes + 20 and played > 20  # of all explorers; some under way
    assert rule != "equal" or abs(given[0] - given[1]) <= 1
    rows = told["fleet/received"] * 16 * 4  # those at the end of an episode are no steps
    assert 0.7 * rows < made.at.env_steps + told["fleet/queue"] * 64 < 1.1 * rows


def test_an_explorer_that_cannot_start_says_why(ray: Any) -> None:
    made, fleet = trainer("dqn", 500, explorers=1, spares=0)
    wrong = fleet.brief._replace(config="algo: nosuch\nenv: {kind: toy, id: chain}\n")
    fleet.waiting.append(fleet.actor.remote([*wrong]))
    with pytest.raises(UserError, match="nosuch"):
        for _ in made():
            pass
    made.close()


# ------------------------------------------------------------ who can reach it


def test_nothing_listens_beyond_loopback(ray: Any) -> None:
    found = listening()
    assert len(found) >= 3  # Ray's own servers are there
    assert {host for host, _ in found} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, found


def test_the_token_is_a_secret(ray: Any) -> None:
    file = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(file.read_text()) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.read_text() not in Path("/proc/self/cmdline").read_text()


def test_its_sockets_and_logs_are_where_nobody_else_can_enter(ray: Any) -> None:
    """Ray lets everybody write to its own folder."""
    session = Path(ray.nodes()[0]["RayletSocketName"]).parents[1]
    assert stat.S_IMODE(session.stat().st_mode) == 0o777 and session.parent == Path(ray_cluster.session())
    assert stat.S_IMODE(session.parent.parent.stat().st_mode) == 0o700


def test_a_name_that_is_too_long_for_a_socket_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    monkeypatch.setattr(ray_cluster, "disks", lambda: [deep, tmp_path])
    assert ray_cluster.room("a") == (tmp_path if len(str(tmp_path)) < 35 else None)
    monkeypatch.setattr(ray_cluster, "disks", lambda: [deep, Path("/tmp")])
    assert ray_cluster.room("ganglion-1234567-4026531836-12345678") == Path("/tmp")


@pytest.mark.parametrize(
    "site",
    [
        ClusterSettings(host="0.0.0.0"),
        ClusterSettings(address="10.0.0.7:6379"),
        ClusterSettings(address="ray://head:10001"),
    ],
)
def test_it_refuses_to_be_reached_without_a_token(site: ClusterSettings) -> None:
    name = "address" if site.address else "host"
    for environ in ({}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"}, {"RAY_AUTH_MODE": "token"}):
        with pytest.raises(UserError, match=rf"fleet\.{name}: .* no token"):
            check_open(site, environ)
    check_open(site, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/some/file"})
    check_open(ClusterSettings(), {})
    check_open(ClusterSettings(address="127.0.0.1:6379"), {})
    check_open(ClusterSettings(address="auto"), {})


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:6379"])
def test_a_cluster_that_is_found_to_be_reachable_needs_a_token(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """What is on this machine may listen beyond it; and Ray's own variable may say that it is elsewhere."""
    left: list[str] = []
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")
    job = SimpleNamespace(JobConfig=lambda **words: None)
    found = SimpleNamespace(init=lambda **words: None, shutdown=lambda: left.append("left"), util=util, job_config=job)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: found)
    monkeypatch.setattr(os, "environ", {})
    with pytest.raises(UserError, match=r"fleet\.address: .* can be reached from other machines, and Ray has no token"):
        ray_cluster.start_ray(ClusterSettings(address))
    assert left == ["left"]
    os.environ["RAY_AUTH_TOKEN_PATH"] = "/some/file"
    assert ray_cluster.start_ray(ClusterSettings(address)) is found and left == ["left"]


def test_without_the_package_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r"run\.mode: ray needs the package ray"):
        ray_cluster.import_ray()


# ------------------------------------------------------------ what is begun before settings are read


class Begun:
    """Stands in for Ray: which were started, and how many left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sites, self.left = list[ClusterSettings](), 0
        stands = {"start_ray": self.start, "import_ray": lambda: self, "_coming": {}, "_left": Event()}
        for name, value in stands.items():
            monkeypatch.setattr(ray_cluster, name, value)

    def start(self, site: ClusterSettings) -> Begun:
        self.sites.append(site)
        return self

    def is_initialized(self) -> bool:
        return len(self.sites) > self.left

    def shutdown(self) -> None:
        self.left += 1


def test_what_was_begun_early_is_used_whatever_it_has_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Begun(monkeypatch)
    ray_cluster.begin_ray(ClusterSettings(processes=2))
    assert (
        join_ray(ClusterSettings(processes=5)) == (ray, True)
        and ray.sites == [ClusterSettings(processes=2)]
        and ray.left == 0
    )


def test_what_was_begun_early_and_is_another_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken for the cluster that settings name."""
    ray, other = Begun(monkeypatch), ClusterSettings("127.0.0.1:6379")
    ray_cluster.begin_ray(ClusterSettings())
    assert join_ray(other) == (ray, True) and ray.sites == [ClusterSettings(), other] and ray.left == 1


def test_a_token_made_here_is_for_what_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_made", ["/private/token"])
    site, environ = (
        ClusterSettings(address="10.0.0.7:6379"),
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/private/token"},
    )
    with pytest.raises(UserError, match="no token"):
        check_open(site, environ)


@pytest.mark.parametrize(
    ("words", "processes"),
    [
        (["cartpole/ppo", "--mode", "ray"], 2),
        (["cartpole/ppo", "run.mode=ray", "fleet.explorers=4", "--learners", "3", "fleet.rows=16"], 6),
        (["cartpole/ppo", "--mode", "ray", "fleet.address=auto"], None),
        (["mine.yaml", "--mode", "ray"], None),
        (["cartpole/ppo"], None),
    ],
)
def test_ray_begins_early_where_it_is_known_which(
    words: list[str], processes: int | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("fleet: {host: 10.0.0.7}\n")
    begun: list[Any] = []
    monkeypatch.setattr(ray_cluster, "begin_ray", begun.append)
    monkeypatch.setattr(fork_server, "begin_fork_server", lambda: begun.append("fork server"))
    parser = argparse.ArgumentParser()
    train.arguments(parser)
    train.begin_early(parser.parse_intermixed_args(words))
    assert begun == ([] if processes is None else ["fork server", ClusterSettings(processes=processes)])


@pytest.mark.parametrize(
    ("given", "changed", "begun"),
    [
        (["run.mode=ray", "fleet.explorers=3"], [], ["fork server", ClusterSettings(processes=3)]),
        (
            ["run.mode=ray", "fleet.address=127.0.0.1:6379"],
            ["train.budget=1k steps"],
            [ClusterSettings("127.0.0.1:6379")],
        ),
        (["run.mode=ray"], ["fleet.host=127.0.0.1"], []),
        (["run.mode=threads"], [], []),
    ],
)
def test_ray_begins_early_where_a_run_goes_on(
    given: list[str], changed: list[str], begun: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(ray_cluster, "begin_ray", told.append)
    monkeypatch.setattr(fork_server, "begin_fork_server", lambda: told.append("fork server"))
    file = tmp_path / "config.yaml"
    file.write_text(dump(load("cartpole/ppo", given)))
    resume.begin_early(file, changed)
    assert told == begun
    file.write_text("run: 3\n")
    resume.begin_early(file, changed)  # others say what is wrong with it
    assert told == begun
