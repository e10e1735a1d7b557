"""Hindsight experience replay (Andrychowicz et al. 2017): rows of a goal environment, as if what was achieved had been
the goal. A row is relabelled when it is sampled, with a goal that its own episode, or any, achieved.

Observations are those of gymnasium-robotics: Dicts with `achieved_goal` and `desired_goal`. Rows are stored as they
came, with their own goal and reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ganglion.buffers.storage import Fetched, SampledRing
from ganglion.config import NonNegative, Real, RelabelConfig, Share, register
from ganglion.config.schedules import constant
from ganglion.core import Composite, EnvSpec, Progress, Row, Space
from ganglion.errors import UserError

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
OPEN = 1 << 62  # the last row of an episode that goes on
CHECKED = 16  # first samples whose rewards are compared with the rule


@register("relabel", "hindsight")
class HindsightConfig(RelabelConfig):
    """Which goals rows are given, and what a reward is worth under them."""

    strategy: Literal["future", "final", "episode", "random"] = "future"  # where goals come from
    share: Share = constant(0.8)  # of the rows that are given one: k / (k + 1) of the paper's k = 4
    reward: Literal["sparse", "distance"] = "sparse"
    threshold: NonNegative = 0.05  # sparse: the distance at which a goal is reached
    reached: Real = 0.0  # sparse: the reward there
    missed: Real = -1.0  # and elsewhere
    ends: bool = False  # whether reaching the goal terminates an episode

    def worth(self, achieved: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """The reward [T, B] of having achieved something [T, B, ...] under a goal, and whether that is reached. Written
        anew for rules of another form, in a kind of one's own."""
        distance = (achieved.float() - goal.float()).flatten(2).norm(dim=-1)
        there = distance <= self.threshold
        if self.reward == "distance":
            return -distance, there
        return torch.where(there, self.reached, self.missed), there

    def build(self, spec: EnvSpec, ring: SampledRing, history: int) -> Hindsight:
        return Hindsight(self, spec, ring, history)


class Hindsight:
    """Knows the episode of each row of a ring, and relabels what is fetched from it."""

    def __init__(self, cfg: HindsightConfig, spec: EnvSpec, ring: SampledRing, history: int) -> None:
        self.cfg, self.ring, self.slots = cfg, ring, spec.slots
        parts: Mapping[str, Space] = {}
        match spec.obs:
            case Composite(items):
                parts = items
        if not {ACHIEVED, DESIRED} <= parts.keys() or history:
            raise UserError(
                f"algo.replay.relabel: needs an environment whose observations have the parts {ACHIEVED} and "
                f"{DESIRED}, without stacks of frames; {spec.name} has {', '.join(parts) or 'one part'}."
            )
        length, device = ring.length, ring.device

        def new(rows: int) -> Tensor:
            return torch.zeros(rows, spec.slots, dtype=torch.int64, device=device)

        self.episode = new(length)  # of each row, counted by slot
        self.first, self.last = new(length + 1), new(length + 1)  # rows of the episodes, by number; one that no one has
        self.last.fill_(OPEN)
        self.count = new(1)
        self.dice = torch.empty(0)  # two uniform numbers per sequence: whether it is relabelled, and with which goal
        self.share, self.checks = 0.0, CHECKED
        self.chosen, self.goal, self.within = torch.empty(0), torch.empty(0), torch.empty(0)  # of the last sample

    # ------------------------------------------------------------ in

    def stored(self, start: Tensor, valid: Tensor, pushed: int) -> None:
        """Rows [T, B] that are about to be stored; `pushed`: how many have been before."""
        start, dead = start.to(self.ring.device), ~valid.to(self.ring.device)
        rows, length = len(start), self.ring.length
        times = torch.arange(pushed, pushed + rows, device=start.device)[:, None].expand(start.shape)
        number = self.count + start.long().cumsum(0)
        self.count = number[-1:].clone()
        self.episode[times[:, 0] % length] = number
        begun = torch.where(start, number % length, length)
        self.first.scatter_(0, begun, times)
        self.last.scatter_(0, begun, OPEN)
        self.last.scatter_reduce_(0, torch.where(dead, number % length, length), times, "amin")

    def rebuilt(self, rows: Row) -> None:
        """From the rows of a ring that was restored."""
        first, length = self.ring.pushed - self.ring.filled, self.ring.length
        order = torch.arange(first, self.ring.pushed, device=self.ring.device) % length
        self.count.zero_()
        self.first.fill_(first)
        self.last.fill_(OPEN)
        if len(order):
            self.stored(rows.start[order], rows.valid[order], first)

    # ------------------------------------------------------------ out

    def drawn(self, dice: Tensor, at: Progress) -> None:
        """The random numbers of the next sample, two per sequence."""
        self.dice, self.share = dice, self.cfg.share.at(at)

    def rewards(self, index: Tensor, got: Fetched) -> None:
        """Chooses goals for the sequences at flat positions [1, N], and changes rewards and endings of what was fetched
        of them, [T, N]."""
        ring, newest = self.ring, self.ring.pushed - 1
        slot, place = index[0] % self.slots, index[0] // self.slots
        now = newest - (newest - place) % ring.length  # [N] the row, counted over the run
        number = self.episode[place, slot] % ring.length
        last = self.last[number, slot].clamp(max=newest)
        took, which = self.dice.view(2, -1)
        goal_row, goal_slot = self.source(which, now, number, slot, last)
        self.goal = self.look(goal_row % ring.length * self.slots + goal_slot)  # [1, N, ...]
        rows = len(got.rows.reward)
        self.within = now + torch.arange(rows, device=now.device)[:, None] <= last  # [T, N] rows of this episode
        self.chosen = (took < self.share) & (last > now)
        seen = got.rows.obs if ring.pack else ring.read(ring.held.obs, ring.span(index, got), "goals")
        achieved, own = seen[ACHIEVED][1:], seen[DESIRED][:-1]
        if self.checks:
            self.check(achieved, own, got)
        goal = self.goal.expand(rows - 1, *self.goal.shape[1:])
        reward, there = self.cfg.worth(achieved, goal)
        change = self.chosen & self.within[1:]
        got.rows.reward[:-1] = torch.where(change, reward, got.rows.reward[:-1])
        if self.cfg.ends:
            self.end(got, change, there)

    def end(self, got: Fetched, change: Tensor, there: Tensor) -> None:
        """Reaching the goal terminates; where another goal did, the episode is cut, and its last observation has a
        value."""
        discount, cut = got.derived.discount, got.derived.cut[:-1]
        discount.copy_(torch.where(change, self.ring.gamma * ~there, discount))
        cut.copy_(cut | (change & there))

    def source(self, which: Tensor, now: Tensor, number: Tensor, slot: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """The row, and its slot, whose achievement is the goal of each sequence, [N]."""
        ring = self.ring
        oldest = ring.pushed - ring.filled
        match self.cfg.strategy:
            case "final":
                return last, slot
            case "random":
                place = (which * ring.filled * self.slots).long()
                return oldest + place // self.slots, place % self.slots
            case "future":
                first = now
            case "episode":
                first = self.first[number, slot].clamp(min=oldest)
        count = (last - first).clamp(min=1)  # later rows, of which the last shows what came of the last action
        return first + 1 + (which * count).long().clamp(max=count - 1), slot

    def look(self, place: Tensor) -> Tensor:
        """What was achieved at flat positions [N]: [1, N, ...]."""
        if self.ring.pack:
            return self.ring.fetch(place[None], 1, 1).rows.obs[ACHIEVED].clone()
        found: Tensor = self.ring.read(self.ring.held.obs[ACHIEVED], place[None], "goal")
        return found

    def check(self, achieved: Tensor, own: Tensor, got: Fetched) -> None:
        """Refuses a rule that is not the environment's."""
        self.checks -= 1
        said, came = self.cfg.worth(achieved, own)[0], got.rows.reward[:-1]
        wrong = ((said - came).abs() > 1e-4 + 1e-4 * came.abs()) & got.rows.valid[:-1]
        if wrong.any():
            row = wrong.nonzero()[0].tolist()
            raise UserError(
                f"algo.replay.relabel: by its rule a row is worth {float(said[*row]):g}, and the environment gave "
                f"{float(came[*row]):g}. Set reward, threshold, reached and missed as the environment has them, and "
                "leave rewards alone in algo.processor."
            )

    def goals(self, data: Any) -> Any:
        """A transition with the goals that were chosen."""
        later = self.within[1:] if len(data.reward) > 1 else self.within[:1]
        obs = self.aimed(data.obs, self.within[: len(data.reward)])
        return data._replace(obs=obs, next_obs=self.aimed(data.next_obs, later))

    def aimed(self, obs: Any, within: Tensor) -> Any:
        """Observations with their goals, [T, N]; rows of a later episode keep theirs."""
        own = obs[DESIRED]
        change = (self.chosen & within).reshape(*within.shape, *(1,) * (own.dim() - 2))
        return {**obs, DESIRED: torch.where(change, self.goal.to(own.dtype), own)}
