"""`ganglion` and `python -m ganglion`."""

import gc
import sys

from ganglion.cli import main


def run() -> int:
    """One command, then the end of the process: half a second sooner where Python does not look for garbage among all
    of torch before it ends."""
    code = main()
    if cluster := sys.modules.get("ganglion.fleet.ray_cluster"):
        cluster.end_lost(code)
    if "ale_py" in sys.modules:  # which complains of games that are left when the process ends
        gc.collect()
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(run())
