"""Lists what can be named in a config.

ganglion list              everything
ganglion list algos        one family: algos, envs, nets, buffers, limiters, processors, writers, schedules, zoo
ganglion list -v           also the module of each name and who brought it
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ganglion import registry
from ganglion.cli.arguments import import_argument
from ganglion.cli.text import say, table
from ganglion.errors import UserError, nearest

DESCRIBED = r'register\("{family}", "{name}"\)\nclass [^\n]*\n    """(.*?)(?:\n\n|""")'


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="?", metavar="FAMILY", help="one family alone")
    parser.add_argument("-v", "--verbose", action="store_true", help="where each name comes from")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.imports:
        from ganglion.config.files import import_module

        for module in args.imports:
            import_module(module)
    families = {plural(family): family for family in registry.TABLE}
    accepted = [*families, "zoo"]
    if args.what is not None and args.what not in accepted:
        close = nearest(args.what, accepted)
        raise UserError(f"cannot list {args.what[:80]!r}. Accepted: {', '.join(accepted)}.{close}")
    for title in accepted if args.what is None else [args.what]:
        rows = presets(args.verbose) if title == "zoo" else members(families[title], args.verbose)
        lines = table(rows) or ["(none)"]
        say(*(lines if args.what else [f"{title}:", *(f"  {line}" for line in lines)]))
    return 0


def plural(family: str) -> str:
    if family.endswith("ts"):  # resets
        return family
    return family + ("es" if family.endswith("s") else "s")


def members(family: str, verbose: bool) -> list[tuple[str, ...]]:
    """The names of a family and what each is, with their origin if asked."""
    return [
        (name, about(family, name), *(registry.origin(family, name) if verbose else ()))
        for name in registry.names(family)
    ]


def about(family: str, name: str) -> str:
    """The first line of what a config class says of itself, read without importing it: that may take torch."""
    module = registry.TABLE[family].get(name)
    if module is None:  # of the user's own, which is imported, or of an entry point
        return ""
    file = Path(registry.__file__).parent.joinpath(*module.split(".")[1:])
    path = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    told = re.search(DESCRIBED.format(family=family, name=name), path.read_text(encoding="utf-8"), re.DOTALL)
    return "" if told is None else " ".join(told[1].split()).split(". ")[0].rstrip(".")


def presets(verbose: bool) -> list[tuple[str, ...]]:
    """The zoo's names, each with the first comment of its file."""
    rows: list[tuple[str, ...]] = []
    for name, path in registry.presets().items():
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        about = first.removeprefix("#").strip() if first.startswith("#") else ""
        rows.append((name, about, str(path)) if verbose else (name, about))
    return rows
