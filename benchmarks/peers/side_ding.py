"""DI-engine by its task pipeline, as its own examples build it: `python -m benchmarks.peers.side_ding <workload>`."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import torch
from ding.config import compile_config
from ding.data import DequeBuffer
from ding.envs import BaseEnvManagerV2, DingEnvWrapper
from ding.framework import ding_init, task
from ding.framework.context import OnlineRLContext
from ding.framework.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    multistep_trainer,
)
from ding.model import DQN, VAC
from ding.policy import DQNPolicy, PPOPolicy
from easydict import EasyDict

from benchmarks.peers.gate import Gate, world
from benchmarks.peers.workloads import WORKLOADS, Workload


def settings(work: Workload) -> tuple[EasyDict, EasyDict]:
    env = {"collector_env_num": work.slots, "evaluator_env_num": 1, "n_evaluator_episode": 1, "stop_value": 1e9}
    if work.algo == "ppo":
        model: dict[str, Any] = {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}
        learn: dict[str, Any] = {"epoch_per_collect": work.epochs, "batch_size": work.batch, "learning_rate": 3e-4}
        collect: dict[str, Any] = {"n_sample": work.horizon * work.slots, "unroll_len": 1}
        policy = {"cuda": False, "action_space": "discrete", "model": model, "learn": learn, "collect": collect}
    else:  # it collects a multiple of its slots: 80 steps and 8 updates, or 10 and 1
        learn = {"update_per_collect": work.slots, "batch_size": work.batch, "learning_rate": 3e-4}
        epsilon = {"type": "linear", "start": 0.05, "end": 0.05, "decay": 10}
        other = {"eps": epsilon, "replay_buffer": {"replay_buffer_size": work.capacity}}
        collect = {"n_sample": work.every * work.slots}
        policy = {"cuda": False, "nstep": 1, "learn": learn, "collect": collect, "other": other}
    kinds = {"env": {"type": "cartpole", "import_names": ["dizoo.classic_control.cartpole.envs.cartpole_env"]}}
    create = {**kinds, "env_manager": {"type": "base"}, "policy": {"type": work.algo}}
    return EasyDict({"exp_name": "bench", "env": env, "policy": policy}), EasyDict(create)


def ppo(work: Workload, cfg: Any, env: Any) -> None:
    """Two encoders of one layer and heads of one more: the 2 x 64 tanh of the workload."""
    model = VAC(4, 2, "discrete", share_encoder=False, encoder_hidden_size_list=[work.hidden[0]],
                actor_head_hidden_size=work.hidden[1], actor_head_layer_num=1, critic_head_hidden_size=work.hidden[1],
                critic_head_layer_num=1, activation=torch.nn.Tanh())  # fmt: skip
    policy = PPOPolicy(cfg.policy, model=model)
    task.use(StepCollector(cfg, policy.collect_mode, env))
    task.use(gae_estimator(cfg, policy.collect_mode))
    task.use(multistep_trainer(policy.learn_mode, log_freq=10**9))


def dqn(work: Workload, cfg: Any, env: Any) -> None:
    model = DQN(4, 2, encoder_hidden_size_list=list(work.hidden), dueling=False, head_layer_num=0)
    policy, buffer = DQNPolicy(cfg.policy, model=model), DequeBuffer(size=work.capacity)
    task.use(eps_greedy_handler(cfg))
    task.use(StepCollector(cfg, policy.collect_mode, env))
    task.use(data_pusher(cfg, buffer))
    task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer, log_freq=10**9))


def main(name: str) -> None:
    work = WORKLOADS[name]
    if work.algo not in ("ppo", "dqn"):
        raise SystemExit(f"{name}: only ppo and dqn are written for DI-engine")
    Gate(work).around(world(work.env))
    main_config, create_config = settings(work)
    cfg = compile_config(main_config, create_cfg=create_config, auto=True, save_cfg=False)
    ding_init(cfg)
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        envs = [lambda: DingEnvWrapper(gymnasium.make(work.env)) for _ in range(work.slots)]
        env = BaseEnvManagerV2(env_fn=envs, cfg=cfg.env.manager)
        {"ppo": ppo, "dqn": dqn}[work.algo](work, cfg, env)
        task.run()


if __name__ == "__main__":
    main(sys.argv[1])
