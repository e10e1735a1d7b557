"""Rows of copies: what agents that learn together have seen and got at one time is one row, kept and drawn as a whole.

[T, B, ...] of slots becomes [T, C, N, ...] of C copies with N agents. A row's reward is the team's; it is valid while
some agent lives, and ended when the last one is. The central state is stored once. Beside what `explore` said,
`extras` have of each agent [T, C, N]: `alive` (its row is a decision to learn from), `survives` (it was alive, and its
episode did not terminate there: the next row bootstraps it), `starts` (its memory begins there), `rewards` (its own).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ganglion import ops
from ganglion.config.model import Folded
from ganglion.core import CENTRAL, Buffer, EnvSpec, Obs, Past, Progress, Row, State, central
from ganglion.errors import UserError
from ganglion.ops.agents import by_copy, by_slot

Pay = Literal["sum", "mean"]  # how the rewards of agents become the reward of their team
OwnPay = Literal["sum", "mean", "own"]  # the same, or no team at all
TEAM = {"bonus": "it learns from the rewards of a team, and a bonus is of single agents"}  # what its algorithms lack
SUMS = {"n_step": "its returns weigh sums of every length (lam)"}
ONE_STEP = {"n_step": "its goals look one step ahead"}
OWN = ("alive", "survives", "starts", "rewards")


def team_pay(reward: OwnPay) -> Pay:
    """How rows of copies sum up rewards; where each agent learns from its own, that is but told."""
    return "sum" if reward == "own" else reward


@dataclass(frozen=True)
class ByCopy:
    """A buffer of copies: what a recipe plugs in."""

    inner: Folded
    reward: Pay = "sum"

    def build(self, spec: EnvSpec, device: torch.device) -> Buffer:
        if self.inner.cfg.rated:
            raise UserError("algo.replay.initial: error is of single agents; those that learn together take largest.")
        copies = replace(spec, slots=spec.copies, agents=("team",), frame=None)
        return CopyBuffer(self.inner.build(copies, device), spec, self.reward)


class CopyBuffer:
    """Brings rows of slots together before they are kept."""

    def __init__(self, inner: Buffer, spec: EnvSpec, reward: Pay) -> None:
        self.inner, self.agents, self.reward, self.fresh = inner, len(spec.agents), reward, inner.fresh
        self.central = central(spec.obs) is not None

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        obs, past = ahead
        seen = ops.select(self.seen(ops.map_tree(lambda x: x[None], obs)), 0)
        memory, start = by_copy((past.memory, past.start), self.agents)
        self.inner.push(self.joined(rows), (seen, Past(memory, start.all(-1))), at)

    def seen(self, obs: Obs) -> Obs:
        """Observations by copy; what is central once."""
        joined = by_copy(obs, self.agents)
        if self.central:
            joined[CENTRAL] = ops.map_tree(lambda x: x[:, :, :1], joined[CENTRAL])
        return joined

    def joined(self, rows: Row) -> Row:
        """Rows of slots as rows of copies."""
        r: Row = by_copy(rows._replace(obs=()), self.agents)
        goes_on = r.valid & ~(r.terminated | r.truncated)
        left = r.valid & r.truncated & ~r.terminated
        valid, cut = r.valid.any(-1), left.any(-1)
        ended = valid & ~goes_on.any(-1)
        reward = r.reward.sum(-1) if self.reward == "sum" else r.reward.mean(-1)
        own = {"alive": r.valid, "survives": goes_on | left, "starts": r.start, "rewards": r.reward}
        if taken := [name for name in OWN if name in r.extras]:
            raise ValueError(f"extras: {taken[0]!r} is what rows of copies have of their own; give it another name")
        joined = Row(
            self.seen(rows.obs), r.action, reward, ended & ~cut, ended & cut, valid, r.start.all(-1),
            {**r.extras, **own}, r.memory,
        )  # fmt: skip
        made: Row = ops.map_tree(lambda x: x.contiguous(), joined)
        return made

    def rows(self) -> Row:
        """As they came."""
        r, obs = self.inner.rows(), self.inner.rows().obs
        if self.central:
            obs = {**obs, CENTRAL: ops.map_tree(self.for_all, obs[CENTRAL])}
        said = {name: x for name, x in r.extras.items() if name not in OWN}
        over, cut = (self.for_all(x[:, :, None]) for x in (r.terminated, r.truncated))
        reward, valid, start = (r.extras[name] for name in ("rewards", "alive", "starts"))
        made: Row = by_slot(Row(obs, r.action, reward, over, cut, valid, start, said, r.memory))
        return made

    def for_all(self, x: Tensor) -> Tensor:
        """What is of a copy, for each of its agents: [T, C, 1, ...] -> [T, C, N, ...]."""
        return x.expand(*x.shape[:2], self.agents, *x.shape[3:])

    # ------------------------------------------------------------ as the buffer inside does

    @property
    def wants(self) -> int:
        return self.inner.wants

    @property
    def history(self) -> int:
        return self.inner.history

    def room(self) -> int:
        return self.inner.room()

    def restarted(self, rows: Row) -> Row:
        return self.inner.restarted(rows)

    def skip_check(self) -> None:
        self.inner.skip_check()

    def ready(self) -> bool:
        return self.inner.ready()

    def take(self, uniform: Tensor, at: Progress) -> Any:
        return self.inner.take(uniform, at)

    def recent(self, rollouts: int) -> Any:
        return self.inner.recent(rollouts)

    def feedback(self, index: Tensor, priority: Tensor) -> None:
        self.inner.feedback(index, priority)

    def release(self) -> None:
        self.inner.release()

    def metrics(self) -> Mapping[str, float]:
        return self.inner.metrics()

    def state(self) -> State:
        return self.inner.state()

    def restore(self, state: State) -> None:
        self.inner.restore(state)


def check_minibatches(minibatches: int, spec: EnvSpec, horizon: int, recurrent: bool) -> None:
    """Refuses more minibatches than there are rows of copies; a memory learns from whole ones."""
    rows = spec.copies * (1 if recurrent else horizon)
    what = "the copies of the game" + (" (a memory learns from whole ones)" if recurrent else " * algo.horizon")
    if rows < minibatches:
        raise UserError(f"algo.minibatches: {minibatches} is more than {what} = {rows}; lower it to {rows} or less.")
