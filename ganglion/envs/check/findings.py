"""Verdicts on an environment, in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ganglion.faults import place, told

Verdict = Literal["pass", "warn", "fail"]


class Finding(NamedTuple):
    """One verdict: what was looked at, what was seen, and what to do about it."""

    verdict: Verdict
    name: str
    seen: str
    fix: str = ""


@dataclass(frozen=True)
class CheckReport:
    """All that was found about one environment. `passed` when nothing failed; warnings do not fail."""

    subject: str
    about: str  # its spaces and limit, in a line
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return not self.of("fail")

    def of(self, verdict: Verdict) -> list[Finding]:
        """The findings of one verdict."""
        return [finding for finding in self.findings if finding.verdict == verdict]

    def __str__(self) -> str:
        lines = [f"{self.subject}: {self.about}"]
        for verdict, name, seen, fix in self.findings:
            lines.append(f"{verdict}  {name:<12} {seen}{f' Fix: {fix}' if fix else ''}")
        return "\n".join(lines)


class Broken(Exception):  # noqa: N818
    """The environment cannot be looked at any further; holds the finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.seen)
        self.finding = finding


def passed(name: str, seen: str) -> Finding:
    return Finding("pass", name, seen)


def warned(name: str, seen: str, fix: str) -> Finding:
    return Finding("warn", name, seen, fix)


def failed(name: str, seen: str, fix: str) -> Finding:
    return Finding("fail", name, seen, fix)


def raised(name: str, error: BaseException, when: str) -> Broken:
    """What an environment raised, and the line of its own that did."""
    return Broken(failed(name, f"{when} raised {told(error)}.", f"see {place(error)}."))


def short(value: object) -> str:
    """A value as a finding shows it."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def number(value: float) -> str:
    """A number in as few characters as tell its size."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"
