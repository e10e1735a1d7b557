"""nerveX's guide "DQN on CartPole" in Ganglion: environment, network, agent modes, computation graph, learner, buffer.

    python examples/from_nervex.py

The parts come in the guide's order. Its second half, the DQN policy class, is from_nervex_policy.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import torch
from torch import Tensor

import ganglion
import ganglion.core as g
from ganglion import buffers, nn, ops
from ganglion.envs import GymConfig, GymEnv
from ganglion.runtime.agent import Agent, enter
from ganglion.runtime.engine import Engine
from ganglion.runtime.randomness import Stream

CPU = torch.device("cpu")

# ------------------------------------------------------------ serial entry: read_config, serial_pipeline

CONFIG = """
algo: {kind: dqn, lr: 1e-3, dueling: true, n_step: 3, limiter: {opt_interval: 4, warmup: 200}}
env: {kind: gym, id: CartPole-v1, slots: 4}
train: {budget: 1500 steps, target: 475}    # evaluator.stop_val
eval: {every: 500 steps, episodes: 5}
log: []
run: {device: cpu}                          # policy.use_cuda
"""


def serial_pipeline(config: str, seed: int) -> ganglion.SavedAgent:
    """A file, a preset of the zoo or YAML text; the run's folder holds the resolved config and all results."""
    return ganglion.train(config, [f"run.seed={seed}"])


# ------------------------------------------------------------ creating environments


def make_env() -> g.Env:
    """nerveX: CartPoleEnv(cfg={}). What enters Ganglion is always tensors, one row per slot."""
    return GymConfig(id="CartPole-v1", slots=1).build()


def make_envs() -> g.Env:
    """nerveX: SubprocessEnvManager(env_fn, env_cfg=[...], env_num=4). The slots of one environment, walked in this
    process; each may have a configuration of its own."""
    gravity = [9.8, 9.8, 3.7, 1.6]

    def make(slot: int) -> gymnasium.Env[Any, Any]:
        env = gymnasium.make("CartPole-v1")
        env.unwrapped.gravity = gravity[slot]  # type: ignore[attr-defined]
        return env

    return GymEnv(make, slots=4, name="cartpole on four planets")


# ------------------------------------------------------------ the neural network


class FCDQN(g.Model):
    """Typed tensors instead of dicts: obs [T, B, numbers] -> one value per action [T, B, actions]."""

    def __init__(self, spec: g.EnvSpec, hidden: tuple[int, ...] = (128, 256, 256)) -> None:
        super().__init__()
        assert isinstance(spec.obs, g.Box) and isinstance(spec.action, g.Discrete)  # nerveX: env.info()
        layers: list[torch.nn.Module] = []
        size = spec.obs.size
        for width in hidden:
            layers += [torch.nn.Linear(size, width), torch.nn.ReLU()]
            size = width
        self.main = torch.nn.Sequential(*layers, torch.nn.Linear(size, spec.action.n))

    def value(self, obs: g.Obs, past: g.Past, action: g.Action | None = None) -> tuple[Tensor, g.Memory]:
        return self.main(obs), ()


# ------------------------------------------------------------ the computation graph: data and models in, loss out


def q_error(model: g.Model, target: g.Model, t: g.Transition) -> Tensor:
    """q_1step_td_error (and n-step: the replay has folded it into reward and discount), double. It changes nothing:
    targets move elsewhere. One graph serves any model that has values; two_losses.py has two graphs on one model."""
    with torch.no_grad():
        next_action = ops.best(model.value(t.next_obs, t.next_past)[0])
        after = ops.pick(target.value(t.next_obs, t.next_past)[0], next_action)
        goal = t.reward + t.discount * ops.at(after, t.ahead)
    return ops.pick(model.value(t.obs, t.past)[0], t.action) - goal


# ------------------------------------------------------------ the learner's part: an Algorithm


class CartPoleDQN(g.Algorithm[g.Sample[g.Transition], g.Sample[g.Transition]]):
    """nerveX's learner sets up an agent and a graph; here an Algorithm holds model, target and optimiser."""

    sync_every = 100  # add_model("target", update_type="assign", freq=100)

    def __init__(self, spec: g.EnvSpec) -> None:
        self.model = FCDQN(spec)
        self.target = nn.Lagged(self.model)
        self.optim = nn.Adam(self.model, lr=1e-3)

    def predict(self, obs: g.Obs, past: g.Past, noise: g.Noise) -> g.Prediction:
        q, memory = self.model.value(obs, past)
        return g.Prediction(ops.Greedy(q, ops.mask(obs)), q.amax(-1), memory)

    def explore(self, prediction: g.Prediction, knobs: g.Knobs, noise: g.Noise) -> g.Acted:
        return g.Acted(prediction.dist.epsilon(knobs["epsilon"], noise), {}, prediction.memory)

    def knobs(self, at: g.Progress) -> Mapping[str, float]:
        return {"epsilon": 0.1}

    def draws(self) -> g.Draws:
        return g.Draws(explore=ops.Greedy.draws)

    def learn(self, mini: g.Sample[g.Transition], knobs: g.Knobs, noise: g.Noise) -> g.Update:
        error = q_error(self.model, self.target, mini.data)
        loss = ops.weighted_mean(ops.huber(error), mini.weight)
        self.optim.step(loss)
        return g.Update({"total_loss": loss.detach()}, ops.sequence_priority(error.detach(), mini.weight))

    def sync_target(self) -> None:
        self.target.copy(self.model)

    def parts(self) -> Mapping[str, g.Stateful]:
        return {"model": self.model, "target": self.target, "optim": self.optim}


# ------------------------------------------------------------ agent modes: learn, collect, eval, command


def collect(agent: Agent, env: g.Env, buffer: g.Buffer, steps: int) -> None:
    """What Explorer does, by hand: nerveX's actor agent and process_transition."""
    processor, stream = buffers.RowsConfig().build(env.spec, CPU), Stream(0, "explore", CPU)
    before, past = env.reset(seed=0), agent.start(env.spec.slots)
    for _ in range(steps):
        noise = stream.noise(agent.draws.explore, 1, env.spec.slots)
        acted = agent.sample(before.obs, past, noise, g.Progress())  # collect mode: eps_greedy_sample, no gradient
        after = env.step(acted.action)
        ahead = g.Past(acted.memory, ~before.valid[None])
        told = g.Acted(enter(acted.action), enter(acted.extras), acted.memory)
        rows = processor(enter(before), past, told, enter(after))  # all of it [T, B, ...], here with T = 1
        buffer.push(rows, (after.obs, ahead), g.Progress())
        before, past = after, ahead


def agent_modes() -> dict[str, float]:
    """create_dqn_learner_agent, create_dqn_actor_agent and create_dqn_evaluator_agent are modes of one Agent."""
    env = make_env()
    torch.manual_seed(0)
    agent, actor = (Agent(CartPoleDQN(env.spec), Engine(CPU)) for _ in range(2))
    buffer = make_buffer()
    collect(actor, env, buffer, steps=40)
    none = g.Noise(torch.empty(1, 4, 0), torch.empty(1, 4, 0))
    sample = buffer.take(torch.rand(4, dtype=torch.float64), g.Progress())
    update = agent.learn(sample, none, g.Progress())  # learn mode: gradients, targets moved at their interval
    buffer.feedback(sample.index, update.priority)
    actor.obey(agent.command(g.Progress(opt_steps=1)))  # command mode: weights and knobs to whoever acts elsewhere
    step = env.reset(seed=1)
    greedy = agent.predict(step.obs, agent.start(1)).action  # eval mode: argmax_sample, deterministic
    assert torch.equal(greedy, actor.predict(step.obs, actor.start(1)).action)
    return {name: float(value) for name, value in update.metrics.items()}


# ------------------------------------------------------------ the data queue


def make_buffer() -> g.Buffer:
    """nerveX: PrioritizedBuffer(maxlen=10000). Rows are kept once; n-step sums are made when sampling."""
    config = buffers.PrioritisedConfig(capacity=10_000, batch=4)
    return config.folded(n=1, gamma=0.99, recurrent=False).build(make_env().spec, CPU)


def append_and_sample() -> g.Sample[g.Transition]:
    """buffer.append(data) ten times, buffer.sample(4), and the new priorities of what was sampled."""
    buffer = make_buffer()
    no, yes = torch.tensor([[False]]), torch.tensor([[True]])
    for i in range(10):
        obs = torch.full((1, 1, 4), float(i))
        row = g.Row(obs, torch.tensor([[0]]), torch.ones(1, 1), no, no, yes, start=no, extras={}, memory=())
        buffer.push(row, (obs[0] + 1, g.Past((), no)), g.Progress())
    sample: g.Sample[g.Transition] = buffer.take(torch.rand(4, dtype=torch.float64), g.Progress())
    buffer.feedback(sample.index, priority=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    return sample


def main() -> ganglion.SavedAgent:
    for env in (make_env(), make_envs()):
        print(f"{env.spec.name}: {env.spec.slots} slots of {env.spec.obs}, {env.spec.action}")
    print("one update:", agent_modes())
    print("sampled rows:", append_and_sample().index.tolist())
    agent = serial_pipeline(CONFIG, seed=0)
    print(agent)
    return agent


if __name__ == "__main__":
    main()
