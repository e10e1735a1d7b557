"""Two losses on one model: Q-learning from experience, and a supervised loss from demonstrations (Hester et al. 2018).

    python examples/two_losses.py

Losses are functions of tensors (`ops`); `learn` weighs and adds them, and one optimiser takes one step. The weight of
the supervised one is a knob: a schedule over the run, and anyone may pin it (`SetKnob("teach", 0.0)`).

The world is a corridor of 24 places with a bait at the wrong end. Chance alone does not find its exit in this budget;
a teacher who has shown the way once is enough.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

import ganglion
import ganglion.core as g
from ganglion import buffers, nn, ops
from ganglion.config import AlgoConfig, BufferConfig, LimiterConfig, Schedule, linear, register


@register("algo", "taught-dqn")
class TaughtConfig(AlgoConfig):
    """Q-learning with a teacher."""

    lr: float = Field(1e-3, gt=0)
    gamma: float = Field(0.99, ge=0, le=1)
    target_every: int = Field(50, ge=1)
    epsilon: Schedule = linear(1.0, 0.05, until=0.5)
    teach: Schedule = linear(1.0, 0.0)  # weight of the supervised loss
    net: nn.MLPConfig = nn.MLPConfig(hidden=(64,))
    replay: BufferConfig = buffers.ReplayConfig(batch=64)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=200)

    def build(self, spec: g.EnvSpec) -> TaughtDQN:
        return TaughtDQN(self, spec)

    def recipe(self, spec: g.EnvSpec) -> g.Recipe:
        folded = self.replay.folded(n=1, gamma=self.gamma, recurrent=self.net.recurrent)
        return g.Recipe(buffers.RowsConfig(), folded, self.limiter)


class QModel(nn.Encoded):
    """obs -> one value per action."""

    def __init__(self, cfg: TaughtConfig, spec: g.EnvSpec, actions: int) -> None:
        super().__init__(cfg.net, spec.obs)
        self.body = cfg.net.body(self.encoder.out)
        self.head = nn.QHead(self.body, actions, dueling=True)

    def value(self, obs: g.Obs, past: g.Past, action: g.Action | None = None) -> tuple[Tensor, g.Memory]:
        features, memory = self.encoder(obs, past)
        return self.head(self.body(features)[0]), memory


def demonstrations(spec: g.EnvSpec) -> tuple[Tensor, Tensor]:
    """What the teacher has shown: at each place of the corridor, go right. [1, N, ...], as all data here is."""
    assert isinstance(spec.obs, g.Box)
    places = spec.obs.size
    return torch.eye(places)[None], torch.ones(1, places, dtype=torch.int64)


class TaughtDQN(g.Algorithm[g.Sample[g.Transition], g.Sample[g.Transition]]):
    """Learns from its own steps and from a teacher's at once."""

    def __init__(self, cfg: TaughtConfig, spec: g.EnvSpec) -> None:
        assert isinstance(spec.action, g.Discrete)
        self.cfg, self.sync_every = cfg, cfg.target_every
        self.model = QModel(cfg, spec, spec.action.n)
        self.target = nn.Lagged(self.model)
        self.optim = nn.Adam(self.model, lr=cfg.lr, max_norm=10.0)
        self.shown, self.taken = demonstrations(spec)
        self.before = g.Past(self.model.initial(self.taken.shape[1]), torch.ones_like(self.taken, dtype=torch.bool))

    def learn(self, mini: g.Sample[g.Transition], knobs: g.Knobs, noise: g.Noise) -> g.Update:
        rl = ops.weighted_mean(ops.huber(self.q_error(mini.data)), mini.weight)
        supervised = ops.margin(self.model.value(self.shown, self.before)[0], self.taken).mean()
        self.optim.step(rl + knobs["teach"] * supervised)
        return g.Update({"rl": rl.detach(), "supervised": supervised.detach()}, ops.empty(rl))

    def q_error(self, t: g.Transition) -> Tensor:
        with torch.no_grad():
            best = ops.best(self.model.value(t.next_obs, t.next_past)[0])
            after = ops.pick(self.target.value(t.next_obs, t.next_past)[0], best)
            goal = t.reward + t.discount * ops.at(after, t.ahead)
        return ops.pick(self.model.value(t.obs, t.past)[0], t.action) - goal

    def predict(self, obs: g.Obs, past: g.Past, noise: g.Noise) -> g.Prediction:
        q, memory = self.model.value(obs, past)
        return g.Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: g.Prediction, knobs: g.Knobs, noise: g.Noise) -> g.Acted:
        return g.Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    def knobs(self, at: g.Progress) -> Mapping[str, float]:
        return {"epsilon": self.cfg.epsilon.at(at), "teach": self.cfg.teach.at(at)}

    def draws(self) -> g.Draws:
        return g.Draws(explore=ops.Greedy.draws)

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, g.Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}


def train(*settings: str) -> float:
    """The mean return of the last evaluation."""
    world = ["algo=taught-dqn", "env={kind: toy, id: chain, size: 24, slots: 4}", "train.budget=2k steps"]
    run = ganglion.Run.create(ganglion.load_config(None, [*world, "log=[]", "save=never", *settings]))
    scores = [log.metrics["eval/return_mean"] for log in run.stream() if log.kind == "evaluate"]
    return float(scores[-1])


def main() -> dict[str, float]:
    scores = {
        "both losses": train("run.dir=runs/both-losses"),
        "reinforcement alone": train("algo.teach=0.0", "run.dir=runs/reinforcement-alone"),
    }
    for name, score in scores.items():
        print(f"{name}: mean return {score:.3f} (best: 1)")
    return scores


if __name__ == "__main__":
    main()
