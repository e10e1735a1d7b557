"""The command line: one module per command. Nothing heavy is imported before a command needs it.

Exit codes: 0 well, 1 the machine failed (a full disk) or an algorithm raised (the run is saved), 2 bad input, 3 the
environment failed too often (the run is saved), 4 training diverged (the last finite checkpoint is there), 5 Ray is
lost (started again, the run goes on), 130, 143 and 129 interrupted after saving.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ganglion.cli.parser import parse
from ganglion.cli.text import complain
from ganglion.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; every problem of the user's is one message on stderr."""
    try:
        args = parse(list(sys.argv[1:] if argv is None else argv))
        return int(args.run(args)) if args else 0
    except UserError as error:
        complain(str(error))
        return error.code
    except BrokenPipeError:  # `ganglion list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return 1
    except KeyboardInterrupt:
        complain("interrupted before anything had to be saved")
        return 130
