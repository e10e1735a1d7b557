"""A fork server: explorer processes come from it in a moment, end with their line, and with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from ganglion import load_config
from ganglion.config.files import dump
from ganglion.fleet.fork_server import ForkServer, connect
from ganglion.fleet.ray_actor import Brief
from ganglion.processes import importable


def gone(pid: int) -> bool:
    ends = monotonic() + 20
    while monotonic() < ends:
        if not Path(f"/proc/{pid}").exists():
            return True
        sleep(0.02)
    return False


def hatch(fork_server: ForkServer, config: str, folder: Path) -> Connection:
    line = connect(fork_server.path)
    brief = Brief(config, [], importable(), 4, ("none", 0), str(folder), "cookie", 2, "")
    line.send_bytes(json.dumps(["ganglion.fleet.explorer_process:explore", brief]).encode())
    return line


def ask(line: Connection, **what: Any) -> Any:
    line.send_bytes(json.dumps(what).encode())
    return json.loads(line.recv_bytes())


def test_explorer_processes_end_with_their_line_and_with_the_fork_server(tmp_path: Path) -> None:
    (tmp_path / "cookie").touch()
    config = dump(load_config(None, ["algo=dqn", "env={kind: toy, id: identity, slots: 2}"]))
    fork_server = ForkServer()
    lines = [hatch(fork_server, config, tmp_path) for _ in range(3)]
    pids = []
    for explorer, line in enumerate(lines):
        assert json.loads(line.recv_bytes()) == {}
        near, pid = ask(line, begin=[explorer, 0])["told"]
        assert near and pid != fork_server.process.pid
        pids.append(pid)
    lines[0].send_bytes(json.dumps({"collect": False}).encode())  # it waits for weights, and for nobody
    lines[0].close()
    assert gone(pids[0])
    wrong = hatch(fork_server, "algo: nosuch\nenv: {kind: toy, id: chain}\n", tmp_path)
    told = json.loads(wrong.recv_bytes())
    assert told["user"] and "nosuch" in told["error"]
    os.kill(pids[1], signal.SIGSTOP)
    fork_server.close()
    assert gone(pids[1]) and gone(pids[2]) and not fork_server.path.parent.exists()


def test_an_explorer_actor_needs_no_torch() -> None:
    """An actor starts in the time of a Ray worker."""
    look = "import sys, ganglion.fleet.ray_actor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", look]).returncode == 0


def test_explorer_processes_find_everything_imported() -> None:
    """What a config names is imported once, before they are forked; another algorithm is a small file more."""
    look = "import sys; from ganglion.config.files import load"
    look += "; from ganglion.fleet.explorer_process import preload; preload()"
    look += "; from ganglion.runtime.build import build_env; before = set(sys.modules)"
    look += "; build_env(load('cartpole/ppo')).close()"
    look += "; print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert not {"ganglion", "rich", "numpy"} & set(found.split())


def test_explorer_processes_do_not_draw_the_same_numbers() -> None:
    """Of the stream that a process has from the one it was forked from."""
    look = "import os, numpy; from ganglion.fleet.explorer_process import preload, scatter; preload()\n"
    look += "for _ in range(2):\n"
    look += "  if os.fork() == 0: scatter(); print(numpy.random.rand(), flush=True); os._exit(0)\n  os.wait()"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert len(set(found.split())) == 2


def test_one_that_is_not_ready_is_not_waited_for() -> None:
    """A command that ends in a message ends at once."""
    fork_server, began = ForkServer(), monotonic()
    fork_server.close()
    assert monotonic() - began < 1 and fork_server.process.returncode == -signal.SIGKILL
