"""nerveX's "Policy Example (DQN)" in Ganglion: what each method of its DQNPolicy became.

    cd examples && ganglion train --import from_nervex_policy --algo nervex-dqn --env CartPole-v1

Buffer and environment are made by the entry, not by the policy: there as here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

import ganglion
import ganglion.core as g
from ganglion import buffers, nn, ops
from ganglion.config import AlgoConfig, BufferConfig, LimiterConfig, Schedule, exponential, register
from ganglion.errors import UserError


@register("algo", "nervex-dqn")  # register_policy("dqn", DQNPolicy)
class DQNPolicyConfig(AlgoConfig):
    """cfg.learn, cfg.collect and cfg.command: every setting once, typed, with its range."""

    learning_rate: float = Field(1e-3, gt=0)
    discount_factor: float = Field(0.97, ge=0, le=1)
    nstep: int = Field(3, ge=1)
    target_update_freq: int = Field(100, ge=1)
    eps: Schedule = exponential(0.95, 0.1, until=0.8)  # epsilon_greedy(start, end, decay, type="exp")
    model: nn.MLPConfig = nn.MLPConfig(hidden=(128, 128))
    replay: BufferConfig = buffers.PrioritisedConfig(capacity=20_000, batch=64)
    limiter: LimiterConfig = buffers.RatioConfig(opt_interval=4, warmup=500)

    def build(self, spec: g.EnvSpec) -> DQNPolicy:
        return DQNPolicy(self, spec)

    def recipe(self, spec: g.EnvSpec) -> g.Recipe:
        """_process_transition, and _get_train_sample with its Adder: how steps become rows, and rows samples. The
        n-step sum is made when sampling, so no tail of a trajectory has to be kept back."""
        folded = self.replay.folded(self.nstep, self.discount_factor, self.model.recurrent)
        return g.Recipe(buffers.RowsConfig(), folded, self.limiter)


class QNetwork(nn.Encoded):
    """_create_model_from_cfg: the encoder follows from the observation space; other networks are other kinds."""

    def __init__(self, cfg: DQNPolicyConfig, spec: g.EnvSpec, actions: int) -> None:
        super().__init__(cfg.model, spec.obs)
        self.body = cfg.model.body(self.encoder.out)
        self.head = nn.QHead(self.body, actions, dueling=False)

    def value(self, obs: g.Obs, past: g.Past, action: g.Action | None = None) -> tuple[Tensor, g.Memory]:
        features, memory = self.encoder(obs, past)  # the hidden_state plugin: memory runs along the rows
        return self.head(self.body(features)[0]), memory


class DQNPolicy(g.Algorithm[g.Sample[g.Transition], g.Sample[g.Transition]]):
    """Deep Q-learning as nerveX's tutorial writes it: double, n-step, a target that is copied at an interval."""

    def __init__(self, cfg: DQNPolicyConfig, spec: g.EnvSpec) -> None:
        """_init_learn. The plugins argmax_sample and grad need no line: `learn` says where the argmax is taken, and
        gradients exist in `learn` alone."""
        if not isinstance(spec.action, g.Discrete):
            raise UserError(f"algo.kind: nervex-dqn needs a Discrete action space; {spec.name} has {spec.action}.")
        self.cfg, self.sync_every = cfg, cfg.target_update_freq
        self.model = QNetwork(cfg, spec, spec.action.n)
        self.target = nn.Lagged(self.model)  # add_model("target", update_type="assign", freq)
        self.optim = nn.Adam(self.model, lr=cfg.learning_rate)

    def learn(self, mini: g.Sample[g.Transition], knobs: g.Knobs, noise: g.Noise) -> g.Update:
        """_forward_learn. data["reward"] is summed, data["done"] is inside `discount`, data["weight"] is `weight`."""
        t = mini.data
        with torch.no_grad():
            target_q = self.target.value(t.next_obs, t.next_past)[0]
            target_action = ops.best(self.model.value(t.next_obs, t.next_past)[0], ops.mask(t.next_obs))
            goal = t.reward + t.discount * ops.at(ops.pick(target_q, target_action), t.ahead)
        error = ops.pick(self.model.value(t.obs, t.past)[0], t.action) - goal
        loss = ops.weighted_mean(error.square(), mini.weight)
        self.optim.step(loss)
        return g.Update({"total_loss": loss.detach()}, ops.sequence_priority(error.detach(), mini.weight))

    def sync_target(self) -> None:
        """target_update, called at the interval by the Agent."""
        self.target.copy(self.model)

    def predict(self, obs: g.Obs, past: g.Past, noise: g.Noise) -> g.Prediction:
        q, memory = self.model.value(obs, past)
        return g.Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: g.Prediction, knobs: g.Knobs, noise: g.Noise) -> g.Acted:
        """_init_collect and _forward_collect: the eps_greedy_sample plugin."""
        return g.Acted(prediction.dist.epsilon(knobs["eps"], noise), {}, prediction.memory)

    # _init_eval and _forward_eval: `exploit` by default takes the mode, nerveX's argmax_sample

    def knobs(self, at: g.Progress) -> Mapping[str, float]:
        """_init_command and _get_setting_collect: a value per moment of the run; it travels with the weights."""
        return {"eps": self.cfg.eps.at(at)}

    def draws(self) -> g.Draws:
        return g.Draws(explore=ops.Greedy.draws)

    def parts(self) -> Mapping[str, g.Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}


def main() -> ganglion.SavedAgent:
    settings = ["algo=nervex-dqn", "env={kind: torch, id: cartpole, slots: 4}", "train.budget=4k steps"]
    agent = ganglion.train(None, [*settings, "eval={every: 1k steps, episodes: 5}", "log=[]"])
    print(agent)
    return agent


if __name__ == "__main__":
    main()
