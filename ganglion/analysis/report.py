"""A report of runs: one page of HTML with everything in it, Markdown, or the text of a model card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import yaml

from ganglion import registry
from ganglion.analysis import svg
from ganglion.analysis.compare import Comparison, compare, profiles
from ganglion.analysis.runs import EVAL, TRAIN, RunData, RunGroup, flat, grouped
from ganglion.analysis.terminal_plot import number
from ganglion.errors import UserError
from ganglion.record.health import HealthFinding, findings

MORE = ("episode/return", "learn/loss", "learn/q", "learn/critic", "learn/value", "learn/entropy", "learn/kl")
STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #667; --line: #d8dde4; --page: #fff; --card: #f6f8fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa3af; --line: #363c45; --page: #14171b; --card: #1d2127; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto; padding: 24px;
  max-width: 1240px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 28px 0 8px; } h3 { font-size: 15px; margin: 8px 0; }
.soft, .axis, .legend { color: var(--soft); fill: var(--soft); font-size: 12px; }
.grid { stroke: var(--line); stroke-width: 1; } svg { max-width: 100%; height: auto; }
.row { display: flex; flex-wrap: wrap; gap: 16px; } .row > div { min-width: 280px; }
.legend span { margin-right: 14px; white-space: nowrap; } .legend i { display: inline-block; width: 10px; height: 10px;
  margin-right: 5px; border-radius: 2px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; } code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--card); padding: 12px; overflow-x: auto; border-radius: 6px; }
.finding { border-left: 3px solid #c43d5c; padding: 2px 0 2px 12px; margin: 10px 0; }
"""


class Facts(NamedTuple):
    """What a report says of runs."""

    groups: Sequence[RunGroup]
    metric: str
    compared: Comparison | None
    ill: Sequence[tuple[RunData, Sequence[HealthFinding]]]
    notes: Sequence[str]

    @property
    def title(self) -> str:
        return self.groups[0].name if len(self.groups) == 1 else ", ".join(g.name for g in self.groups)


def facts(runs: Sequence[RunData], metric: str | None = None) -> Facts:
    """Where nothing can be compared yet, the reason is a note."""
    if not runs:
        raise UserError("RUN: there are no runs in what was named.")
    groups = grouped(runs)
    known = {name for run in runs for name in run.metrics()}
    metric = metric or (EVAL if EVAL in known or TRAIN not in known else TRAIN)
    notes: list[str] = []
    compared = None
    try:
        compared = compare(runs, metric)
        notes += compared.notes
    except UserError as error:
        notes.append(str(error).rstrip("."))
        notes += [f"{run.name}: {run.broken} lines of metrics could not be read" for run in runs if run.broken]
    ill = [(run, findings(run.events, run.config)) for run in runs]
    return Facts(groups, metric, compared, [one for one in ill if one[1]], notes)


def rows(f: Facts) -> list[tuple[str, ...]]:
    """The table of groups."""
    if f.compared is None:
        head = ("group", "runs", f"last {f.metric}", "env steps")
        shown = [(g.name, str(len(g.runs)), lasts(g, f.metric), f"{min(r.steps for r in g.runs):,}") for g in f.groups]
        return [head, *shown]
    found: list[tuple[str, ...]] = [("group", "runs", "mean", "IQM", "IQM 95 %", "median", "env steps", "steps/s")]
    for one in f.compared.groups:
        iqm, low, high = one.figures["iqm"]
        told = f"{low:.4g} to {high:.4g}" if low == low else "-"
        middle = (f"{one.figures['mean'][0]:.4g}", f"{iqm:.4g}", told, f"{one.figures['median'][0]:.4g}")
        found.append((one.name, str(one.runs), *middle, f"{one.steps:,}", f"{one.speed:,.0f}"))
    return found


def lasts(group: RunGroup, metric: str) -> str:
    return ", ".join(number(run.last(metric)) if run.curve(metric)[0] else "-" for run in group.runs)


def origin(run: RunData) -> dict[str, str]:
    """Where a run comes from, as far as it says."""
    try:
        about = json.loads((run.folder / "run.json").read_text())
    except (OSError, ValueError, UserError):
        return {}
    named = about if type(about) is dict else {}
    told = {
        key: str(named[key]) for key in ("ganglion", "torch", "python", "git", "machine", "device") if named.get(key)
    }
    match named.get("command"):
        case list() as words:
            told["command"] = " ".join(["ganglion", *map(str, words[1:])])
    return told


def differences(f: Facts) -> list[tuple[str, ...]]:
    if f.compared is None or not f.compared.apart:
        return []
    head = ("setting", *(one.name for one in f.compared.groups))
    return [
        head,
        *((path, *("-" if v is None else str(v) for v in values)) for path, values in f.compared.apart.items()),
    ]


# ------------------------------------------------------------ HTML


def html(f: Facts) -> str:
    """One file: no script, nothing that is loaded from elsewhere."""
    body = [
        f"<h1>{escape(f.title)}</h1>",
        f'<p class="soft">A report of Ganglion {registry.version()}</p>',
        table(rows(f)),
    ]
    if f.compared is not None:
        body += [f"<p>{escape(pair.verdict)}.</p>" for pair in f.compared.pairs]
        several = "; scaled to 0..1 within each environment" if len(f.compared.tasks) > 1 else ""
        body.append(f'<p class="soft">Last {escape(f.metric)}; 95 % stratified bootstrap intervals{several}.</p>')
    body += [f'<p class="soft">Note: {escape(note)}.</p>' for note in f.notes]
    body += ["<h2>Curves</h2>", row(curves(f.groups, f.metric))]
    others = [name for name in MORE if name != f.metric and any(r.curve(name)[0] for g in f.groups for r in g.runs)]
    body.append(row("".join(curves(f.groups, name, 360, 190) for name in others)))
    if f.compared is not None and max(one.runs for one in f.compared.groups) > 1:
        body += ["<h2>Performance profiles</h2>", profile(f.compared)]
    if f.ill:
        body.append("<h2>Health</h2>")
    for run, found in f.ill:
        body += [f"<h3>{escape(run.name)}</h3>", *(ailment(one) for one in found)]
    if apart := differences(f):
        body += ["<h2>Settings that differ</h2>", table(apart)]
    body.append("<h2>Runs</h2>")
    body += [settings(run) for group in f.groups for run in group.runs]
    return page(f.title, "\n".join(body))


def page(title: str, body: str, more: str = "") -> str:
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    begin = f"<!doctype html>\n<html lang=en><head>{head}<style>{STYLE}</style>{more}</head>"
    return f"{begin}\n<body>\n{body}\n</body></html>\n"


def curves(groups: Sequence[RunGroup], metric: str, width: int = 560, height: int = 260) -> str:
    """A chart for each environment."""
    shown = []
    for task in sorted({task for group in groups for task in group.tasks}):
        found = svg.lines(groups, task, metric)
        if found:
            picture = svg.chart(found, width, height, f"{metric} on {task}")
            head = f"<h3>{escape(metric)}: {escape(task)}</h3>"
            shown.append(f'<div style="max-width: {width}px">{head}{picture}{svg.legend(found)}</div>')
    return "".join(shown)


def profile(found: Comparison) -> str:
    """The share of runs above each score."""
    levels, shares = profiles(found)
    lines = []
    for index, (name, (share, low, high)) in enumerate(shares.items()):
        band = (low.tolist(), high.tolist()) if low[0] == low[0] else ((), ())
        colour = svg.COLOURS[index % len(svg.COLOURS)]
        lines.append(svg.Line(name, colour, levels.tolist(), share.tolist(), *band))
    picture = svg.chart(lines, label="share of runs above a score", x=f"{found.which} {found.metric}")
    return f'<div class="row"><div>{picture}{svg.legend(lines)}</div></div>'


def row(charts: str) -> str:
    return f'<div class="row">{charts}</div>'


def table(found: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in found[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in found[1:])
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def ailment(one: HealthFinding) -> str:
    told = f"<b>{escape(one.what)}</b> ({escape(one.evidence)})<br>{escape(one.cause)} {escape(one.change)}"
    return f'<div class="finding">{told}</div>'


def settings(run: RunData) -> str:
    told = "".join(f"{escape(k)}: {escape(v)}<br>" for k, v in origin(run).items())
    words = "\n".join(f"{path} = {json.dumps(value, default=str)}" for path, value in flat(run.config).items())
    head = (
        f"{escape(run.name)}, seed {run.seed}: {run.steps:,} env steps, {run.updates:,} updates, {run.seconds:,.1f} s"
    )
    return f"<details><summary>{head}</summary><p class=soft>{told}</p><pre>{escape(words)}</pre></details>"


# ------------------------------------------------------------ Markdown


def markdown(f: Facts) -> str:
    lines = [f"# {plain(f.title)}", "", *pipes(rows(f)), ""]
    if f.compared is not None:
        lines += [*(f"{plain(pair.verdict)}.\n" for pair in f.compared.pairs)]
        lines += [f"Last {f.metric}; 95 % stratified bootstrap intervals.", ""]
    lines += [*(f"Note: {plain(note)}.\n" for note in f.notes)]
    for run, found in f.ill:
        lines += [f"## Health of {plain(run.name)}", "", *(f"- {plain(one.line)}" for one in found), ""]
    if apart := differences(f):
        lines += ["## Settings that differ", "", *pipes(apart), ""]
    lines += ["## Runs", ""]
    for run in (run for group in f.groups for run in group.runs):
        told = "; ".join(f"{key} {plain(value)}" for key, value in origin(run).items())
        lines.append(f"- {plain(run.name)}, seed {run.seed}: {run.steps:,} env steps, {run.seconds:,.1f} s. {told}")
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>|#" else " " if c in "\r\n" else c for c in text)


def pipes(found: Sequence[tuple[str, ...]]) -> list[str]:
    head, *rest = (f"| {' | '.join(map(plain, row))} |" for row in found)
    return [head, f"|{'---|' * len(found[0])}", *rest]


# ------------------------------------------------------------ model card


def front_matter(algo: str, task: str, reached: str) -> str:
    """What the hub reads of a card."""
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": task, "type": task},
        "metrics": [{"type": "mean_reward", "value": reached, "name": "mean_reward", "verified": False}],
    }
    meta = {
        "library_name": "ganglion",
        "tags": [task, algo, "deep-reinforcement-learning", "reinforcement-learning", "ganglion"],
        "model-index": [{"name": algo, "results": [result]}],
    }
    return yaml.safe_dump(meta, sort_keys=False).rstrip()


def card(run: RunData) -> str:
    """The text of a model card as the Hugging Face hub reads it."""
    algo, task = str(run.config.get("algo", {}).get("kind", "?")), run.task
    scores, spread, count = run.curve(EVAL)[1], run.last("eval/return_std"), run.last("eval/episodes")
    if not scores:
        raise UserError(f"--card: {run.name} has not been evaluated: a card says what a model reaches.")
    reached = f"{scores[-1]:.2f} +/- {spread:.2f}"
    settings = "\n".join(f"{path} = {json.dumps(value, default=str)}" for path, value in flat(run.config).items())
    return f"""---
{front_matter(algo, task, reached)}
---

# {plain(algo)} on {plain(task)}

An agent trained with Ganglion {registry.version()}: {run.steps:,} env steps, {run.updates:,} updates, seed {run.seed}.

| evaluation | mean return | episodes |
|---|---|---|
| the last | {reached} | {count:.0f} |
| the best of {len(scores)} while training, an optimistic figure | {max(scores):.2f} | {count:.0f} |

## Use

```python
import ganglion

agent = ganglion.load("{run.name}")  # the folder of the run
agent.reset()                        # before the first observation of an episode
action = agent.act(observation)
```

Score it: `ganglion eval {run.name} --episodes 100`. Watch it: `ganglion play {run.name}`.

## Settings

```text
{settings}
```
"""
