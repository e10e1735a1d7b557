"""What whoever can write to fleet.path may put there: items of many kinds are refused and counted, and the run goes on;
sessions, places and weights mislead no explorer into touching anything else; nothing outside is written or removed."""

from __future__ import annotations

import copy
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest
import torch

from ganglion.config.files import dump, load
from ganglion.core import Origin, Packet, Progress, Weights
from ganglion.errors import UserError
from ganglion.fleet import files_broker, receiver
from ganglion.fleet.files_broker import FileBroker, seal
from ganglion.fleet.files_explorer import FilesExplorer, explore
from ganglion.fleet.files_fleet import FilesFleet, Session, read_place, read_session, write_json
from ganglion.fleet.items import expect
from ganglion.fleet.remote_explorer import ExplorerPlace, ItemSize, RemoteExplorer, Sender
from ganglion.fleet.wire import Codec, WireForm, pack, pack_weights, unpack
from ganglion.record.stores import put, shared
from ganglion.runtime.run import Run
from tests.contract.worlds import CASES, Bench, Case
from tests.distributed.hostile import ACTIONS, ESCAPE, ITEMS, ORIGINS, PLANTED, REPORT, listing, plant
from tests.equal.runs import config

SOAK = os.environ.get("GANGLION_SOAK") == "1"
SORTS = ["dqn", "prioritised", "frames", "ppo", "recurrent", "impala", "sac", "td3"] if SOAK else ["dqn"]
Honest = tuple[dict[str, Any], dict[str, torch.Tensor], Origin]
GUEST = "0123456789abcdef"
MEMORY = 100  # MB that no item may take, and a bomb would take more than twice


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A folder with files of somebody's beside fleet.path and the run's own folder."""
    for name in (".config/tool/settings.json", "thesis/one.tex", "items/main.0.0.0.0", "weights/main.0", "main.9"):
        path = tmp_path / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"years of work: {name}\n")
    return tmp_path


def around(world: Path) -> dict[str, str]:
    return listing(world, world / "run", world / "fleet")


class Scene:
    """A run whose learner has given a place to an explorer, and what that explorer would send."""

    def __init__(self, world: Path, sort: str) -> None:
        given = {"mode": "files", "fast": "eager", "dir": str(world / "run")}
        fleet = {"explorers": 1, "rows": 16, "path": str(world / "fleet"), "silence": 1_000.0, "compress": "zlib"}
        cfg = config(sort, world / "run", 10**9, run=given, fleet=fleet, eval="never", save="never")
        self.run = Run.create(cfg)
        received = self.run.trainer.source
        assert received is not None and isinstance(received.fleet, FilesFleet)
        self.receiver, self.fleet, self.account = received, received.fleet, received.fleet.account
        self.home = world / "fleet" / self.fleet.session.token
        self.stream = self.run.stream()
        self.fleet.begin()
        put(self.home / "hello" / f"{GUEST}.1", b"")
        board = FileBroker(self.home, 1)
        self.remote_explorer = RemoteExplorer(self.run.cfg, ItemSize(self.fleet.session.rows), board)
        self.remote_explorer.begin(ExplorerPlace(0, 0))
        self.until(lambda: self.fleet.roster.seated == 1)

    def until(self, reached: Callable[[], bool]) -> None:
        ends = monotonic() + 30
        while not reached():
            next(self.stream)
            assert monotonic() < ends, self.account.line()

    def honest(self) -> Honest:
        made = self.remote_explorer.item()
        assert made is not None
        about, tensors = unpack(made[0])
        return about, tensors, made[1]

    def send(self, origin: Any, whole: bytes) -> None:
        put(self.home / "items" / ".".join(map(str, origin)), whole)

    def refused(self, name: str, send: Callable[[], None]) -> None:
        """What is sent is counted, once, and not taken."""
        before, received = self.account.refused, self.account.received
        send()
        self.until(lambda: self.account.refused > before)
        assert (self.account.refused, self.account.received) == (before + 1, received), name

    def taken(self, name: str, given: Honest | None = None) -> None:
        """The next honest item is taken."""
        received = self.account.received
        about, tensors, origin = given or self.honest()
        self.send(origin, seal(pack(about, tensors)))
        self.until(lambda: self.account.received > received)
        assert self.account.received == received + 1, name

    def close(self) -> None:
        self.remote_explorer.close()
        self.run.close()


@pytest.fixture
def scene(world: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Scene]]:
    monkeypatch.setattr(files_broker, "GRACE", 0.0)
    monkeypatch.setattr(receiver, "PATIENCE", 0.01)
    made: list[Scene] = []

    def make(sort: str) -> Scene:
        made.append(Scene(world, sort))
        return made[-1]

    yield make
    for each in made:
        each.close()


def changed(change: Any, about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bytes:
    about, tensors = copy.deepcopy(about), {k: v.clone() for k, v in tensors.items()}
    made = change(about, tensors)
    return seal(made if isinstance(made, bytes) else pack(about, tensors))


@pytest.mark.parametrize("sort", SORTS)
def test_items_of_many_kinds_are_refused_and_the_run_goes_on(
    sort: str, world: Path, scene: Callable[[str], Scene]
) -> None:
    """Each lies where an honest one is due, under a checksum that is right. After each an honest one is taken."""
    kinds = {**ITEMS, **(ACTIONS if sort not in ("ppo", "sac", "td3") else {})}
    before, made = around(world), scene(sort)
    made.taken("at first")
    for name, change in kinds.items():
        about, tensors, origin = made.honest()
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        made.refused(name, lambda: made.send(origin, changed(change, about, tensors)))  # noqa: B023
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < MEMORY * 1024, name
        made.taken(name)
    for name, other in ORIGINS.items():
        about, tensors, origin = made.honest()
        forged = other(list(origin))
        made.refused(name, lambda: made.send(forged, seal(pack({**about, "origin": forged}, tensors))))  # noqa: B023
        made.taken(name, (about, tensors, origin))  # its number was not used up
    for kind in PLANTED:
        _, _, origin = made.honest()
        place = ".".join(map(str, origin))
        made.refused(kind, lambda: plant(made.home / "items", place, kind, world / "home" / "main.9"))  # noqa: B023
        assert not os.path.lexists(made.home / "items" / place)
        made.taken(kind)
    count = len(kinds) + len(ORIGINS) + len(PLANTED)
    assert made.receiver.numbers()["fleet/refused"] == count >= 30
    assert around(world) == before
    assert not list((world / "run").glob("failures/*")) and not list((world / "run").glob("episodes/*"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_explorers_send_is_what_is_expected(case: Case) -> None:
    """Of any spaces and any algorithm: names, types, shapes and numbers are known beforehand."""
    bench, spec = Bench(case), case.spec()
    lot = ItemSize(5)
    seat = bench.explorer.seats[0]
    expected = expect(bench.agent, seat.processor, spec, lot)
    sender = Sender(lot, Origin("main", 0, 0, 0, 0))
    seat.sink = sender
    for _ in range(4):
        while not sender.full:
            bench.explorer.step(Progress())
        body, origin = sender.seal([], {})
        assert len(body) <= expected.form.most
        assert expected.read(Packet(origin, body)).rows.reward.shape == (5, case.slots)


@pytest.mark.parametrize("explorer", [0, 7])
@pytest.mark.parametrize("sort", ["failures", "logged"])
def test_a_report_names_no_file_elsewhere(sort: str, explorer: int, world: Path, scene: Callable[[str], Scene]) -> None:
    """Of an explorer that has a place, or of none."""
    before, made = around(world), scene("dqn")
    about, tensors, origin = made.honest()
    origin = origin._replace(explorer=explorer)
    about |= {"origin": list(origin), sort: [{**REPORT, "episode": ESCAPE, "hooks": {"onStart": "run this"}}]}
    made.refused(sort, lambda: made.send(origin, seal(pack(about, tensors))))
    assert around(world) == before and not list((world / "run").glob("*/*.json"))


def test_reports_are_written_without_what_is_not_known(world: Path, scene: Callable[[str], Scene]) -> None:
    made = scene("dqn")
    about, tensors, origin = made.honest()
    made.taken("reports", ({**about, "failures": [{**REPORT, "hooks": {"onStart": "run this"}}]}, tensors, origin))
    (path,) = (world / "run" / "failures").iterdir()
    assert path.name == "0.0-0-3.json" and "hooks" not in json.loads(path.read_text())


def test_frames_that_are_no_stack_are_refused(scene: Callable[[str], Scene]) -> None:
    """A replay that keeps each frame once could not give them back."""
    made = scene("frames")
    made.taken("at first")
    about, tensors, origin = made.honest()
    tensors["rows/obs"] = torch.randn_like(tensors["rows/obs"])
    made.refused("noise", lambda: made.send(origin, seal(pack(about, tensors))))
    made.taken("after it")


def test_one_far_number_does_not_starve_an_explorer(scene: Callable[[str], Scene]) -> None:
    made = scene("dqn")
    made.taken("at first")
    about, tensors, origin = made.honest()
    far = origin._replace(sequence=10**17)
    made.refused("far", lambda: made.send(far, seal(pack({**about, "origin": list(far)}, tensors))))
    for _ in range(3):
        made.taken("after it")
    assert made.account.duplicated == 0


# ------------------------------------------------------------ links in place of folders


@pytest.mark.parametrize("what", ["home", "items", "weights", "file"])
def test_nothing_is_written_or_removed_through_links(
    what: str, world: Path, scene: Callable[[str], Scene], caplog: Any
) -> None:
    """In place of the session's folder, of one in it, or of a file that is about to be written."""
    made = scene("dqn")
    before = around(world)
    if what == "file":
        for version in range(20):
            (made.home / "weights" / f".new-main.{version}").symlink_to(world / "home" / "main.9")
    else:
        place = made.home if what == "home" else made.home / what
        place.mkdir(exist_ok=True)
        place.rename(world / "fleet" / "away")
        place.symlink_to(world / "home" / ("" if what == "home" else what))
    made.fleet.broker.publish(made.receiver.agent.command(Progress(opt_steps=1)), "main")
    next(made.stream)
    made.fleet.close()
    assert around(world) == before and ("does not answer" in caplog.text) == (what != "file")


def test_what_an_earlier_learner_left_is_removed_and_nothing_else(world: Path, scene: Callable[[str], Scene]) -> None:
    """A name like a session's says little: somebody's data may have it."""
    fleet = world / "fleet"
    left, data = fleet / "aaaaaaaaaaaaaaaa", fleet / "bbbbbbbbbbbbbbbb"
    for folder in (left / "items", left / "hello", data / "images"):
        folder.mkdir(parents=True)
        (folder / "one").write_text("1")
    (fleet / "cccccccccccccccc").symlink_to(world / "home")
    before = around(world)
    scene("dqn")
    assert not left.exists() and (data / "images" / "one").exists() and around(world) == before


# ------------------------------------------------------------ explorers


def session(world: Path, **other: Any) -> dict[str, Any]:
    """What a learner says."""
    cfg = config("dqn", world / "run", run={"mode": "files"}, fleet={"path": str(world / "fleet")})
    told = Session("0" * 16, version("ganglion"), dump(cfg), [], 8, ("none", 1 << 20), 1, 1.0)
    return {**told._asdict(), **other}


TOKENS = ["..", ".", "", "../home", "HOME", "a/b", "0" * 15 + "\n", "0" * 15, "0" * 17, "0" * 15 + "G"]


@pytest.mark.parametrize("token", TOKENS)
def test_an_explorer_removes_nothing_beside_the_path(token: str, world: Path) -> None:
    """A token that leads elsewhere, and a run that is over as soon as the explorer has come."""
    token = token.replace("HOME", str(world / "home"))  # a path of its own, and no other: if it fails, it is removed
    before, asked = around(world), list[bool]()
    write_json(world / "fleet" / "session.json", session(world, token=token))

    def left() -> bool:
        """The third time it is asked, it is told to leave; the run is over then."""
        asked.append(True)
        if len(asked) > 2:
            write_json(world / "fleet" / "session.json", session(world, token=token, closed=True))
        return len(asked) > 2

    with pytest.raises(UserError, match=r"session\.json is refused \(token"):
        explore(str(world / "fleet"), 0, lambda line: None, left)
    assert around(world) == before


WRONG: dict[str, list[Any]] = {
    "token": [7, None, ["0" * 16]],
    "ganglion": ["1.0\x1b[31m", 1],
    "config": [1, None, {}, "cartpole/dqn", "/etc/hostname"],
    "modules": ["os", [1], ["os; rm -rf /"], ["a\nb"]],
    "rows": [0, -1, 1.5, "8", 10**18, True],
    "codec": ["zlib", ["zlib"], ["lz5", 0], ["zlib", -1], ["zlib", "0"]],
    "ahead": [0, "1", 10**18],
    "silence": [0, -1, "1", 10**9, None],
    "closed": [1, "no", None],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_session_of_other_types_is_refused(field: str, world: Path) -> None:
    for value in WRONG[field]:
        write_json(world / "fleet" / "session.json", session(world, **{field: value}))
        with pytest.raises(UserError, match=rf"session\.json is refused \({field}") as caught:
            read_session(world / "fleet")
        assert "\x1b" not in str(caught.value) and "rm -rf" not in str(caught.value)


@pytest.mark.parametrize("told", [[], "text", 7, {"token": "0" * 16}, {"a": {"b": []}}])
def test_a_session_that_is_none_is_refused(told: Any, world: Path) -> None:
    write_json(world / "fleet" / "session.json", told)
    with pytest.raises(UserError, match=r"session\.json is refused"):
        read_session(world / "fleet")


@pytest.mark.parametrize("kind", ["deep", "pipe", "link", "endless", "damaged"])
def test_a_session_that_cannot_be_read_is_waited_for(kind: str, world: Path) -> None:
    fleet = world / "fleet"
    fleet.mkdir()
    place = fleet / "session.json"
    match kind:
        case "deep":
            place.write_bytes(seal(b"[" * 200_000))
        case "pipe":
            os.mkfifo(place)
        case "link":
            write_json(world / "home" / "session.json", session(world))
            place.symlink_to(world / "home" / "session.json")
        case "endless":
            with place.open("wb") as file:
                file.truncate(1 << 40)
        case _:
            place.write_bytes(b"{}")
    with pytest.raises(UserError, match=r"no run has begun|is refused"):
        explore(str(fleet), 0, lambda line: None)


def test_a_learner_goes_on_beside_a_session_that_is_none(world: Path, scene: Callable[[str], Scene]) -> None:
    made = scene("dqn")
    for told in ({"token": ".."}, session(world, token="../home"), []):
        write_json(world / "fleet" / "session.json", told)
        made.fleet.looked = 0.0
        made.taken(str(told))


@pytest.mark.parametrize("given", [[], [0], [0, 0, 0], ["0", 0], [-1, 0], [10**9, 0], [0, 10**12], {}, "x", None])
def test_a_place_that_is_none_is_waited_for(given: Any, world: Path) -> None:
    write_json(world / "fleet" / "places" / GUEST, given)
    assert read_place(shared(world / "fleet"), GUEST) is None


FORGED: dict[str, Callable[[Weights], bytes]] = {
    "text for knobs": lambda w: pack({"version": 9, "knobs": {"epsilon": "x"}, "fast": False}, w.tensors).tobytes(),
    "no knobs": lambda w: pack({"version": 9}, w.tensors).tobytes(),
    "other tensors": lambda w: pack_weights(w._replace(tensors={"w": torch.zeros(3)})).tobytes(),
    "other shapes": lambda w: pack_weights(
        w._replace(tensors={k: torch.zeros(*v.shape, 2) for k, v in w.tensors.items()})
    ).tobytes(),
    "compressed": lambda w: pack({"version": 9, "knobs": {}, "fast": False}, w.tensors, Codec("zlib", 0)).tobytes(),
    "no parcel": lambda w: b"whole, and no parcel" * 9,
}


def test_forged_weights_are_passed_over(world: Path) -> None:
    folder = world / "fleet"
    folder.mkdir()
    broker = FileBroker(folder, 1)
    right = Weights(3, {"epsilon": 0.5}, {"w": torch.zeros(2), "v": torch.ones(2, 2)})
    broker.publish(right, "main")
    broker.form = WireForm(right.tensors)
    for number, (name, make) in enumerate(FORGED.items()):
        put(folder / "weights" / f"main.{10 + number}", seal(make(right)))
        found = broker.latest("main", -1)
        assert found is not None and found.version == 3, name
    (folder / "weights" / "main.99").mkdir()
    os.mkfifo(folder / "weights" / "main.98")
    found = broker.latest("main", -1)
    assert found is not None and found.version == 3
    broker.publish(right._replace(version=4), "main")  # what is newer than the learner's own is nobody's
    assert sorted(path.name for path in (folder / "weights").iterdir()) == ["main.3", "main.4"]


def test_made_up_weights_are_used_until_the_next_update_at_most(world: Path) -> None:
    """However new they say they are."""
    (world / "fleet").mkdir()
    learner, explorer = (FileBroker(world / "fleet", 1) for _ in range(2))
    right = Weights(3, {"epsilon": 0.5}, {"w": torch.zeros(2)})
    learner.publish(right, "main")
    put(world / "fleet" / "weights" / f"main.{10**17}", seal(pack_weights(right._replace(version=10**17))))
    found = explorer.latest("main", 3)
    assert found is not None and found.version == 10**17
    learner.publish(right._replace(version=4), "main")
    found = explorer.latest("main", 10**17)
    assert found is not None and found.version == 4 and explorer.latest("main", 4) is None


def test_an_explorer_knows_the_weights_of_its_model(world: Path) -> None:
    visit = FilesExplorer(shared(world / "fleet"), Session(**session(world)), lambda: False)
    remote_explorer = visit.prepare()
    assert visit.broker.form is not None
    weights = remote_explorer.agent.command(Progress())
    unpack(pack_weights(weights), visit.broker.form)
    with pytest.raises(ValueError, match="should have these tensors"):
        unpack(pack_weights(weights._replace(tensors={})), visit.broker.form)
    remote_explorer.close()


# ------------------------------------------------------------ real processes


@pytest.mark.soak
@pytest.mark.parametrize("sort", ["dqn", "ppo"])
def test_a_learner_of_its_own_bears_all_kinds(sort: str, world: Path) -> None:
    """As a process: no traceback, no hang, its memory bounded, and it ends well when it is told to."""
    algo = {"dqn": ["algo.limiter.warmup=50"], "ppo": ["algo.horizon=16"]}[sort]
    fleet, before = world / "fleet", around(world)
    words = [
        "train", "--algo", sort, "--env", "CartPole-v1", *algo, "algo.net.hidden=[16]", "env.slots=2", "eval=never",
        "log=[jsonl]", "--mode", "files", f"fleet.path={fleet}", "fleet.explorers=1", "fleet.rows=16",
        "fleet.silence=1000", "fleet.compress=zlib", "train.budget=10M steps", f"run.dir={world / 'run'}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "ganglion", *words]
    learner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    told: list[str] = []
    assert learner.stdout is not None
    reader = Thread(target=lambda: told.append(learner.stdout.read()), daemon=True)  # type: ignore[union-attr]
    reader.start()
    try:
        wait(lambda: (fleet / "session.json").exists(), learner)
        known = read_session(fleet)
        assert known is not None
        home = fleet / known.token
        put(home / "hello" / f"{GUEST}.1", b"")
        remote_explorer = RemoteExplorer(load(known.config), ItemSize(known.rows), FileBroker(home, 1))
        wait(lambda: (home / "places" / GUEST).exists(), learner)
        remote_explorer.begin(ExplorerPlace(0, 0))
        for change in [*ITEMS.values(), *ACTIONS.values()]:
            made = remote_explorer.item()
            assert made is not None
            about, tensors = unpack(made[0])
            send(home, made[1], changed(change, about, tensors), learner)
            made = remote_explorer.item()
            assert made is not None
            send(home, made[1], seal(made[0]), learner)
        peak = next(x for x in Path(f"/proc/{learner.pid}/status").read_text().splitlines() if x.startswith("VmHWM"))
        learner.send_signal(signal.SIGTERM)
        learner.wait(30)
    finally:
        if learner.poll() is None:
            learner.kill()
        reader.join(10)
    assert "Traceback" not in told[0] and learner.returncode == 143, told
    assert int(peak.split()[1]) < 1_500 * 1024
    assert around(world) == before


def wait(reached: Callable[[], bool], learner: subprocess.Popen[str]) -> None:
    ends = monotonic() + 60
    while not reached():
        assert learner.poll() is None and monotonic() < ends
        sleep(0.02)


def send(home: Path, origin: Origin, whole: bytes, learner: subprocess.Popen[str]) -> None:
    """Waits until the learner has removed it, taken or refused."""
    place = home / "items" / ".".join(map(str, origin))
    put(place, whole)
    wait(lambda: not place.exists(), learner)
