"""The Explorer: walks the slots of a world with the Agents that sit in its seats, and hands on what happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import maxsize
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import (
    Acted, Action, Env, Episode, Faults, Knobs, LogData, Noise, Obs, Past, Processor, Progress, Pure, Row, Sink, State,
    Step, join, under,
)  # fmt: skip
from ganglion.fast.direct import Fn
from ganglion.faults import close_all
from ganglion.runtime.agent import PLAYER, Agent
from ganglion.runtime.randomness import SlotNoise, Stream, derive

MOST = 64  # steps of one block in an ordinary environment
FEW = 256  # numbers that Python adds up sooner than torch
STRIDE = 8  # steps of a pure world in one compiled function


class Seat:
    """A player on a fixed block of slots: its Agent, what its slots remember, its random stream, where its rows go."""

    def __init__(
        self, agent: Agent, processor: Processor, sink: Sink, seed: int, count: int, slots: slice | None = None
    ) -> None:
        """`slots`: which of the environment's; None: all."""
        self.agent, self.processor, self.sink, self.count, self.slots = agent, processor, sink, count, slots
        name = "explore" if agent.player == PLAYER else f"explore/{agent.player}"
        self.stream = Stream(seed, name, agent.device)
        self.noise = SlotNoise(self.stream, agent.draws, count)
        self.past = agent.start(count)

    def own(self, tree: Any, dim: int = 0) -> Any:
        """The part of this seat, of trees [B, ...] or, along `dim` 1, [T, B, ...]."""
        return part(tree, self.slots, dim)

    def push(self, before: Step, after: Step, acted: Acted, past: Past, ahead: Obs, at: Progress) -> None:
        """Hands on a block: what all slots saw and got, [T, B, ...], and what this seat remembered and did."""
        if isinstance(before.acts, Tensor):
            acted = acted._replace(extras={**acted.extras, "acts": self.own(before.acts, 1)})
        rows = self.processor(self.own(before, 1), past, acted, self.own(after, 1))
        self.sink.push(rows, (self.own(ahead), self.past._replace(carried=())), at)

    def state(self) -> State:
        past = State(ops.flatten_names(self.past._asdict()))
        return join({"noise": self.noise.state(), "past": past, "processor": self.processor.state()})

    def restore(self, state: State) -> None:
        self.noise.restore(under(state, "noise"))
        self.processor.restore(under(state, "processor"))
        self.past = ops.unflatten(self.past, ops.to_device(under(state, "past").tensors, self.agent.device))


class Nowhere:
    """The sink of a player that does not learn."""

    def push(self, rows: Row, ahead: tuple[Obs, Past], at: Progress) -> None:
        """Forgets them."""

    def room(self, at: Progress, slots: int) -> int:
        return maxsize


def part(tree: Any, slots: slice | None, dim: int = 0) -> Any:
    """Some slots of trees [B, ...] or, along `dim` 1, [T, B, ...]; None: all."""
    if slots is None:
        return tree
    where = (slice(None),) * dim + (slots,)
    return ops.map_tree(lambda x: x[where], tree)


def placed(acted: Sequence[Acted], places: Sequence[slice | None], slots: int) -> Action:
    """The actions of all seats, each on its slots."""
    if len(acted) == 1:
        return acted[0].action
    whole = ops.map_tree(lambda x: x.new_empty((slots, *x.shape[1:])), acted[0].action)
    for own, place in zip(acted, places, strict=True):
        ops.map_tree(lambda x, given: x.copy_(given), part(whole, place), own.action)
    return whole


class Walked(NamedTuple):
    """What several steps of a pure world left."""

    seen: Step  # [T + 1, B, ...], from what was seen first
    acted: tuple[Acted, ...]  # of each seat, [T, B, ...]; its memory is the last
    memory: tuple[Any, ...]  # of each seat, before each row, [T, B, size]
    world: Any
    ended: Tensor  # [seats, 3]: how many episodes, and the sums of their totals and lengths


class Turn:
    """One step of a pure world and of the agents in it, as a pure function."""

    def __init__(self, pure: Pure, seats: Sequence[Seat], slots: int) -> None:
        self.pure, self.slots = pure, slots
        self.agents, self.places = [seat.agent for seat in seats], [seat.slots for seat in seats]

    def __call__(
        self, world: Any, before: Step, pasts: tuple[Past, ...], knobs: tuple[Knobs, ...], noise: tuple[Noise, ...],
        ended: Tensor,
    ) -> tuple[Any, Step, tuple[Acted, ...], Tensor]:  # fmt: skip
        acted = tuple(
            agent.explore(part(before.obs, place), agent.paid(past, part(before.reward, place)), own, dice)
            for agent, place, past, own, dice in zip(self.agents, self.places, pasts, knobs, noise, strict=True)
        )
        world, after = self.pure.turn(world, placed(acted, self.places, self.slots))
        over, total, length = self.pure.score(world)
        score = torch.stack((torch.ones_like(total), total, length.to(total.dtype)))
        return world, after, acted, ended + score.masked_fill(~over, 0.0)


class Walk:
    """As many steps as there is noise for, as one pure function."""

    def __init__(self, turn: Fn, seats: Sequence[Seat]) -> None:
        self.turn, self.places = turn, [seat.slots for seat in seats]

    @torch.no_grad()
    def __call__(
        self, world: Any, now: Step, pasts: tuple[Past, ...], knobs: tuple[Knobs, ...], noise: tuple[Noise, ...]
    ) -> Walked:
        steps, acts, memory = [now], [], []
        ended = torch.zeros(3, *now.reward.shape, dtype=torch.float64, device=now.reward.device)
        for t in range(len(noise[0].uniform)):
            dice = tuple(Noise(own.uniform[t : t + 1], own.normal[t : t + 1]) for own in noise)
            world, after, acted, ended = self.turn(world, steps[-1], pasts, knobs, dice, ended)
            acts.append(acted)
            memory.append(tuple(past.memory for past in pasts))
            starts = ~steps[-1].valid[None]
            pasts = tuple(
                Past(own.memory, part(starts, place, 1), own.carried)
                for own, place in zip(acted, self.places, strict=True)
            )
            steps.append(after)
        seats = range(len(self.places))
        moves = tuple(in_time([own[k] for own in acts]) for k in seats)
        memories = tuple(ops.concat([own[k] for own in memory]) for k in seats)
        sums = torch.stack([part(ended, place, 1).sum(1) for place in self.places])
        return Walked(ops.stack(steps), moves, memories, world, sums)


class Explorer:
    """Env + Seats -> Sinks. A block is as many steps as pass before a learner's turn; one where functions are eager."""

    def __init__(self, env: Env, seats: Sequence[Seat], seed: int, stride: int = STRIDE) -> None:
        """`stride`: steps of a pure world that are one function."""
        self.env, self.spec, self.seats, self.seed = env, env.spec, tuple(seats), seed
        self.engine = engine = self.seats[0].agent.engine
        self.places = [seat.slots for seat in self.seats]
        self.most = MOST if engine.device.type == "cpu" else 1
        self.pure, self.stride = env.pure, stride
        self.walks: dict[int, Fn] = {}
        if self.pure is not None:
            walk = Walk(engine.fuse(Turn(self.pure, self.seats, self.spec.slots)), self.seats)
            self.walks = {count: engine.wrap(walk, f"walk/{count}") for count in {1, stride}}
        self.now: Step | None = None  # what the slots see
        self.shown: tuple[Step | None, Any] = None, None  # the same as a block of one step, where it was made

    def step(self, at: Progress) -> LogData:
        """A block of actions of every slot."""
        now = self.begin()
        count = self.count(at)
        if self.pure is not None and self.engine.walks:
            valid, episodes = self.stride_on(now, count, at)
        else:
            valid, episodes = self.step_on(now, count, at)
        ended = at.episodes + sum(episode.many for episode in episodes)
        return LogData("collect", Progress(at.env_steps + valid, at.opt_steps, ended, *at[3:]), {}, episodes)

    def begin(self) -> Step:
        """What the slots see; their first episodes start here."""
        if self.now is None:
            self.now = self.env.reset(derive(self.seed, "env"))
        return self.now

    def count(self, at: Progress) -> int:
        """How many steps to take: none that a learner would not have allowed."""
        if not self.engine.on:
            return 1
        room = min(seat.sink.room(at, self.spec.slots) for seat in self.seats)
        if self.pure is None:
            return min(room, self.most)
        return self.stride if room >= self.stride else 1

    # ------------------------------------------------------------ an environment, step by step

    def step_on(self, now: Step, count: int, at: Progress) -> tuple[int, tuple[Episode, ...]]:
        """So many steps of an environment."""
        env, seats = self.env, self.seats
        knobs = [seat.agent.knobs(at) for seat in seats]
        steps, acts, pasts, lost = [now], [], [], []
        for _ in range(count):
            before = steps[-1]
            acted = [
                s.agent.act(s.own(before.obs), s.agent.paid(s.past, s.own(before.reward)), own, s.noise.next())
                for s, own in zip(seats, knobs, strict=True)
            ]
            steps.append(env.step(placed(acted, self.places, self.spec.slots)))
            acts.append(acted)
            pasts.append([seat.past for seat in seats])
            lost.append(env.faults.lost)
            if env.faults.count > env.faults.most:  # the run ends here, and is saved
                break
            starts = ~before.valid.to(self.engine.device).unsqueeze(0)
            for seat, own in zip(seats, acted, strict=True):
                seat.past = Past(own.memory, seat.own(starts, 1), own.carried)
        self.now = steps[-1]
        seen, after = self.in_blocks(steps)
        if any(gone is not None for gone in lost):  # actions that came to nothing, for their episode was lost
            none = torch.zeros_like(now.valid)
            seen = seen._replace(valid=seen.valid & ~torch.stack([none if gone is None else gone for gone in lost]))
        for k, seat in enumerate(seats):
            seat.push(seen, after, *remembered([own[k] for own in acts], [own[k] for own in pasts]), self.now.obs, at)
        return counted(decided(seen)), self.named(env.episodes())

    def in_blocks(self, steps: Sequence[Step]) -> tuple[Step, Step]:
        """What was seen before and after each action, [T, B, ...]."""
        if len(steps) > 2:
            seen = ops.stack(steps)
            return ops.map_tree(lambda x: x[:-1], seen), ops.map_tree(lambda x: x[1:], seen)
        known, before = self.shown
        after = timed(steps[1])
        self.shown = steps[1], after  # what comes after this action comes before the next
        return before if known is steps[0] else timed(steps[0]), after

    def named(self, episodes: Sequence[Episode]) -> tuple[Episode, ...]:
        """Who played them, where there are several players."""
        if len(self.seats) == 1:
            return tuple(episodes)
        slots = range(self.spec.slots)
        who = {slot: seat.agent.player for seat in self.seats for slot in slots[seat.slots or slice(None)]}
        return tuple(episode._replace(player=who[episode.slot]) for episode in episodes)

    # ------------------------------------------------------------ a pure world, several steps as one function

    @torch.no_grad()
    def stride_on(self, now: Step, count: int, at: Progress) -> tuple[int, tuple[Episode, ...]]:
        """So many steps of a pure world."""
        assert self.pure is not None
        seats = self.seats
        knobs, noise = (tuple(x) for x in zip(*((s.agent.knobs(at), s.noise.steps(count)) for s in seats), strict=True))
        pasts = tuple(seat.past for seat in seats)
        walked: Walked = self.walks[count](self.pure.now(), now, pasts, knobs, noise)
        self.pure.keep(walked.world)
        self.now = ops.select(walked.seen, -1)
        before, after = ops.map_tree(lambda x: x[:-1], walked.seen), ops.map_tree(lambda x: x[1:], walked.seen)
        for seat, acted, memory, past in zip(seats, walked.acted, walked.memory, pasts, strict=True):
            starts = ~before.valid
            start = torch.cat([past.start, seat.own(starts[:-1], 1)]) if count > 1 else past.start
            seat.past = Past(acted.memory, seat.own(starts[-1:], 1), acted.carried)
            seat.push(before, after, acted, Past(memory, start), self.now.obs, at)
        valid, *ended = torch.cat([decided(before).sum(dtype=torch.float64)[None], walked.ended.flatten()]).tolist()
        names = [seat.agent.player if len(seats) > 1 else "" for seat in seats]
        sums = zip(names, ended[::3], ended[1::3], ended[2::3], strict=True)
        return int(valid), tuple(Episode(-1, s / n, long / n, {}, int(n), name) for name, n, s, long in sums if n)

    # ------------------------------------------------------------ as a Source

    @property
    def faults(self) -> Faults:
        return self.env.faults

    def numbers(self) -> Mapping[str, float]:
        return self.faults.numbers()

    def summary(self) -> Mapping[str, str]:
        return {}

    def close(self) -> None:
        close_all([self.env, *(seat.processor for seat in self.seats)])

    def state(self) -> State:
        parts = {f"seats/{seat.agent.player}": seat.state() for seat in self.seats}
        if self.now is not None:
            parts |= {"now": State(ops.flatten_names(self.now)), "env": self.env.state()}
        return join(parts)

    def restore(self, state: State) -> None:
        for seat in self.seats:
            seat.restore(under(state, f"seats/{seat.agent.player}"))
        seen = ops.nest(under(state, "now").tensors)
        self.now = Step(**seen) if "obs" in seen else None
        if self.now is not None:
            self.env.restore(under(state, "env"))


def decided(seen: Step) -> Tensor:
    """Which rows are decisions."""
    return seen.valid & seen.acts if isinstance(seen.acts, Tensor) else seen.valid


def timed(step: Step) -> Step:
    """[B, ...] -> [1, B, ...]."""
    block: Step = ops.map_tree(lambda x: x.unsqueeze(0), step)
    return block


def counted(flags: Tensor) -> int:
    """How many of [T, B] are true; a few are counted sooner one by one."""
    return sum(map(sum, flags.tolist())) if flags.is_cpu and flags.numel() <= FEW else int(flags.sum())


def remembered(acts: Sequence[Acted], pasts: Sequence[Past]) -> tuple[Acted, Past]:
    """What was done, and remembered before it, [T, B, ...]."""
    past = pasts[0] if len(pasts) == 1 else Past(*ops.concat([(past.memory, past.start) for past in pasts]))
    return in_time(acts), past


def in_time(acts: Sequence[Acted]) -> Acted:
    """Several moments [B, ...] as one [T, B, ...]; memory and what is carried are those after the last."""
    each = [(acted.action, acted.extras) for acted in acts]
    action, extras = ops.stack(each) if len(each) > 1 else ops.map_tree(lambda x: x.unsqueeze(0), each[0])
    return Acted(action, extras, acts[-1].memory, acts[-1].carried)
