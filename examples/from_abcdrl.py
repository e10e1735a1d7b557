"""abcdrl's four classes in Ganglion: Model, Algorithm, Agent, Trainer, each holding the one before it.

    python examples/from_abcdrl.py

The file follows abcdrl's `abstractions.py` from top to bottom. Model and Algorithm are written here, in full; Agent and
Trainer are the same for every algorithm, so they are taken as they are and put together by hand.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import ganglion.core as g
from ganglion import buffers, nn, ops
from ganglion.config import every
from ganglion.envs import CartPole
from ganglion.record.stages import Evaluated, Stage, compose
from ganglion.runtime.agent import Agent
from ganglion.runtime.engine import Engine
from ganglion.runtime.evaluator import Evaluator
from ganglion.runtime.explorer import Explorer, Seat
from ganglion.runtime.learner import Learner
from ganglion.runtime.trainer import Trainer


class Model(g.Model):
    """Forward networks and their raw output. abcdrl's `value(x, a=None)` and `action(x)` also take the past here:
    what a recurrent network remembers. This one remembers nothing and hands back the empty memory."""

    def __init__(self, numbers: int, actions: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(numbers, 120), torch.nn.ReLU(), torch.nn.Linear(120, 84), torch.nn.ReLU(),
            torch.nn.Linear(84, actions),
        )  # fmt: skip

    def value(self, obs: g.Obs, past: g.Past, action: g.Action | None = None) -> tuple[Tensor, g.Memory]:
        return self.net(obs), ()  # [T, B, numbers] -> [T, B, actions]


class Algorithm(g.Algorithm[g.Sample[g.Transition], g.Sample[g.Transition]]):
    """How the model is updated, and what is made of its output (argmax, ...)."""

    sync_every = 200  # the Agent calls sync_target at this interval, in updates

    def __init__(self, numbers: int, actions: int) -> None:
        self.model = Model(numbers, actions)
        self.target = nn.Lagged(self.model)  # abcdrl: model_t = copy.deepcopy(model)
        self.optim = nn.Adam(self.model, lr=1e-3, max_norm=10.0)

    def predict(self, obs: g.Obs, past: g.Past, noise: g.Noise) -> g.Prediction:
        q, memory = self.model.value(obs, past)
        return g.Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    # abcdrl's Agent.sample adds the noise; here it is the algorithm's to say what exploring means, one coin per slot.
    # Agent.predict needs nothing: by default it takes the mode, which is the argmax.

    def explore(self, prediction: g.Prediction, knobs: g.Knobs, noise: g.Noise) -> g.Acted:
        return g.Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    def knobs(self, at: g.Progress) -> Mapping[str, float]:
        return {"epsilon": max(1.0 - 2.0 * at.fraction, 0.05)}

    def draws(self) -> g.Draws:
        return g.Draws(explore=ops.Greedy.draws)  # random numbers are brought by the caller; say how many

    def learn(self, mini: g.Sample[g.Transition], knobs: g.Knobs, noise: g.Noise) -> g.Update:
        t = mini.data
        with torch.no_grad():  # 1. the target; `discount` is 0 where terminated, so there is no flag to multiply with
            goal = t.reward + t.discount * ops.at(self.target.value(t.next_obs, t.next_past)[0].amax(-1), t.ahead)
        error = ops.pick(self.model.value(t.obs, t.past)[0], t.action) - goal
        loss = ops.weighted_mean(ops.huber(error), mini.weight)  # 2. the loss; rows not to learn from weigh 0
        self.optim.step(loss)  # 3. the update
        return g.Update({"loss": loss.detach()}, ops.empty(error))  # 4. what to log, left on the device

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, g.Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}


def make_trainer(steps: int, seed: int = 0) -> Trainer:
    """abcdrl's `Trainer.__init__`: arguments, training and evaluation environment, buffer, agent."""
    env = CartPole(slots=4, name="cartpole")
    cpu = torch.device("cpu")
    torch.manual_seed(seed)  # weights only: everything else has random streams of its own, derived from the seed
    agent = Agent(Algorithm(4, 2), Engine(cpu))
    replay = buffers.ReplayConfig(capacity=5_000, batch=64).folded(n=1, gamma=0.99, recurrent=False)
    limiter, rows = buffers.RatioConfig(opt_interval=4, warmup=400), buffers.RowsConfig()
    learner = Learner(agent, replay.build(env.spec, cpu), limiter.build(env.spec, cpu), seed)
    seat = Seat(agent, rows.build(env.spec, cpu), learner, seed, env.spec.slots)
    explorer = Explorer(env, [seat], seed)
    evaluator = Evaluator(agent, lambda: CartPole(slots=5, name="cartpole"), episodes=5, seed=seed + 1)
    return Trainer(explorer, learner, evaluator, every(f"{steps} steps"))


class Logger(Stage):
    """abcdrl's logger decorates `Trainer.__call__`; a stage decorates the generator it returned, never the class."""

    def seen(self, log: g.LogData) -> None:
        for episode in log.episodes:
            print(f"{log.kind} at {log.at.env_steps} steps: slot {episode.slot} scored {episode.total:.0f}")


def main(steps: int = 4_000) -> list[g.LogData]:
    trainer = make_trainer(steps=600)
    for log_data in trainer():  # each is one step of every slot, or one update
        print(log_data)

    # The same with abcdrl's features: an Evaluator at an interval, and the logger around both.
    trainer = make_trainer(steps)
    evaluator = Evaluated(trainer.run_evaluate, every("1k steps"), now=lambda: trainer.at)
    return list(compose(trainer(), evaluator, Logger()))


if __name__ == "__main__":
    main()
