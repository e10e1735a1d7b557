"""The one error a user of Ganglion should ever see."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Bad input: one message naming the field, what is accepted and the nearest valid name."""

    code = 2  # the exit code of a command that ends with it


class EnvError(UserError):
    """An environment failed too often, or could not be started again."""

    code = 3


class DiskError(UserError):
    """A checkpoint could not be written: no room, a disk that fails, a store that is away; those already there are
    whole. A run goes on and tries again."""

    code = 1


class FolderLostError(DiskError):
    """The folder of a run is not where it was."""


class DivergedError(UserError):
    """A loss or a weight is not finite any more: what training does from here on is lost. Nothing of it was saved."""

    code = 4


class AlgorithmError(UserError):
    """An algorithm raised something of its own: a fault in its code. What there is was saved, if it could be."""

    code = 1


class LearnerLostError(Exception):
    """One of several learners died: all of them can go on from the newest checkpoint."""


class EvaluationStoppedError(Exception):
    """A signal came while the agent was scored: nothing came of it, and it is due as before."""


class ClusterLostError(UserError):
    """Ray itself is gone, or does not answer. What there is has been saved: started again, a run goes on."""

    code = 5


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean X?' when something known is close to `word`, else nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_place(text: str, setting: str) -> str:
    """Refuses what no folder can be called, and a password in a URL, without repeating it: URLs are written into
    configs, logs and lists of processes."""
    if re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", text):
        raise UserError(f"{setting}: a path or URL should have no control characters, got {text[:80]!r}.")
    if any(len(part.encode()) > 255 for part in text.split("/")):
        raise UserError(f"{setting}: each name of a path should have at most 255 bytes, got {text[:80]!r}...")
    if re.search(r"://[^/]*:.*@", text):  # the keys of Amazon's may hold a slash
        remedy = "Credentials come from the environment alone, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        raise UserError(f"{setting}: the URL holds a password, and would be written down with the run. {remedy}")
    return text
