"""The runs of a sweep: one after the other or in parallel processes, and a ranked table at the end."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ganglion.cli.text import complain, say, table
from ganglion.cli.training_loop import drive, listening
from ganglion.errors import UserError

if TYPE_CHECKING:
    from ganglion.config import RunConfig

WIDEST = 28  # characters of a setting


def one_by_one(configs: Sequence[RunConfig], imports: Sequence[str]) -> int:
    """The exit code of the first that does not end well."""
    from ganglion.runtime.run import Run

    folders = list[str]()
    for number, config in enumerate(configs, 1):
        say(f"Run {number} of {len(configs)}: {config.title}")
        run = Run.create(config)
        folders.append(str(run.folder))
        code = drive(run, imports)
        if code:
            return code
    say("", *ranked(folders))
    return 0


def parallel(configs: Sequence[RunConfig], imports: Sequence[str], workers: int) -> int:
    """As many at a time as there are workers; 1 where some have failed."""
    from ganglion.config.files import dump
    from ganglion.tuning.jobs import Job
    from ganglion.tuning.pool import local, run_all

    if not 1 <= workers <= 1_024:
        raise UserError(f"--parallel should be between 1 and 1024, got {workers}.")
    jobs = [Job(number, [dump(config)], list(imports)) for number, config in enumerate(configs)]
    folders: dict[int, str] = {}
    failed: list[str] = []

    def on(told: dict[str, Any]) -> None:
        number = told["number"]
        title = configs[number].title
        if told["event"] == "began":
            folders[number] = told["folders"][0]
        elif told["event"] == "ended":
            outcome = told["outcome"]
            if outcome.how == "failed":
                failed.append(f"{title}: {outcome.why}")
            score = f", last score {outcome.scores[0][-1]:.2f}" if any(outcome.scores) else ""
            say(f"{title} {outcome.how}, {outcome.steps:,} env steps{score}")

    say(f"{len(jobs)} runs, {min(workers, len(jobs))} at a time. Ctrl-C saves and stops.")
    with TemporaryDirectory(prefix="ganglion-sweep-") as place, listening() as asked:
        pool = local(min(workers, len(jobs)), Path(place))
        try:
            run_all(pool, jobs, on, lambda: asked.signal is not None)
        finally:
            pool.close()
    if asked.signal is not None:
        begun = " ".join(shlex.quote(folder) for folder in folders.values())
        say("Interrupted and saved. Continue each with:  ganglion resume RUN", f"They are: {begun or 'none'}")
        return 128 + asked.signal
    say("", *ranked([folder for _, folder in sorted(folders.items())]))
    for why in failed:
        complain(why)
    return 1 if failed else 0


def ranked(folders: Sequence[str]) -> list[str]:
    """The cases of a sweep, the best first: what differs, and the mean of the last scores of their runs."""
    from ganglion.analysis.runs import EVAL, TRAIN, differences, grouped, read_run
    from ganglion.runtime.seeds import interval

    groups = grouped([read_run(folder) for folder in folders])
    metric = EVAL if all(EVAL in run.metrics() for group in groups for run in group.runs) else TRAIN
    apart = differences(groups) if len(groups) > 1 else {}
    rows = []
    for k, group in enumerate(groups):
        scores = [one for one in (run.last(metric) for run in group.runs) if one == one]
        mean, low, high = interval(scores) if scores else (float("-inf"),) * 3
        spread = f"{low:.2f} to {high:.2f}" if len(scores) > 1 else "-"
        told = f"{mean:.2f}" if scores else "-"
        values = [str(values[k])[:WIDEST] for values in apart.values()]
        rows.append((mean, (told, spread, str(len(group.runs)), *values, str(group.runs[0].folder))))
    rows.sort(key=lambda row: -row[0])
    head = ("rank", metric, "95 %", "runs", *(path.split(".", 1)[-1] for path in apart), "first run")
    return table([head, *((str(rank), *row) for rank, (_, row) in enumerate(rows, 1))])
