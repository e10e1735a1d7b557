"""Code blocks of the documents, so that what they say can be run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def section(document: str, heading: str) -> str:
    """The text below a heading, up to the next one of its rank."""
    rank = heading.split(" ", maxsplit=1)[0]
    text = (ROOT / document).read_text(encoding="utf-8")
    _, found, after = f"\n{text}".partition(f"\n{heading}\n")
    assert found, f"{document} has no heading {heading!r}"
    body = re.split(rf"^#{{1,{len(rank)}}} ", outside_fences(after), maxsplit=1, flags=re.MULTILINE)[0]
    return body.replace("\0", "#")


def outside_fences(text: str) -> str:
    """The same text with `#` at the start of a line inside a code block hidden from the search for headings."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(re.sub(r"^#", "\0", p, flags=re.MULTILINE) if p.startswith("```") else p for p in parts)


def code(text: str, language: str = "python") -> list[str]:
    """The code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
