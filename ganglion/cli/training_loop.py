"""Drives a run to its end, or to a signal: saves first, then says how to go on."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from ganglion.cli.text import complain, say, show, table
from ganglion.core import Stop
from ganglion.errors import AlgorithmError, EnvError, LearnerLostError, UserError
from ganglion.processes import caught

if TYPE_CHECKING:
    from ganglion.runtime.run import Run


FUTILE = 5  # deaths of a learner, without a checkpoint between, that end a run


class StopRequest:
    """The first signal asks the run to stop and save; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Signals that ask to stop, noted instead of raised."""
    asked = StopRequest()
    with caught(asked):
        yield asked


def drive(run: Run, imports: Sequence[str] = ()) -> int:
    """Runs the stream; 0 when the run is finished, 128 and the signal when it was interrupted and saved, 1 on a
    full disk.
    Where one of several learners dies, all start again from the newest checkpoint."""
    futile, at = 0, ""
    while True:
        try:
            return drive_once(run, imports)
        except LearnerLostError as lost:
            newest = run.checkpoints.newest()
            saved = newest.name if newest else "the beginning"
            futile, at = (futile + 1, at) if saved == at else (1, saved)
            if futile >= FUTILE:
                raise UserError(f"fleet.learners: {lost}, {FUTILE} times without a checkpoint between.") from lost
            complain(f"{lost}: all learners start again from {saved}")
            run = type(run).open(run.folder)


def drive_once(run: Run, imports: Sequence[str]) -> int:
    flags = "".join(f" --import {module}" for module in imports)
    resume = f"ganglion resume {shlex.quote(str(run.folder))}{flags}"
    say(f"Run in {run.folder}. Ctrl-C saves and stops.", *([run.why] if run.why else []))
    with listening() as asked:
        try:
            follow(run, asked)
        except LearnerLostError as lost:
            if asked.signal is None:
                raise
            complain(f"{lost}, told to stop as well. {remains(run, resume)}")
            return 128 + asked.signal
        except UserError as error:
            if type(error) is AlgorithmError:  # whoever wrote it wants to see where
                show(error.__cause__)
            raise type(error)(f"{error} {remains(run, resume)}") from error
        except SystemExit as error:  # of an environment that is no slot of ours, as a whole vector of them
            raise EnvError(f"env: it called sys.exit({error.code!r}). {remains(run, resume)}") from error
        except OSError as error:
            complain(f"{error.strerror or error}. {remains(run, resume)}")
            return 1
        except KeyboardInterrupt:
            complain(f"ended at once. {remains(run, resume)}")
            return 130
        finally:
            run.close()
    if asked.signal is not None:
        if run.cfg.save.every.unit == "never":
            say(f"Interrupted in {run.folder}; save is never, so nothing was saved")
        else:
            say(f"Interrupted and saved in {run.folder}", f"Continue with:  {resume}")
        return 128 + asked.signal
    folder = f"{shlex.quote(str(run.folder))}{flags}"
    say(
        *table(
            [
                *run.summary().items(),
                ("Run", str(run.folder)),
                ("Score it", f"ganglion eval {folder} --episodes 100"),
                ("Watch it", f"ganglion play {folder}"),
                ("Train on", f'{resume} train.budget="..."'),
            ]
        )
    )
    return 0


def remains(run: Run, resume: str) -> str:
    """What there is to go on from."""
    with suppress(OSError):  # where a store cannot be asked, nobody knows
        if run.checkpoints.newest() is None:
            return "Nothing had been saved yet."
    return f"What was saved before is whole. Continue with: {resume}"


def follow(run: Run, asked: StopRequest) -> None:
    """Takes events until the stream ends, passing on a signal as a command."""
    from ganglion.record.checkpoint import size_text  # with torch, which a run has imported

    run.asked = lambda: asked.signal is not None
    stream = run.stream()
    try:
        next(stream)  # with the first row the buffer has its size
        with suppress(BrokenPipeError):  # nobody reads: that ends no run
            say(f"It will need about {size_text(run.needs())} of disk.")
        while True:
            stream.send(Stop(f"interrupted by {asked.signal.name}") if asked.signal else None)
    except StopIteration:
        return
