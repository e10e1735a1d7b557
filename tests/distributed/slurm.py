"""Slurm on this machine alone, with two nodes that are only names: for tests. Needs root and Debian's slurm-wlm."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=20
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 RealMemory=2000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 RealMemory=2000 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""
PROGRAMS = ("sbatch", "srun", "munged", "slurmctld", "slurmd")


def missing() -> str | None:
    """Why it cannot be tried here."""
    if os.geteuid() != 0:
        return "needs root, to start slurm"
    absent = [name for name in PROGRAMS if found(name) is None]
    return f"needs slurm ({', '.join(absent)}): apt-get install slurm-wlm munge" if absent else None


def found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [int(server.getsockname()[1]) for server in servers]
    for server in servers:
        server.close()
    return numbers


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which sbatch finds it; everything ends with the block."""
    folder.chmod(0o755)
    port, first, second = ports(3)
    host = socket.gethostname().split(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, port=port, folder=folder, first=first, second=second))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    environ = {**os.environ, "SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    own = [f"--key-file={key}", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid", "--force",
           f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]  # fmt: skip
    commands = [["munged", "--foreground", *own], ["slurmctld", "-D", "-i"]]
    commands += [["slurmd", "-D", "-N", name] for name in ("n1", "n2")]
    started = []
    try:
        for command in commands:
            with (folder / f"{command[0]}-{command[-1].strip('-')}.out").open("w") as out:
                program = [str(found(command[0])), *command[1:]]
                started.append(subprocess.Popen(program, env=environ, stdout=out, stderr=out))
            sleep(1)
        wait_for_nodes(environ)
        yield environ
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)


def wait_for_nodes(environ: dict[str, str]) -> None:
    ends = monotonic() + 60
    while monotonic() < ends:
        told = subprocess.run(["sinfo", "-h", "-o", "%t %D"], env=environ, capture_output=True, text=True)
        if told.stdout.split() == ["idle", "2"]:
            return
        sleep(0.5)
    raise RuntimeError(f"slurm did not start: {told.stdout} {told.stderr}")
