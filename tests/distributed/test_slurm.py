"""`ganglion launch slurm`, for real: two emulated nodes of this machine, each a network namespace, Ray across them."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import pytest

from tests.distributed.slurm import missing, slurm
from tests.distributed.test_restarts import marked

pytestmark = pytest.mark.soak
GANGLION = [sys.executable, "-m", "ganglion"]


class Cluster(NamedTuple):
    there: list[str]
    environ: dict[str, str]

    def run(self, *words: str, mark: str = "") -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **(dict([mark.split("=")]) if mark else {})}
        return subprocess.run([*self.there, *words], env=environ, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if find_spec("ray") is None:
        pytest.skip("needs the package ray: pip install 'ganglion[ray]'")
    if why := missing():
        pytest.skip(why)
    with slurm(tmp_path_factory.mktemp("slurm")) as (there, environ):
        yield Cluster(there, environ)


def launch(cluster: Cluster, mark: str, folder: Path, *words: str) -> str:
    """Submits a job; what the job said follows in its file."""
    given = ["launch", "slurm", "cartpole/ppo", "--nodes", "2", f"run.dir={folder}/run", *words]
    ended = cluster.run(*GANGLION, *given, mark=mark)
    out = folder / "run.job" / "job.out"
    said = out.read_text() if out.exists() else ""
    assert ended.returncode == 0, ended.stdout + ended.stderr + said
    return str(re.findall(r"Submitted batch job (\d+)", ended.stdout)[0])


def state(cluster: Cluster, job: str) -> str:
    told = cluster.run("scontrol", "show", "job", job).stdout
    return str(re.findall(r"JobState=(\w+)", told)[0])


def until(reached: object, seconds: float) -> None:
    ends = monotonic() + seconds
    while not reached():  # type: ignore[operator]
        assert monotonic() < ends
        sleep(0.3)


def nothing_left(mark: str, folder: Path) -> None:
    until(lambda: not marked(mark), 60)
    assert not [path for name in ("token", "address") for path in folder.glob(f"{name}-*")]


@pytest.mark.parametrize("learners", [1, 2])
def test_a_run_across_two_nodes(cluster: Cluster, tmp_path: Path, learners: int) -> None:
    mark = f"GANGLION_TEST_MARK={secrets.token_hex(8)}"
    many = ["--explorers", str(3 - learners), "--learners", str(learners)]
    job = launch(cluster, mark, tmp_path, *many, "train.budget=8k steps", "--sbatch=--wait")
    out = (tmp_path / "run.job" / "job.out").read_text()
    sys.stdout.write(out)
    assert state(cluster, job) == "COMPLETED", out[-3_000:]
    assert "2 of 2 nodes, 2 processors" in out and " items: 0 lost, 0 duplicated" in out
    assert (tmp_path / "run" / "checkpoints").is_dir()
    nothing_left(mark, tmp_path / "run.job")


def test_a_job_that_is_cancelled_saves_first_and_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    mark = f"GANGLION_TEST_MARK={secrets.token_hex(8)}"
    job = launch(cluster, mark, tmp_path, "train.budget=10M steps", "save.every=1M steps")
    out = tmp_path / "run.job" / "job.out"
    until(lambda: "It will need" in (out.read_text() if out.exists() else ""), 120)
    tokens = list((tmp_path / "run.job").glob("token-*"))
    secret = tokens[0].read_text()
    assert not [line for line in marked(mark).values() if secret in line]
    cluster.run("scancel", job)
    until(lambda: state(cluster, job) == "CANCELLED", 60)
    nothing_left(mark, tmp_path / "run.job")
    sys.stdout.write(out.read_text())
    assert "Interrupted and saved" in out.read_text()
    assert os.listdir(tmp_path / "run" / "checkpoints")
