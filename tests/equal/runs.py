"""Small runs of every sort, and what makes two of them equal."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ganglion.config import RunConfig
from ganglion.core import State
from ganglion.record.checkpoint import Checkpoints, load
from ganglion.record.tensor_file import raw
from ganglion.runtime.run import Run

REPLAY = {"capacity": 700, "batch": 16}
OFTEN = {"eval": {"every": "300 steps", "episodes": 4}, "save": {"every": "170 steps", "keep": 2}}
SORTS: dict[str, dict[str, Any]] = {
    "dqn": {
        "algo": {"kind": "dqn", "n_step": 3, "target_every": 20, "replay": REPLAY,
                 "net": {"hidden": [16], "normalise": True}, "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 4}},
    "prioritised": {
        "algo": {"kind": "dqn", "hold": 3, "ladder": 2, "net": {"hidden": [16]},
                 "replay": {"kind": "prioritised", "initial": "error", **REPLAY},
                 "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "MountainCar-v0", "slots": 3}},
    "hindsight": {
        "algo": {"kind": "dqn", "n_step": 2, "net": {"hidden": [16]}, "limiter": {"warmup": 100, "opt_interval": 4},
                 "replay": {"kind": "prioritised", **REPLAY,
                            "relabel": {"kind": "hindsight", "ends": True, "strategy": "episode"}}},
        "env": {"kind": "toy", "id": "goal", "slots": 3, "size": 6}},
    "noisy": {
        "algo": {"kind": "dqn", "noisy": 0.5, "tau": 0.01, "munchausen": 0.9, "replay": REPLAY,
                 "net": {"hidden": [16]}, "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3}},
    "nfsp": {
        "algo": {"kind": "nfsp", "anticipation": 0.4, "reservoir": 50, "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3}},
    "bootstrapped_dqn": {
        "algo": {"kind": "bootstrapped_dqn", "heads": 4, "share": 0.5, "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3}},
    "c51": {
        "algo": {"kind": "c51", "atoms": 11, "target_every": 20, "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3}},
    "qrdqn": {
        "algo": {"kind": "qrdqn", "quantiles": 7, "target_every": 20, "replay": {"kind": "prioritised", **REPLAY},
                 "net": {"hidden": [16], "normalise": True}, "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3}},
    "iqn": {
        "algo": {"kind": "iqn", "act_percentiles": {"sample": "uniform", "count": 4}, "target_every": 20,
                 "replay": REPLAY, "net": {"hidden": [16]}, "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3}},
    "fqf": {
        "algo": {"kind": "fqf", "fractions": 6, "target_every": 20, "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3}},
    "rainbow": {
        "algo": {"kind": "rainbow", "atoms": 11, "target_every": 20, "replay": {"kind": "prioritised", **REPLAY},
                 "net": {"hidden": [16]}, "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3}},
    "pqn": {
        "algo": {"kind": "pqn", "horizon": 12, "minibatches": 2, "net": {"hidden": [16], "normalise": True}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 4}},
    "r2d2": {
        "algo": {"kind": "r2d2", "ladder": 2, "target_every": 20, "net": {"hidden": [16], "memory_size": 8},
                 "replay": {"sequence": 6, "burn_in": 2, **REPLAY}, "limiter": {"warmup": 100, "opt_interval": 8}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3}},
    "frames": {
        "algo": {"kind": "dqn", "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 3, "keep": [0, 2], "frame_stack": 3}},
    "ppo": {
        "algo": {"kind": "ppo", "horizon": 24, "net": {"hidden": [16], "normalise": True}, "normalise_reward": True},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 4}},
    "recurrent": {
        "algo": {"kind": "ppo", "horizon": 16, "net": {"hidden": [16], "memory": "gru", "memory_size": 16}},
        "env": {"kind": "torch", "id": "cartpole", "slots": 4}},
    "impala": {
        "algo": {"kind": "impala", "horizon": 12, "epochs": 2, "minibatches": 2,
                 "net": {"hidden": [16], "normalise": True, "memory": "gru", "memory_size": 16}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 4}},
    "a2c": {
        "algo": {"kind": "a2c", "horizon": 6, "net": {"hidden": [16], "normalise": True}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 4}},
    "reinforce": {
        "algo": {"kind": "reinforce", "horizon": 24, "net": {"hidden": [16], "memory": "gru", "memory_size": 16}},
        "env": {"kind": "torch", "id": "cartpole", "slots": 4}},
    "acer": {
        "algo": {"kind": "acer", "horizon": 6, "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 100, "opt_interval": 4}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 4}},
    "rnd": {
        "algo": {"kind": "ppo", "horizon": 24, "net": {"hidden": [16]}, "recompute": True,
                 "bonus": {"kind": "rnd", "net": {"hidden": [16]}}},
        "env": {"kind": "toy", "id": "deepsea", "slots": 4}},
    "rnd-replay": {
        "algo": {"kind": "dqn", "net": {"hidden": [16]}, "replay": {"kind": "prioritised", **REPLAY},
                 "limiter": {"warmup": 100, "opt_interval": 4}, "bonus": {"kind": "rnd", "net": {"hidden": [16]}}},
        "env": {"kind": "gym", "id": "MountainCar-v0", "slots": 3}},
    "league": {
        "algo": {"kind": "ppo", "horizon": 6, "minibatches": 2, "epochs": 2,
                 "net": {"hidden": [16], "memory": "gru", "memory_size": 8}},
        "env": {"kind": "kuhn", "slots": 24},
        "league": {"kind": "league", "phase": 20, "games": 10, "matches": 2, "mutation": 0.5, "measured": 4,
                   "players": {"main": "main", "exploiter": "main_exploiter", "hunter": {
                       "role": "league_exploiter",
                       "algo": {"kind": "dqn", "replay": REPLAY, "net": {"hidden": [16]},
                                "limiter": {"warmup": 60, "opt_interval": 8}}}}}},
    "trpo": {
        "algo": {"kind": "trpo", "horizon": 24, "net": {"hidden": [16], "normalise": True}},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 4}},
    "sac": {
        "algo": {"kind": "sac", "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 2}},
    "td3": {
        "algo": {"kind": "td3", "delay": 3, "noise_kind": "pink", "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 2}},
    "ddpg": {
        "algo": {"kind": "ddpg", "hold": 3, "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 2}},
    "flashsac": {
        "algo": {"kind": "flashsac", "replay": REPLAY, "net": {"hidden": [16]}, "net_critic": {"hidden": [16]},
                 "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 2}},
    "tqc": {
        "algo": {"kind": "tqc", "critics": 3, "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 2}},
    "crossq": {
        "algo": {"kind": "crossq", "net_critic": {"hidden": [16]}, "renorm_after": 50, "replay": REPLAY,
                 "net": {"hidden": [16]}, "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 2}},
    "redq": {
        "algo": {"kind": "redq", "critics": 3, "delay": 2, "dropout": 0.1, "layer_norm": True, "replay": REPLAY,
                 "net": {"hidden": [16]}, "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 2}},
    "d4pg": {
        "algo": {"kind": "d4pg", "low": -50.0, "high": 0.0, "replay": REPLAY,
                 "net": {"hidden": [16]}, "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "gym", "id": "Pendulum-v1", "slots": 2}},
    "vdn": {
        "algo": {"kind": "vdn", "target_every": 20, "replay": {"sequence": 4, **REPLAY}, "optimism": 0.5,
                 "net": {"hidden": [16], "memory": "gru", "memory_size": 8},
                 "limiter": {"warmup": 100, "opt_interval": 8}},
        "env": {"kind": "matrix", "id": "climbing", "slots": 6, "rounds": 7}},
    "qmix": {
        "algo": {"kind": "qmix", "tau": 0.05, "replay": {"kind": "prioritised", **REPLAY},
                 "net": {"hidden": [16], "normalise": True}, "mixer": {"hidden": [8], "normalise": True},
                 "limiter": {"warmup": 100, "opt_interval": 8}},
        "env": {"kind": "foraging", "slots": 6, "wrap": [{"kind": "identity"}]}},
    "pqn_vdn": {
        "algo": {"kind": "pqn_vdn", "horizon": 12, "minibatches": 2, "net": {"hidden": [16], "normalise": True}},
        "env": {"kind": "particles", "id": "spread", "slots": 6}},
    "mappo": {
        "algo": {"kind": "mappo", "horizon": 12, "minibatches": 2, "critic": {"hidden": [16], "normalise": True},
                 "net": {"hidden": [16], "memory": "gru", "memory_size": 8, "normalise": True}},
        "env": {"kind": "particles", "id": "speaker_listener", "slots": 6}},
    "coma": {
        "algo": {"kind": "coma", "horizon": 4, "target_every": 3, "critic": {"hidden": [16], "normalise": True},
                 "net": {"hidden": [16], "memory": "gru", "memory_size": 8, "normalise": True}},
        "env": {"kind": "foraging", "slots": 2, "wrap": [{"kind": "identity"}]}},
    "maddpg": {
        "algo": {"kind": "maddpg", "replay": {"sequence": 4, **REPLAY}, "critic": {"hidden": [16]}, "reward": "own",
                 "net": {"hidden": [16], "memory": "gru", "memory_size": 8},
                 "limiter": {"warmup": 100, "opt_interval": 8}},
        "env": {"kind": "particles", "id": "spread", "slots": 6}},
    "masac": {
        "algo": {"kind": "masac", "replay": {"kind": "prioritised", **REPLAY}, "critic": {"hidden": [16]},
                 "net": {"hidden": [16], "normalise": True}, "limiter": {"warmup": 100, "opt_interval": 8}},
        "env": {"kind": "particles", "id": "speaker_listener", "slots": 6}},
    "atoc": {
        "algo": {"kind": "atoc", "group": 2, "replay": REPLAY, "critic": {"hidden": [16]}, "net": {"hidden": [16]},
                 "limiter": {"warmup": 100, "opt_interval": 8}},
        "env": {"kind": "particles", "id": "spread", "slots": 6, "wrap": [{"kind": "present"}]}},
    "hybrid_sac": {
        "algo": {"kind": "hybrid_sac", "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "toy", "id": "hybrid", "slots": 2}},
    "discrete_sac": {
        "algo": {"kind": "discrete_sac", "replay": REPLAY, "net": {"hidden": [16]},
                 "limiter": {"warmup": 150, "opt_interval": 2}},
        "env": {"kind": "gym", "id": "CartPole-v1", "slots": 2}},
}  # fmt: skip


def config(sort: str, folder: Path, budget: int = 1_000, **more: Any) -> RunConfig:
    raw = {
        **OFTEN,
        **SORTS[sort],
        "train": {"budget": f"{budget} steps"},
        "log": {"every": "100 steps", "writers": ["jsonl"]},
    }
    return RunConfig.model_validate({**raw, "run": {"dir": str(folder)}, **more})


def finish(run: Run) -> Run:
    for _ in run.stream():
        pass
    return run


def fingerprint(state: State, but: tuple[str, ...] = ()) -> str:
    """A hash of everything in a state, wall-clock aside."""
    h = hashlib.sha256()
    tensors = dict(state.tensors)
    for name, ring in state.rings.items():
        tensors |= {f"{name}/{k}": v for k, v in ring.arrays.items()}
    for name in sorted(tensors):
        if not name.startswith(but or ("\0",)):
            h.update(name.encode())
            h.update(raw(tensors[name]))
    for name in sorted(state.scalars):
        value = state.scalars[name]
        if name.endswith(("counters/at", "own/since")):
            value = value[:3]  # seconds are not repeatable
        if not name.startswith(but or ("\0",)):
            h.update(json.dumps([name, value], default=str).encode())
    return h.hexdigest()


def saved(folder: Path) -> str:
    """The fingerprint of a run's newest checkpoint."""
    newest = Checkpoints(folder / "checkpoints", 1).newest()
    assert newest is not None
    return fingerprint(load(newest)[0])


def metrics(folder: Path) -> list[dict[str, Any]]:
    """What a run recorded, wall-clock aside."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds" and not k.startswith("speed/")} for line in lines]
