"""What a user plugs in, written against the contracts alone: a buffer, a processor with state, an algorithm that learns
from rollouts and extras of a replay. Used as `--import tests.contract.plugs`."""

from __future__ import annotations

from collections.abc import Mapping
from sys import maxsize

import torch
from pydantic import Field
from torch import Tensor

from ganglion import ops
from ganglion.algos.dqn import DQN, DQNConfig
from ganglion.buffers import RowsConfig
from ganglion.buffers.demonstrated import LABEL
from ganglion.buffers.processors import Rows
from ganglion.config import BufferConfig, Fold, ProcessorConfig, register
from ganglion.core import (
    Acted,
    Draws,
    EnvSpec,
    Knobs,
    Noise,
    Obs,
    Past,
    Prediction,
    Progress,
    Recipe,
    Rollout,
    Row,
    Sample,
    State,
    Step,
    Transition,
    Update,
)
from ganglion.errors import UserError

# ------------------------------------------------------------ a buffer


@register("buffer", "newest")
class NewestConfig(BufferConfig):
    """The newest rows alone, drawn uniformly."""

    length: int = Field(60, ge=2)
    batch: int = Field(16, ge=1)

    def fitted(self, fold: Fold) -> Fold:
        if fold.n > 1 or fold.recurrent or fold.rollouts:
            raise UserError("algo.replay.kind: newest has transitions of one step, without a memory.")
        return fold

    def build(self, spec: EnvSpec, device: torch.device, fold: Fold) -> Newest:
        return Newest(self, fold.gamma)


class Newest:
    fresh, history = False, 0

    def __init__(self, cfg: NewestConfig, gamma: float) -> None:
        self.cfg, self.gamma = cfg, gamma
        self.kept: Row | None = None  # [at most `length`, B, ...]

    @property
    def wants(self) -> int:
        return self.cfg.batch

    def room(self) -> int:
        return maxsize

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        both = rows if self.kept is None else ops.concat([self.kept, rows])
        self.kept = ops.map_tree(lambda x: x[-self.cfg.length :].clone(), both)

    def restarted(self, rows: Row) -> Row:
        return rows._replace(start=torch.cat([torch.ones_like(rows.start[:1]), rows.start[1:]]))

    def ready(self) -> bool:
        return self.kept is not None and len(self.kept.reward) > 1

    def take(self, uniform: Tensor, at: Progress) -> Sample[Transition]:
        assert self.kept is not None
        k, (length, slots) = self.kept, self.kept.reward.shape
        index = (uniform * (length - 1) * slots).long()[None]  # [1, N]
        time, slot = index // slots, index % slots
        first: Row = ops.map_tree(lambda x: x[time, slot], k)
        discount, cut = self.gamma * ~first.terminated, first.terminated | first.truncated
        past, after = Past((), first.start), ops.map_tree(lambda x: x[time + 1, slot], k.obs)
        what = first.obs, first.action, first.reward, discount, after, torch.zeros_like(index)
        data = Transition(*what, past, past, first.valid, cut, first.extras)
        return Sample(data, index, first.valid.float())

    def feedback(self, index: Tensor, priority: Tensor) -> None: ...

    def rows(self) -> Row:
        raise TypeError("rows are seen as they are pushed")

    def release(self) -> None: ...

    def metrics(self) -> Mapping[str, float]:
        return {"rows": 0.0 if self.kept is None else float(self.kept.reward.numel())}

    def state(self) -> State:
        return State(ops.flatten_names(self.kept))

    def restore(self, state: State) -> None:
        tree = {"extras": {}, **ops.nest(state.tensors)}
        self.kept = Row(**tree, memory=()) if state.tensors else None


# ------------------------------------------------------------ a processor that remembers


@register("processor", "centred")
class CentredConfig(ProcessorConfig):
    """Rewards less what they were on average so far."""

    def build(self, spec: EnvSpec, device: torch.device) -> Centred:
        return Centred()


class Centred:
    def __init__(self) -> None:
        self.total, self.count = torch.zeros((), dtype=torch.float64), 0

    def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
        rewards = []
        for reward, valid in zip(after.reward, before.valid, strict=True):  # one row after the other, however many
            self.total = self.total + reward[valid].double().sum().cpu()
            self.count += int(valid.sum())
            rewards.append(reward - float(self.total) / max(self.count, 1))
        flags = after.terminated, after.truncated, before.valid, past.start
        return Row(before.obs, acted.action, torch.stack(rewards), *flags, acted.extras, past.memory)

    def close(self) -> None:
        """It keeps nothing back."""

    def state(self) -> State:
        return State({"total": self.total}, {"count": self.count})

    def restore(self, state: State) -> None:
        self.total, self.count = state.tensors["total"].clone(), int(state.scalars["count"])


@register("processor", "self-labelled")
class SelfLabelledConfig(ProcessorConfig):
    """Rows whose own actions are their labels."""

    def build(self, spec: EnvSpec, device: torch.device) -> SelfLabelled:
        return SelfLabelled(RowsConfig())


class SelfLabelled(Rows):
    def __call__(self, before: Step, past: Past, acted: Acted, after: Step) -> Row:
        labels = ops.flatten_names({LABEL: acted.action})
        return super().__call__(before, past, acted._replace(extras={**acted.extras, **labels}), after)


# ------------------------------------------------------------ an algorithm that learns from extras in a replay


@register("algo", "retrace")
class RetraceConfig(DQNConfig):
    """Q-learning along whole traces (Munos et al. 2016): a row says how probable its action was."""

    length: int = Field(6, ge=1)  # rows of a rollout
    minibatches: int = Field(1, ge=1)

    def build(self, spec: EnvSpec) -> Retrace:
        return Retrace(self, spec)

    def recipe(self, spec: EnvSpec) -> Recipe:
        return Recipe(self.processor, self.replay.rollouts(self.gamma, self.length), self.limiter)


class Retrace(DQN):
    cfg: RetraceConfig

    def draws(self) -> Draws:
        return super().draws()._replace(plan=ops.shuffle_draws(1))

    def explore(self, prediction: Prediction, knobs: Knobs, noise: Noise) -> Acted:
        acted = super().explore(prediction, knobs, noise)
        greedy, count = acted.action == prediction.dist.mode(), prediction.dist.q.shape[-1]
        chance = knobs["epsilon"] / count + torch.where(greedy, 1 - knobs["epsilon"], 0.0)
        return acted._replace(extras={**acted.extras, "mu": chance.log()})

    def plan(self, rows: int, noise: Noise) -> Tensor:
        return (
            ops.shuffled(rows, 1, self.cfg.minibatches, noise)
            if self.cfg.minibatches > 1
            else super().plan(rows, noise)
        )

    def learn(self, mini: Sample[Rollout], knobs: Knobs, noise: Noise) -> Update:  # type: ignore[override]
        t = mini.data
        q = self.model.value(t.obs, t.past)[0]
        taken = ops.pick(q, t.action)
        with torch.no_grad():
            lagged = self.target.value(t.obs, t.past)[0]
            last = self.target.value(*t.last)[0]
            after = torch.cat([lagged[1:], last]).amax(-1)  # the greedy value of what follows each row
            greedy = t.action == q.argmax(-1)
            ratio = torch.where(greedy, 0.0, -torch.inf) - t.extras["mu"]
            goal = ops.retrace(ratio, t.reward, ops.pick(lagged, t.action), after, t.discount, t.cut)
        error = taken - goal
        loss = ops.weighted_mean(error.square(), mini.weight)
        self.optim.step(loss)
        return Update({"loss": loss.detach()}, ops.sequence_priority(error.detach(), mini.weight))
