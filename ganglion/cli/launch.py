"""Starts a run and keeps it alive: on this machine, or on nodes of slurm with Ray across them.

ganglion launch local cartpole/ppo --restarts 10                 resumed from its newest checkpoint when it is killed
ganglion launch slurm cartpole/ppo --nodes 2 --explorers 16      writes a job, and submits it
ganglion launch slurm cartpole/ppo --nodes 2 --dry-run           shows the job
ganglion launch node FOLDER                                      what a job runs on each of its nodes

Exit codes are those of the run.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ganglion.cli.arguments import asked_cases, config_arguments
from ganglion.cli.text import complain, say
from ganglion.errors import UserError, nearest
from ganglion.processes import python

if TYPE_CHECKING:
    from ganglion.config import RunConfig
    from ganglion.record.stores import Where

PLACES = ("local", "slurm", "node")
SLURM = ("nodes", "cpus", "gpus", "partition", "account", "time", "sbatch", "dry_run")
NOTICE = 60  # seconds before its time is up that a job is told to save


class JobFolder(NamedTuple):
    """A job of slurm's: where it lies, and what it says."""

    folder: Path
    config: str
    about: str
    script: str


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="local|slurm", help="where")
    config_arguments(parser)
    parser.add_argument("--restarts", type=int, default=0, metavar="N", help="resume it, when it dies, N times (0)")
    slurm = parser.add_argument_group("slurm")
    slurm.add_argument("--nodes", type=int, metavar="N", help="how many (1)")
    slurm.add_argument("--cpus", type=int, metavar="N", help="processors of each node")
    slurm.add_argument("--gpus", type=int, metavar="N", help="of each node")
    slurm.add_argument("--partition", metavar="NAME")
    slurm.add_argument("--account", metavar="NAME")
    slurm.add_argument("--time", metavar="TIME", help="at most: minutes, or days-hours:minutes:seconds")
    slurm.add_argument(
        "--sbatch", metavar="OPTION", action="append", help="another option of sbatch's: --sbatch=--qos=high"
    )
    slurm.add_argument("--dry-run", action="store_true", default=None, help="shows the job and does nothing")


def run(args: argparse.Namespace) -> int:
    if args.place not in PLACES:
        raise UserError(f"cannot launch on {args.place[:80]!r}. Accepted: local, slurm.{nearest(args.place, PLACES)}")
    if not 0 <= args.restarts <= 100_000:
        raise UserError(f"--restarts should be between 0 and 100000, got {args.restarts}.")
    given = [name for name in SLURM if getattr(args, name) is not None]
    if args.place != "slurm" and given:
        raise UserError(f"--{given[0].replace('_', '-')} is for launch slurm, not {args.place}.")
    if args.place == "node":
        return node(args.words)
    config = one(args)
    return local(config, args) if args.place == "local" else slurm(config, args)


def one(args: argparse.Namespace) -> RunConfig:
    """The config, its folder checked where it is given."""
    from ganglion.record.run_folder import check_unused
    from ganglion.record.stores import located

    if args.seeds is not None:
        raise UserError("--seeds: launch starts one run. Launch each seed by itself: run.seed=1")
    configs = asked_cases(args)
    if len(configs) > 1:
        raise UserError(f"launch starts one run, and a sweep is {len(configs)}. Launch each by itself.")
    if configs[0].run.dir is None:
        return configs[0]
    folder = located(configs[0].run.dir, "run.dir")
    check_unused(folder)
    return placed(configs[0], folder)


def placed(config: RunConfig, folder: Where) -> RunConfig:
    where = str(folder.absolute() if isinstance(folder, Path) else folder)
    return config.model_copy(update={"run": config.run.model_copy(update={"dir": where})})


def local(config: RunConfig, args: argparse.Namespace) -> int:
    from ganglion.launch.restarts import Restarter, begun, command
    from ganglion.record.run_folder import made

    own = made(config.title) if config.run.dir is None else None
    place = str(own.absolute() if own else config.run.dir)
    flags = [word for module in args.imports for word in ("--import", module)]
    asked = [f"--{name}={getattr(args, name)}" for name in ("algo", "env", "mode", "explorers", "learners")
             if getattr(args, name)]  # fmt: skip
    keeper = Restarter(lambda: begun(place), args.restarts, complain)
    code = keeper.keep(
        command("train", *args.words, f"run.dir={json.dumps(place)}", *asked, *flags),  # JSON's quotes are YAML's
        command("resume", place, *flags),
    )
    with suppress(OSError):  # where it is not empty
        if own:
            own.rmdir()
    return code


def node(words: list[str]) -> int:
    from ganglion.launch.slurm import run_node

    if len(words) != 1 or not (Path(words[0]) / "job.json").is_file():
        raise UserError("launch node: should be the folder of a job that ganglion launch slurm has made.")
    return run_node(Path(words[0]), say)


# ------------------------------------------------------------ slurm


def slurm(config: RunConfig, args: argparse.Namespace) -> int:
    from ganglion.record.run_folder import candidates

    if config.run.dir is None:
        config = placed(config, next(path for path in candidates(config.title) if not path.exists()))
    job = make_job(config, args)
    if args.dry_run:
        say(job.script.rstrip("\n"))
        return 0
    if shutil.which("sbatch") is None:
        raise UserError(
            "launch slurm: there is no sbatch on PATH. See the job with --dry-run, or try: ganglion launch local"
        )
    try:
        job.folder.mkdir(parents=True)
    except FileExistsError:
        told = f"run.dir: {job.folder} is there already: a job for this run was made. Choose another."
        raise UserError(told) from None
    (job.folder / "config.yaml").write_text(job.config)
    (job.folder / "job.json").write_text(job.about)
    (job.folder / "job.sh").write_text(job.script)
    ended = subprocess.run(["sbatch", str(job.folder / "job.sh")], capture_output=True, text=True)
    if ended.stdout:
        say(ended.stdout.strip())
    if ended.returncode and not ended.stdout:
        shutil.rmtree(job.folder)  # as if it had never been asked
        raise UserError(f"launch slurm: sbatch refused the job: {ended.stderr.strip()[:500]}")
    say(f"Run in {config.run.dir}", f"JobFolder in {job.folder}; what it says: {job.folder / 'job.out'}")
    return ended.returncode  # of the job, where sbatch was told to wait for it


def make_job(config: RunConfig, args: argparse.Namespace) -> JobFolder:
    from ganglion.config.files import dump
    from ganglion.record.run_folder import candidates
    from ganglion.record.stores import located

    if args.mode == "local" or config.run.mode not in ("local", "ray"):
        raise UserError(f"run.mode: nodes of slurm are joined by Ray. Accepted: ray, got {config.run.mode!r}.")
    run = config.run.model_copy(update={"mode": "ray"})
    config = type(config).model_validate(config.model_copy(update={"run": run}).plain())
    where = located(str(run.dir), "run.dir")
    beside = where if isinstance(where, Path) else next(candidates(config.title)).absolute()  # a job lies on a disk
    folder = beside.with_name(f"{beside.name}.job")
    about = {"run": str(run.dir), "imports": args.imports, "restarts": args.restarts}
    needs = config.fleet.explorers + config.fleet.learners - 1
    return JobFolder(
        folder, dump(config), json.dumps({**about, "needs": needs}, indent=2), script(config.title, folder, args)
    )


def script(title: str, folder: Path, args: argparse.Namespace) -> str:
    """The job's script: the same program on each node, which finds the others by itself."""
    options = {
        "nodes": count("nodes", 1 if args.nodes is None else args.nodes),
        "ntasks-per-node": "1",
        "signal": f"TERM@{NOTICE}",
    }
    options |= {"cpus-per-task": count("cpus", args.cpus)} if args.cpus is not None else {}
    options |= {"gpus-per-node": count("gpus", args.gpus)} if args.gpus is not None else {}
    options |= {
        name: plain(f"--{name}", getattr(args, name))
        for name in ("partition", "account", "time")
        if getattr(args, name)
    }
    output = plain("run.dir", str(folder / "job.out"))
    own = {"job-name": plain("run.name", f"ganglion-{title}"), "output": output, "open-mode": "append"}
    lines = [f"#SBATCH --{name}={value}" for name, value in {**own, **options}.items()]
    lines += [f"#SBATCH {plain('--sbatch', option)}" for option in args.sbatch or ()]
    program = shlex.join(python("ganglion", "launch", "node", str(folder)))
    body = ["set -eu", "umask 077  # the token is a secret", f"exec srun --kill-on-bad-exit=1 {program}"]
    return "\n".join(["#!/bin/bash", *lines, *body, ""])


def count(name: str, number: int) -> str:
    if not 1 <= number <= 100_000:
        raise UserError(f"--{name} should be between 1 and 100000, got {number}.")
    return str(number)


def plain(name: str, text: str) -> str:
    """A word of a script, checked: it stands on a line of its own."""
    if not re.fullmatch(r"[\w.,:@=+/%-]{1,4096}", text):
        raise UserError(f"{name}: should be letters, digits and .,:@=+/%- alone, got {text[:80]!r}.")
    return text
