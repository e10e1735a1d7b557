"""Slurm for tests: two nodes on this machine, each a network namespace. Needs root and Debian's slurm-wlm."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from tests.distributed.namespaces import HEAD, OTHER, two_hosts

CONF = """\
ClusterName=test
SlurmctldHost={host}({head})
SlurmctldPort=7000
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
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
NodeName=n1 NodeHostname={host} NodeAddr={head} Port=7001 CPUs=1 RealMemory=2000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr={other} Port=7002 CPUs=1 RealMemory=2000 State=UNKNOWN
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


@contextmanager
def slurm(folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """What to put before a command, and the environment in which it finds slurm; everything ends with the block."""
    with two_hosts() as hosts, started(folder, hosts) as environ:
        yield inside(hosts[0]), environ


def inside(host: str) -> list[str]:
    """Enters a namespace, and leaves /sys as it is: slurm looks for cgroups there."""
    return ["nsenter", f"--net=/run/netns/{host}"]


@contextmanager
def started(folder: Path, hosts: tuple[str, str]) -> Iterator[dict[str, str]]:
    folder.chmod(0o755)
    host = socket.gethostname().split(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, head=HEAD, other=OTHER))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    environ = {**os.environ, "SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    own = [f"--key-file={key}", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid", "--force",
           f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]  # fmt: skip
    commands = [["munged", "--foreground", *own], ["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", "n1"]]
    commands += [["slurmd", "-D", "-N", "n2"]]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            host = hosts[command[-1] == "n2"]
            with (folder / f"daemon-{len(running)}.out").open("w") as out:
                program = [*inside(host), str(found(command[0])), *command[1:]]
                running.append(subprocess.Popen(program, env=environ, stdout=out, stderr=out))
            sleep(1)
        wait_for_nodes(inside(hosts[0]), environ)
        yield environ
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def wait_for_nodes(there: list[str], environ: dict[str, str]) -> None:
    ends = monotonic() + 60
    while monotonic() < ends:
        told = subprocess.run([*there, "sinfo", "-h", "-o", "%t %D"], env=environ, capture_output=True, text=True)
        if told.stdout.split() == ["idle", "2"]:
            return
        sleep(0.5)
    raise RuntimeError(f"slurm did not start: {told.stdout} {told.stderr}")
