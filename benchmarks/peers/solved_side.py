"""One peer from the start of its process to a solved CartPole, by its published settings for it.

    python -m benchmarks.peers.solved_side <sb3|tianshou|cleanrl> <seed> [<checkout of CleanRL>]

Prints `trained` and its processor seconds when its own evaluation (20 deterministic episodes) first reaches 475,
then the mean of 100 fresh ones. SB3: the tuned hyper-parameters of RL Baselines3 Zoo for CartPole-v1. Tianshou: its
own CartPole PPO test, held to 475 and to 20 test episodes. CleanRL: `ppo.py` as it is; its model is looked at
between two env steps every 2,500 of them.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOLVED, EPISODES, FRESH, EVERY = 475.0, 20, 100, 2_500
Act = Callable[[Any], Any]  # observations [B, 4] -> actions [B], deterministic


def mean_return(act: Act, episodes: int, seed: int) -> float:
    """Plays the episodes side by side, each once."""
    import gymnasium
    import numpy as np

    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * episodes)
    obs, _ = envs.reset(seed=seed)
    alive, total = np.ones(episodes, bool), np.zeros(episodes)
    while alive.any():
        obs, reward, terminated, truncated, _ = envs.step(act(obs))
        total += reward * alive
        alive &= ~(terminated | truncated)
    return float(total.mean())


def finish(act: Act) -> None:
    print(f"trained {time.process_time()}", file=sys.__stdout__, flush=True)
    print(mean_return(act, FRESH, seed=5_000_000), file=sys.__stdout__, flush=True)
    os._exit(0)


def greedy(net: Callable[[Any], Any]) -> Act:
    import torch

    @torch.no_grad()
    def act(obs: Any) -> Any:
        return net(torch.as_tensor(obs, dtype=torch.float32)).argmax(-1).numpy()

    return act


def sb3(seed: int) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.env_util import make_vec_env

    model = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=seed), seed=seed, device="cpu", n_steps=32,
        batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20, ent_coef=0.0,
        learning_rate=lambda left: left * 1e-3, clip_range=lambda left: left * 0.2,
    )  # fmt: skip
    stop = StopTrainingOnRewardThreshold(SOLVED)
    looked = make_vec_env("CartPole-v1", n_envs=EPISODES, seed=seed + 10_000)
    often = EvalCallback(looked, callback_on_new_best=stop, n_eval_episodes=EPISODES, eval_freq=EVERY // 8, verbose=0)
    model.learn(100_000, callback=often)
    finish(lambda obs: model.predict(obs, deterministic=True)[0])


def tianshou(seed: int) -> None:
    import gymnasium
    import numpy as np
    import torch
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    one = gymnasium.make("CartPole-v1")
    training, test = (DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(20)]) for _ in range(2))
    np.random.seed(seed)
    torch.manual_seed(seed)
    training.seed(seed)
    test.seed(seed + 10_000)
    net = Net(state_shape=one.observation_space.shape, hidden_sizes=[64, 64])
    actor, critic = DiscreteActor(preprocess_net=net, action_shape=2), DiscreteCritic(preprocess_net=net)
    for module in (*actor.modules(), *critic.modules()):
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.orthogonal_(module.weight)
            torch.nn.init.zeros_(module.bias)
    policy = DiscreteActorPolicy(
        actor=actor, dist_fn=torch.distributions.Categorical, action_space=one.action_space, deterministic_eval=True
    )
    algorithm = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-4), max_grad_norm=0.5, ent_coef=0.0,
                    advantage_normalization=False)  # fmt: skip
    algorithm.run_training(OnPolicyTrainerParams(
        training_collector=Collector(algorithm, training, VectorReplayBuffer(20_000, 20)),
        test_collector=Collector(algorithm, test), max_epochs=10, epoch_num_steps=50_000,
        update_step_num_repetitions=10, test_step_num_episodes=EPISODES, batch_size=64,
        collection_step_num_env_steps=2_000, stop_fn=lambda mean: mean >= SOLVED, test_in_training=True,
        verbose=False, show_progress=False))  # fmt: skip
    finish(greedy(lambda obs: actor(obs)[0]))


def cleanrl(seed: int, checkout: str) -> None:
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

    script = Path(checkout) / "cleanrl" / "ppo.py"
    step, count = CartPoleEnv.step, 0

    def looked(this: Any, action: Any) -> Any:
        nonlocal count
        count += 1
        if count % EVERY == 0:
            CartPoleEnv.step = step  # the episodes of the evaluation do not count
            look()
            CartPoleEnv.step = looked
        return step(this, action)

    def look() -> None:
        frame = sys._getframe()
        while "agent" not in frame.f_globals or frame.f_globals.get("__name__") != "__main__":
            assert frame.f_back is not None
            frame = frame.f_back
        act = greedy(frame.f_globals["agent"].actor)
        if mean_return(act, EPISODES, seed + 10_000) >= SOLVED:
            finish(act)

    CartPoleEnv.step = looked
    sys.argv = [str(script), "--no-cuda", "--seed", str(seed)]
    sys.stdout = sys.stderr  # it prints every episode
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    {"sb3": sb3, "tianshou": tianshou, "cleanrl": cleanrl}[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
