"""What a saved agent shows when it plays: values against returns, units, observations, actions, endings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ganglion.core import Box, Discrete
from ganglion.doctor.play import Played, play
from ganglion.record.health import HealthFinding, History, shaped
from ganglion.runtime.run import TrainedAgents

LEAST = 100  # rows below which nothing is said of values
FAR = 0.3  # of a discounted return: more than this from beyond the end of what was played is no evidence


class Examined(NamedTuple):
    """Numbers of an examination, for programs and reports."""

    numbers: Mapping[str, float]
    findings: list[HealthFinding]


def examine(trained: TrainedAgents, history: History) -> Examined:
    """Plays with the first player's agent, and looks."""
    if len(trained.spec.agents) > 1 or len(trained.made) > 1:
        return Examined({}, [])  # what one of several meets depends on the others
    played = play(trained)
    numbers, found = values(played, trained, history)
    for look in (observations, units, weights, one_action, saturated, endings):
        found += look(played, trained, history)
    return Examined(numbers, found)


def returns(p: Played, gamma: float) -> tuple[Tensor, Tensor]:
    """Discounted returns of all rows, and how much of each lies beyond the end of an episode cut off or of the play:
    that part is the value there."""
    value = torch.nan_to_num(p.value.double())
    total, beyond = value[-1], torch.ones_like(value[-1])
    totals, shares = torch.zeros_like(value), torch.zeros_like(value)
    for t in range(len(value) - 1, -1, -1):
        cut = p.truncated[t] & ~p.terminated[t]
        after = value[min(t + 1, len(value) - 1)]  # the row after an ending shows its last observation
        on = gamma * (~p.terminated[t]).double()
        total = p.reward[t].double() + on * torch.where(cut, after, total)
        beyond = on * torch.where(cut, 1.0, beyond)
        totals[t], shares[t] = total, beyond
    return totals, shares


def values(p: Played, trained: TrainedAgents, h: History) -> tuple[dict[str, float], list[HealthFinding]]:
    gamma = h.setting("algo.gamma")
    if type(gamma) is not float or not torch.isfinite(p.value).all():
        return {}, []
    totals, beyond = returns(p, gamma)
    known = p.valid & (beyond < FAR)
    if known.sum() < LEAST:
        return {}, []
    truth, said = totals[known], p.value.double()[known]
    spread, size = float(truth.std()), float(truth.mean().abs())
    explained = 1 - float((truth - said).var() / truth.var().clamp(min=1e-12))
    numbers = {"value_mean": float(said.mean()), "return_mean": float(truth.mean()), "explained_variance": explained}
    if shaped(h) and h.setting("algo.normalise_reward"):
        return numbers, []  # its values are in another unit
    entropy = h.last("learn/temperature") * abs(h.last("learn/entropy")) / (1 - min(gamma, 0.999))
    close = correlation(truth, said)
    if abs(numbers["value_mean"] - numbers["return_mean"]) <= 0.6 * max(size, spread, 1e-6) + entropy:
        apart = explained < -0.5 and spread > 0.2 * size and close < 0.2
        return numbers, [unexplained(explained, close)] if apart else []
    return numbers, [misjudged(**numbers)]


def misjudged(value_mean: float, return_mean: float, explained_variance: float) -> HealthFinding:
    """Values far from returns."""
    evidence = f"values are {value_mean:.4g} on average, discounted returns {return_mean:.4g}"
    if value_mean > return_mean:
        return HealthFinding(
            "values_overestimated",
            "the agent expects far more than it gets",
            evidence,
            "Terminated states that are bootstrapped, the maximum over noisy values, a target that follows too fast.",
            "Check that the environment says terminated (not truncated) where nothing follows; algo.double=true, "
            "raise algo.target_every or lower algo.tau, lower algo.lr.",
        )
    return HealthFinding(
        "values_underestimated",
        "the agent expects far less than it gets",
        evidence,
        "A target that is never updated, truncated episodes that are not bootstrapped, or values that have not had "
        "the time to arrive.",
        "Lower algo.target_every or raise algo.tau; raise algo.lr or train.budget; check that time limits are "
        "truncated, not terminated.",
    )


def unexplained(explained: float, close: float) -> HealthFinding:
    return HealthFinding(
        "critic_explains_nothing",
        "values have nothing to do with returns",
        f"explained variance {explained:.2f}, correlation {close:.2f}",
        "A critic that is not trained, or trained towards something else; observations that do not say what is coming.",
        "Check the critic's loss and its weight (algo.value_weight); raise the learning rate of the critic.",
    )


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1].nan_to_num())


def observations(p: Played, trained: TrainedAgents, h: History) -> Iterator[HealthFinding]:
    """Vectors of numbers; images and choices have scales of their own."""
    every, large = [], []
    for name, leaf in p.obs.items():
        rows = leaf[p.valid].double().flatten(1)
        every.append(bool((leaf == leaf[:1]).all()))  # in each slot
        if leaf.dtype.is_floating_point and rows.shape[1] <= 1_000:
            large += [(float(rows.abs().quantile(0.99, dim=0).max()), name)] if len(rows) < 100_000 else []
    if all(every) and len(p.valid) >= 50:
        yield HealthFinding(
            "observation_frozen",
            "the observation never changes",
            f"{int(p.valid.sum()):,} rows, equal in each slot",
            "The environment returns the same array, or one it no longer writes to.",
            "Look at what `reset` and `step` return: `ganglion check`.",
        )
    most, name = max(large, default=(0.0, ""))
    if most > 100 and not h.setting("algo.net.normalise"):
        yield HealthFinding(
            "observation_scale",
            "observations are large, and not normalised",
            f"{name} reaches {most:.3g}; networks start out for numbers around 1",
            "Features in units of their own: pixels, metres, money.",
            "Set algo.net.normalise=true, or scale them in the environment.",
        )


def units(p: Played, trained: TrainedAgents, h: History) -> Iterator[HealthFinding]:
    name, share = max(p.layers.items(), key=lambda both: both[1], default=("", 0.0))
    if share > 0.75:
        yield HealthFinding(
            "dead_units",
            "most units of a hidden layer never move",
            f"{100 * share:.0f} % of layer {name}",
            "A learning rate that threw weights too far, or inputs that are too large.",
            "Lower algo.lr; set algo.net.normalise=true, algo.max_norm or algo.net.norm=layer.",
        )


def weights(p: Played, trained: TrainedAgents, h: History) -> Iterator[HealthFinding]:
    named = [(n, x) for n, x in trained.made[0][1].algo.model.named_parameters() if x.numel()]
    most, name = max(((float(x.detach().abs().max()), n) for n, x in named), default=(0.0, ""))
    if not most <= 1e3:
        yield HealthFinding(
            "weights_exploded",
            "weights are very large",
            f"{name} reaches {most:.3g}",
            "Updates without a limit: a learning rate, or targets, that are far too large.",
            "Lower algo.lr, set algo.max_norm; look at the scale of rewards.",
        )


def one_action(p: Played, trained: TrainedAgents, h: History) -> Iterator[HealthFinding]:
    for name, leaf in p.action.items() if type(trained.spec.action) is Discrete else ():
        chosen = leaf[p.valid].flatten()
        share = float((chosen == chosen.mode().values).float().mean())
        if share > 0.99 and len(chosen) >= LEAST and not h.improved and trained.spec.action.n > 1:  # type: ignore[union-attr]
            yield HealthFinding(
                "one_action",
                "the agent does the same whatever it sees, and has not become better",
                f"{name} is {int(chosen.mode().values)} in {100 * share:.0f} % of {len(chosen):,} steps",
                "A policy that collapsed, a sign that is wrong, or observations that say nothing.",
                "Raise algo.entropy or algo.epsilon, lower algo.lr; check signs and observations.",
            )


def saturated(p: Played, trained: TrainedAgents, h: History) -> Iterator[HealthFinding]:
    match trained.spec.action:
        case Box() as space if space.bounded and not h.improved:
            low, high = (torch.as_tensor(x, dtype=torch.float64) for x in (space.low, space.high))
            chosen = next(iter(p.action.values()))[p.valid].double().flatten(1)
            near = torch.minimum(chosen - low.flatten(), high.flatten() - chosen) <= 0.01 * (high - low).flatten()
            share = float(near.all(-1).float().mean())
            if share > 0.95:
                yield HealthFinding(
                    "actions_saturated",
                    "actions are at their bounds all the time, and the agent has not become better",
                    f"{100 * share:.0f} % of {len(chosen):,} steps",
                    "An actor pushed into the flat part of its tanh: a learning rate, or values, that are too large; "
                    "or the sign of its loss.",
                    "Lower algo.lr, check the bounds of the action space and the scale of rewards, the sign of the "
                    "actor's loss.",
                )


def endings(p: Played, trained: TrainedAgents, h: History) -> Iterator[HealthFinding]:
    lengths = {length for length, _ in p.lengths}
    if len(p.lengths) >= 8 and len(lengths) >= 4 and not any(term for _, term in p.lengths):
        yield HealthFinding(
            "endings_truncated",
            "episodes end at every length, and none is terminated",
            f"{len(p.lengths)} episodes of {min(lengths)} to {max(lengths)} steps, all truncated",
            "The environment says truncated where it should say terminated: what comes after an ending is then worth "
            "as much as anywhere.",
            "Return terminated=True where the task itself is over, truncated=True only at a time limit.",
        )
    if len(p.lengths) >= 6 and len(lengths) == 1 and min(lengths) >= 50 and all(term for _, term in p.lengths):
        yield HealthFinding(
            "time_limit_terminates",
            "every episode is terminated at the same length: it looks like a time limit",
            f"{len(p.lengths)} episodes of {min(lengths)} steps",
            "The environment says terminated where it should say truncated: what comes after is then worth nothing.",
            "Return truncated=True at a time limit, or leave it to env.time_limit.",
        )
