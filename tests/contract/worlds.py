"""The cases every algorithm is put through."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isinf
from typing import Any

import torch

from ganglion import registry
from ganglion.core import CENTRAL, Box, Composite, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Rules, Space
from ganglion.envs.board_games import rules_of
from ganglion.fast import one_graph as one_graph
from ganglion.runtime import check_algorithm
from ganglion.runtime.random_world import CPU as CPU
from ganglion.runtime.random_world import RandomWorld as RandomWorld
from ganglion.runtime.randomness import Stream
from tests.contract import plugs as plugs  # for what they register


@dataclass(frozen=True)
class Case:
    name: str
    algo: str
    action: Space
    obs: Space = Box((4,))
    settings: dict[str, Any] = field(default_factory=dict)
    slots: int = 6
    agents: tuple[str, ...] = ("agent",)
    rules: Rules | None = None

    def spec(self) -> EnvSpec:
        return EnvSpec(self.obs, self.action, self.slots, self.name, self.agents, rules=self.rules)


@dataclass(frozen=True)
class Team(Case):
    """Of three agents, who die one by one."""

    slots: int = 12
    agents: tuple[str, ...] = ("a", "b", "c")


TWO, THREE = Discrete(2), Discrete(3)
ARM = Box((2,), low=(-1.0, -2.0), high=(1.0, 2.0))
MASKED = Composite({"obs": Box((3,)), "action_mask": MultiBinary(3)})
MIXED = Composite(
    {"pixels": Box((1, 36, 36), torch.uint8), "speed": Box((2,)), "gear": Discrete(3), "lamps": MultiBinary(2)}
)
PARTS = Composite({"speed": Box((2,)), "gear": Discrete(3), "lamps": MultiBinary(2)})
GRID = Composite({"cells": Box((10, 10, 4), torch.uint8, (0.0,), (1.0,)), "action_mask": MultiBinary(3)})
CENTRAL_MASKED = Composite({**MASKED.items, CENTRAL: Box((5,))})
CENTRAL_MIXED = Composite({"speed": Box((2,)), "gear": Discrete(3), CENTRAL: Composite({"map": Box((2, 3))})})
SPEAKERS = Composite({**MASKED.items, "present": Box((3,), low=(0.0,), high=(1.0,))})
SETS = Composite({"units": Box((5, 3)), "units_mask": MultiBinary(5), "speed": Box((2,))})
HYBRID = Composite({"steer": ARM, "gear": THREE, "lamps": MultiBinary(2), "keys": MultiDiscrete((2, 3))})
PARAMETRISED = Composite({"gear": THREE, "steer": ARM, "gas": Box((), low=(0.0,), high=(1.0,))})
GEARS = Composite({"obs": Box((3,)), "action_mask": Composite({"gear": MultiBinary(3)})})
SMALL_REPLAY = {"capacity": 600, "batch": 16}
DQN = {"replay": SMALL_REPLAY, "limiter": {"warmup": 50, "opt_interval": 6}, "net": {"hidden": [16]}, "target_every": 3}
PPO = {"horizon": 8, "epochs": 2, "minibatches": 2, "net": {"hidden": [16, 16]}}
PPG = PPO | {"aux_every": 2, "aux_epochs": 2, "aux_minibatches": 3}
ROLLOUT = {"horizon": 8, "net": {"hidden": [16, 16]}}
TRPO = ROLLOUT | {"horizon": 4, "value_steps": 1, "iterations": 2, "halvings": 2}  # few: it is a graph for each
ACER = {"horizon": 5, "replay": SMALL_REPLAY, "limiter": {"warmup": 80, "opt_interval": 12}, "net": {"hidden": [16]}}
IMPALA = {"horizon": 8, "net": {"hidden": [16, 16]}}
SAC = {"replay": SMALL_REPLAY, "limiter": {"warmup": 50, "opt_interval": 6}, "net": {"hidden": [16]}}
CENTRE = SAC | {"critic": {"hidden": [8]}}
DT = SAC | {"window": 4, "size": 8, "layers": 1}
FLASH = SAC | {"net_critic": {"hidden": [16, 16]}}


RND = {"kind": "rnd", "features": 8, "net": {"hidden": [16]}}


ALPHA = {"horizon": 3, "simulations": 2, "replay": SMALL_REPLAY, "limiter": {"warmup": 50, "opt_interval": 6},
         "net": {"hidden": [16]}}  # fmt: skip


def over(settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Settings with others laid over them, one level deep."""
    return settings | {k: settings[k] | v if isinstance(v, dict) and k in settings else v for k, v in more.items()}


SAMPLED = over(ALPHA, unroll=2, samples=3)
MPC = {"horizon": 2, "samples": 8, "own": 2, "elites": 4, "iterations": 2, "latent": 16, "bins": 11,
       "replay": SMALL_REPLAY, "limiter": {"warmup": 50, "opt_interval": 6}, "net": {"hidden": [16]}}  # fmt: skip
DREAM = {"sequence": 4, "imagine": 2, "deter": 8, "groups": 2, "classes": 3, "bins": 11, "replay": SMALL_REPLAY,
         "limiter": {"warmup": 50, "opt_interval": 6}, "net": {"hidden": [16]}}  # fmt: skip
THREE_IN_A_ROW = Composite({"obs": Box((2, 3, 3)), "action_mask": MultiBinary(9)})


CASES = [
    Case("dqn", "dqn", TWO, settings=DQN),
    Case("dqn-all", "dqn", THREE, MASKED, over(DQN, dueling=True, n_step=3,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("dqn-mixed", "dqn", TWO, MIXED, over(DQN, n_step=2, double=False, loss="mse", net={"memory": "gru"})),
    Case("dqn-grid", "dqn", THREE, GRID, over(DQN, net={"grid": "conv"})),
    Case("dqn-noisy", "dqn", THREE, MASKED, over(DQN, noisy=0.5, epsilon=0.1, dueling=True, tau=0.01,
         net={"memory": "gru", "memory_size": 8})),
    Case("dqn-resets", "dqn", TWO, MIXED, over(DQN, resets={"kind": "shrink", "every": 2}, net={"normalise": True})),
    Case("sac-resets", "sac", ARM, settings=over(SAC, resets={"kind": "shrink", "every": 3}, bonus=RND)),
    Case("dqn-munchausen", "dqn", THREE, MASKED, over(DQN, munchausen=0.9, n_step=2)),
    Case("alphazero", "alphazero", Discrete(9), THREE_IN_A_ROW, ALPHA, rules=rules_of("tictactoe")),
    Case("alphazero-gumbel", "alphazero", Discrete(9), THREE_IN_A_ROW, over(ALPHA, search="gumbel", lam=0.5,
         considered=3, symmetries=False, replay={"kind": "prioritised"}), rules=rules_of("tictactoe")),
    Case("alphazero-tower", "alphazero", Discrete(7), Composite({"obs": Box((2, 6, 7)), "action_mask": MultiBinary(7)}),
         over(ALPHA, net={"grid": "tower", "blocks": 1}), rules=rules_of("connect_four")),
    Case("muzero", "muzero", TWO, settings=over(ALPHA, unroll=2)),
    Case("muzero-all", "muzero", THREE, MASKED, over(ALPHA, unroll=2, players=2, consistency=2.0, lam=0.9,
         search="gumbel", considered=1, replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("nfsp", "nfsp", TWO, settings=over(DQN, reservoir=64, average_batch=8)),
    Case("nfsp-all", "nfsp", THREE, MASKED, over(DQN, reservoir=20, average_batch=8, anticipation=0.5, n_step=2,
         loss="huber", replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("muzero-efficient", "muzero", TWO, settings=over(ALPHA, unroll=2, consistency=2.0,
         value_prefix=True, reanalyse=0.5)),
    Case("sampled_muzero", "sampled_muzero", ARM, settings=SAMPLED),
    Case("sampled_muzero-all", "sampled_muzero", ARM, PARTS, over(SAMPLED, consistency=2.0, value_prefix=True, lam=0.9,
         search="puct", replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("tdmpc2", "tdmpc2", ARM, settings=MPC),
    Case("tdmpc2-all", "tdmpc2", ARM, PARTS, over(MPC, horizon=3, critics=3, own=1, iterations=1,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("dreamer", "dreamer", TWO, settings=DREAM),
    Case("dreamer-box", "dreamer", ARM, PARTS, over(DREAM, net={"normalise": True})),
    Case("bootstrapped_dqn", "bootstrapped_dqn", TWO, settings=DQN),
    Case("bootstrapped_dqn-all", "bootstrapped_dqn", THREE, MASKED, over(DQN, heads=4, share=0.5, evaluation="mean",
         n_step=3, loss="huber", epsilon=0.1, replay={"kind": "prioritised", "sequence": 4},
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("bootstrapped_dqn-wide", "bootstrapped_dqn", TWO, settings=over(DQN, replay={"batch": 64},
         net={"hidden": [64, 72]})),
    Case("bootstrapped_dqn-plain", "bootstrapped_dqn", TWO, MIXED, over(DQN, prior=0.0, double=False,
         bonus=RND)),
    Case("dqn-gtrxl", "dqn", THREE, MASKED, over(DQN, n_step=2,
         replay={"kind": "prioritised", "sequence": 6, "burn_in": 2}, net={"memory": "gtrxl", "memory_size": 8,
         "memory_window": 4, "memory_layers": 2, "heads": 2})),
    Case("dqn-entities", "dqn", TWO, SETS, over(DQN, net={"entities": "attention", "entity_size": 8, "heads": 2,
         "norm": "rms", "spectral": True, "init": "he"})),
    Case("ppo-gtrxl", "ppo", THREE, MASKED, over(PPO,
         net={"memory": "gtrxl", "memory_size": 8, "memory_window": 3, "heads": 2, "normalise": True})),
    Case("ppo-entities", "ppo", HYBRID, SETS, over(PPO, net={"entities": "attention", "entity_size": 8, "heads": 2,
         "norm": "rms", "spectral": True, "init": "xavier"})),
    Case("ppo-resnet", "ppo", TWO, Box((1, 36, 36), torch.uint8), over(PPO, shared=True, net={"images": "impala"})),
    Case("dqn-resnet", "dqn", TWO, MIXED, over(DQN, lr=1e-4, net={"images": "impala"})),
    Case("sac-entities", "sac", ARM, SETS, over(SAC, net={"entities": "attention", "entity_size": 8, "heads": 2,
         "norm": "rms", "spectral": True, "init": "he"})),
    Case("sac-resnet", "sac", ARM, Box((36, 36, 1), torch.uint8), over(SAC, lr_critic=1e-4, net={"images": "impala"})),
    Case("c51", "c51", TWO, settings=over(DQN, low=-5, high=5)),
    Case("c51-all", "c51", THREE, MASKED, over(DQN, dueling=True, n_step=3, atoms=11, double=False,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("qrdqn", "qrdqn", TWO, settings=DQN),
    Case("qrdqn-all", "qrdqn", THREE, MASKED, over(DQN, dueling=True, n_step=3, quantiles=7, kappa=0.5,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("iqn", "iqn", TWO, settings=DQN),
    Case("iqn-all", "iqn", THREE, MASKED, over(DQN, dueling=True, n_step=3, double=False,
         percentiles={"sample": "const"}, target_percentiles={"sample": "median"},
         act_percentiles={"sample": "uniform", "count": 5},
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("fqf", "fqf", TWO, settings=DQN),
    Case("fqf-all", "fqf", THREE, MASKED, over(DQN, dueling=True, n_step=3, double=False, fractions=5,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Case("rainbow", "rainbow", TWO, settings=DQN),
    Case("rainbow-all", "rainbow", THREE, MASKED, over(DQN, atoms=11, epsilon=0.1,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("pqn", "pqn", TWO, settings=PPO),
    Case("pqn-all", "pqn", THREE, MASKED, over(PPO, dueling=True, lam=0.9,
         net={"memory": "lstm", "memory_size": 8, "normalise": True, "norm": "layer"})),
    Case("pqn-bfloat16", "pqn", TWO, MIXED, over(PPO, net={"precision": "bfloat16", "norm": "layer"})),
    Case("r2d2", "r2d2", TWO, settings=over(DQN, replay={"sequence": 6, "burn_in": 2}, net={"memory_size": 8})),
    Case("r2d2-episodes", "r2d2", TWO, settings=over(DQN, replay={"kind": "replay", "sequence": 5, "episodes": True},
         net={"memory_size": 8})),
    Case("r2d2-all", "r2d2", THREE, MASKED, over(DQN, ladder=7.0, epsilon=0.9, dueling=False,
         replay={"kind": "replay", "sequence": 4, "burn_in": 0}, net={"memory": "gru", "normalise": True})),
    Case("ppo", "ppo", TWO, settings=PPO),
    Case("ppo-box", "ppo", ARM, settings=over(PPO, normalise_reward=True, net={"normalise": True}, clip_value=0.2)),
    Case("ppo-hybrid", "ppo", HYBRID, MIXED, PPO),
    Case("ppo-shared", "ppo", TWO, Box((4, 36, 36), torch.uint8), over(PPO, shared=True)),
    Case("ppo-all", "ppo", THREE, MASKED, over(PPO, max_kl=0.5,
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("dqn-apex", "dqn", THREE, MASKED, over(DQN, ladder=7.0, epsilon=0.9, n_step=3,
         replay={"kind": "prioritised", "initial": "error"})),
    Case("impala", "impala", TWO, settings=IMPALA),
    Case("impala-hybrid", "impala", HYBRID, MIXED, over(IMPALA, normalise_advantage=True)),
    Case("impala-own", "impala", ARM, Box((4, 36, 36), torch.uint8), over(IMPALA, shared=False, horizon=3)),
    Case("impala-all", "impala", THREE, MASKED, over(IMPALA, epochs=2, popart=3e-4, minibatches=2,
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("a2c", "a2c", TWO, settings=ROLLOUT),
    Case("a2c-hybrid", "a2c", HYBRID, MIXED, over(ROLLOUT, normalise_advantage=True, lam=0.9, popart=0.01,
         optim={"name": "adamw", "clip": "momentum", "after": 1, "ignore": "norm"})),
    Case("a2c-all", "a2c", THREE, MASKED, over(ROLLOUT, shared=True,
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("reinforce", "reinforce", TWO, settings=ROLLOUT),
    Case("reinforce-none", "reinforce", HYBRID, MIXED, over(ROLLOUT, baseline="none", normalise=False)),
    Case("reinforce-all", "reinforce", THREE, MASKED, over(ROLLOUT,
         net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Case("acer", "acer", TWO, settings=ACER),
    Case("acer-mixed", "acer", THREE, MIXED, over(ACER, limit=None, replay={"kind": "prioritised"})),
    Case("acer-all", "acer", THREE, MASKED, over(ACER, shared=True, clip=1.5, limit=0.1,
         replay={"burn_in": 2}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("ppo-dual", "ppo", TWO, settings=over(PPO, dual_clip=3.0, recompute=True, normalise_reward=True)),
    Case("ppo-recompute", "ppo", THREE, MASKED, over(PPO, recompute=True,
         net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Case("ppo-replay", "ppo", ARM, settings=over(PPO, normalise_reward=True, replay={"kind": "replay", **SMALL_REPLAY},
         limiter={"warmup": 80, "opt_interval": 12}, net={"normalise": True})),
    Case("ppo-replay-all", "ppo", THREE, MASKED, over(PPO, recompute=True, clip_value=0.2, dual_clip=3.0,
         replay={"kind": "prioritised", **SMALL_REPLAY}, limiter={"warmup": 80, "opt_interval": 12},
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("ppo-episodes", "ppo", HYBRID, MIXED, over(PPO, episodes=True, popart=0.01)),
    Case("reinforce-episodes", "reinforce", THREE, MASKED, over(ROLLOUT, episodes=True, baseline="none",
         net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Case("ppg-episodes", "ppg", TWO, settings=over(PPG, episodes=True)),
    Case("ppg", "ppg", TWO, settings=PPG),
    Case("ppg-hybrid", "ppg", HYBRID, MIXED, PPG),
    Case("ppg-all", "ppg", THREE, MASKED, over(PPG, clone=2.0, normalise_advantage=False,
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("trpo", "trpo", TWO, settings=TRPO),
    Case("trpo-hybrid", "trpo", HYBRID, MIXED, TRPO),
    Case("trpo-all", "trpo", THREE, MASKED, over(TRPO,
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("ppo-rnd", "ppo", HYBRID, MIXED, over(PPO, bonus=RND)),
    Case("ppo-rnd-memory", "ppo", THREE, MASKED, over(PPO, bonus=RND, net={"memory": "lstm", "memory_size": 8})),
    Case("ppo-icm", "ppo", HYBRID, settings=over(PPO, bonus=over(RND, kind="icm"))),
    Case("dqn-icm", "dqn", THREE, MASKED, over(DQN, bonus=over(RND, kind="icm"))),
    Case("dqn-rnd", "dqn", THREE, MASKED, over(DQN, bonus=RND, n_step=2, replay={"kind": "prioritised"})),
    Case("ppo-ngu", "ppo", HYBRID, MIXED, over(PPO, bonus=over(RND, kind="ngu", capacity=6, neighbours=3))),
    Case("dqn-ngu", "dqn", THREE, MASKED, over(DQN, bonus=over(RND, kind="ngu"), replay={"kind": "prioritised"})),
    Case("ppo-e3b-memory", "ppo", THREE, MASKED, over(PPO, bonus=over(RND, kind="e3b"),
         net={"memory": "lstm", "memory_size": 8})),
    Case("bootstrapped_dqn-e3b", "bootstrapped_dqn", TWO, settings=over(DQN, bonus=over(RND, kind="e3b"))),
    Case("acer-rnd", "acer", TWO, settings=over(ACER, bonus=RND)),
    Case("sac", "sac", ARM, settings=SAC),
    Case("sac-all", "sac", ARM, MIXED, over(SAC, n_step=3, max_norm=5.0,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("sac-fixed", "sac", ARM, settings=over(SAC, temperature=0.2)),
    Case("td3", "td3", ARM, settings=SAC),
    Case("td3-all", "td3", ARM, MIXED, over(SAC, n_step=3, max_norm=5.0, delay=3, hold=2.0,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("sac-wide", "sac", ARM, settings=over(SAC, replay={"batch": 64}, net={"hidden": [128, 136]})),
    Case("td3-wide", "td3", ARM, settings=over(SAC, replay={"batch": 64}, net={"hidden": [128, 136]})),
    Case("ppo-wide", "ppo", TWO, settings=over(PPO, horizon=24, net={"hidden": [64, 72]})),
    Case("ppo-bfloat16", "ppo", HYBRID, MIXED, over(PPO, net={"precision": "bfloat16", "memory": "gru"})),
    Case("td3-bfloat16", "td3", ARM, MIXED, over(SAC, net={"precision": "bfloat16", "normalise": True})),
    Case("ddpg", "ddpg", ARM, settings=SAC),
    Case("ddpg-all", "ddpg", ARM, MIXED, over(SAC, n_step=3, max_norm=5.0, hold=1.0,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("sac-memory", "sac", ARM, PARTS, over(SAC, n_step=3, hold=2.0, replay={"kind": "prioritised", "sequence": 4,
         "burn_in": 1}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("td3-memory", "td3", ARM, PARTS, over(SAC, n_step=6, noise_kind="ou", replay={"sequence": 4},
         net={"memory": "gru", "memory_size": 8})),
    Case("ddpg-memory", "ddpg", ARM, settings=over(SAC, n_step=2, replay={"sequence": 4, "burn_in": 2},
         net={"memory": "gru", "memory_size": 8})),
    Case("ddpg-ou", "ddpg", ARM, settings=over(SAC, noise_kind="ou")),
    Case("td3-pink", "td3", ARM, settings=over(SAC, noise_kind="pink")),
    Case("d4pg-ou", "d4pg", ARM, settings=over(SAC, low=-5.0, high=5.0, noise_kind="ou", theta=0.3)),
    Case("tqc", "tqc", ARM, settings=over(SAC, critics=3, quantiles=5)),
    Case("tqc-all", "tqc", ARM, PARTS, over(SAC, quantiles=4, drop=1, n_step=3, max_norm=5.0, hold=3.0, temperature=0.2,
         replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"normalise": True, "memory": "gru", "memory_size": 8})),
    Case("tqc-wide", "tqc", ARM, settings=over(SAC, replay={"batch": 64}, net={"hidden": [128, 136]})),
    Case("flashsac", "flashsac", ARM, settings=FLASH),
    Case("flashsac-all", "flashsac", ARM, PARTS, over(FLASH, n_step=3, delay=3, hold=1.0, atoms=21,
         replay={"kind": "prioritised", "sequence": 3}, net={"normalise": True}, net_critic={"normalise": True})),
    Case("crossq", "crossq", ARM, settings=FLASH),
    Case("crossq-all", "crossq", ARM, PARTS, over(FLASH, n_step=3, delay=2, hold=2.0, max_norm=5.0, temperature=0.2,
         renorm_after=3, replay={"kind": "prioritised", "sequence": 3}, net={"normalise": True})),
    Case("redq", "redq", ARM, settings=over(SAC, critics=4, delay=2)),
    Case("redq-all", "redq", ARM, PARTS, over(SAC, critics=2, delay=3, n_step=3, dropout=0.1, layer_norm=True, hold=2.0,
         temperature=0.2, max_norm=5.0, replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"normalise": True, "memory": "gru", "memory_size": 8})),
    Case("d4pg", "d4pg", ARM, settings=over(SAC, low=-5.0, high=5.0)),
    Case("d4pg-all", "d4pg", ARM, PARTS, over(SAC, low=-5.0, high=5.0, max_norm=5.0, hold=2.0, atoms=21,
         replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"normalise": True, "memory": "lstm", "memory_size": 8})),
    Case("dqn-conservative", "dqn", THREE, MASKED, over(DQN, conservative=1.0)),
    Case("bc", "bc", TWO, settings=SAC),
    Case("bc-hybrid", "bc", HYBRID, MIXED, SAC),
    Case("bc-all", "bc", THREE, MASKED, over(SAC, entropy=0.01, replay={"kind": "prioritised", "sequence": 4},
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("td3_bc", "td3_bc", ARM, settings=SAC),
    Case("td3_bc-all", "td3_bc", ARM, PARTS, over(SAC, n_step=3, max_norm=5.0, delay=3,
         replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"normalise": False, "memory": "gru", "memory_size": 8})),
    Case("rebrac", "rebrac", ARM, settings=SAC),
    Case("rebrac-all", "rebrac", ARM, MIXED, over(SAC, max_norm=5.0, delay=3,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("iql", "iql", ARM, settings=SAC),
    Case("iql-all", "iql", ARM, MIXED, over(SAC, n_step=3, max_norm=5.0, replay={"kind": "prioritised"},
         net={"normalise": True})),
    Case("awac", "awac", ARM, settings=SAC),
    Case("awac-all", "awac", ARM, MIXED, over(SAC, n_step=3, max_norm=5.0, replay={"kind": "prioritised"},
         net={"normalise": True})),
    Case("cql", "cql", ARM, settings=over(SAC, looks=3)),
    Case("cql-all", "cql", ARM, MIXED, over(SAC, looks=2, n_step=3, max_norm=5.0, temperature=0.2,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("awac-memory", "awac", ARM, PARTS, over(SAC, n_step=2,
         replay={"sequence": 4, "burn_in": 1}, net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Case("cql-memory", "cql", ARM, PARTS, over(SAC, looks=2, n_step=2,
         replay={"sequence": 4, "burn_in": 1}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("edac-memory", "edac", ARM, PARTS, over(SAC, critics=3, diversity=0.1,
         replay={"sequence": 4, "burn_in": 1}, net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Case("iql-memory", "iql", ARM, PARTS, over(SAC, n_step=2,
         replay={"sequence": 4, "burn_in": 1}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("crossq-memory", "crossq", ARM, PARTS, over(FLASH,
         replay={"sequence": 4, "burn_in": 1}, net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Case("flashsac-memory", "flashsac", ARM, PARTS, over(FLASH,
         replay={"sequence": 4, "burn_in": 1}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("bcq", "bcq", ARM, settings=over(SAC, looks=3)),
    Case("bcq-all", "bcq", ARM, MIXED, over(SAC, looks=2, n_step=3, max_norm=5.0, kl=0.1, least=0.9,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("discrete_bcq", "discrete_bcq", TWO, settings=DQN),
    Case("discrete_bcq-all", "discrete_bcq", THREE, MASKED, over(DQN, n_step=3, threshold=0.9,
         replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("dagger", "dagger", TWO, settings={"inner": {"kind": "bc", **SAC, "processor": "self-labelled"}}),
    Case("dagger-all", "dagger", HYBRID, MIXED, {"inner": {"kind": "bc", **over(SAC, replay={"kind": "prioritised",
         "sequence": 4}, net={"memory": "gru", "memory_size": 8}), "processor": "self-labelled"}}),
    Case("decision_transformer", "decision_transformer", TWO, settings=DT),
    Case("decision_transformer-all", "decision_transformer", HYBRID, MIXED, over(DT, asked=3.0, layers=2, heads=1,
         replay={"kind": "prioritised"})),
    Case("decision_transformer-masked", "decision_transformer", THREE, MASKED, over(DT, net={"normalise": False})),
    Case("vdn", "vdn", TWO, settings=DQN),
    Team("vdn-all", "vdn", THREE, CENTRAL_MASKED, over(DQN, dueling=True, lam=0.8, optimism=0.5,
         replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Team("vdn-tau", "vdn", TWO, settings=over(DQN, tau=0.05, double=False, reward="mean")),
    Case("qmix", "qmix", TWO, settings=DQN),
    Team("qmix-all", "qmix", THREE, CENTRAL_MASKED, over(DQN, lam=0.8, optimism=0.5, mixed=4,
         mixer={"hidden": [8], "normalise": True}, replay={"kind": "prioritised", "sequence": 4},
         net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Team("qmix-joint", "qmix", TWO, PARTS, over(DQN, tau=0.05, mixer={"hidden": []})),
    Case("pqn_vdn", "pqn_vdn", TWO, settings=PPO),
    Team("pqn_vdn-all", "pqn_vdn", THREE, CENTRAL_MASKED, over(PPO, lam=0.9,
         net={"memory": "lstm", "memory_size": 8, "normalise": True, "norm": "layer"})),
    Case("mappo", "mappo", TWO, settings=PPO),
    Team("mappo-hybrid", "mappo", HYBRID, CENTRAL_MIXED, over(PPO, critic={"hidden": [8], "normalise": True},
         clip_value=0.2)),
    Team("mappo-joint", "mappo", ARM, settings=over(PPO, critic={"hidden": [8], "normalise": True}, max_kl=0.5)),
    Team("mappo-all", "mappo", THREE, CENTRAL_MASKED, over(PPO, critic={"hidden": [8]},
         net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Case("coma", "coma", TWO, settings=ROLLOUT),
    Team("coma-all", "coma", THREE, CENTRAL_MASKED, over(ROLLOUT, critic={"hidden": [8], "normalise": True},
         normalise_advantage=True, net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Team("coma-joint", "coma", TWO, PARTS, over(ROLLOUT, reward="mean", critic={"hidden": []})),
    Case("maddpg", "maddpg", ARM, settings=SAC),
    Team("maddpg-all", "maddpg", THREE, CENTRAL_MASKED, over(CENTRE, current=True,
         replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Team("maddpg-own", "maddpg", ARM, CENTRAL_MIXED, over(CENTRE, reward="own", twin=True)),
    Case("masac", "masac", TWO, settings=SAC),
    Team("masac-all", "masac", THREE, CENTRAL_MASKED, over(CENTRE, replay={"kind": "prioritised", "sequence": 4},
         critic={"normalise": True}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Team("masac-own", "masac", ARM, PARTS, over(CENTRE, reward="own", temperature=0.2, current=False)),
    Case("atoc", "atoc", TWO, settings=SAC),
    Team("atoc-all", "atoc", THREE, SPEAKERS, over(CENTRE, group=2, message=4, cost=0.01,
         replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"memory": "gru", "memory_size": 8, "normalise": True})),
    Team("atoc-silent", "atoc", ARM, settings=over(CENTRE, communicate=False)),
    Case("edac", "edac", ARM, settings=over(SAC, critics=3, diversity=0.1)),
    Case("edac-all", "edac", ARM, MIXED, over(SAC, critics=3, diversity=0.1, n_step=3, max_norm=5.0, temperature=0.2,
         replay={"kind": "prioritised"}, net={"normalise": True})),
    Case("dqfd", "dqfd", TWO, settings=DQN),
    Case("dqfd-all", "dqfd", THREE, MASKED, over(DQN, dueling=True, n_step=3,
         replay={"kind": "prioritised", "sequence": 4}, net={"memory": "lstm", "memory_size": 8, "normalise": True})),
    Case("sqil", "sqil", ARM, settings={"inner": {"kind": "sac", **SAC}}),
    Case("sqil-choices", "sqil", TWO, settings={"inner": {"kind": "discrete_sac", **SAC}, "reward": 2.0}),
    Case("gail", "gail", ARM, settings={"inner": {"kind": "sac", **SAC}}),
    Case("gail-all", "gail", THREE, MASKED, {"inner": {"kind": "discrete_sac", **over(SAC,
         replay={"kind": "prioritised"}, net={"normalise": True})}, "reward": "logit", "net": {"normalise": True}}),
    Case("gail-late", "gail", ARM, MIXED, {"inner": {"kind": "td3", **SAC}, "reward": "log"}),
    Case("airl", "airl", ARM, settings={"inner": {"kind": "sac", **SAC}}),
    Case("airl-all", "airl", THREE, MASKED, {"inner": {"kind": "discrete_sac", **over(SAC,
         replay={"kind": "prioritised"}, net={"normalise": True})}, "net": {"normalise": True},
         "reads_actions": False}),
    Case("discrete_sac", "discrete_sac", TWO, settings=SAC),
    Case("hybrid_sac", "hybrid_sac", PARAMETRISED, settings=SAC),
    Case("hybrid_sac-all", "hybrid_sac", PARAMETRISED, GEARS, over(SAC, n_step=3, max_norm=5.0,
         replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"normalise": True, "memory": "gru", "memory_size": 8})),
    Case("discrete_sac-all", "discrete_sac", THREE, MASKED, over(SAC, n_step=3, max_norm=5.0, temperature=0.2,
         replay={"kind": "prioritised", "sequence": 4, "burn_in": 1},
         net={"normalise": True, "memory": "gru", "memory_size": 8}, bonus=RND)),
]  # fmt: skip


class Bench(check_algorithm.Bench):
    """The algorithm of a case, with everything around it."""

    def __init__(self, case: Case, seed: int = 0, wrap: Any = None, device: torch.device = CPU) -> None:
        cfg = registry.lookup("algo", case.algo).model_validate(case.settings)
        super().__init__(cfg, case.spec(), seed, wrap, device)

    @property
    def stream(self) -> Stream:
        return self.seat.stream


def finite(bounds: tuple[float, ...]) -> bool:
    return not any(isinf(b) for b in bounds)
