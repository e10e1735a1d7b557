"""Tianshou by its procedural interface: `python -m benchmarks.peers.side_tianshou <workload>`."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
from tianshou.algorithm import DQN, PPO, SAC, TD3
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorDeterministic, ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn

from benchmarks.peers.gate import Gate, world
from benchmarks.peers.workloads import WORKLOADS, Workload

FOREVER = 10**6


def adam() -> AdamOptimizerFactory:
    return AdamOptimizerFactory(lr=3e-4)


def body(work: Workload, env: Any, **more: Any) -> Net:
    act = nn.Tanh if work.algo == "ppo" else nn.ReLU
    return Net(state_shape=env.observation_space.shape, hidden_sizes=work.hidden, activation=act, **more)


def ppo(work: Workload, env: Any) -> Any:
    actor = DiscreteActor(preprocess_net=body(work, env), action_shape=env.action_space.n, softmax_output=False)
    critic = DiscreteCritic(preprocess_net=body(work, env))
    policy = DiscreteActorPolicy(actor=actor, action_space=env.action_space)
    return PPO(policy=policy, critic=critic, optim=adam(), max_grad_norm=0.5)


def dqn(work: Workload, env: Any) -> Any:
    net = body(work, env, action_shape=env.action_space.n)
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=0.05)
    return DQN(policy=policy, optim=adam(), target_update_freq=500)


def critics(work: Workload, env: Any) -> dict[str, Any]:
    size = env.action_space.shape
    one, two = (ContinuousCritic(preprocess_net=body(work, env, action_shape=size, concat=True)) for _ in range(2))
    return {"critic": one, "critic_optim": adam(), "critic2": two, "critic2_optim": adam(), "policy_optim": adam()}


def sac(work: Workload, env: Any) -> Any:
    shape = env.action_space.shape
    net = body(work, env)
    actor = ContinuousActorProbabilistic(preprocess_net=net, action_shape=shape, unbounded=True, conditioned_sigma=True)
    policy = SACPolicy(actor=actor, action_space=env.action_space)
    alpha = AutoAlpha(-float(shape[0]), 0.0, adam())
    return SAC(policy=policy, alpha=alpha, **critics(work, env))


def td3(work: Workload, env: Any) -> Any:
    actor = ContinuousActorDeterministic(preprocess_net=body(work, env), action_shape=env.action_space.shape)
    noise = GaussianNoise(sigma=0.1)
    policy = ContinuousDeterministicPolicy(actor=actor, exploration_noise=noise, action_space=env.action_space)
    return TD3(policy=policy, **critics(work, env))


def collector(work: Workload, algorithm: Any, rows: int) -> Collector[Any]:
    envs = DummyVectorEnv([lambda: gymnasium.make(work.env) for _ in range(work.slots)])
    return Collector(algorithm, envs, VectorReplayBuffer(rows, work.slots), exploration_noise=work.algo != "ppo")


def main(name: str) -> None:
    work = WORKLOADS[name]
    Gate(work).around(world(work.env))
    env = gymnasium.make(work.env)
    algorithm = {"ppo": ppo, "dqn": dqn, "sac": sac, "td3": td3}[work.algo](work, env)
    often: dict[str, Any] = {
        "max_epochs": FOREVER,
        "epoch_num_steps": 100_000,
        "verbose": False,
        "show_progress": False,
    }
    if work.algo == "ppo":
        rows = work.horizon * work.slots
        algorithm.run_training(OnPolicyTrainerParams(
            training_collector=collector(work, algorithm, rows), collection_step_num_env_steps=rows,
            update_step_num_repetitions=work.epochs, batch_size=work.batch, **often))  # fmt: skip
        return
    gathered = collector(work, algorithm, work.capacity)
    gathered.reset()
    gathered.collect(n_step=work.start, random=True)
    steps = work.every * work.slots
    algorithm.run_training(OffPolicyTrainerParams(
        training_collector=gathered, collection_step_num_env_steps=steps, batch_size=work.batch,
        update_step_num_gradient_steps_per_sample=1 / work.every, **often))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
