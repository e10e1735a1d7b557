"""A LearnerWorker: a learner beyond the first, in a process of its own. It writes nothing, and ends with the first.

As a Ray actor it is given its items; as a process (`python -m ganglion.fleet.learner_worker`) it has an explorer of
its own, reads what to do from stdin and answers on stdout, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from threading import Thread
from typing import IO, Any, NamedTuple

from ganglion.errors import UserError
from ganglion.processes import search


class LearnerBrief(NamedTuple):
    """All that a learner worker needs to know, in plain values."""

    config: str  # YAML
    modules: Sequence[str]  # the user's own, that register names
    paths: Sequence[str]  # where they are found
    rank: int
    given: bool  # whether items come to it; else it explores by itself


class LearnerWorker:
    """Builds its trainer at once, and learns with the others when told where they meet."""

    def __init__(self, post: Sequence[Any]) -> None:
        self.post = LearnerBrief(*post)
        self.failure: Exception | None = None
        try:
            self.prepare(self.post)
        except Exception as error:  # told by `ready`: an actor that fails here is dead, and only Ray says why
            self.failure = error

    def prepare(self, post: LearnerBrief) -> None:
        from ganglion.config.files import import_module, load
        from ganglion.fleet.build import build_distributed
        from ganglion.fleet.dealer import Inbox
        from ganglion.fleet.learner_processes import placed
        from ganglion.runtime.build import build

        search(post.paths)
        for module in post.modules:
            import_module(module)
        whole = load(post.config)
        self.size, self.counts = whole.fleet.learners, not (post.given and whole.fleet.rule == "broadcast")
        cfg = placed(whole, post.rank)
        self.trainer = build_distributed(cfg, Inbox) if post.given else build(cfg)

    def ready(self, checkpoint: str = "") -> int:
        """Its process, once it could begin: those who meet wait for one another, so whatever takes long comes first."""
        if self.failure is not None:
            raise self.failure
        if checkpoint:
            self.resume(checkpoint)
        return os.getpid()

    def resume(self, checkpoint: str) -> None:
        """Takes over the first learner's replay, where it can be reached: its own was not saved."""
        from ganglion.core import under
        from ganglion.fleet.receiver import Receiver
        from ganglion.record.checkpoint import load
        from ganglion.record.stores import located

        learner, receiver = self.trainer.learner, self.trainer.source
        place = located(checkpoint, "RUN")
        if isinstance(receiver, Receiver) and not learner.buffer.fresh and place.exists():
            state = load(place)[0]
            learner.buffer.restore(under(state, "trainer/learner/buffer"))
            receiver.seams.restore(under(state, "trainer/source/seams"))

    def learn(self, meet: str) -> None:
        """Takes its turns with the others until it is ended, as often as the first one begins."""
        from ganglion.fleet.learner_group import Group, GroupTrainer
        from ganglion.fleet.learner_processes import PATIENCE, meeting

        place, over = meeting(meet, self.size)
        device = self.trainer.learner.agent.device
        with Group(self.post.rank, self.size, place, device, PATIENCE, over) as group:
            trainer = GroupTrainer(self.trainer, group, self.counts)
            while True:
                for _ in trainer():
                    pass

    def take(self, origin: Sequence[Any], body: Any) -> tuple[int, int]:
        """An item, as soon as there is room for it; says how many were too old to learn from, and how many rows."""
        from ganglion.core import Origin

        source: Any = self.trainer.source  # a Receiver, whose fleet is an Inbox
        fleet = source.fleet
        fleet.broker.push(body, Origin(*origin))
        return fleet.account.stale, fleet.account.rows_dropped


# ------------------------------------------------------------ as a process


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # of a terminal: they are for the first one, which ends the others
        signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")  # nobody else has it: a process that outlives this one would hold it open
    os.dup2(2, 1)  # whatever an environment prints, in whatever language, is no answer
    learner_worker = LearnerWorker(json.loads(sys.stdin.readline()))
    try:
        tell(answers, ready=learner_worker.ready())
        meet = json.loads(sys.stdin.readline())
        Thread(target=end_with, args=(sys.stdin,), daemon=True).start()
        learner_worker.learn(meet)
    except Exception as error:
        tell(answers, error=f"{type(error).__name__}: {error}"[:2_000], user=isinstance(error, UserError))
        os._exit(1)


def tell(answers: IO[str], **what: Any) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def end_with(pipe: IO[str]) -> None:
    """Waits for the other end of a pipe to close, however that happens."""
    pipe.read()
    os._exit(0)


if __name__ == "__main__":
    main()
