"""RLlib on its new API stack: `python -m benchmarks.peers.side_rllib <impala|appo> <cartpole|pong> <JSON of sizes>`.

Its own loop is `Algorithm.train`; a request is seconds to go on for, and the answer counts env steps sampled. With
`first` as a last word it ends after its first update.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.versus import Desk, spent_by_all


def make_pong(_: Any = None) -> Any:
    import ale_py
    import gymnasium
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformObservation
    from numpy import float32, moveaxis

    gymnasium.register_envs(ale_py)
    env = AtariPreprocessing(gymnasium.make("PongNoFrameskip-v4"), noop_max=30, frame_skip=4)
    env = FrameStackObservation(env, 4)
    space = gymnasium.spaces.Box(0.0, 1.0, (84, 84, 4), float32)  # its convolutions want channels last, and floats
    return TransformObservation(env, lambda x: moveaxis(x, 0, -1).astype(float32) / 255, space)


def build(algo: str, env: str, size: dict[str, Any]) -> Any:
    import ray
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False)  # places for actors; the cores are two
    register_env("pong", make_pong)
    net: dict[str, Any] = {"fcnet_hiddens": size["hidden"], "fcnet_activation": "tanh", "vf_share_layers": False}
    if env == "pong":
        conv = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]
        net = {"conv_filters": conv, "head_fcnet_hiddens": [512], "vf_share_layers": True}
    config = (
        {"impala": IMPALAConfig, "appo": APPOConfig}[algo]()
        .environment("pong" if env == "pong" else "CartPole-v1")
        .env_runners(
            num_env_runners=size["explorers"],
            num_envs_per_env_runner=size["slots"],
            rollout_fragment_length=size["horizon"],
        )
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=size["horizon"] * size["slots"], lr=6e-4, grad_clip=40.0)
        .rl_module(model_config=DefaultModelConfig(**net))
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0)
    )
    return config.build_algo()


def sampled(result: dict[str, Any]) -> int:
    return int(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", 0))


def learned(result: dict[str, Any]) -> int:
    return int(result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0))


def main(algo: str, env: str, size: str, *more: str) -> None:
    began = time.time()
    desk, made = Desk(spent_by_all), build(algo, env, json.loads(size))
    result = made.train()
    while not learned(result):
        result = made.train()
    if "first" in more:
        print(f"first update after {time.time() - began:.2f} s", file=sys.stderr)
        desk.ready()
        made.stop()
        return
    ends = time.monotonic() + 10  # warm
    while time.monotonic() < ends:
        result = made.train()
    desk.ready()
    while (seconds := desk.request()) is not None:
        result, begun = made.train(), time.perf_counter()  # what was made ahead while the other side ran
        before = sampled(result)
        while time.perf_counter() - begun < seconds:
            result = made.train()
        desk.answer(time.perf_counter() - begun, {"env_steps": sampled(result) - before})
    made.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
