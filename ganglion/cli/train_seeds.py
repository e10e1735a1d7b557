"""Drives runs that train together to their end, or to a signal, and says what all of them came to."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from ganglion.cli.text import complain, say, table
from ganglion.cli.training_loop import StopRequest, listening, remains
from ganglion.core import Stop
from ganglion.errors import DivergedError, UserError

if TYPE_CHECKING:
    from ganglion.config import RunConfig
    from ganglion.runtime.seeds import Seeds


def train(configs: Sequence[RunConfig], imports: Sequence[str]) -> int:
    """Runs all streams as one; the exit codes are those of a single run."""
    from ganglion.runtime.seeds import Seeds

    seeds, began = Seeds(configs), perf_counter()
    folders = [run.folder for run in seeds.runs]
    say(f"{len(configs)} runs in {folders[0]} to {folders[-1]}, trained together. Ctrl-C saves and stops.")
    flags = "".join(f" --import {module}" for module in imports)
    resume = f"ganglion resume {shlex.quote(str(folders[0]))}{flags}, and so on, each by itself"
    with listening() as asked:
        try:
            follow(seeds, asked)
        except UserError as error:
            raise type(error)(f"{error} {remains(seeds.runs[0], resume)}") from error
        except (OSError, KeyboardInterrupt) as error:
            complain(f"{error or 'ended at once'}. {remains(seeds.runs[0], resume)}")
            return 130 if isinstance(error, KeyboardInterrupt) else 1
        finally:
            seeds.close()
    if asked.signal is not None:
        never = all(config.save.every.unit == "never" for config in configs)
        how = "; save is never, so nothing was saved" if never else f" and saved. Continue with: {resume}"
        say(f"Interrupted{how}")
        return 128 + asked.signal
    say(*table(summary(seeds, perf_counter() - began)))
    lost = [(run.folder, member.lost) for run, member in zip(seeds.runs, seeds.members, strict=True) if member.lost]
    for folder, why in lost:
        complain(f"{folder}: {why}")
    return DivergedError.code if lost else 0


def follow(seeds: Seeds, asked: StopRequest) -> None:
    """Takes events until all streams end; one line each time that every run has been evaluated once more."""
    stream, stop, counts = seeds.stream(), None, [0] * len(seeds.runs)
    for run in seeds.runs:
        run.asked = lambda: asked.signal is not None
    try:
        while True:
            told = stream.send(stop)
            stop = Stop(f"interrupted by {asked.signal.name}") if asked.signal else None
            if told.log.kind == "evaluate":
                before = min(counts)
                counts[told.run] += 1
                if min(counts) > before:
                    say(f"{told.log.at.env_steps:,} env steps each: {spread(seeds.scores()['Last'])}")
    except StopIteration:
        return


def spread(scores: Sequence[float]) -> str:
    """A mean over runs and its interval."""
    from ganglion.runtime.seeds import interval

    if not scores:
        return "not evaluated"
    mean, low, high = interval(scores)
    return f"mean return {mean:.2f}, 95 % interval {low:.2f} to {high:.2f} over {len(scores)} runs"


def summary(seeds: Seeds, seconds: float) -> list[tuple[str, ...]]:
    steps = sum(run.trainer.at.env_steps for run in seeds.runs)
    updates = sum(run.trainer.at.opt_steps for run in seeds.runs)
    speed = f"{steps:,} env steps and {updates:,} updates over all runs, {seconds:.1f} s, evaluations included"
    scores = [(name, spread(values)) for name, values in seeds.scores().items()]
    folder = shlex.quote(str(seeds.runs[0].folder))
    return [("Trained", speed), *scores, ("Score one", f"ganglion eval {folder} --episodes 100")]
