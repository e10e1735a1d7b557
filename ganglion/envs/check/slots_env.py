"""Environments of the contract, `core.Env`: rows, endings, repetition and resuming of B slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ganglion.core import Action, Composite, Env, Obs, Space, State, Step
from ganglion.envs import legal_actions
from ganglion.envs.check import cost
from ganglion.envs.check.findings import Broken, Finding, failed, passed, raised, short, warned
from ganglion.envs.check.rows import Trace
from ganglion.envs.gym_arrays import MASK, Array
from ganglion.envs.gym_spaces import DTYPES, to_gym
from ganglion.errors import UserError

Build = Callable[[], Env]
CONTRACT = "docs/environments.md, The contract."


class Observed(NamedTuple):
    """One reset or step of all slots, copied."""

    step: Step
    action: Action | None
    seconds: float
    touched: bool  # the call changed tensors that an earlier one had returned


Choose = Callable[[Step], Action]

# ------------------------------------------------------------ walking


class SlotsChooser:
    """Random legal actions for every slot."""

    def __init__(self, space: Space, slots: int, seed: int) -> None:
        self.space, self.slots = to_gym(space), slots
        self.space.seed(seed)
        self.dice = np.random.default_rng(seed)

    def __call__(self, before: Step) -> Action:
        mask = before.obs.get(MASK) if isinstance(before.obs, dict) else None
        masks = [None if mask is None else mapped_rows(mask, slot) for slot in range(self.slots)]
        rows = [legal_actions.sample(self.space, mask, self.dice) for mask in masks]
        return stacked(rows)


def stacked(rows: Sequence[Any]) -> Any:
    """One value per slot as a batch of tensors."""
    if isinstance(rows[0], dict):
        return {key: stacked([row[key] for row in rows]) for key in rows[0]}
    array = np.stack(rows)
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iu" else array)


def replayed(seen: Sequence[Observed]) -> Choose:
    """The actions of an earlier walk, in their order."""
    actions = iter([s.action for s in seen if s.action is not None])
    return lambda before: next(actions)


def restless(seen: Sequence[Observed]) -> Choose:
    """The same, but other actions in slots whose episode has ended, where they should be ignored."""
    actions = iter([s.action for s in seen if s.action is not None])

    def choose(before: Step) -> Action:
        action = next(actions)
        return mapped(lambda x: torch.where(_wide(before.valid.cpu(), x), x, x.flip(0)), action)

    return choose


def _wide(flags: Tensor, like: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (like.dim() - 1))


def mapped(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """A tree with every tensor changed."""
    if isinstance(tree, dict):
        return {key: mapped(change, part) for key, part in tree.items()}
    return change(tree)


def drive(env: Env, seed: int, choose: Choose) -> Iterator[Observed]:
    """Resets, then walks for ever."""
    start = perf_counter()
    raw = _called("reset", lambda: env.reset(seed))
    kept = copied(raw)
    yield Observed(kept, None, perf_counter() - start, False)
    while True:
        action = choose(kept)
        given = mapped(torch.clone, action)
        start = perf_counter()
        after = _called("step", lambda: env.step(given))  # noqa: B023
        seconds = perf_counter() - start
        touched = not same(raw, kept)
        raw, kept = after, copied(after)
        yield Observed(kept, action, seconds, touched)


def _called(name: str, call: Callable[[], Step]) -> Step:
    try:
        return call()
    except Exception as error:
        raise raised("calls", error, f"{name}()") from error


def copied(step: Step) -> Step:
    return Step(*(mapped(lambda x: x.detach().cpu().clone(), part) for part in step if not isinstance(part, tuple)))


def same(a: Step, b: Step) -> bool:
    """Whether two steps are equal bit for bit."""
    pairs = [(x, y) for x, y in zip(a[1:], b[1:]) if isinstance(x, Tensor) and isinstance(y, Tensor)]
    return same_tree(a.obs, b.obs) and all(torch.equal(x.cpu(), y.cpu()) for x, y in pairs)


def same_tree(a: Obs, b: Obs) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_tree(a[k], b[k]) for k in a)
    x, y = a.cpu(), b.cpu()
    return (
        x.shape == y.shape
        and x.dtype == y.dtype
        and np.array_equal(x.numpy(), y.numpy(), equal_nan=x.is_floating_point())
    )


# ------------------------------------------------------------ rows


def typed(env: Env, seen: Sequence[Observed]) -> Finding:
    """Whether every Step has the tensors the contract says."""
    slots = env.spec.slots
    wanted = {"reward": torch.float32, "terminated": torch.bool, "truncated": torch.bool, "valid": torch.bool}
    for s in seen[:50]:
        for name, dtype in wanted.items():
            tensor = getattr(s.step, name)
            if tensor.dtype != dtype or tuple(tensor.shape) != (slots,):
                got = f"{_dtype(tensor)} {list(tensor.shape)}"
                raise Broken(failed("rows", f"{name} should be {_name(dtype)} [{slots}], got {got}.", CONTRACT))
        wrong = shaped(env.spec.obs, s.step.obs, slots)
        if wrong:
            raise Broken(failed("rows", wrong, "make spec.obs say what is returned."))
    return passed("rows", f"the tensors of the contract, {slots} slots.")


def _dtype(tensor: Tensor) -> str:
    return _name(tensor.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def shaped(space: Space, obs: Obs, slots: int, at: str = "obs") -> str:
    """What is wrong with the tensors of an observation; empty where nothing is."""
    if isinstance(space, Composite):
        if not isinstance(obs, dict) or obs.keys() != space.items.keys():
            return f"{at} should have the keys {sorted(space.items)}, got {short(obs)}."
        parts = (shaped(part, obs[key], slots, f"{at}/{key}") for key, part in space.items.items())
        return next((wrong for wrong in parts if wrong), "")
    outside = to_gym(space)
    want = (slots, *(outside.shape or ()))
    dtype = DTYPES.get(np.dtype(outside.dtype).name) if isinstance(outside, spaces.Box) else None
    if not isinstance(obs, Tensor) or tuple(obs.shape) != want:
        return f"{at} should have the shape {list(want)}, got {list(getattr(obs, 'shape', []))}."
    if dtype is not None and obs.dtype != dtype:
        return f"{at} should be {_name(dtype)}, got {_dtype(obs)}."
    return ""


def pace(seen: Sequence[Observed]) -> cost.Pace:
    """What a step of one slot takes, as a part of all of them; resets are a part of steps here."""
    slots = seen[0].step.valid.shape[0]
    times = sorted(s.seconds / slots for s in seen[1:])
    return cost.Pace(times[len(times) // 2], seen[0].seconds, cost.trimmed(times))


def traces(seen: Sequence[Observed]) -> list[list[Trace]]:
    """Rows as the episodes of each slot."""
    return [_of_slot(seen, slot) for slot in range(seen[0].step.valid.shape[0])]


def _of_slot(seen: Sequence[Observed], slot: int) -> list[Trace]:
    found: list[Trace] = []
    live = False
    for s in seen:
        obs = mapped_rows(s.step.obs, slot)
        if not live:
            found.append(Trace())
        else:
            found[-1].rewards.append(float(s.step.reward[slot]))
            found[-1].terminated = bool(s.step.terminated[slot])
            found[-1].truncated = bool(s.step.truncated[slot])
        found[-1].obs.append(obs)
        found[-1].masks.append(legal_actions.mask_of(obs, None))
        live = bool(s.step.valid[slot])
    return found


def mapped_rows(tree: Obs, slot: int) -> Any:
    """One slot of a tree, as numpy arrays."""
    if isinstance(tree, dict):
        return {key: mapped_rows(part, slot) for key, part in tree.items()}
    row: Array = tree[slot].numpy()
    return row


def dead_rows(build: Build, seed: int, seen: Sequence[Observed], known: Sequence[Observed]) -> Finding:
    """Whether endings follow the contract: one dead row each, its action ignored; more where others play on."""
    several = len(build().spec.agents) > 1
    for count, (a, b) in enumerate(zip(seen, seen[1:])):
        before, after = a.step, b.step
        ended = after.terminated | after.truncated
        waits = ~before.valid & several
        if not torch.equal(after.valid | waits, ~ended | waits):
            return failed("autoreset", f"step {count}: valid should be false exactly where an episode ended.", CONTRACT)
        fresh = ~before.valid
        if bool((ended & fresh).any()) or bool((after.reward * fresh).any()):
            seen_now = f"step {count}: the row after an ending should be a first one, with reward 0 and no ending."
            return failed("autoreset", seen_now, CONTRACT)
    if not any(bool((~s.step.valid).any()) for s in seen):
        return passed("autoreset", f"no ending in {len(seen) - 1:,} steps.")
    if different(drive(build(), seed, restless(known)), known):
        return failed("autoreset", "the action after an ending changes what follows.", f"ignore it: {CONTRACT}")
    return passed("autoreset", "one dead row after an ending, its action ignored.")


def accounted(env: Env, seen: Sequence[Observed], episodes: Sequence[Any]) -> Finding:
    """Whether `episodes()` tells what the rows did."""
    ours = sorted((slot, len(t.rewards)) for slot, own in enumerate(traces(seen)) for t in own if t.ended)
    theirs = sorted((e.slot, e.length) for e in episodes)
    if ours != theirs:
        odd = sorted(set(ours) ^ set(theirs))[:2]
        seen_now = f"episodes() gave {len(theirs)}, the rows hold {len(ours)}; (slot, length) {odd} differ."
        return failed("episodes", seen_now, "report each finished episode once.")
    totals = {slot: [sum(t.rewards) for t in own if t.ended] for slot, own in enumerate(traces(seen))}
    given: dict[int, list[float]] = {}
    for e in episodes:
        given.setdefault(e.slot, []).append(e.total)
    for slot, own in given.items():
        if not np.allclose(own, totals[slot], rtol=1e-3, atol=1e-3):
            return passed("episodes", f"{len(theirs)} finished ones; rewards are shaped, totals are the world's own.")
    return passed("episodes", f"{len(theirs)} finished ones, told once each.")


# ------------------------------------------------------------ repeating


def different(walk: Iterator[Observed], known: Sequence[Observed]) -> str:
    """Where a walk first leaves a known one."""
    for count, (before, now) in enumerate(zip(known, walk)):
        if not same(now.step, before.step):
            return f"at step {count}"
    return ""


def repeatable(build: Build, used: Env, seed: int, known: Sequence[Observed]) -> Finding:
    """Same seed and actions: the same in another copy, beside others, and after another reset."""
    fix = "draw from a generator that reset(seed) seeds; save nothing in the class or module."
    other = build()
    company = drive(other, seed + 1, SlotsChooser(other.spec.action, other.spec.slots, seed + 1))
    walk = (now for now, _ in zip(drive(build(), seed, replayed(known)), company))
    again = different(walk, known)
    if again:
        return failed("repeats", f"the same seed and actions give other rows in another copy {again}.", fix)
    left = different(drive(used, seed, replayed(known)), known)
    if left:
        return failed("repeats", f"after use, reset(seed) starts otherwise {left}.", "clear everything in reset().")
    return passed("repeats", f"{len(known)} steps the same in another copy and after reset(seed).")


def seeded(build: Build, seed: int, known: Sequence[Observed]) -> Finding:
    """Whether seeds and slots have random numbers of their own."""
    env = build()
    walk = drive(env, seed + 1, SlotsChooser(env.spec.action, env.spec.slots, seed))
    if not different(walk, known):
        return passed("seed", "nothing in it is random: every seed gives the same rows.")
    first, slots = known[0].step.obs, env.spec.slots
    other = next(drive(env, seed + 2, SlotsChooser(env.spec.action, slots, seed))).step.obs
    alike = all(same_tree(_only(first, 0), _only(first, slot)) for slot in range(slots))
    if alike and slots > 1 and not same_tree(other, first):
        return warned("seed", "all slots start alike under one seed.", "derive a seed per slot: envs.episode_seed.")
    return passed("seed", "other seeds give other rows.")


def _only(tree: Obs, slot: int) -> Obs:
    return mapped(lambda x: x[slot], tree)


def owned(seen: Sequence[Observed]) -> Finding:
    """Whether returned tensors are left alone afterwards."""
    if any(s.touched for s in seen):
        seen_now = "tensors that were returned change at the next call: what a buffer holds would change with them."
        return failed("aliasing", seen_now, "return tensors of their own (clone).")
    return passed("aliasing", "what is returned is the caller's own.")


def resumable(build: Build, seed: int, known: Sequence[Observed]) -> Finding:
    """Whether a state saved in the middle goes on as promised."""
    env = build()
    half = len(known) // 2
    list(islice(drive(env, seed, replayed(known)), half))
    saved = env.state()
    held = State({k: v.clone() for k, v in saved.tensors.items()}, saved.scalars, saved.rings)
    fresh = build()
    fresh.restore(held)
    rest = [copied(fresh.step(mapped(torch.clone, s.action))) for s in known[half:]]
    if env.promise == "restart":
        return passed("resume", "restart: running episodes are cut as truncated.")
    wrong = next((i for i, (a, b) in enumerate(zip(rest, known[half:])) if not same(a, b.step)), None)
    if wrong is not None:
        seen_now = f"{env.promise} is promised, but {wrong} steps after restore() the rows differ."
        return failed("resume", seen_now, "save all that changes in state(); for gymnasium: env.resume=restart.")
    return passed("resume", f"{env.promise}: a saved run goes on exactly.")


# ------------------------------------------------------------ workers


def parallel(build: Build, here: Env, seed: int, known: Sequence[Observed]) -> Finding:
    """Whether worker processes show what this one does, leaf by leaf."""
    try:
        there = build()
    except UserError as error:
        return failed("workers", f"they could not be started: {str(error).removeprefix('env: ')}.", ALIKE)
    try:
        if [outline(s) for s in (there.spec.obs, there.spec.action)] != [
            outline(here.spec.obs),
            outline(here.spec.action),
        ]:
            return failed("workers", "spaces have other parts there, or in another order.", ALIKE)
        at = different(drive(there, seed, replayed(known)), known)
        failures = there.faults.fresh
        if at or failures:
            why = f": {failures[0]['error']}" if failures else ""
            return failed("workers", f"rows of a worker are not those of this process {at}{why}.", ALIKE)
    except Broken as broken:
        return failed("workers", broken.finding.seen, broken.finding.fix)
    finally:
        there.close()
    return passed("workers", f"{len(known)} steps the same in worker processes.")


ALIKE = "let nothing depend on the process: globals, hash(), ids, the time; until then env.workers=0."


def outline(space: Space) -> Any:
    """A space with the order of its parts."""
    return [(key, outline(part)) for key, part in space.items.items()] if isinstance(space, Composite) else space
