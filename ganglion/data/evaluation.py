"""What an agent is worth, from rows that others collected: fitted Q evaluation and weighted importance sampling.

Both give the discounted value of the agent where episodes start, with an interval. Neither needs an environment, and
neither can see what the data does not show: an agent that leaves the data is judged by guesses.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import nn, ops
from ganglion.core import Discrete, EnvSpec, Obs, Past
from ganglion.data.dataset import Dataset, fitted
from ganglion.data.load import load
from ganglion.data.offline import environment
from ganglion.errors import UserError
from ganglion.runtime.agent import Agent
from ganglion.runtime.randomness import Stream
from ganglion.runtime.run import load_agents

AT_ONCE = 4_096  # rows that are asked about together
DRAWN = 8  # actions of a stochastic agent for each next observation
NORMAL = 1.645  # deviations to either side that hold nine tenths of a normal


class Estimate(NamedTuple):
    """A value and the interval that should hold the true one nine times out of ten."""

    value: float
    low: float
    high: float


class Settings(NamedTuple):
    """How values are fitted."""

    gamma: float = 0.99
    stochastic: bool = False  # the agent draws its actions as in training; else as in evaluation
    updates: int = 10_000
    members: int = 8  # fits of other episodes and beginnings, whose spread is the interval's
    batch: int = 256
    lr: float = 1e-3
    tau: float = 0.01  # how fast the target follows
    hidden: tuple[int, ...] = (64, 64)
    seed: int = 0


DEFAULT = Settings()


class Steps(NamedTuple):
    """The decisions of a dataset, [N, ...] each, and what the agent would do."""

    obs: Obs
    action: Any
    reward: Tensor
    discount: Tensor  # gamma, 0 where terminated
    next_obs: Obs
    next_action: Any  # [N, DRAWN or 1, ...]
    first: Tensor  # bool: episodes start here
    episode: Tensor  # int64, from 0
    time: Tensor  # int64, within its episode
    ratio: Tensor  # log of how much more probable the action is with the agent; NaN where nobody knows


def asked(agent: Agent, obs: Obs, stochastic: bool, stream: Stream, draws: int) -> Any:
    """What the agent does where it sees `obs` [N, ...]: [N, draws, ...]."""
    count = len(ops.first(obs))
    parts = []
    for first in range(0, count, AT_ONCE):
        some = ops.map_tree(lambda x, first=first: x[None, first : first + AT_ONCE].to(agent.device), obs)
        rows = ops.first(some).shape[1]
        prediction = agent.algo.predict(some, nothing(rows, agent), agent.algo.neutral(torch.zeros(1, rows)))
        if not stochastic:
            parts.append([agent.algo.exploit(prediction).action])
            continue
        noise = [stream.noise(agent.draws.explore, 1, rows) for _ in range(draws)]
        parts.append([prediction.dist.sample(each) for each in noise])
    return ops.concat([ops.map_tree(lambda *xs: torch.stack([x[0] for x in xs], 1).cpu(), *part) for part in parts])


def nothing(rows: int, agent: Agent) -> Past:
    return Past((), torch.ones(1, rows, dtype=torch.bool, device=agent.device))


def log_ratio(agent: Agent, data: Dataset, live: Tensor, stochastic: bool) -> Tensor:
    """log pi(a | s) - log mu(a | s) of each decision, [N]; NaN where the data does not say mu."""
    rows = ops.map_tree(lambda x: x[live, 0], data.rows._replace(memory=()))
    if "logp" not in rows.extras:
        return torch.full((len(rows.reward),), torch.nan)
    parts = []
    for first in range(0, len(rows.reward), AT_ONCE):
        part = ops.map_tree(lambda x, first=first: x[None, first : first + AT_ONCE].to(agent.device), rows)
        count = part.reward.shape[1]
        prediction = agent.algo.predict(part.obs, nothing(count, agent), agent.algo.neutral(torch.zeros(1, count)))
        if stochastic:
            parts.append(prediction.dist.log_prob(part.action)[0].cpu())
        else:
            parts.append((agent.algo.exploit(prediction).action == part.action)[0].float().log().cpu())
    return torch.cat(parts).double() - rows.extras["logp"].double()


@torch.no_grad()
def steps_of(agent: Agent, data: Dataset, s: Settings) -> Steps:
    """All decisions; of a deterministic agent ratios are known only where actions are choices."""
    if agent.algo.model.recurrent:
        raise UserError("RUN: an agent with a memory cannot be evaluated from data; only with its environment.")
    rows, live = data.rows, data.rows.valid[:, 0]
    later = torch.cat([torch.zeros_like(live[:1]), live[:-1]])  # the row after each decision
    next_obs = ops.map_tree(lambda x: x[later, 0], rows.obs)
    start = rows.start[:, 0]
    episode = (start.cumsum(0) - 1)[live]
    time = (torch.arange(len(live)) - start.nonzero()[:, 0][start.cumsum(0) - 1])[live]
    stream = Stream(s.seed, "evaluation", agent.device)
    next_action = asked(agent, next_obs, s.stochastic, stream, DRAWN)
    knows = s.stochastic or type(data.spec.action) is Discrete
    ratio = log_ratio(agent, data, live, s.stochastic) if knows else torch.full(episode.shape, torch.nan)
    discount = s.gamma * (~rows.terminated[live, 0]).float()
    obs, action = ops.map_tree(lambda x: x[live, 0], (rows.obs, rows.action))
    return Steps(obs, action, rows.reward[live, 0], discount, next_obs, next_action, start[live], episode, time, ratio)


# ------------------------------------------------------------ fitted Q evaluation


class Values(nn.Encoded):
    """Q(s, a) of several members, [members, N]."""

    def __init__(self, spec: EnvSpec, s: Settings) -> None:
        net = nn.MLPConfig(hidden=s.hidden, normalise=True)
        super().__init__(net, spec.obs)
        self.space = spec.action
        choices = spec.action.n if isinstance(spec.action, Discrete) else 0
        self.nets = nn.Ensemble(
            net.body(self.encoder.out + (0 if choices else nn.flat_size(spec.action)), count=s.members), choices or 1
        )
        self.choices = choices

    def forward(self, obs: Obs, action: Any) -> Tensor:
        entered, chosen = ops.map_tree(lambda x: x[None], (obs, action))
        count = ops.first(entered).shape[1]
        x = self.encoder(entered, Past((), torch.ones(1, count, dtype=torch.bool)))[0]
        if not self.choices:
            return self.nets(x, nn.flatten(chosen, self.space))[:, 0]
        return ops.pick(self.nets(x), chosen.expand(self.nets.body.count, 1, count))[:, 0]


def fqe(agent: Agent, data: Dataset, s: Settings = DEFAULT, steps: Steps | None = None) -> Estimate:
    """Fitted Q evaluation (Le et al. 2019): Q(s, a) -> r + gamma Q-(s', pi(s')), by networks; its value at the first
    observations. Each member learns from episodes drawn anew, and the interval is their spread."""
    steps = steps_of(agent, data, s) if steps is None else steps
    draw = torch.Generator().manual_seed(s.seed)
    with torch.random.fork_rng():
        torch.manual_seed(s.seed)
        values = Values(data.spec, s)
    everything = torch.ones(len(steps.reward), 1, dtype=torch.bool)
    values.observe(ops.map_tree(lambda x: x[:, None], steps.obs), everything)
    scale = float(steps.reward.abs().mean()) / (1 - s.gamma + 1e-3) or 1.0  # values of about 1 are learned soonest
    drawn = bootstrapped(int(steps.episode.max()) + 1, s.members, draw)  # [members, episodes]
    target, optim = nn.Lagged(values), nn.Adam(values, lr=s.lr)
    for _ in range(s.updates):
        index = torch.randint(len(steps.reward), (s.batch,), generator=draw)
        some: Steps = ops.map_tree(lambda x, index=index: x[index], steps)
        which = torch.randint(ops.first(some.next_action).shape[1], (1,), generator=draw).item()
        with torch.no_grad():
            after = target.net(some.next_obs, ops.select(some.next_action, int(which), 1))
            goal = some.reward / scale + some.discount * after
        error = values(some.obs, some.action) - goal
        optim.step((drawn[:, some.episode] * error.square()).mean(1).sum())
        target.follow(values, s.tau)
    return of_starts(agent, target.net, data, steps, drawn, s, scale)


@torch.no_grad()
def of_starts(
    agent: Agent, values: Any, data: Dataset, steps: Steps, drawn: Tensor, s: Settings, scale: float
) -> Estimate:
    """The values of first observations, each member's of its own episodes."""
    obs = ops.map_tree(lambda x: x[steps.first], steps.obs)
    action = asked(agent, obs, s.stochastic, Stream(s.seed, "first", agent.device), DRAWN)
    count = ops.first(action).shape[1]
    said = torch.stack([values(obs, ops.map_tree(lambda x, k=k: x[:, k], action)) for k in range(count)]).mean(0)
    each = scale * (said * drawn).sum(1) / drawn.sum(1)
    half = student(s.members) * float(each.std())
    value = scale * float(said.mean())
    return Estimate(value, value - half, value + half)


def bootstrapped(episodes: int, times: int, draw: torch.Generator) -> Tensor:
    """How often each episode is in each of several draws with replacement, [times, episodes]."""
    chosen = torch.randint(episodes, (times, episodes), generator=draw)
    return torch.zeros(times, episodes).scatter_add_(1, chosen, torch.ones(times, episodes))


def student(members: int) -> float:
    """Deviations that hold nine tenths of Student's distribution, to a hundredth (Cornish and Fisher 1937)."""
    n, z = members - 1, NORMAL
    return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)


# ------------------------------------------------------------ importance sampling


class Weighted(NamedTuple):
    """A value by importance sampling, and how many episodes it rests on."""

    estimate: Estimate
    effective: float  # episodes that would be as good without weights, at the end


def wis(agent: Agent, data: Dataset, s: Settings = DEFAULT, steps: Steps | None = None) -> Weighted:
    """Per-decision, self-normalised importance sampling (Precup et al. 2000): the rewards at each time, weighted by how
    much more probable all actions until then are with the agent. The interval is of episodes drawn anew."""
    steps = steps_of(agent, data, s) if steps is None else steps
    if bool(steps.ratio.isnan().any()):
        raise UserError(
            "--data: importance sampling needs the log-probabilities of the data's actions, which are stored where the "
            "recorded algorithm says them, and choices or --stochastic: a real action has no probability by itself."
        )
    weight, reward = weights_of(steps)
    worth = reward.double() * s.gamma ** torch.arange(reward.shape[1])

    def value(counts: Tensor) -> Tensor:
        """Of episodes taken so often, [..., episodes]."""
        total = counts @ weight
        return (counts @ (weight * worth) / total.clamp(min=1e-300)).sum(-1)

    episodes = len(weight)
    draw = torch.Generator().manual_seed(s.seed)
    again = value(bootstrapped(episodes, 1_000, draw).double())
    low, high = again.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    last = weight[:, -1]
    effective = float(last.sum().square() / last.square().sum().clamp(min=1e-300))
    return Weighted(Estimate(float(value(torch.ones(episodes, dtype=torch.float64))), low, high), effective)


def weights_of(steps: Steps) -> tuple[Tensor, Tensor]:
    """Products of ratios until each time, and rewards: [episodes, times]. After an end the weight stays, and there is
    no reward. At each time the largest weight is 1: only their proportions count; where no episode has done what the
    agent would, all are 0, and what comes of it is unknown."""
    shape = int(steps.episode.max()) + 1, int(steps.time.max()) + 1
    logs, reward = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape)
    logs[steps.episode, steps.time] = steps.ratio
    reward[steps.episode, steps.time] = steps.reward
    total = logs.cumsum(1)
    return (total - total.amax(0)).exp().nan_to_num(0.0), reward


def from_data(folder: str, path: str, which: str, s: Settings) -> dict[str, Any]:
    """What a saved agent is worth by a dataset: of the data itself, by fitted Q evaluation, and by importance sampling
    where the data allows it."""
    cfg, made, checkpoint = load_agents(folder, which)
    agent, data = made[0][1], fitted(load(path), environment(cfg))
    steps = steps_of(agent, data, s)
    found: dict[str, Any] = {"behaviour": behaviour(data, s.gamma), "fqe": fqe(agent, data, s, steps)}
    if not bool(steps.ratio.isnan().any()):
        weighted = wis(agent, data, s, steps)
        found |= {"wis": weighted.estimate, "effective": weighted.effective}
    told = {"gamma": s.gamma, "actions": "drawn" if s.stochastic else "best", "checkpoint": checkpoint}
    return {**found, "episodes": len(data.lengths()), "steps": data.steps, **told}


def behaviour(data: Dataset, gamma: float) -> Estimate:
    """The discounted return of whoever collected the data."""
    returns = []
    for part in data.episodes():
        reward = part.reward[part.valid].double()
        returns.append(float((reward * gamma ** torch.arange(len(reward))).sum()))
    found = torch.tensor(returns)
    half = NORMAL * float(found.std()) / sqrt(len(returns)) if len(returns) > 1 else 0.0
    return Estimate(float(found.mean()), float(found.mean()) - half, float(found.mean()) + half)
