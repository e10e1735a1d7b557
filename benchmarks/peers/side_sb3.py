"""Stable-Baselines3 by its own interface: `python -m benchmarks.peers.side_sb3 <workload>`."""

from __future__ import annotations

import sys
from typing import Any

from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from benchmarks.peers.gate import Gate, world
from benchmarks.peers.workloads import WORKLOADS, Workload

FOREVER = 10**9
EPSILON = {
    "exploration_initial_eps": 0.05,
    "exploration_final_eps": 0.05,
}  # as late in a run: nearly all acts are chosen


def pixels(work: Workload) -> bool:
    return work.env.startswith("Pong")


def options(work: Workload) -> dict[str, Any]:
    hidden = list(work.hidden)
    if work.algo == "ppo":
        return {
            "n_steps": work.horizon,
            "batch_size": work.batch,
            "n_epochs": work.epochs,
            "ent_coef": 0.01,
            "policy_kwargs": {} if pixels(work) else {"net_arch": {"pi": hidden, "vf": hidden}},
        }
    replay = {"batch_size": work.batch, "buffer_size": work.capacity, "learning_starts": work.start}
    if work.algo == "dqn":  # counted in steps of all slots at once: five of eight slots are 40 steps, and 4 updates
        rate = {"train_freq": 5, "gradient_steps": 4} if work.slots == 8 else {"train_freq": work.every}
        return {**replay, **rate, "target_update_interval": 500, "policy_kwargs": {"net_arch": hidden}, **EPSILON}
    return {**replay, "policy_kwargs": {"net_arch": hidden}}


def main(name: str) -> None:
    work = WORKLOADS[name]
    gate = Gate(work)
    kind = {"ppo": PPO, "dqn": DQN, "sac": SAC, "td3": TD3}[work.algo]
    if pixels(work):
        import ale_py
        import gymnasium
        from stable_baselines3.common.atari_wrappers import MaxAndSkipEnv

        gymnasium.register_envs(ale_py)
        gate.around(MaxAndSkipEnv)  # four frames are one step
        env = VecFrameStack(make_atari_env(work.env, n_envs=work.slots, seed=0), 4)
    else:
        gate.around(world(work.env))
        env = make_vec_env(work.env, n_envs=work.slots, seed=0)
    policy = "CnnPolicy" if pixels(work) else "MlpPolicy"
    kind(policy, env, seed=0, device="cpu", **options(work)).learn(FOREVER)


if __name__ == "__main__":
    main(sys.argv[1])
