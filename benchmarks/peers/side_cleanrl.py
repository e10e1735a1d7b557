"""CleanRL's scripts as they are, with arguments: `python -m benchmarks.peers.side_cleanrl <workload> <checkout>`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from benchmarks.peers.gate import Gate, world
from benchmarks.peers.workloads import WORKLOADS, Workload

SCRIPTS = {
    "ppo": "ppo.py",
    "dqn": "dqn.py",
    "sac": "sac_continuous_action.py",
    "td3": "td3_continuous_action.py",
}
OLDER = {"HalfCheetah-v5": "HalfCheetah-v4"}  # the newest that its version of gymnasium knows: the same body and motors


def arguments(work: Workload, env: str) -> list[str]:
    given: dict[str, object] = {"env-id": env, "total-timesteps": 10**8}
    if work.algo == "ppo":
        given |= {"num-envs": work.slots, "num-steps": work.horizon, "update-epochs": work.epochs}
        given |= {"num-minibatches": work.minibatches}
    else:
        given |= {"batch-size": work.batch, "learning-starts": work.start, "buffer-size": work.capacity}
    if work.algo == "dqn":  # it takes one environment only
        given |= {"train-frequency": work.every, "start-e": 0.05}
    return ["--no-cuda", *(word for name, value in given.items() for word in (f"--{name}", str(value)))]


def main(name: str, checkout: str) -> None:
    work = WORKLOADS[name]
    env = OLDER.get(work.env, work.env)
    sys.path.insert(0, checkout)
    script = Path(checkout) / "cleanrl" / SCRIPTS[work.algo]
    gate = Gate(work)
    if env.startswith("Pong"):
        from cleanrl_utils.atari_wrappers import MaxAndSkipEnv

        gate.around(MaxAndSkipEnv)  # four frames are one step
        script = script.with_name("ppo_atari.py")
    else:
        gate.around(world(env))
    sys.argv = [str(script), *arguments(work, env)]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
