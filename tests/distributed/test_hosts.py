"""Two hosts, each a network namespace of this machine: Ray and the learner in one, explorers in the other."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.namespaces import HEAD, OTHER, two_hosts

PORT = 6399


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    if find_spec("ray") is None:
        pytest.skip("needs the package ray: pip install 'ganglion[ray]'")
    with two_hosts() as names:
        yield names


@pytest.mark.soak
def test_explorers_on_another_host(hosts: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text(secrets.token_hex(32))
    (tmp_path / "token").chmod(0o600)
    safe = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"), "RAY_USAGE_STATS_ENABLED": "0"}
    environ = {**os.environ, **safe}
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--object-store-memory=100000000", "--block"]

    def begin(host: str, *words: str) -> Any:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(["ip", "netns", "exec", host, *words], env=environ, **quiet)  # type: ignore[call-overload]

    head = ["--head", f"--node-ip-address={HEAD}", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false"]
    started = [begin(hosts[0], *ray, *head)]
    time.sleep(8)
    started.append(begin(hosts[1], *ray, f"--address={HEAD}:{PORT}", f"--node-ip-address={OTHER}", "--num-cpus=4"))
    time.sleep(8)
    train = [sys.executable, "-m", "ganglion", "train", "cartpole/ppo", "--mode", "ray", "--explorers", "2"]
    given = [f"fleet.address={HEAD}:{PORT}", "fleet.shared=false", "train.budget=8k steps", f"run.dir={tmp_path}/run"]
    try:
        command = ["ip", "netns", "exec", hosts[0], *train, *given]
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=180)
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert " items: 0 lost, 0 duplicated, 0 stale" in ended.stdout
