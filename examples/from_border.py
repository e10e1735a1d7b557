"""Border's Trainer in Ganglion: the loop driven by intervals, once by configuration and once by hand.

    python examples/from_border.py

Border counts evaluations, records and saves in optimisation steps, so the intervals here have the unit `opts`; `steps`
(environment steps) and times work as well.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import ganglion
import ganglion.core as g
from ganglion.config import WriterConfig, every, register
from ganglion.record.checkpoint import Checkpoints
from ganglion.record.stages import Due
from ganglion.record.writers import RunInfo
from ganglion.runtime.build import build
from ganglion.runtime.trainer import Trainer

# TrainerConfig { opt_interval, eval_interval, record_interval, save_interval, max_opts, model_dir }, the configurations
# of the replay buffer and the step processor, and min_transitions_warmup
CONFIG = """
algo:
  kind: dqn
  lr: 1e-3
  limiter: {opt_interval: 4, warmup: 200}
  replay: {capacity: 5k, batch: 32}
  processor: {reward_scale: 1.0}
env: {kind: torch, id: cartpole, slots: 1}
train: {budget: 300 opts}
eval: {every: 100 opts, episodes: 5}
log: {every: 50 opts, writers: [recorder]}
save: {every: 100 opts, keep: 2}
"""


# ------------------------------------------------------------ a Recorder of one's own


class Recorder:
    """Border's `trait Recorder`: here a Writer. It gets averages since the last record, and every evaluation."""

    written: list[g.LogData] = []

    def write(self, log: g.LogData) -> None:
        self.written.append(log)

    def close(self) -> None:
        """Called at the end of the stream."""


@register("writer", "recorder")
class RecorderConfig(WriterConfig):
    """Keeps records in memory."""

    def build(self, run: RunInfo) -> Recorder:
        return Recorder()


# ------------------------------------------------------------ Trainer::train(agent, recorder, evaluator)


def train() -> ganglion.Run:
    """The whole loop; what is due follows from counters. The best model is in checkpoints/best, the others in
    checkpoints/<env steps>-<updates>, and unlike Border's they hold the buffer, the optimiser and all counters."""
    run = ganglion.Run.create(ganglion.load_config(CONFIG))
    for log in run.stream():
        if log.kind in ("record", "evaluate", "save"):
            print(f"{log.kind:8} at {log.at.opt_steps} updates, {log.at.env_steps} env steps")
    return run


# ------------------------------------------------------------ train_step, and the loop around it by hand


def train_step(trainer: Trainer) -> g.LogData | None:
    """Samples and pushes one step; then one update, unless it is not time for one or the agent declines (warm-up)."""
    trainer.run_collect()
    return trainer.run_train() if trainer.learner.owes(trainer.at) else None


def train_by_hand(max_opts: int, folder: str) -> dict[str, list[int]]:
    """Border's loop, line by line: nothing happens in a turn without an update."""
    trainer = build(ganglion.load_config(CONFIG))
    checkpoints = Checkpoints(Path(folder), keep=2)
    evaluate, record, save = (Due(every(text)) for text in ("100 opts", "50 opts", "100 opts"))
    best, losses = float("-inf"), []
    happened: dict[str, list[int]] = {"evaluate": [], "best": [], "record": [], "save": []}
    while trainer.at.opt_steps < max_opts:
        update = train_step(trainer)
        if update is None:
            continue
        losses.append(update.metrics["loss"])
        if evaluate.due(trainer.at):
            reward = trainer.run_evaluate()[1]["eval/return_mean"]  # the time it takes is not training time
            happened["evaluate"].append(trainer.at.opt_steps)
            if reward > best:  # strict improvement
                best = reward
                checkpoints.save_best(trainer.state(), trainer.at.env_steps, {"reward": reward})
                happened["best"].append(trainer.at.opt_steps)
        if record.due(trainer.at):
            speed = trainer.at.opt_steps / trainer.at.seconds
            print(f"{trainer.at.opt_steps} updates, loss {fmean(map(float, losses)):.3f}, {speed:.0f} updates/s")
            losses.clear()
            happened["record"].append(trainer.at.opt_steps)
        if save.due(trainer.at):
            checkpoints.save(trainer.state(), trainer.at.env_steps, {}, trainer.at.opt_steps)
            happened["save"].append(trainer.at.opt_steps)
    return happened


if __name__ == "__main__":
    train()
    train_by_hand(max_opts=300, folder="border-by-hand")
