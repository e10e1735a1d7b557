"""XingTian's hooks, one by one, on Ganglion's parts: what its training process and its explorers call.

    python examples/from_xingtian_hooks.py

`Algorithm` has the hooks of the training process, `Agent` those of an explorer, `run` the loop between them.
They are written once, for any registered algorithm: an algorithm itself needs none of them but prepare_data and train
(examples/from_xingtian.py writes one). With weights sent after every update the loop is Ganglion's own, number for
number; with weights sent more rarely explorers lag behind, which V-trace corrects.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import ganglion
from ganglion import ops
from ganglion.config import RunConfig
from ganglion.core import Acted, EnvSpec, Obs, Origin, Past, Progress, Row, State, Step, Weights, under
from ganglion.fleet.in_process import LocalBroker
from ganglion.runtime.agent import enter
from ganglion.runtime.build import build_agent, build_env
from ganglion.runtime.learner import Learner
from ganglion.runtime.randomness import Stream, derive

Trajectory = list[tuple[Row, tuple[Obs, Past]]]  # rows, each with what the next one starts from
SETTINGS = [
    "algo={kind: impala, lr: 3e-3, horizon: 16, epochs: 2, net: {hidden: [32]}}",
    "env={kind: toy, id: identity, size: 4, slots: 8}",
    "train.budget=6k steps",
]


class Algorithm:
    """XingTian's Algorithm: lives in the training process."""

    def __init__(self, cfg: RunConfig, spec: EnvSpec, every: int) -> None:
        self.agent, recipe = build_agent(cfg, spec), cfg.algo.recipe(spec)
        buffer, limiter = recipe.buffer.build(spec, self.agent.device), recipe.limiter.build(spec, self.agent.device)
        self.learner = Learner(self.agent, buffer, limiter, cfg.run.seed)
        self.every, self.budget, self.at = every, cfg.train.budget.count, Progress()

    def prepare_data(self, train_data: Trajectory, **ctr_info: Any) -> None:
        """Once per message: rows to the buffer. What is computed of an item is the algorithm's `prepare`."""
        for row, ahead in train_data:
            self.learner.push(row, ahead, self.at)
            steps = self.at.env_steps + int(row.valid.sum())
            self.at = self.at._replace(env_steps=steps, fraction=min(steps / self.budget, 1.0))

    def train_ready(self, elapsed_episode: int, **kwargs: Any) -> bool:
        """The buffer has an item and the limiter allows an update: `algo.limiter` is where learning_starts went."""
        return self.learner.owes(self.at)

    def train(self, **kwargs: Any) -> Mapping[str, torch.Tensor]:
        """One update; numbers stay on the device until someone prints them."""
        log = self.learner.step(self.at)
        self.at = self.at._replace(opt_steps=log.at.opt_steps)
        return log.metrics

    def checkpoint_ready(self, train_count: int, **kwargs: Any) -> bool:
        """Whether weights are sent out. Saving to disk is another matter here: `save.every`, a stage of the run."""
        return train_count % self.every == 0

    @staticmethod
    def update_weights_map(agent_in_group: str, agent_in_env: str) -> Mapping[str, str]:
        """Who acts with whose weights: a player's name. XingTian's default, {}, is everybody with the same."""
        return {"explorer 0": "main"}

    def get_weights(self) -> Weights:
        """Parameters and knobs of one version."""
        return self.agent.command(self.at)

    def predict(self, state: Obs) -> Any:
        """The best action, of all slots at once."""
        return self.agent.predict(state, self.agent.start(len(state))).action

    def save(self, model_path: Path, model_index: int) -> list[str]:
        """The weights alone. A run's checkpoints hold all that changes: optimiser, buffer, streams, environments."""
        name = model_path / f"actor_{model_index:05d}.safetensors"
        save_file(dict(self.get_weights().tensors), name)
        return [name.name]

    def restore(self, model_name: Path | None = None, model_weights: Weights | None = None) -> None:
        """Weights, or else a file."""
        if model_weights is not None:
            self.agent.algo.model.restore(under(State(model_weights.tensors), "model"))
        elif model_name is not None:
            self.agent.algo.model.restore(under(State(load_file(model_name)), "model"))


class Agent:
    """XingTian's Agent: lives in an explorer. `runtime.explorer.Explorer` has these two hooks in one `step`."""

    def __init__(self, cfg: RunConfig, spec: EnvSpec, seed: int) -> None:
        self.agent = build_agent(cfg, spec)
        self.processor = cfg.algo.recipe(spec).processor.build(spec, self.agent.device)
        self.stream = Stream(seed, "explore", self.agent.device)
        self.past, self.version, self.trajectory = self.agent.start(spec.slots), -1, Trajectory()

    def sync_model(self, weights: Weights | None) -> None:
        """Newer weights, where there are any; their knobs come with them."""
        if weights is not None:
            self.agent.obey(weights)
            self.version = weights.version

    def infer_action(self, state: Step, use_explore: bool) -> Acted:
        """With use_explore the algorithm's `explore`, with random numbers handed in; without it `exploit`."""
        if not use_explore:
            return self.agent.predict(state.obs, self.past)
        noise = self.stream.noise(self.agent.draws.explore, 1, len(state.valid))
        return self.agent.sample(state.obs, self.past, noise, Progress())

    def handle_env_feedback(self, before: Step, acted: Acted, after: Step) -> None:
        """What happened as a row: a processor's work, the one place where rewards are shaped."""
        told = Acted(enter(acted.action), enter(acted.extras), acted.memory)
        row = self.processor(enter(before), self.past, told, enter(after))  # [T, B, ...], here with T = 1
        self.past = Past(acted.memory, ~before.valid[None])  # an episode starts after a dead row
        self.trajectory.append(ops.map_tree(torch.clone, (row, (after.obs, self.past))))  # a world may reuse its memory

    def get_trajectory(self) -> Trajectory:
        whole, self.trajectory = self.trajectory, Trajectory()
        return whole


def run(every: int = 1, settings: list[str] = SETTINGS) -> tuple[Algorithm, list[int]]:
    """An explorer and a learner in turn, over a broker; the algorithm, and how far behind each item's weights were."""
    cfg = ganglion.load_config(None, settings)
    env, broker, lags = build_env(cfg), LocalBroker(size=1), list[int]()
    algorithm, explorer = Algorithm(cfg, env.spec, every), Agent(cfg, env.spec, cfg.run.seed)
    player = algorithm.update_weights_map("explorer 0", "agent")["explorer 0"]
    broker.publish(algorithm.get_weights(), player)
    now, sent = env.reset(derive(cfg.run.seed, "env")), 0
    while algorithm.at.fraction < 1:
        explorer.sync_model(broker.latest(player, newer_than=explorer.version))
        for _ in range(16):
            acted = explorer.infer_action(now, use_explore=True)
            after = env.step(acted.action)
            explorer.handle_env_feedback(now, acted, after)
            now = after
        broker.push(explorer.get_trajectory(), Origin(player, 0, 0, sent, explorer.version))
        sent += 1

        packet = broker.pull(timeout=1.0)
        assert packet is not None
        lags.append(algorithm.at.opt_steps - packet.origin.version)
        algorithm.prepare_data(packet.body)
        while algorithm.train_ready(elapsed_episode=0):
            algorithm.train()
            if algorithm.checkpoint_ready(algorithm.at.opt_steps):
                broker.publish(algorithm.get_weights(), player)
    env.close()
    return algorithm, lags


if __name__ == "__main__":
    for interval in (1, 8):
        trained, behind = run(interval)
        print(f"weights every {interval} updates: {trained.at.opt_steps} updates, at most {max(behind)} behind")
