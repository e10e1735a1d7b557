"""Searches settings: trials by Optuna or at random, or a population that copies its best (PBT, PB2).

ganglion tune cartpole/ppo --trials 30 --budget 20k
ganglion tune cartpole/ppo --trials 30 --seeds 2 --workers 4 --space algo.lr.start=1e-5..1e-2 --space algo.gamma
ganglion tune my.yaml --method pbt --trials 8 --interval 5k --plot lineage.png
ganglion tune studies/cartpole-ppo-20260101-120000 --trials 60      goes on, also where it was stopped

What is searched: `--space` (PATH=LOW..HIGH, PATH=[A, B, ...], or a PATH alone), else the numbers of the algorithm, in
ranges by their types; `--show-space` lists them. The winner is trained again on fresh seeds.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from os import cpu_count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ganglion.cli.arguments import asked_cases, config_arguments, load_torch
from ganglion.cli.text import hear_warnings, say, table
from ganglion.errors import UserError

if TYPE_CHECKING:
    from ganglion.tuning.pool import TrainingPool
    from ganglion.tuning.population import Member, Population
    from ganglion.tuning.study import Study, StudyTrial

SHOWN = 10  # trials of the table


def arguments(parser: argparse.ArgumentParser) -> None:
    config_arguments(parser)
    parser.add_argument("--method", help="tpe (Optuna; default), random, pbt or pb2")
    parser.add_argument("--trials", metavar="N", help="settings to try (20); of pbt and pb2 members (8)")
    parser.add_argument("--score", help="of a run: its last evaluation, the best, or the mean of all (last)")
    parser.add_argument("--space", action="append", default=[], metavar="PATH[=RANGE]", help="what is searched")
    parser.add_argument("--show-space", action="store_true", help="says what would be searched, and ends")
    parser.add_argument("--no-prune", action="store_true", help="all trials spend their whole budget")
    parser.add_argument("--confirm", metavar="N", help="fresh seeds for the winner (5)")
    parser.add_argument("--interval", metavar="STEPS", help="of a generation (pbt, pb2: a tenth of the budget)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes (one per core)")
    parser.add_argument("--ray", action="store_true", help="workers are Ray's, of a cluster where fleet.address says")
    parser.add_argument("--study", metavar="DIR", help="its folder (studies/NAME-TIME)")
    parser.add_argument("--plot", metavar="FILE", help="trials or lineage as .png, .svg or .pdf (extra: plot)")


def run(args: argparse.Namespace) -> int:
    load_torch()
    hear_warnings()
    workers = args.workers if args.workers is not None else cpu_count() or 1
    if not 1 <= workers <= 1_024:
        raise UserError(f"--workers should be between 1 and 1024, got {workers}.")
    study = made(args)
    if args.show_space:
        say(*table([(path, str(one)) for path, one in study.space.items()]))
        return 0
    from ganglion.cli.training_loop import listening
    from ganglion.tuning.pool import local
    from ganglion.tuning.ray_worker import on_ray

    resume = f"ganglion tune {shlex.quote(str(study.folder))}" + "".join(f" --import {m}" for m in args.imports)
    count = min(workers, study.cfg.trials * (1 if study.cfg.population else 64))
    what = f"{study.cfg.trials} {'members' if study.cfg.population else 'trials'} by {study.cfg.method}"
    say(f"{what}, {count} at a time, in {study.folder}. Ctrl-C saves and stops.")
    with listening() as asked:
        stopping = lambda: asked.signal is not None  # noqa: E731
        pool = on_ray(study.cfg.base, count, study.folder) if args.ray else local(count, study.folder)
        try:
            tell = population if study.cfg.population else trials
            tell(study, pool, stopping, args.plot)
        finally:
            pool.close()
    if asked.signal is not None:
        say(f"Interrupted and saved in {study.folder}", f"Continue with:  {resume}")
        return 128 + asked.signal
    return 0


def made(args: argparse.Namespace) -> Study:
    """The study that is named, or a new one."""
    from ganglion.config.files import import_module
    from ganglion.tuning.study import QUESTION, Study, check, question

    given = asked(args)
    place = args.words[0] if args.words else ""
    if place and (Path(place) / QUESTION).is_file():
        if len(args.words) > 1 or args.study:
            raise UserError(
                f"{place} is a study, whose config stays as it is. Accepted: --trials, --confirm, --workers."
            )
        for module in args.imports:
            import_module(module)
        fixed = sorted(given.keys() - {"trials", "confirm", "prune", "score"})
        if fixed:
            raise UserError(f"--{fixed[0]}: of a study that has begun. Accepted: --trials, --confirm, --score.")
        return Study.open(Path(place), given)
    seeds, args.seeds = args.seeds, None
    found = asked_cases(args)
    if len(found) > 1:
        raise UserError("a sweep is several configs, and one is tuned. Name what to search by --space PATH=[A, B].")
    usual = {"trials": 8, "confirm": 5} if given.get("method") in ("pbt", "pb2") else {}
    cfg = question({**usual, **given, **({"seeds": seeds} if seeds else {}), "base": found[0].plain()}, "the options")
    if args.show_space:
        check(cfg)
        return Study(Path("."), cfg, [])
    return Study.create(cfg, Path(args.study) if args.study else None)


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of a study that were given as options."""
    from ganglion.config import text

    found: dict[str, Any] = {"prune": False} if args.no_prune else {}
    given = vars(args)
    found |= {name: given[name] for name in ("method", "score") if given[name]}
    found |= {name: text.read(given[name], f"--{name}") for name in ("trials", "confirm") if given[name]}
    if args.interval:
        found["interval"] = args.interval
    return found | ({"space": args.space} if args.space else {})


# ------------------------------------------------------------ trials


def trials(study: Study, pool: TrainingPool, asked: Any, picture: str | None) -> None:
    from ganglion.tuning.trials import confirm, run_trials

    run_trials(study, pool, lambda trial: say(one_line(study, trial)), asked)
    if asked():
        return
    winner = study.best()
    say("", *ranking(study))
    if picture:
        from ganglion.tuning.pictures import draw_trials

        draw_trials(study, picture)
    if winner is None or winner.score is None:
        raise UserError(f"no trial was finished. The first said: {study.trials[0].why or study.trials[0].state}")
    file = study.write_winner(winner.settings)
    if study.cfg.confirm:
        say("", f"Training the winner on {study.cfg.confirm} fresh seeds.")
        found = confirm(study, pool, winner, asked)
        if asked():
            return
        say("", *verdict(study, winner, found))
    say(f"Train it:  ganglion train {shlex.quote(str(file))}")


def one_line(study: Study, trial: StudyTrial) -> str:
    score = "-" if trial.score is None else f"{trial.score:.2f}"
    best = study.best()
    lead = f"; best {best.score:.2f} of trial {best.number}" if best is not None and best.score is not None else ""
    why = f": {trial.why[:80]}" if trial.why else ""
    return f"trial {trial.number:>3} {trial.state:<8} {score:>9}  {shown(trial.settings)}{lead}{why}"


def shown(settings: dict[str, Any]) -> str:
    return " ".join(f"{path.removeprefix('algo.')}={value}" for path, value in settings.items())


def ranking(study: Study) -> list[str]:
    """The best trials as a table."""
    paths = list(study.space)
    rows = [("rank", "trial", "score", *(path.removeprefix("algo.") for path in paths))]
    for rank, trial in enumerate(study.ranked()[:SHOWN], 1):
        score = "-" if trial.score is None else f"{trial.score:.2f}"
        state = "" if trial.state == "finished" else f" ({trial.state})"
        rows.append((str(rank), str(trial.number), score + state, *(str(trial.settings.get(path)) for path in paths)))
    more = len(study.trials) - SHOWN
    return [*table(rows), *([f"... and {more} more in {study.folder}/trials.jsonl"] if more > 0 else [])]


def verdict(study: Study, winner: StudyTrial, found: Sequence[Any]) -> list[str]:
    """What fresh seeds say of the winner: the search's own score is the luckiest of many."""
    lines = []
    for one in found:
        mean, low, high = one.interval
        name = "the winner" if one.name != "before" else "the config as it was"
        lines.append(f"On {len(one.scores)} fresh seeds {name}: {mean:.2f}, 95 % interval {low:.2f} to {high:.2f}")
        if one.name != "before" and winner.score is not None:
            tried = f"the best of {len(study.trials)} trials"
            lines.append(f"The search said {winner.score:.2f}; its optimism, as {tried}: {winner.score - mean:.2f}")
    return lines


# ------------------------------------------------------------ populations


def population(study: Study, pool: TrainingPool, asked: Any, picture: str | None) -> None:
    from ganglion.tuning.population import Population

    found = Population.open(study)
    found.run(pool, lambda now: say(generation_line(now, found)), asked)
    best = found.best()
    if best is None or asked():
        return
    say("", *generations(found), "", *lineage(found, best))
    if picture:
        from ganglion.tuning.pictures import draw_lineage

        draw_lineage(found, picture)
    file = study.write_winner(best.settings)
    folder = study.folder / "runs" / f"member-{best.member:02d}"
    say("", f"Its last settings: {file}", f"Score its agent:  ganglion eval {shlex.quote(str(folder))} --which last")


def generation_line(now: Sequence[Member], found: Population) -> str:
    scores = [one.score for one in now if one.score is not None]
    best = max(now, key=lambda one: one.rank)
    copied = sum(one.parent != one.member for one in now)
    head = f"generation {now[0].generation + 1} of {found.generations}, {now[0].steps:,} env steps each"
    return f"{head}: best {max(scores):.2f} ({shown(best.settings)}), worst {min(scores):.2f}, {copied} copied"


def generations(found: Population) -> list[str]:
    """Scores of all members; `<3`: it went on with the agent of member 3."""
    count = max(one.generation for one in found.lived) + 1
    rows: list[tuple[str, ...]] = [("member", *(str(g + 1) for g in range(count)))]
    for member in sorted({one.member for one in found.lived}):
        cells = [next((one for one in found.of(g) if one.member == member), None) for g in range(count)]
        rows.append((str(member), *("" if one is None else cell(one) for one in cells)))
    return ["Score of each member after each generation; <N: it went on with the agent of member N.", *table(rows)]


def cell(one: Member) -> str:
    score = "failed" if one.score is None else f"{one.score:.4g}"
    return score if one.parent == one.member else f"{score} <{one.parent}"


def lineage(found: Population, best: Member) -> list[str]:
    """Where the best agent comes from: only changes of member or settings are shown."""
    lines, before = [f"The best agent (member {best.member}, {best.score:.2f}) comes from:"], None
    for one in found.lineage(best):
        if before is None or one.settings != before.settings:
            begins = 0 if before is None else before.steps
            lines.append(f"  from {begins:>9,} env steps, member {one.member}: {shown(one.settings)}")
        before = one
    return lines
