"""Looks a dataset over: can it be read, can it be learned from, and what is unusual about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ganglion.data.report import DataReport, report
from ganglion.envs.check.findings import CheckReport, Finding, failed, passed, warned
from ganglion.errors import UserError


def check_data(path: str | Path) -> CheckReport:
    """One verdict per question; whatever cannot be read is a failure, too."""
    try:
        found = report(path)
    except UserError as error:
        fix = "record or download it again; a path that was mistyped is there under another name."
        return CheckReport(str(path), "not read", (failed("files", str(error), fix),))
    about = f"{found.spec.obs} -> {found.spec.action}, {found.episodes:,} episodes, {found.steps:,} steps"
    verdicts = (*files(found), *rows(found), *endings(found), *rewards(found), *actions(found), *observations(found))
    return CheckReport(str(path), about, verdicts)


def files(found: DataReport) -> Iterator[Finding]:
    fix = "restore them, or go on without: data.damaged=skip."
    yield from (failed("files", text, fix) for text in found.damaged)
    if not found.damaged:
        yield passed("files", "every byte is as it was written.")


def rows(found: DataReport) -> Iterator[Finding]:
    fix = "such rows are refused in training: repair what wrote them, and write them again."
    yield from (failed("rows", f"{count:,} with {what}.", fix) for what, count in found.broken.items())
    if not found.broken:
        yield passed("rows", "all can be learned from.")


def endings(found: DataReport) -> Iterator[Finding]:
    cut = found.episodes - found.terminated
    told = f"{found.terminated:,} episodes terminated, {cut:,} were cut."
    if found.terminated and not cut and int(found.lengths.max()) == int(found.lengths.median()) > 1:
        lengths = f" Most have {int(found.lengths.max())} steps"
        yield warned("endings", told + lengths + ".", "a time limit is no termination: say so in `timeouts`.")
    else:
        yield passed("endings", told)


def rewards(found: DataReport) -> Iterator[Finding]:
    low, high = float(found.returns.min()), float(found.returns.max())
    if low == high and found.episodes > 1:
        yield warned("returns", f"all are {low:.4g}.", "copying (bc) needs no rewards; every other algorithm does.")
    else:
        yield passed("returns", f"from {low:.4g} to {high:.4g}.")


def actions(found: DataReport) -> Iterator[Finding]:
    least = min(found.actions, key=lambda x: x.covered)
    over = max(found.actions, key=lambda x: x.beyond)
    if least.covered < 1:
        told = f"{least.name}: {100 * least.covered:.0f} % of its choices or range were ever taken."
        yield warned("coverage", told, "stay close to the data: bc, iql, td3_bc, cql; or record with --epsilon.")
    else:
        yield passed("coverage", "every choice, and every tenth of each range, was taken.")
    if over.beyond:
        told = f"{over.name}: {100 * over.beyond:.2f} % beyond its bounds."
        yield warned("bounds", told, "environments clip such actions; clip them where they are recorded, too.")


def observations(found: DataReport) -> Iterator[Finding]:
    if found.still:
        some = ", ".join(found.still[:5])
        yield warned("observations", f"{some} never change.", "leave them out, or record where they do.")
