"""Writes a saved agent as a file that runs without Ganglion, and compares it with the agent.

ganglion export runs/cartpole-dqn-20260101-120000 --to onnx             ONNX (extra: onnx)
ganglion export runs/cartpole-dqn-20260101-120000 --to numpy            .npz, and a reader that needs numpy alone
ganglion export runs/cartpole-dqn-20260101-120000 --to torch --out cart.pt2        for torch.export.load
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from ganglion.cli.arguments import existing, import_argument, load_torch, run_argument
from ganglion.cli.evaluate import which_arguments
from ganglion.cli.text import say, table
from ganglion.errors import UserError, nearest

KINDS = ("onnx", "torch", "numpy")


def arguments(parser: argparse.ArgumentParser) -> None:
    run_argument(parser)
    parser.add_argument("--to", required=True, metavar="KIND", help="onnx, torch or numpy")
    parser.add_argument("--out", metavar="FILE", help="where to (the name of the run and an ending of the kind)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="observations of a call (1)")
    parser.add_argument("--compare", type=int, default=1_000, metavar="N", help="observations to compare on (1000)")
    parser.add_argument("--player", metavar="PLAYER", help="of several: whose agent (the first)")
    which_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    import_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.to not in KINDS:
        raise UserError(f"--to: unknown {args.to[:80]!r}. Accepted: {', '.join(KINDS)}.{nearest(args.to, KINDS)}")
    for name, value, most in (("batch", args.batch, 65_536), ("compare", args.compare, 10_000_000)):
        if not 1 <= value <= most:
            raise UserError(f"--{name} should be between 1 and {most}, got {value}.")
    folder = existing(args.folder)
    load_torch()
    from ganglion.config.files import import_module
    from ganglion.export.files import KINDS as FILES
    from ganglion.export.parity import compare
    from ganglion.export.policy import PolicyModule
    from ganglion.export.program import traced
    from ganglion.runtime.saved_agent import load

    for module in args.imports:
        import_module(module)
    agent = load(folder, args.which, args.player)
    ending, write, read = FILES[args.to]
    out = Path(args.out or f"{folder.name}{ending}")
    policy = PolicyModule(agent)
    try:
        files = write(policy, traced(policy, args.batch), args.batch, out)
    except OSError as error:
        raise UserError(f"--out: {str(out)[:200]} cannot be written: {error.strerror}.") from error
    found = compare(agent, policy, read(policy, args.batch, out), args.batch, args.compare)
    ports = {"inputs": [p._asdict() for p in policy.inputs], "outputs": [p._asdict() for p in policy.outputs]}
    if args.json:
        sizes = {str(file): file.stat().st_size for file in files}
        say(json.dumps({"files": sizes, "batch": args.batch, **ports, "parity": found._asdict()}))
        return 0
    rows: list[tuple[str, ...]] = [(str(file), f"{file.stat().st_size:,} bytes") for file in files]
    for what, each in (("in", policy.inputs), ("out", policy.outputs)):
        for port in each:
            shape = " x ".join(map(str, (args.batch, *port.shape)))
            rows.append((f"{what}: {port.name}", f"{port.dtype} {shape}  {port.means}"))
    rows.append(("Compared", f"{found.observations:,} observations of its own episodes"))
    rows.append(("Difference", f"at most {found.difference:.2g}"))
    if found.choices:
        rows.append(("Choices", f"{found.choices - found.unequal:,} of {found.choices:,} equal"))
    rows.append(("Latency", f"{found.latency_us:.0f} us a call here, median"))
    width = shutil.get_terminal_size().columns
    say(*(line if len(line) <= width else f"{line[: width - 3]}..." for line in table(rows)))
    return 0
