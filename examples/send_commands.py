"""Commands to a running stream: set a knob, evaluate, save, stop.

    python examples/send_commands.py

`send` hands a command to the stream and returns the next event, as `next` does. What a command asks for happens at
once: the event that answers an Evaluate or a Save is the next one of that kind.
"""

from __future__ import annotations

import ganglion
from ganglion.core import Command, Evaluate, LogData, Save, SetKnob, Stop

SETTINGS = ["algo={kind: dqn, limiter: {warmup: 100}}", "env={kind: torch, id: cartpole, slots: 4}"]


def main() -> list[LogData]:
    overrides = [*SETTINGS, "train.budget=1M steps", "eval={every: 1h, episodes: 5}", "save=1h", "log=[]"]
    run = ganglion.Run.create(ganglion.load_config(None, overrides))
    plan: dict[int, Command] = {
        100: SetKnob("epsilon", 0.5),  # pinned until SetKnob("epsilon", None); a name that is none is a KeyError
        200: Evaluate(),
        300: Save(),
        400: Stop(),  # ends the stream; an interrupted run is saved, and `ganglion resume` continues it
    }
    stream, seen = run.stream(), []
    command: Command | None = None
    try:
        for event in range(1_000_000):
            log = stream.send(command)
            command = plan.get(event)
            seen.append(log)
            if log.kind in ("evaluate", "save"):
                print(log.kind, log.at.env_steps, log.metrics.get("path", ""))
    except StopIteration as end:
        print(f"stopped: {end.value.reason}; epsilon is {run.trainer.learner.agent.held.values['epsilon']}")
    return seen


if __name__ == "__main__":
    main()
