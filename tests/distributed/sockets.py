"""The sockets that processes of this user, started below this one, listen on; read from /proc."""

from __future__ import annotations

import os
import socket
from pathlib import Path

LISTENING = "0A"


def listening() -> set[tuple[str, int]]:
    """Addresses and ports of this process and all below it, and of Ray's processes, which it may have let go."""
    found = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENING:
                host, port = words[1].split(":")
                raw = bytes.fromhex(host)
                turned = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                found[words[9]] = socket.inet_ntop(family, turned), int(port, 16)
    return {found[inode] for pid in ours() for inode in sockets(pid) if inode in found}


def ours() -> set[int]:
    parents = {int(path.name): parent(path) for path in Path("/proc").glob("[0-9]*")}
    own = {os.getpid()}
    while more := {pid for pid, above in parents.items() if above in own} - own:
        own |= more
    return own


def parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def sockets(pid: int) -> set[str]:
    found = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(link)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass  # it ended meanwhile, or is not ours to look at
    return found
