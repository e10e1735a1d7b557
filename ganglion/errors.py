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
    """A checkpoint found no room, or its store away; those already there are whole. A run goes on and tries again."""

    code = 1


class LearnerLostError(Exception):
    """One of several learners died: all of them can go on from the newest checkpoint."""


class ClusterLostError(UserError):
    """Ray itself is gone, or does not answer. What there is has been saved: started again, a run goes on."""

    code = 5


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean X?' when something known is close to `word`, else nothing."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_url(text: str, setting: str) -> str:
    """Refuses a password in a URL, without repeating it: URLs are written into configs, logs and lists of processes."""
    if re.search(r"://[^/]*:.*@", text):  # the keys of Amazon's may hold a slash
        remedy = "Credentials come from the environment alone, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        raise UserError(f"{setting}: the URL holds a password, and would be written down with the run. {remedy}")
    return text
