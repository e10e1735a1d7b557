"""Every algorithm learns small worlds whose best is known; memory and masks by configuration alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ganglion.config import RunConfig
from ganglion.core import Past
from ganglion.runtime.agent import enter
from ganglion.runtime.build import build, build_agent
from ganglion.runtime.trainer import Trainer

pytestmark = pytest.mark.learning
SEEDS = [0, 1, 2]


def over(settings: dict[str, Any], **more: Any) -> dict[str, Any]:
    return settings | {k: settings[k] | v if isinstance(v, dict) and k in settings else v for k, v in more.items()}


MEMORY = {"memory": "gru", "memory_size": 32, "hidden": [32]}
PPO = {"kind": "ppo", "lr": 3e-3, "horizon": 16, "epochs": 4, "minibatches": 2, "net": {"hidden": [32]}}
IMPALA = {"kind": "impala", "lr": 3e-3, "horizon": 16, "net": {"hidden": [32]}}
A2C = {"kind": "a2c", "lr": 5e-3, "horizon": 8, "net": {"hidden": [32]}}
REINFORCE = {"kind": "reinforce", "lr": 1e-2, "horizon": 16, "net": {"hidden": [32]}}
PPG = PPO | {"kind": "ppg", "aux_every": 4, "aux_epochs": 2, "aux_minibatches": 4}
TRPO = {"kind": "trpo", "lr": 1e-2, "max_kl": 0.05, "horizon": 8, "net": {"hidden": [32]}}
REPLAY = {"capacity": 5_000, "batch": 64}
LIMITER = {"opt_interval": 4, "warmup": 200}
EPSILON = {"kind": "linear", "start": 1.0, "end": 0.05, "until": 0.6}
DQN = {"kind": "dqn", "lr": 1e-3, "target_every": 50, "net": {"hidden": [32]}, "epsilon": EPSILON}
DQN |= {"replay": REPLAY, "limiter": LIMITER}
ACER = {"kind": "acer", "lr": 3e-3, "horizon": 8, "net": {"hidden": [32]}, "replay": REPLAY | {"batch": 16}}
ACER |= {"limiter": {"opt_interval": 16, "warmup": 200}}
C51 = over(DQN, kind="c51", gamma=0.8, low=-1, high=9, atoms=51)
BOOTSTRAPPED = over(DQN, kind="bootstrapped_dqn", heads=5, gamma=0.8, prior=1.0)
QRDQN = over(DQN, kind="qrdqn", quantiles=20)
IQN = over(DQN, kind="iqn", percentiles={"count": 8}, target_percentiles={"count": 8}, cosines=32)
FQF = over(DQN, kind="fqf", fractions=8, cosines=32)
RAINBOW = over(DQN, kind="rainbow", gamma=0.8, low=-1, high=9, atoms=51, epsilon=0.0, replay={"kind": "prioritised"})
PQN = {
    "kind": "pqn",
    "lr": 3e-3,
    "gamma": 0.8,
    "epochs": 8,
    "horizon": 8,
    "net": {"hidden": [32], "norm": "layer"},
    "epsilon": EPSILON,
}
VALUE = {
    "bootstrapped_dqn": BOOTSTRAPPED,
    "c51": C51,
    "fqf": FQF,
    "iqn": IQN,
    "pqn": PQN,
    "qrdqn": QRDQN,
    "rainbow": RAINBOW,
}
R2D2 = over(DQN, kind="r2d2", net=MEMORY, lr=5e-3, target_every=25, limiter={"opt_interval": 5},
            replay={"sequence": 6, "burn_in": 1, "batch": 32})  # fmt: skip
NOISY = over(DQN, noisy=0.5, epsilon=0.0, n_step=1)
MUNCHAUSEN = over(DQN, munchausen=0.9, temperature=0.03, tau=0.02)
SAC = {"kind": "sac", "lr": 3e-3, "lr_critic": 3e-3, "net": {"hidden": [32]}, "replay": REPLAY, "limiter": LIMITER}

TD3 = {"kind": "td3", "lr": 3e-3, "lr_critic": 3e-3, "net": {"hidden": [32]}, "replay": REPLAY, "limiter": LIMITER}
DDPG = TD3 | {"kind": "ddpg"}
TQC = SAC | {"kind": "tqc", "critics": 2, "quantiles": 5, "drop": 1}
FLASHSAC = {"kind": "flashsac", "lr": 3e-3, "net": {"hidden": [16]}, "net_critic": {"hidden": [32]}}
FLASHSAC |= {"replay": REPLAY, "limiter": LIMITER}
CROSSQ = SAC | {"kind": "crossq", "net_critic": {"hidden": [32]}, "momentum": 0.05}
REDQ = SAC | {"kind": "redq", "critics": 4, "delay": 2}
DROQ = REDQ | {"critics": 2, "dropout": 0.01, "layer_norm": True}
D4PG = TD3 | {"kind": "d4pg", "low": -8.0, "high": 8.0, "n_step": 2}
HYBRID_SAC = SAC | {"kind": "hybrid_sac", "entropy": 0.1}
DISCRETE_SAC = SAC | {"kind": "discrete_sac", "entropy": 0.2}
REAL = ("sac", "td3", "ddpg", "tqc", "flashsac", "crossq", "redq", "d4pg")  # those whose actions are real numbers


PROBES = [over(PPO, gamma=0.8), over(DQN, gamma=0.8, n_step=2), over(SAC, gamma=0.8, temperature=1e-6, tau=0.05)]
PROBES += [over(A2C, gamma=0.8, horizon=5, lr=1e-2), over(REINFORCE, gamma=0.8, horizon=5, lr=1e-2)]
PROBES += [over(PPG, gamma=0.8), over(TRPO, gamma=0.8)]
PROBES += [over(ACER, gamma=0.8, lr=1e-2)]
PROBES += [over(TD3, gamma=0.8, tau=0.1), over(IMPALA, gamma=0.8, epochs=12)]
PROBES += [over(DDPG, gamma=0.8, tau=0.1), over(TQC, gamma=0.8, temperature=1e-6, tau=0.1, drop=0)]
PROBES += [over(FLASHSAC, gamma=0.8, tau=0.1, temperature=1e-6)]
PROBES += [over(CROSSQ, gamma=0.8, temperature=1e-6), over(REDQ, gamma=0.8, temperature=1e-6, tau=0.1)]
PROBES += [over(D4PG, gamma=0.8, tau=0.1)]
PROBES += [over(algo, gamma=0.8) for algo in (*VALUE.values(), R2D2)]


def trained(algo: dict[str, Any], env: dict[str, Any], steps: int, seed: int) -> Trainer:
    cfg = {"algo": algo, "env": {"kind": "toy", "slots": 16, **env}, "train": {"budget": f"{steps} steps"},
           "eval": {"episodes": 64}, "run": {"seed": seed, "device": "cpu"}}  # fmt: skip
    trainer = build(RunConfig.model_validate(cfg))
    for _ in trainer():
        pass
    return trainer


def score(trainer: Trainer) -> float:
    return trainer.run_evaluate()[1]["eval/return_mean"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "algo", [PPO, DQN, over(IMPALA, epochs=2), A2C, REINFORCE, ACER, PPG, TRPO, over(DISCRETE_SAC, gamma=0.5)],
    ids=lambda algo: algo["kind"])  # fmt: skip
def test_identity_says_what_it_sees(algo, seed):
    trainer = trained(algo, {"id": "identity", "size": 4}, 4_000, seed)
    length = trainer.run_evaluate()[1]["eval/length_mean"]
    assert score(trainer) >= 0.95 * length


@pytest.mark.parametrize(
    "algo",
    [
        over(PPO, replay={"kind": "replay", **REPLAY, "batch": 16}, limiter={"opt_interval": 16, "warmup": 200}),
        over(PPO, episodes=True, popart=0.01),
        over(REINFORCE, episodes=True),
        over(DQN, resets={"kind": "shrink", "every": 150, "until": 300}),
    ],
    ids=["replay", "episodes and popart", "whole returns", "resets"],
)
def test_identity_with_other_rollouts_scales_and_resets(algo):
    trainer = trained(algo, {"id": "identity", "size": 4}, 8_000 if "resets" in algo else 4_000, 0)
    assert score(trainer) >= 0.95 * trainer.run_evaluate()[1]["eval/length_mean"]


@pytest.mark.parametrize("algo", [NOISY, MUNCHAUSEN, *VALUE.values()], ids=["noisy", "munchausen", *VALUE])
def test_identity_by_values(algo):
    trainer = trained(algo, {"id": "identity", "size": 4}, 4_000, 0)
    assert score(trainer) >= 0.95 * trainer.run_evaluate()[1]["eval/length_mean"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("algo", [PPO, DQN], ids=["ppo", "dqn"])
def test_bfloat16_learns_as_well(algo, seed):
    trainer = trained(over(algo, net={"precision": "bfloat16"}), {"id": "identity", "size": 4}, 4_000, seed)
    assert score(trainer) >= 0.95 * trainer.run_evaluate()[1]["eval/length_mean"]


@pytest.mark.parametrize("seed", SEEDS)
def test_impala_learns_from_what_another_did(seed):
    """Who explores never changes: it acts as on its first day."""
    cfg = {"algo": over(IMPALA, epochs=4), "env": {"kind": "toy", "id": "identity", "size": 4, "slots": 16},
           "train": {"budget": "8k steps"}, "eval": {"episodes": 64}, "run": {"seed": seed}}  # fmt: skip
    trainer = build(RunConfig.model_validate(cfg))
    trainer.source.seats[0].agent = build_agent(RunConfig.model_validate(cfg), trainer.source.env.spec)
    kl = [float(log.metrics["kl"]) for log in trainer() if log.kind == "learn"]
    assert kl[-1] > 0.1, "they have grown apart"
    assert score(trainer) >= 0.95 * trainer.run_evaluate()[1]["eval/length_mean"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("algo", [SAC, over(TD3, n_step=2), over(TD3, replay={"kind": "prioritised"}), DDPG, TQC,
                                  FLASHSAC, CROSSQ, REDQ, DROQ, D4PG], ids=lambda algo: algo["kind"])  # fmt: skip
def test_identity_with_a_real_action(algo, seed):
    one = score(trained(over(algo, gamma=0.5), {"id": "identity", "continuous": True}, 500, seed))
    two = score(trained(over(algo, gamma=0.5), {"id": "identity", "continuous": True}, 6_000, seed))
    assert two > one and two > -0.05 * 8, (one, two)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "algo",
    [over(DQN, n_step=3), over(DQN, replay={"kind": "prioritised"}, dueling=True)],
    ids=["n-step", "prioritised"],
)
def test_chain_is_walked_to_its_end(algo, seed):
    trainer = trained(algo, {"id": "chain", "size": 6}, 8_000, seed)
    best = score(trainer)
    assert best >= 0.99, "the far end pays 1, the near one little"


def test_a_head_followed_for_an_episode_crosses_the_deep_sea():
    """Acting at random finds its far corner once in 2^10 episodes; 600 are enough."""
    algo = {"kind": "bootstrapped_dqn", "net": {"hidden": [50, 50], "init": "orthogonal"}}
    algo |= {"replay": REPLAY | {"capacity": 20_000}, "limiter": {"opt_interval": 6, "warmup": 200}}
    assert score(trained(algo, {"id": "deepsea", "size": 10, "slots": 4}, 6_000, 0)) == pytest.approx(0.99)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("algo", "steps"),
    [
        (over(PPO, net=MEMORY, minibatches=2), 16_000),
        (over(PPO, net=MEMORY | {"memory": "lstm"}, minibatches=2, lr=5e-3), 16_000),
        (over(IMPALA, net=MEMORY, epochs=4, lr=5e-3), 16_000),
        (over(ACER, net=MEMORY, lr=5e-3), 12_000),
        (over(DQN, net=MEMORY, lr=3e-3, replay={"sequence": 6, "batch": 32}), 10_000),
    ],
    ids=["ppo-gru", "ppo-lstm", "impala-gru", "acer-gru", "dqn-gru"],
)
def test_memory_recalls_the_first_cue(algo, steps, seed):
    assert score(trained(algo, {"id": "memory", "delay": 3}, steps, seed)) >= 0.95


def test_recurrent_replay_recalls_the_first_cue():
    assert score(trained(R2D2, {"id": "memory", "delay": 3}, 8_000, 0)) >= 0.95


@pytest.mark.parametrize("algo", [SAC, TD3, DDPG], ids=lambda algo: algo["kind"])
def test_memory_recalls_a_real_cue(algo):
    """The cue of 3 steps ago, as a number: -(a - cue)^2, so -1 / 3 is what acting blindly is worth."""
    long = over(algo, net=MEMORY, gamma=0.9, tau=0.05, replay={"sequence": 5, "burn_in": 1, "batch": 32})
    assert score(trained(long, {"id": "memory", "delay": 2, "continuous": True}, 6_000, 0)) > -0.06


def test_without_a_memory_a_real_cue_is_lost():
    world = {"id": "memory", "delay": 2, "continuous": True}
    assert score(trained(over(SAC, gamma=0.9, tau=0.05), world, 3_000, 0)) < -0.2


def test_without_a_memory_the_cue_is_lost():
    assert score(trained(PPO, {"id": "memory", "delay": 3}, 8_000, 0)) < 0.8


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("algo", [PPO, over(DQN, gamma=0.5), over(IMPALA, epochs=2), ACER],
                         ids=["ppo", "dqn", "impala", "acer"])  # fmt: skip
def test_masked_never_acts_illegally_and_finds_the_best_legal(algo, seed):
    trainer = trained(algo, {"id": "masked"}, 4_000, seed)
    assert score(trainer) >= 0.9 * best_masked(trainer)


@pytest.mark.parametrize("algo", [HYBRID_SAC, PPO], ids=lambda algo: algo["kind"])
def test_a_choice_and_a_number_are_learned_together(algo):
    """At best 8; the right name with a number at random is worth 8 (1 - 2 / 3), both at random -3."""
    steps = 3_000 if algo is HYBRID_SAC else 16_000
    assert score(trained(over(algo, gamma=0.0), {"id": "hybrid"}, steps, 0)) > 6.0


def test_masked_with_a_memory():
    trainer = trained(over(DQN, gamma=0.5, net=MEMORY, replay={"sequence": 4, "batch": 32}), {"id": "masked"}, 3_000, 0)
    assert score(trainer) >= 0.9 * best_masked(trainer)


def best_masked(trainer: Trainer) -> float:
    """The return of the best legal actions in the same episodes, found by looking at the masks."""
    env = trainer.evaluator.env
    assert env is not None
    step = env.reset(trainer.evaluator.seed)
    env.episodes()
    totals: list[float] = []
    while len(totals) < 64:
        legal = step.obs["action_mask"]
        worth = torch.arange(legal.shape[-1]).expand_as(legal).masked_fill(~legal, -1)
        step = env.step(worth.argmax(-1))
        totals += [e.total for e in env.episodes()]
    return sum(totals) / len(totals)


@pytest.mark.parametrize("algo", PROBES, ids=lambda algo: algo["kind"])
def test_a_time_limit_is_no_ending(algo):
    """Reward 1 for ever, cut after 8 steps: worth 1 / (1 - 0.8) = 5. Taken for an ending it would be 3.3."""
    trainer = trained(algo, {"id": "truncation", "limit": 8, "continuous": algo["kind"] in REAL}, 5_000, 0)
    agent = trainer.learner.agent
    step = trainer.source.now
    obs, past = enter(step.obs), agent.start(16)
    with torch.no_grad():
        if algo["kind"] in REAL:
            acted = agent.predict(step.obs, past).action
            value = agent.algo.model.value(obs, Past((), past.start), acted[None])[0]
            value = value / agent.algo.scale(torch.ones(())) if algo["kind"] == "flashsac" else value
        else:
            value = agent.algo.predict(obs, past, agent.algo.neutral(past.start)).value
    assert value.mean().item() == pytest.approx(5.0, abs=0.4)
