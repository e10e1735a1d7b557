"""What goes wrong in a worker costs one episode: it is reported, the rest goes on as if nothing had been."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ganglion.core import Env
from ganglion.envs import GymEnv
from ganglion.envs.pool import Pool, PoolEnv
from ganglion.envs.pool_process import WorkerProcess
from ganglion.envs.seeds import episode_seed
from ganglion.errors import EnvError
from tests.envs.faulty import Faulty, Unclosable, faulty, wrong
from tests.envs.worlds import random_action

SLOTS, AT, ONLY, STEPS = 4, 7, 3, 60  # the last slot goes wrong at its eighth row, in its second episode
CAUGHT = {
    "raise": "RuntimeError: out of order",
    "reset": "RuntimeError: no way to begin",
    "leave": "SystemExit: 0",
    "no text": "Unreadable: its message cannot be shown",
    "nan reward": "the reward is nan",
    "nan": "the observation is not finite",
    "inf": "the observation is not finite",
    "shape": "shape (4,) was expected, got (1,)",
    "dtype": "float32 was expected",
}
RAISED = ("raise", "reset", "leave", "no text")
FATAL = {
    "kill": "the worker was ended by SIGKILL",
    "segfault": "the worker was ended by SIGSEGV",
    "exit": "the worker ended with code 3",
    "hang": "no answer within",
}


def arguments(how: str, tmp_path: Path) -> dict[str, Any]:
    at = 0 if how == "reset" else AT
    return {"how": how, "at": at, "only": ONLY, "episode": 1, "folder": str(tmp_path)}


def pool(how: str, tmp_path: Path, workers: int, **rest: Any) -> PoolEnv:
    timeout = 1.5 if how == "hang" else 30.0
    made = Pool("tests.envs.faulty:faulty", arguments(how, tmp_path), SLOTS, workers, timeout=timeout, **rest)
    return PoolEnv(made, "faulty")


def walk(env: Env, steps: int = STEPS) -> tuple[list[Any], list[Any]]:
    """The rows, and which of them were lost."""
    rows, lost = [env.reset(5)], [None]
    for t in range(steps):
        rows.append(env.step(random_action(env.spec.action, SLOTS, t)))
        lost.append(env.faults.lost)  # type: ignore[attr-defined]
    return rows, lost


def check_rows(rows: list[Any], lost: list[Any], sound: list[Any]) -> int:
    """Every slot but one is untouched; that one is cut once, where it went wrong. Returns when."""
    others = [slot for slot in range(SLOTS) if slot != ONLY]
    for row, same in zip(rows, sound, strict=True):
        assert (row.obs[others] == same.obs[others]).all() and (row.reward[others] == same.reward[others]).all()
        assert (row.valid[others] == same.valid[others]).all()
    cut = [t for t, row in enumerate(rows) if row.truncated[ONLY]]
    assert len(cut) == 1
    t = cut[0]
    assert not rows[t].valid[ONLY] and rows[t].reward[ONLY] == 0 and not rows[t].terminated[ONLY]
    assert (rows[t].obs[ONLY] == rows[t - 1].obs[ONLY]).all()  # where it was last seen
    assert rows[t + 1].valid[ONLY] and rows[t + 1].obs[ONLY, 2] == 0  # another episode begins
    assert rows[t + 1].obs[ONLY, 1] != rows[t].obs[ONLY, 1]
    assert all(mask is None for i, mask in enumerate(lost) if i != t)
    return t


@pytest.fixture(scope="module")
def sound() -> list[Any]:
    """What happens where nothing goes wrong."""
    return walk(GymEnv(lambda slot: Faulty(slot, "never", -1, -1, -1), SLOTS))[0]


@pytest.mark.parametrize("how", CAUGHT)
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_worker_can_catch(how: str, workers: int, tmp_path: Path, sound: list[Any]) -> None:
    settings = arguments(how, tmp_path)
    env: Any = pool(how, tmp_path, workers) if workers else GymEnv(lambda slot: faulty(slot, **settings), SLOTS)
    before = env.pool.worker_processes.pids() if workers else []
    rows, lost = walk(env)
    t = check_rows(rows, lost, sound)
    (failure,) = env.faults.fresh
    assert CAUGHT[how] in failure["error"] and failure["slot"] == ONLY and failure["episode"] == 1
    assert failure["seed"] == episode_seed(5, ONLY, 1)
    assert failure["kind"] == ("raise" if how in RAISED else "value")
    assert ("faulty.py" in failure["traceback"]) == (how in RAISED)
    count = 0 if how == "reset" else AT
    assert failure["step"] == max(count - 1, 0) and len(failure["actions"][0]) == count
    taken = [int(random_action(env.spec.action, SLOTS, i)[ONLY]) for i in range(STEPS)]
    assert failure["actions"][0] == taken[t - count : t]
    assert lost[t] is not None and lost[t].tolist() == [slot == ONLY and how != "reset" for slot in range(SLOTS)]
    assert env.faults.count == 1
    assert not workers or env.pool.worker_processes.pids() == before  # nobody had to be replaced
    env.close()


def test_ctrl_c_is_the_environments_own_in_a_worker_alone(tmp_path: Path, sound: list[Any]) -> None:
    """In this process it is somebody's who wants to end it."""
    env = pool("interrupt", tmp_path, 2)
    check_rows(*walk(env), sound)
    assert "KeyboardInterrupt" in env.faults.fresh[0]["error"]
    env.close()
    (tmp_path / "failed").unlink()
    with pytest.raises(KeyboardInterrupt):
        walk(GymEnv(lambda slot: faulty(slot, **arguments("interrupt", tmp_path)), SLOTS))


@pytest.mark.parametrize("workers", [0, 2])
def test_sys_exit_in_the_first_reset_is_a_message(workers: int) -> None:
    settings = {"how": "leave at once", "at": 0, "only": 0, "episode": 0}
    made = Pool("tests.envs.faulty:faulty", settings, 2, workers, masks=False) if workers else None
    env: Any = PoolEnv(made) if made else GymEnv(lambda slot: faulty(slot, **settings), 2, masks=False)
    with pytest.raises(EnvError, match="SystemExit: 0"):
        env.reset(0)
    env.close()


def test_an_environment_that_cannot_be_made_again_goes_on_failing(caplog: pytest.LogCaptureFixture) -> None:
    """Which is counted, and no traceback; what its close() raises is a line."""
    made = []

    def make(slot: int) -> Faulty:
        made.append(slot)
        if len(made) > SLOTS:
            raise RuntimeError("no second one")
        return faulty(slot, how="raise", at=3, only=ONLY, episode=0) if slot != 1 else Unclosable(slot)

    env = GymEnv(make, SLOTS, "faulty")
    rows, _ = walk(env, 30)
    assert [failure["error"] for failure in env.faults.fresh] == [
        "RuntimeError: out of order",
        "RuntimeError: no second one",
    ]
    assert rows[-1].valid.all()
    env.close()
    assert [record.getMessage() for record in caplog.records if "close()" in record.getMessage()] == [
        "env: close() failed: RuntimeError: stays open"
    ]


def test_a_worker_whose_environment_cannot_be_closed_says_so_in_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    env = PoolEnv(Pool("tests.envs.faulty:unclosable", {}, 2, 1, spare=False))
    env.reset(0)
    env.close()
    assert capfd.readouterr().err == "env: close() failed 2 times: RuntimeError: stays open\n"


@pytest.mark.parametrize("how", FATAL)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_worker_dies_of(how: str, workers: int, tmp_path: Path, sound: list[Any]) -> None:
    env = pool(how, tmp_path, workers)
    before = env.pool.worker_processes.pids()
    rows, lost = walk(env)
    t = check_rows(rows, lost, sound)
    (failure,) = env.faults.fresh
    assert FATAL[how] in failure["error"] and failure["slot"] == ONLY and failure["episode"] == 1
    assert failure["kind"] == ("timeout" if how == "hang" else "death")
    assert ("faulty.py" in failure["traceback"]) == (how in ("hang", "segfault"))
    assert failure["step"] == AT - 1 and len(failure["actions"][0]) == AT
    assert lost[t] is not None and lost[t].tolist() == [slot == ONLY for slot in range(SLOTS)]
    assert sum(a != b for a, b in zip(before, env.pool.worker_processes.pids(), strict=True)) == 1
    assert env.pool.rows_lost == 1 and 1 <= env.pool.rows_in_flight <= SLOTS // workers
    assert env.pool.rows_acknowledged == STEPS * SLOTS
    env.close()


def test_a_worker_killed_between_steps_is_not_missed(sound: list[Any]) -> None:
    """Its episodes are replayed: every row is as if nothing had happened, and none is lost."""
    never = {"how": "never", "at": -1, "only": -1, "episode": -1}
    env = PoolEnv(Pool("tests.envs.faulty:faulty", never, SLOTS, 2), "killed")
    rows = [env.reset(5)]
    for t in range(STEPS):
        if t % 9 == 5:
            victim = env.pool.worker_processes.pids()[t % 2]
            os.kill(victim, signal.SIGKILL)
            while Path(f"/proc/{victim}/stat").read_text().split()[2] != "Z":
                time.sleep(0.001)
        rows.append(env.step(random_action(env.spec.action, SLOTS, t)))
    assert all((a.obs == b.obs).all() and (a.valid == b.valid).all() for a, b in zip(rows, sound, strict=True))
    assert env.faults.count == len(env.pool.replaced) == 7
    assert env.pool.rows_lost == 0 < env.pool.rows_in_flight  # asked of a worker that was gone, and asked again
    env.close()


def test_a_worker_that_dies_where_an_episode_begins(tmp_path: Path) -> None:
    """That episode is passed over, as where it only fails; the pool and its workers agree on which one comes then."""
    (tmp_path / "other").mkdir()
    caught = GymEnv(lambda slot: faulty(slot, **arguments("reset", tmp_path / "other")), SLOTS)
    made = Pool("tests.envs.faulty:faulty", {**arguments("reset", tmp_path), "how": "die"}, SLOTS, 2)
    env = PoolEnv(made, "faulty")
    rows = [(env.reset(5), caught.reset(5))]
    for t in range(STEPS):
        if t == 40:
            os.kill(victim := made.worker_processes.pids()[1], signal.SIGKILL)  # what is replayed then shows the same
            os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
        action = random_action(env.spec.action, SLOTS, t)
        rows.append((env.step(action), caught.step(action)))
    assert made.episode == caught.slots.episode and len(made.replaced) == 2
    assert all((a.obs == b.obs).all() and (a.truncated == b.truncated).all() for a, b in rows)
    assert [failure["episode"] for failure in env.faults.fresh] == [1, None]
    env.close()


def test_two_slots_that_end_their_worker_at_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are cut: neither is tried again while the other is out of the way."""
    recover, count = Pool._recover, iter(range(4))
    monkeypatch.setattr(Pool, "_recover", lambda *words: (next(count), recover(*words)))
    env = PoolEnv(Pool("tests.envs.faulty:doomed", {}, SLOTS, 2), "doomed")
    env.reset(5)
    rows = [env.step(random_action(env.spec.action, SLOTS, t)) for t in range(8)]
    assert [row.truncated.tolist() for row in rows if row.truncated.any()] == [[False, False, True, True]]
    assert sorted(failure["slot"] for failure in env.faults.fresh) == [2, 3]
    env.close()


def test_without_replay_all_slots_of_a_dead_worker_are_cut(tmp_path: Path) -> None:
    env = pool("kill", tmp_path, 2, replay=False)
    rows, lost = walk(env)
    cut = [row.truncated.tolist() for row in rows if row.truncated.any()]
    assert cut == [[False, False, True, True]] and env.pool.rows_lost == 2
    assert [mask.tolist() for mask in lost if mask is not None] == [[False, False, True, True]]
    env.close()


def test_a_worker_that_leaks_is_replaced(tmp_path: Path, sound: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ganglion.envs.pool.LOOK", 0.0)
    env = pool("leak", tmp_path, 2, max_memory=250)
    rows, _ = walk(env)
    assert all((a.obs == b.obs).all() for a, b in zip(rows, sound, strict=True))  # replayed: nothing was lost
    assert [failure["kind"] for failure in env.faults.fresh] == ["memory"]
    assert "env.max_memory allows 250" in env.faults.fresh[0]["error"]
    assert max(member.memory() for member in env.pool.worker_processes.members) < 250
    env.close()


def test_too_many_failures_stop_the_environment(tmp_path: Path) -> None:
    settings = {"how": "raise", "at": 3, "only": ONLY, "episode": 0}
    env = GymEnv(lambda slot: faulty(slot, **settings), SLOTS, "faulty", max_failures=2)  # each one made fails anew
    with pytest.raises(EnvError, match=r"env\.max_failures: faulty failed 3 times \(3 raise\), and 2 were allowed"):
        walk(env)


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="no way to begin"):
        Pool("tests.envs.faulty:faulty", {**arguments("reset", tmp_path), "episode": 0}, SLOTS, 2).reset(0)
    with pytest.raises(EnvError, match="ModuleNotFoundError"):
        Pool("tests.nowhere:faulty", {}, SLOTS, 2)


def test_a_spare_that_was_killed_is_no_failure(sound: list[Any]) -> None:
    never = {"how": "never", "at": -1, "only": -1, "episode": -1}
    env = PoolEnv(Pool("tests.envs.faulty:faulty", never, SLOTS, 2), "killed")
    env.reset(5)
    for t in range(10):
        if t == 5:
            for victim in [env.pool.worker_processes._spares[0].pid, env.pool.worker_processes.pids()[1]]:
                os.kill(victim, signal.SIGKILL)
                os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
        step = env.step(random_action(env.spec.action, SLOTS, t))
    assert (step.obs == sound[10].obs).all()
    assert env.faults.count == 1 and env.faults.rows_lost == 0
    env.close()


class Killing:
    """Kills workers as soon as they are told one thing, as often as it is asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told, self.left, self.tell = "", 0, WorkerProcess.tell
        monkeypatch.setattr(WorkerProcess, "tell", lambda *words: self(*words))

    def __call__(self, member: WorkerProcess, message: dict[str, Any], payload: bytes = b"") -> None:
        doomed = message["do"] == self.told and self.left > 0 and not message.get("warm")
        if not doomed:
            self.tell(member, message, payload)
            return
        self.left -= 1
        os.kill(member.pid, signal.SIGKILL)
        os.waitid(os.P_PID, member.pid, os.WEXITED | os.WNOWAIT)
        self.tell(member, message, payload)


NEVER = {"how": "never", "at": -1, "only": -1, "episode": -1}


@pytest.mark.parametrize(("told", "times"), [("load", 1), ("take", 3), ("map", 1), ("reset", 1), ("reset", 3)])
def test_a_worker_killed_while_it_starts_is_a_failure_like_others(
    told: str, times: int, sound: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = Killing(monkeypatch)
    kill.told, kill.left = told, times
    env = PoolEnv(Pool("tests.envs.faulty:faulty", NEVER, SLOTS, 2), "killed")
    rows, lost = walk(env, 12)
    assert all((a.obs == b.obs).all() and (a.valid == b.valid).all() for a, b in zip(rows, sound[:13], strict=True))
    assert env.faults.kinds == {"death": times} and "SIGKILL" in env.faults.fresh[0]["error"]
    assert 1 <= len(env.pool.replaced) <= 2 and env.faults.rows_lost == 0 and not any(mask is not None for mask in lost)
    env.close()


@pytest.mark.parametrize("told", ["load", "take", "map", "bring"])
def test_a_worker_killed_while_it_replaces_another(
    told: str, sound: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another failure: where one comes up in the end, no row is lost that can be replayed."""
    kill = Killing(monkeypatch)
    env = PoolEnv(Pool("tests.envs.faulty:faulty", NEVER, SLOTS, 2, spare=False), "killed")
    rows = [env.reset(5)]
    for t in range(12):
        if t == 5:
            kill.told, kill.left = told, 1
            os.kill(victim := env.pool.worker_processes.pids()[1], signal.SIGKILL)
            os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
        rows.append(env.step(random_action(env.spec.action, SLOTS, t)))
    assert env.faults.kinds == {"death": 2} and kill.left == 0 and len(env.pool.replaced) == 1
    assert all((a.obs[:2] == b.obs[:2]).all() for a, b in zip(rows, sound[:13], strict=True))
    env.close()


def test_while_no_worker_can_be_started_its_episodes_are_cut(sound: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step tries again: how often that is worth while is up to env.max_failures."""
    kill = Killing(monkeypatch)
    env = PoolEnv(Pool("tests.envs.faulty:faulty", NEVER, SLOTS, 2, spare=False), "killed")
    rows = [env.reset(5)]
    for t in range(12):
        if t == 5:
            kill.told, kill.left = "take", 5
            os.kill(victim := env.pool.worker_processes.pids()[1], signal.SIGKILL)
            os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
        rows.append(env.step(random_action(env.spec.action, SLOTS, t)))
    assert all((a.obs[:2] == b.obs[:2]).all() for a, b in zip(rows, sound[:13], strict=True))
    assert [t for t, row in enumerate(rows) if row.truncated[2:].any()] == [6]
    assert (rows[6].obs[2:] == rows[5].obs[2:]).all() and not rows[6].valid[2:].any()
    assert rows[7].valid.all() and (rows[7].obs[2:, 2] == 0).all()  # other episodes begin
    assert env.faults.kinds == {"death": 7} and env.faults.rows_lost == 2
    state = env.state()
    again = GymEnv(lambda slot: Faulty(slot, **NEVER), SLOTS)
    again.restore(state)
    action = random_action(env.spec.action, SLOTS, 99)
    assert (again.step(action).obs == env.step(action).obs).all()
    env.close()


def test_an_environment_whose_process_always_dies_is_told_in_one_message() -> None:
    with pytest.raises(EnvError, match="a worker could not be started: the worker was ended by SIGKILL"):
        Pool("tests.envs.faulty:stillborn", {}, 2, 2)


def test_replacement_is_quick() -> None:
    """A spare that has imported takes over within half a second, at the 95th percentile."""
    pool = Pool("tests.envs.faulty:counting", {}, SLOTS, 2)
    pool.reset(0)
    for _ in range(5):
        pool.worker_processes._spares[0].ready(60)
        os.kill(pool.worker_processes.pids()[0], signal.SIGKILL)
        pool.act([np.zeros(SLOTS, np.int64)])
    assert sorted(pool.replaced)[-2] < 0.5
    pool.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_wrong_from_the_start_is_one_message(workers: int) -> None:
    env: Any = PoolEnv(Pool("tests.envs.faulty:wrong", {}, 2, 1)) if workers else GymEnv(wrong, 2, masks=False)
    with pytest.raises(
        EnvError, match=r"faulty:Wrong: reset\(\) .* shape \(4,\) was expected, got \(3,\)\. .*check tests"
    ):
        env.reset(0)
    env.close()
