"""What is in a dataset: episodes, returns, lengths, actions, how random they were, and rows that are broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ganglion import ops
from ganglion.core import Box, Discrete, EnvSpec, MultiDiscrete, Row, Space
from ganglion.data import files
from ganglion.data.dataset import Dataset, broken, flat, forms
from ganglion.data.load import load
from ganglion.errors import UserError

BINS, WIDE = 10, 40  # of histograms, and the longest bar
KEPT = 200_000  # rows whose actions are looked at


class ActionReport(NamedTuple):
    """One component of the actions."""

    name: str
    shares: tuple[float, ...]  # of each choice, or of each of BINS parts of the range
    low: float
    high: float
    mean: float
    std: float
    beyond: float  # share outside of the space's bounds
    ends: tuple[float, float] | None  # of the range that shares are parts of; None: of choices

    @property
    def covered(self) -> float:
        """The share of choices, or of parts of the range, that were taken at least once."""
        return fmean(float(share > 0) for share in self.shares)

    @property
    def entropy(self) -> float:
        """Of the shares, in nats: of what is done over all, not of what is done where the same is seen."""
        return -sum(share * log(share) for share in self.shares if share > 0)


class DataReport(NamedTuple):
    """All that was found in a dataset."""

    path: str
    spec: EnvSpec
    steps: int
    returns: Tensor  # [episodes] float64
    lengths: Tensor  # [episodes] int64, in steps
    terminated: int
    actions: tuple[ActionReport, ...]
    surprise: float | None  # mean of minus the log-probability that whoever acted gave its actions
    still: tuple[str, ...]  # parts of observations that never change
    broken: Mapping[str, int]  # rows, by what is wrong with them
    damaged: tuple[str, ...]  # blocks that cannot be read
    sources: tuple[Mapping[str, Any], ...]

    @property
    def episodes(self) -> int:
        return len(self.returns)


def report(path: str | Path) -> DataReport:
    """Looks a dataset through, block by block: it may be larger than memory."""
    where, lost = Path(path), list[str]()
    if files.is_dataset(where):
        contents = files.read_manifest(where)
        return gathered(where, contents.spec, files.read_blocks(where, contents, lost, check=False), lost, contents)
    data = load(where)
    return gathered(where, data.spec, iter([data.rows]), lost, files.Contents(data.spec, data.about, ()))


def gathered(
    where: Path, spec: EnvSpec, blocks: Iterator[Row], lost: Sequence[str], contents: files.Contents
) -> DataReport:
    returns, lengths, taken, said = list[Tensor](), list[Tensor](), list[Row](), list[Tensor]()
    wrong, steps, terminated, spread = Counter[str](), 0, 0, Spread()
    for rows in blocks:
        arrays = {name: x.squeeze(1) for name, x in ops.flatten_names(rows).items()}
        wrong.update({what: int(bad.sum()) for what, bad in broken(spec, arrays).items()})
        live = rows.valid[:, 0]
        steps, terminated = steps + int(live.sum()), terminated + int(rows.terminated.sum())
        if bool(rows.start[0, 0]):
            returns.append(Dataset(spec, rows).returns())
            lengths.append(torch.tensor(Dataset(spec, rows).lengths()) - 1)
        spread.see({name: arrays[name] for name in forms(spec.obs, "obs")})
        if sum(len(part) for part in taken) < KEPT:
            taken.append(ops.map_tree(lambda x, live=live: x[live, 0], rows.action))
        said += [arrays["extras/logp"][live]] if "extras/logp" in arrays else []
    if not returns:
        raise UserError(f"{where} has no {'block that is whole' if lost else 'rows'}.")
    actions = tuple(components(spec.action, ops.concat(taken)))
    surprise = -float(torch.cat(said).mean()) if said else None
    return DataReport(
        str(where), spec, steps, torch.cat(returns), torch.cat(lengths), terminated, actions, surprise, spread.still(),
        dict(wrong), tuple(lost), contents.sources,
    )  # fmt: skip


class Spread:
    """Least and largest of every part of an observation."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}

    def see(self, arrays: Mapping[str, Tensor]) -> None:
        for name, x in arrays.items():
            low, high = flat(x).amin(0), flat(x).amax(0)
            if name in self.seen:
                low, high = torch.minimum(low, self.seen[name][0]), torch.maximum(high, self.seen[name][1])
            self.seen[name] = low, high

    def still(self) -> tuple[str, ...]:
        found = []
        for name, (low, high) in self.seen.items():
            if len(low) <= 64:  # of images, pixels that never change are no news
                found += [f"{name}[{i}]" for i in (low == high).nonzero()[:, 0].tolist()]
        return tuple(found)


def components(space: Space, action: Any) -> Iterator[ActionReport]:
    """Each choice, and each real number, of actions [N, ...]."""
    for name, (part, _) in forms(space, "action").items():
        x = ops.flatten_names({"action": action})[name]
        x = x[:, None] if x.dim() == 1 else flat(x)
        for i, column in enumerate(x.double().unbind(1)):
            yield component(part, name if x.shape[1] == 1 else f"{name}[{i}]", column, i)


def component(space: Space, name: str, x: Tensor, i: int) -> ActionReport:
    ends: tuple[float, float] | None = None
    match space:
        case Box():
            low, high = (side[i if len(side) > 1 else 0] for side in (space.low, space.high))
            ends = (low, high) if isfinite(low) and isfinite(high) else (float(x.min()), float(x.max()))
            beyond = float(((x < low) | (x > high)).double().mean())
            parts = torch.histc(x.clamp(*ends), BINS, *ends) if ends[0] < ends[1] else torch.tensor([float(len(x))])
        case _:
            n = choices(space, i)
            beyond = float(((x < 0) | (x >= n)).double().mean())
            parts = torch.bincount(x.long().clamp(0, n - 1), minlength=n).double()
    shares = tuple((parts.double() / len(x)).tolist())
    return ActionReport(name, shares, float(x.min()), float(x.max()), float(x.mean()), float(x.std()), beyond, ends)


def choices(space: Space, i: int) -> int:
    """How many there are in component `i`."""
    match space:
        case Discrete(n):
            return n
        case MultiDiscrete(nvec):
            return nvec[i]
    return 2


# ------------------------------------------------------------ in words


def lines(found: DataReport) -> list[str]:
    """The report as text."""
    spec, r, n = found.spec, found.returns, found.lengths
    cut = found.episodes - found.terminated
    seen = "mean {:.2f}, median {:.2f}, {:.2f} to {:.2f}"
    texts = {
        "spaces": f"{spec.obs} -> {spec.action}",
        "episodes": f"{found.episodes:,}: {found.terminated:,} terminated, {cut:,} cut",
        "steps": f"{found.steps:,}",
        "lengths": f"mean {float(n.double().mean()):.1f}, median {int(n.median())}, {int(n.min())} to {int(n.max())}",
        "returns": seen.format(*(float(x) for x in (r.mean(), r.median(), r.min(), r.max()))),
    }
    if found.surprise is not None:
        texts["entropy"] = f"{found.surprise:.3f} nats: mean of -log p(action) as it was acted"
    said = [f"{found.path}: {spec.name or 'a dataset'}", *(f"  {name:<10}{text}" for name, text in texts.items())]
    said += [f"    {line}" for line in bars(r)]
    said += [f"  {x.name:<10}{action_text(x)}" for x in found.actions[:20]]
    said += [f"  {len(found.actions) - 20} more components of actions"] if len(found.actions) > 20 else []
    said += [f"  broken    {count:,} rows: {what}" for what, count in found.broken.items()] or ["  broken    no rows"]
    said += [f"  damaged   {text}" for text in found.damaged]
    return said + [f"  source    {source_text(about)}" for about in found.sources]


def action_text(x: ActionReport) -> str:
    shares = " ".join(f"{share:.3f}" for share in x.shares[:16]) + (" ..." if len(x.shares) > 16 else "")
    over = f"; {100 * x.beyond:.1f} % beyond the bounds" if x.beyond else ""
    extent = f"{x.low:.3g} to {x.high:.3g}, mean {x.mean:.3g}, deviation {x.std:.3g}"
    return f"{extent}; {100 * x.covered:.0f} % covered, entropy {x.entropy:.3f}: {shares}{over}"


def source_text(about: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in about.items() if key not in ("env", "algo")) or "unknown"


def bars(x: Tensor) -> list[str]:
    """A histogram, a line per part."""
    low, high = float(x.min()), float(x.max())
    if low == high:
        return [f"{low:10.2f}  all of them"]
    counts = torch.histc(x, BINS, low, high)
    step, most = (high - low) / BINS, float(counts.max())
    drawn = ["#" * round(WIDE * float(count) / most) for count in counts]
    return [
        f"{low + k * step:10.2f} to {low + (k + 1) * step:10.2f}  {bar:<{WIDE}} {int(counts[k])}"
        for k, bar in enumerate(drawn)
    ]


def plain(found: DataReport) -> dict[str, Any]:
    """The report as one JSON object."""
    actions = [{**x._asdict(), "covered": x.covered, "entropy": x.entropy} for x in found.actions]
    told = found._asdict() | {"spec": found.spec.name, "actions": actions, "sources": [dict(s) for s in found.sources]}
    return told | {"returns": found.returns.tolist(), "lengths": found.lengths.tolist(), "broken": dict(found.broken)}


def draw(found: DataReport, file: str) -> None:
    """Returns, lengths and actions as histograms in a picture."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError("--out: a picture needs matplotlib: pip install 'ganglion[plot]'") from None
    shown = found.actions[:7]
    figure = Figure(figsize=(12, 3 * (1 + (2 + len(shown)) // 3)), layout="constrained")
    axes = list(figure.subplots((4 + len(shown)) // 3, 3, squeeze=False).flat)
    for axis, (title, x) in zip(axes, (("return", found.returns), ("steps per episode", found.lengths)), strict=False):
        draw_episodes(axis, title, x.double())
    for axis, part in zip(axes[2:], shown, strict=False):
        draw_action(axis, part)
    for axis in axes[2 + len(shown) :]:
        axis.set_axis_off()
    figure.suptitle(f"{found.spec.name}: {found.steps:,} steps in {found.episodes:,} episodes")
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise UserError(f"--out: {file[:200]}: {error}") from error


def draw_episodes(axis: Any, title: str, x: Tensor) -> None:
    """How many episodes there are of each sort, and their mean."""
    low, high, mean = float(x.min()), float(x.max()), float(x.mean())
    axis.hist(x.tolist(), bins=30, range=(low, high) if low < high else (low - 1, high + 1))
    axis.axvline(mean, color="black", linestyle=":")
    axis.set(title=f"{title}: mean {mean:.4g}, {low:.4g} to {high:.4g}", ylabel="episodes")
    axis.locator_params(axis="x", nbins=6)
    axis.yaxis.get_major_locator().set_params(integer=True)


def draw_action(axis: Any, part: ActionReport) -> None:
    """How often each choice, or each part of a range, was taken; the dotted line is where all are taken alike."""
    count = len(part.shares)
    low, high = (-0.5, count - 0.5) if part.ends is None else part.ends
    wide = (high - low) / count
    axis.bar([low + (k + 0.5) * wide for k in range(count)], part.shares, width=0.9 * wide if wide else 0.9)
    axis.axhline(1 / count, color="black", linestyle=":")
    covered = f"{100 * part.covered:.0f} % covered, entropy {part.entropy:.2f}"
    axis.set(title=f"{part.name}: {covered}", ylabel="share")
    if part.ends is None:
        axis.xaxis.get_major_locator().set_params(integer=True)
