"""Two hosts that are network namespaces of this machine, joined by a cable."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

HEAD, OTHER = "10.77.0.1", "10.77.0.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def two_hosts() -> Iterator[tuple[str, str]]:
    """Their names, for `ip netns exec`; skips where they cannot be made."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and iproute2, to make network namespaces")
    names = f"ganglion{os.getpid()}a", f"ganglion{os.getpid()}b"
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip("network namespaces cannot be made here")
    try:
        ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, (HEAD, OTHER)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
