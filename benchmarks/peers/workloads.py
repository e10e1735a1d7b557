"""The work that every side is given: algorithm, environment, network, batch, updates per env step.

Nothing here but the standard library: it is read in the peers' own virtual environments too. One turn of a comparison
is so many updates with the env steps between them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One row of the table. `every` is env steps per update of replay algorithms, 0 for rollouts."""

    algo: str
    env: str
    slots: int
    batch: int  # rows per update
    hidden: tuple[int, ...]
    turn: int  # updates in one turn
    warm: int  # updates before the first
    every: int = 0
    horizon: int = 0  # rows per slot and rollout
    epochs: int = 0
    minibatches: int = 0
    start: int = 1_000  # env steps before the first update of replay algorithms
    capacity: int = 100_000  # rows of the replay
    threads: int = 1
    within: float = 0.02  # how far counts may be apart, as a fraction


CARTPOLE, CHEETAH, PONG = "CartPole-v1", "HalfCheetah-v5", "PongNoFrameskip-v4"
WORKLOADS = {
    # Sides that step once more after an ending (next-step autoreset) learn from a few rows fewer per rollout.
    "ppo-cartpole": Workload("ppo", CARTPOLE, 8, 256, (64, 64), turn=160, warm=320, horizon=128, epochs=4,
                             minibatches=4, within=0.06),
    "dqn-cartpole": Workload("dqn", CARTPOLE, 1, 128, (120, 84), turn=400, warm=200, every=10, capacity=10_000),
    "dqn-cartpole-8": Workload("dqn", CARTPOLE, 8, 128, (120, 84), turn=400, warm=200, every=10, capacity=10_000),
    "sac-halfcheetah": Workload("sac", CHEETAH, 1, 256, (256, 256), turn=100, warm=50, every=1, threads=2),
    "td3-halfcheetah": Workload("td3", CHEETAH, 1, 256, (256, 256), turn=150, warm=50, every=1, threads=2),
    "ppo-pong": Workload("ppo", PONG, 8, 256, (512,), turn=16, warm=16, horizon=128, epochs=4, minibatches=4,
                         threads=2, within=0.06),
}  # fmt: skip
