"""Health rules: what the recorded numbers of a run say is wrong with it, why, and which setting to change.

A rule speaks only where the numbers leave little doubt: a run that learns well has no findings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from statistics import fmean, median
from typing import Any, NamedTuple

from ganglion.config import Every
from ganglion.core import LogData

log = logging.getLogger(__name__)
TRAIN, EVAL = "episode/return", "eval/return_mean"
Event = Mapping[str, Any]


class HealthFinding(NamedTuple):
    """Something that is wrong with a run."""

    rule: str  # its name in the documents
    what: str
    evidence: str
    cause: str
    change: str  # the setting, or what else to do

    @property
    def line(self) -> str:
        return f"{self.rule}: {self.what} ({self.evidence}). {self.change}"


class History:
    """The recorded events of a run and its settings."""

    def __init__(self, events: Sequence[Event], config: Mapping[str, Any]) -> None:
        plain = [{name: value for name, value in event.items() if type(value) in (int, float)} for event in events]
        self.events, self.config = plain, config

    def values(self, name: str, begin: float = 0.0, end: float = 1.0) -> list[float]:
        """What was recorded under a name, in a part of the time since the beginning."""
        found = [event[name] for event in self.events if name in event]
        return found[int(begin * len(found)) : max(1, round(end * len(found)))]

    def last(self, name: str) -> float:
        return self.values(name)[-1] if self.values(name) else 0.0

    def has(self, *names: str, count: int = 1) -> bool:
        return all(len(self.values(name)) >= count for name in names)

    def setting(self, path: str) -> Any:
        """A setting by its path; None where there is none."""
        found: Any = self.config
        for name in path.split("."):
            match found:
                case dict():
                    found = found.get(name)
                case _:
                    return None
        return found

    def tenths(self, name: str) -> list[float]:
        """Means over tenths of what was recorded, or the numbers themselves where they are few."""
        found = self.values(name)
        size = max(1, len(found) // 10)
        return [fmean(found[k : k + size]) for k in range(0, len(found) - size + 1, size)]

    @property
    def fraction(self) -> float:
        """How much of the budget is spent."""
        try:
            budget = Every.parse(str(self.setting("train.budget")))
        except ValueError:
            return 0.0
        counters = {"steps": "env_steps", "updates": "opt_steps", "seconds": "seconds"}
        return min(1.0, self.last(counters.get(budget.unit, "")) / budget.count)

    @property
    def improved(self) -> bool:
        """Whether returns have risen since the beginning, in training or in evaluation."""
        for name in (TRAIN, EVAL):
            if self.has(name, count=3):
                start, late = fmean(self.values(name)[:2]), median(self.values(name, 2 / 3))
                if late - start > 0.1 * abs(start):
                    return True
        return False

    @property
    def scale(self) -> float:
        """The largest return seen, without its sign."""
        seen = [abs(value) for name in (TRAIN, EVAL) for value in self.values(name) if isfinite(value)]
        return max(seen, default=0.0)


Rule = Callable[[History], Iterator[HealthFinding]]


def not_finite(h: History) -> Iterator[HealthFinding]:
    for event in h.events:
        lost = [name for name, value in event.items() if name.startswith(("learn/", "episode/")) and value - value != 0]
        if lost:
            yield HealthFinding(
                "not_finite",
                "numbers are not finite",
                f"{lost[0]} is {event[lost[0]]} at {event.get('env_steps', 0):,} env steps",
                "A reward or observation that is not finite, or weights that grew without limit.",
                "Look at rewards and observations with `ganglion check`; lower algo.lr, set algo.max_norm.",
            )
            return


def values_out_of_reach(h: History) -> Iterator[HealthFinding]:
    """Undiscounted returns bound what a value can be, as long as rewards have one sign."""
    if not h.has("learn/q", TRAIN, count=4) or shaped(h):
        return
    late, most = median(h.values("learn/q", 0.7)), max(h.scale, 1.0)
    if abs(late) > 5 * most:
        yield HealthFinding(
            "values_out_of_reach",
            "values are larger than any return that was ever seen",
            f"learn/q is {late:.4g}, the largest return {h.scale:.4g}",
            "The loss is climbed, the target follows too fast, or terminated states are bootstrapped.",
            "Check the sign of the loss and that terminated steps have discount 0; lower algo.lr, raise "
            "algo.target_every or lower algo.tau.",
        )


def shaped(h: History) -> bool:
    """Whether what is learned from is another reward than what is recorded."""
    rows = h.setting("algo.processor") or {}
    plain = rows.get("reward_scale", 1.0) == 1.0 and not rows.get("reward_clip") and rows.get("reward", "raw") == "raw"
    return not plain or bool(h.setting("algo.bonus")) or bool(h.setting("algo.normalise_reward"))


def no_updates(h: History) -> Iterator[HealthFinding]:
    if h.fraction > 0.5 and h.last("opt_steps") == 0 and h.last("env_steps") > 0:
        yield HealthFinding(
            "no_updates",
            "nothing has been learned: there was no update",
            f"{h.last('env_steps'):,.0f} env steps, 0 updates",
            "The budget ends before the warm-up of the replay, or before the first rollout is full.",
            "Lower algo.limiter.warmup or algo.horizon, or raise train.budget.",
        )


def no_gradient(h: History) -> Iterator[HealthFinding]:
    norms = h.values("learn/grad_norm")
    if len(norms) >= 4 and max(norms) < 1e-9:
        yield HealthFinding(
            "no_gradient",
            "gradients are zero: weights do not move",
            f"learn/grad_norm is at most {max(norms):.1g} in {len(norms)} records",
            "The loss does not depend on the parameters (a detach too many), or every unit is dead.",
            "Look at what is detached in `learn`; lower algo.lr.",
        )


def rate_is_zero(h: History) -> Iterator[HealthFinding]:
    rates = h.values("knob/lr", 0.0, 0.5)
    if len(rates) >= 4 and max(rates) < 1e-8:
        yield HealthFinding(
            "rate_is_zero", "the learning rate is zero", f"knob/lr is at most {max(rates):.1g}",
            "A schedule that ends too early, or a knob that was pinned.", "Set algo.lr.",
        )  # fmt: skip


def entropy_collapsed(h: History) -> Iterator[HealthFinding]:
    """Of choices, whose entropy is between 0 and log n; that of real actions has no zero."""
    if not h.has("learn/entropy", count=5) or h.improved:
        return
    first, late = h.values("learn/entropy")[0], median(h.values("learn/entropy", 0.7))
    if first > -1e-4 and -1e-4 < late < 0.05 * max(first, 0.05):
        yield HealthFinding(
            "entropy_collapsed",
            "the agent has stopped trying anything, and has not become better",
            f"learn/entropy fell from {first:.3g} to {late:.2g}",
            "Updates that are too large, an entropy bonus that is missing or has the wrong sign.",
            "Raise algo.entropy, lower algo.lr.",
        )


def steps_too_large(h: History) -> Iterator[HealthFinding]:
    if not h.has("learn/kl", count=4):
        return
    kl, clipped = median(h.values("learn/kl", 0.2)), median(h.values("learn/clipped", 0.2) or [0.0])
    if kl > 0.15 or (kl > 0.08 and clipped > 0.6):
        yield HealthFinding(
            "steps_too_large",
            "each learning phase moves the agent far from the one that collected the rows",
            f"learn/kl is {kl:.3g} (0.003 to 0.05 is usual), {100 * clipped:.0f} % of ratios are clipped",
            "A learning rate or a number of epochs that is too large, or log-probabilities that are not those of the "
            "actions taken.",
            "Lower algo.lr or algo.epochs, or set algo.max_kl=0.03; check how logp is computed.",
        )


def no_exploration(h: History) -> Iterator[HealthFinding]:
    noisy = any(h.setting(f"algo.{name}") for name in ("noisy", "bonus"))
    for knob, setting in (("knob/epsilon", "algo.epsilon"), ("knob/noise", "algo.noise")):
        early = h.values(knob, 0.0, 0.3)
        if len(h.values(knob)) >= 4 and max(early) < 0.005 and not noisy:
            yield HealthFinding(
                "no_exploration",
                "training acts without exploration from the beginning",
                f"{knob} is at most {max(early):.2g} in the first third",
                "A schedule that starts at its end, or exploration that was switched off.",
                f"Set {setting}, for example {setting}=0.1.",
            )


def random_to_the_end(h: History) -> Iterator[HealthFinding]:
    if h.fraction > 0.9 and h.last("knob/epsilon") > 0.5:
        yield HealthFinding(
            "random_to_the_end",
            "training still acts at random when the budget ends",
            f"knob/epsilon is {h.last('knob/epsilon'):.2g} at {100 * h.fraction:.0f} % of the budget",
            "A schedule of exploration that is longer than the run.",
            "Lower algo.epsilon.end or algo.epsilon.until, or raise train.budget.",
        )


def replay_too_young(h: History) -> Iterator[HealthFinding]:
    rows, batch = h.values("buffer/rows", 0.5), h.setting("algo.replay.batch")
    many = type(batch) is int and len(rows) >= 3 and h.last("env_steps") > 20 * batch
    if many and max(rows) < 8 * batch and max(rows) < 0.2 * h.last("env_steps"):
        yield HealthFinding(
            "replay_too_young",
            "the replay holds only what has just happened",
            f"{max(rows):,.0f} rows for batches of {batch}, of {h.last('env_steps'):,.0f} env steps",
            "A capacity so small that every batch is nearly the same and rare rows are lost.",
            "Raise algo.replay.capacity.",
        )


def replay_worn(h: History) -> Iterator[HealthFinding]:
    use = h.last("buffer/use")
    if use > 2_000 and h.last("env_steps") > 1_000:
        yield HealthFinding(
            "replay_worn",
            "the same rows are learned from over and over",
            f"each row of the replay was drawn {use:,.0f} times on average",
            "Many more updates than env steps: values fit these rows and nothing else.",
            "Raise algo.limiter.opt_interval, or lower algo.replay.batch.",
        )


def reward_scale(h: History) -> Iterator[HealthFinding]:
    if not h.has(TRAIN, "episode/length", count=3) or shaped(h):
        return
    each = [abs(a) / max(b, 1.0) for a, b in zip(h.values(TRAIN), h.values("episode/length"))]
    if median(each) > 50:
        yield HealthFinding(
            "reward_scale",
            "rewards are large",
            f"{median(each):.3g} a step on average; around 1 is what default learning rates are for",
            "Errors of values are as large as rewards: gradients are clipped all the time, or values never arrive.",
            f"Set algo.processor.reward_scale={1 / median(each):.1g}"
            + (" or algo.normalise_reward=true." if h.setting("algo.normalise_reward") is False else "."),
        )


def no_reward(h: History) -> Iterator[HealthFinding]:
    totals = h.values(TRAIN)
    if h.fraction > 0.5 and len(totals) >= 5 and h.last("episodes") >= 20 and max(totals) == min(totals):
        yield HealthFinding(
            "no_reward",
            "every episode has the same return: there is nothing to learn from",
            f"{totals[0]:.4g} in all {h.last('episodes'):,.0f} episodes",
            "Rewards that are never given, or are lost in a wrapper; or exploration that never finds one.",
            "Look at the environment with `ganglion check`; explore longer (algo.epsilon, algo.entropy).",
        )


def worse_than_at_first(h: History) -> Iterator[HealthFinding]:
    if not h.has(TRAIN, count=5) or h.fraction < 0.3:
        return
    start, *rest = h.tenths(TRAIN)
    late = median(rest[-3:])
    least = 0.2 * max(abs(start), 1e-6)
    if late < start - least:
        yield HealthFinding(
            "worse_than_at_first",
            "the agent plays worse than the random one it began as",
            f"return {start:.4g} at first, {late:.4g} now",
            "A sign: of the loss, of the advantage, or of the reward. Or updates that are far too large.",
            "Check the signs in `learn` and in the environment; lower algo.lr.",
        )


def evaluation_apart(h: History) -> Iterator[HealthFinding]:
    if not h.has(TRAIN, EVAL, count=3) or h.fraction < 0.5:
        return  # an agent that has learned little explores better than it plays
    trained, scored = median(h.values(TRAIN, 2 / 3)), median(h.values(EVAL, 0.6))
    both = [*h.values(TRAIN), *h.values(EVAL)]
    span = max(both) - min(both)
    if trained - scored > 0.5 * span and span > 0.1 * h.scale:
        other = h.setting("eval.env") is not None
        yield HealthFinding(
            "evaluation_apart",
            "the agent scores far less in evaluation than in training",
            f"return {trained:.4g} in training, {scored:.4g} in evaluation",
            "The evaluation plays another environment (eval.env)." if other
            else "What training sees and evaluation does not: noise that the agent relies on, a wrapper, a normaliser.",
            "Compare eval.env with env." if other
            else "Compare `ganglion play` with and without exploration; check wrappers that keep statistics.",
        )  # fmt: skip


def temperature_high(h: History) -> Iterator[HealthFinding]:
    if not h.has("learn/temperature", TRAIN, "episode/length", count=4) or h.fraction < 0.3 or h.improved:
        return
    warmth = median(h.values("learn/temperature", 0.7))
    each = median(abs(a) / max(b, 1.0) for a, b in zip(h.values(TRAIN, 0.5), h.values("episode/length", 0.5)))
    if warmth > each:
        yield HealthFinding(
            "temperature_high",
            "entropy counts more than rewards: the agent is paid for acting at random",
            f"learn/temperature is {warmth:.3g}, a reward {each:.3g}",
            "A fixed temperature, a target entropy that cannot be reached, or rewards that are too small.",
            "Set algo.temperature=null (learned), lower algo.target_entropy, or raise algo.processor.reward_scale.",
        )


RULES: tuple[Rule, ...] = (
    not_finite, values_out_of_reach, no_updates, no_gradient, rate_is_zero, entropy_collapsed, steps_too_large,
    no_exploration, random_to_the_end, replay_too_young, replay_worn, reward_scale, no_reward, worse_than_at_first,
    evaluation_apart, temperature_high,
)  # fmt: skip


def findings(events: Sequence[Event], config: Mapping[str, Any]) -> list[HealthFinding]:
    """What the rules say of what was recorded."""
    history = History(events, config)
    return [found for rule in RULES for found in rule(history)]


class HealthWatch:
    """Follows what is recorded while a run trains, and says each finding once, in one line."""

    MOST = 400  # events that are kept: of a longer run every second one is forgotten

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config, self.events, self.next = config, list[dict[str, Any]](), 5
        self.told: set[str] = set()

    def write(self, event: LogData) -> None:
        if event.kind not in ("record", "evaluate"):
            return
        self.events.append({**event.at._asdict(), **event.metrics})
        if len(self.events) >= self.MOST:
            del self.events[1::2]
            self.next = len(self.events) + 1
        if len(self.events) >= self.next:
            self.next = len(self.events) + max(1, len(self.events) // 10)
            self.tell()

    def tell(self) -> None:
        for found in findings(self.events, self.config):
            if found.rule not in self.told:
                self.told.add(found.rule)
                log.warning("%s", found.line)

    def close(self) -> None:
        """What was not looked at yet."""
        if len(self.events) >= 5:
            self.tell()
