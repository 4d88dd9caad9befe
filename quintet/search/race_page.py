"""Files about a race: ``race.csv``, and ``race.html``, a page without outside resources.

They show who ran, who fell out, when and why, with curves over time.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from quintet.errors import QuintetError
from quintet.observe.figures import LINES, figure_classes, line_colour, style_axes
from quintet.observe.pace import clock
from quintet.observe.report_figures import WIDTH_IN, svg
from quintet.observe.report_page import Opening, Picture, address, write_page
from quintet.observe.run_summary import RunSummary, read_summary, text
from quintet.search.race_asked import RETURN, of_training
from quintet.search.race_journal import FOLDER, Journal, Runner
from quintet.search.score import score
from quintet.system import files
from quintet.system.files import shown

_COLUMNS = (
    "entry", "learner", "rung", "at_s", "env_steps", "actions", "return_mean", "low", "high",
    "greedy_episodes", "sampled_episodes", "training_return", "out_at_s", "out",
)  # fmt: skip


def write(folder: Path, journal: Journal) -> list[str]:
    """Writes the files; returns a line for each, or why there is none."""
    place = folder / FOLDER
    files.write_whole(place / "race.csv", table(journal).encode())
    lines = [f"table: {shown(place / 'race.csv')}"]
    try:
        runs = _runs(folder, journal)
        title = f"Race on {text(journal.asked.get('env.id', ''))}"
        opening = _opening(journal, runs)
        out = write_page(list(runs.values()), title, place / "race.html", opening=opening)
        lines.append(f"page:  {shown(out)}")
    except QuintetError as fault:
        lines.append(f"no race.html: {fault}")
    return lines


def by_result(journal: Journal) -> list[Runner]:
    """The entries by result: the winner, then by rung, the furthest first, and within a rung by
    score, with failed entries last.
    """

    def place(each: Runner) -> tuple[Any, ...]:
        mean = score(each.looks[-1]).mean if each.looks else None
        worse = inf if mean is None else -mean
        return each.name != journal.winner, bool(each.out), -len(each.looks), each.failed, worse

    return sorted(journal.runners, key=place)


def table(journal: Journal) -> str:
    """The rows of ``race.csv``: one for each evaluation, and one for an entry without any."""
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(_COLUMNS)
    for each in by_result(journal):
        end = (f"{each.out_at_s:.1f}", each.out) if each.out else ("", "")
        for rung, look in enumerate(each.looks, 1):
            ends = end if rung == len(each.looks) else ("", "")
            cells = [
                *(each.name, each.algo, rung, f"{look.at_s:.1f}", look.env_steps),
                *score(look).known(),
                *(len(look.returns), len(look.sampled), look.training, *ends),
            ]
            rows.writerow(["" if cell is None else cell for cell in cells])
        if not each.looks:
            rows.writerow([each.name, each.algo, *[""] * 10, *end])
    return out.getvalue()


def _runs(folder: Path, journal: Journal) -> dict[str, RunSummary]:
    """Summaries of entries with a run, by name; the winner's run has the folder of the race."""
    found = {}
    for each in by_result(journal):
        place = folder / FOLDER / each.name
        won = each.name == journal.winner and journal.state == "finished"
        if won:
            place = folder
        if place.is_dir():
            found[each.name] = read_summary(place)
        if won and found[each.name].state == "running":  # the folder is this process's
            found[each.name] = replace(found[each.name], state="finished")
    return found


def _opening(journal: Journal, runs: Mapping[str, RunSummary]) -> Opening:
    """The page's summary: the state of the race, and a table of candidates by round."""
    winner, objective = journal.winner, _objective(journal)
    what = "mean returns" if objective == RETURN else f"means of {objective}"
    state = f"{winner} won" if winner else f"round {journal.rung + 1} of {len(journal.counts)} runs"
    sentences = [
        f"{len(journal.runners)} candidates, {journal.jobs} at the same time, in "
        f"{clock(journal.spent_s)}: {state}. Scores are {what} of fresh episodes with 95% "
        "bootstrap intervals. Each is the better of greedy and sampled actions, by the lower end "
        "of the interval. At the end of a round the candidates with the highest scores stay.",
        *map(text, journal.told),
    ]
    rungs = max((len(each.looks) for each in journal.runners), default=0)
    header = [
        "candidate",
        "learner",
        "why it runs",
        *(f"round {i + 1}" for i in range(rungs)),
        "end",
    ]
    rows = [
        [
            each.name,
            text(each.algo),
            text(each.why),
            *(str(score(look)) for look in each.looks),
            *["-"] * (rungs - len(each.looks)),
            _end_of(each, winner),
        ]
        for each in by_result(journal)
    ]
    drawn = _curves(journal, runs)
    pictures = [] if drawn is None else [Picture("Returns over time", address(drawn))]
    names = {str(run.folder): name for name, run in runs.items()}
    return Opening(sentences, header, rows, pictures, names)


def _end_of(runner: Runner, winner: str | None) -> str:
    if runner.name == winner:
        return "won"
    return f"out at {clock(runner.out_at_s)}: {text(runner.out)}" if runner.out else "runs"


def _curves(journal: Journal, runs: Mapping[str, RunSummary]) -> bytes | None:
    """Mean returns of training over each entry's own time, evaluations with their intervals, and a
    cross where an entry fell out."""
    figure_class, _ = figure_classes()
    figure = figure_class(figsize=(WIDTH_IN, 4.2), dpi=150)
    figure.set_layout_engine("constrained")
    axes: Any = figure.add_subplot()
    drawn = 0
    for place, each in enumerate(journal.runners):
        if each.name not in runs:
            continue
        reports = runs[each.name].reports
        drawn += _curve(axes, place, each, reports, _objective(journal))
    if not drawn:
        return None
    axes.set_xlabel("seconds of the candidate's training")
    axes.set_ylabel("return" if _objective(journal) == RETURN else _objective(journal))
    style_axes(axes)
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    return svg(figure)


def _objective(journal: Journal) -> str:
    return text(str(journal.asked.get("checkpoint.best_by", RETURN)))


def _curve(
    axes: Any,
    place: int,
    runner: Runner,
    reports: Sequence[Mapping[str, float]],
    objective: str,
) -> int:
    """Draws an entry; returns the number of its points."""
    (name, sign), colour = of_training(objective), line_colour(place)
    points = [(x["wall_s"], sign * x[name]) for x in reports if name in x and "wall_s" in x]
    if not points:
        return 0
    style = LINES[place % len(LINES)]
    axes.plot(*zip(*points, strict=True), color=colour, ls=style, lw=1.3, label=runner.name)
    at = [(x["env_steps"], x["wall_s"]) for x in reports if "wall_s" in x]
    for look in runner.looks:
        found = score(look)
        if found.mean is None or found.low is None or found.high is None:
            continue
        wall_s = next((s for steps, s in reversed(at) if steps <= look.env_steps), at[0][1])
        band = [[max(0.0, found.mean - found.low)], [max(0.0, found.high - found.mean)]]
        axes.errorbar([wall_s], [found.mean], band, color=colour, fmt="o", ms=4, capsize=2)
    if runner.out:
        axes.plot(*points[-1], "x", color=colour, ms=8, mew=2)
    return len(points)
