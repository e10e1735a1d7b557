"""A process that trains what it is sent: one job per line of JSON on its input, what happens on its output.

Whatever else writes to the output (an environment that prints) goes to the errors instead. Without a line it ends; so
it does, saving first, when whoever started it dies.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TextIO

from ganglion.tuning.jobs import Job, perform


class Orders:
    """What the input says: jobs, and that one is to stop."""

    def __init__(self, lines: TextIO) -> None:
        self.lines, self.jobs, self.stop = lines, SimpleQueue[Job | None](), Event()
        Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.lines:
            told = json.loads(line)
            if "stop" in told:
                self.stop.set()
            else:
                self.jobs.put(Job(**told))
        self.end()

    def end(self) -> None:
        """What is trained is stopped and saved, and there is no more."""
        self.stop.set()
        self.jobs.put(None)


def main() -> int:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this
    orders = Orders(sys.stdin)
    signal.signal(signal.SIGTERM, lambda number, frame: orders.end())

    def tell(what: dict[str, Any]) -> None:
        out.write(json.dumps(what) + "\n")

    tell({"event": "ready", "pid": os.getpid()})
    while (job := orders.jobs.get()) is not None:
        outcome = perform(job, tell, orders.stop.is_set)
        orders.stop.clear()  # before the next job can have been sent
        tell({"number": job.number, "event": "ended", "outcome": outcome.plain()})
    gc.freeze()  # as the command line does: half a second sooner
    return 0


if __name__ == "__main__":
    sys.exit(main())
