"""One HTML page about runs, without scripts and outside resources.

What a run folder says is text that the template escapes; pictures and films are data of the page.
"""

import os
import stat
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from quintet.errors import FileFault, QuintetError
from quintet.findings.health import NUMBERS
from quintet.findings.record import Finding, in_words
from quintet.observe import comparison_page
from quintet.observe.comparison import compare
from quintet.observe.lineage import EVENTS, lineage_figure, read_events
from quintet.observe.metrics import ENV
from quintet.observe.pace import clock
from quintet.observe.plot_groups import group_labels
from quintet.observe.report_figures import WIDTH_IN, curves_of, health_over_time, svg
from quintet.observe.run_summary import SCORES, RunSummary, group_key, names_apart, number, text
from quintet.observe.sides import Member, scales, scores
from quintet.system import files

_MOST_COMMAND = 4_000  # characters
_FILM_BYTES, _MOST_FILMS = 16 * 2**20, 3
_MOST_SIDES = 7
_MOST_OWN = 12  # curves of the environment's own numbers

_CURVES = {
    "policy/entropy": "Entropy of the policy",
    "value/explained_variance": "Explained variance of values",
    "throughput/env_steps_per_s": "Speed",
    "curriculum/stage": "Stage of the curriculum",
}


@dataclass(frozen=True)
class Picture:
    """A picture of the page: a title, and its content as a data URI."""

    title: str
    source: str


@dataclass(frozen=True)
class Section:
    """The runs of one environment: their curves, and the comparison of groups."""

    environment: str
    pictures: Sequence[Picture]
    compared: "Opening | None"


Marks = Mapping[str, Sequence[Finding]]
"""Possible causes of runs that learn too little, by their folders."""


@dataclass(frozen=True)
class Entry:
    """A run on the page."""

    run: RunSummary
    name: str
    score: str
    time: str
    steps: str
    health: Picture | None
    lineage: Picture | None
    films: Sequence[Picture]
    films_left_out: Sequence[str]
    given: Sequence[tuple[str, str, str]]
    others: Sequence[tuple[str, str, str]]
    doubtful: Sequence[str]
    marks: Sequence[Mapping[str, str]] | None


@dataclass(frozen=True)
class Opening:
    """Paragraphs, a table and pictures before the runs of a page; names: names of the
    runs by folder, where a run is not named after its folder.
    """

    said: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    pictures: Sequence[Picture]
    names: Mapping[str, str]


def page(
    runs: Sequence[RunSummary],
    title: str,
    marks: Marks | None = None,
    opening: Opening | None = None,
) -> str:
    """The page; raises QuintetError if a package that it needs is missing.

    marks: None: the runs were not examined.
    opening: takes the place of the curves of each environment.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as fault:
        raise QuintetError(
            'a report needs jinja2, which is not installed: pip install "quintet-rl[plot]"'
        ) from fault
    source = resources.files("quintet.observe").joinpath("report.html.jinja").read_text("utf-8")
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(source)
    by_env: dict[str, list[RunSummary]] = {}
    for run in runs:
        by_env.setdefault(run.environment, []).append(run)
    sections = [
        Section(env or "no environment", _pictures(own), _compared(own))
        for env, own in by_env.items()
        if opening is None
    ]
    folders = [run.folder for run in runs]
    names = dict(zip(map(str, folders), names_apart(folders), strict=True))
    names |= {} if opening is None else opening.names
    entries = [
        _entry(
            run,
            None if marks is None else marks[str(run.folder)],
            names[str(run.folder)],
        )
        for run in runs
    ]
    return template.render(title=text(title), opening=opening, sections=sections, entries=entries)


def write_page(
    runs: Sequence[RunSummary],
    title: str,
    out: Path,
    marks: Marks | None = None,
    opening: Opening | None = None,
) -> Path:
    """Writes the page and returns its path; raises QuintetError if it can't be written."""
    content = page(runs, title, marks, opening)
    try:
        files.make_folder(out.parent)
        files.write_whole(out, content.encode())
    except OSError as fault:
        raise files.cannot_write(out, fault) from fault
    return out


def _named(run: RunSummary) -> set[str]:
    """The metrics of a run, those of its policies also without the policy."""
    names = {name for report in run.reports for name in report}
    return names | {n.partition("/")[2] for n in names if n.startswith("policy_")}


def _pictures(runs: Sequence[RunSummary]) -> list[Picture]:
    """Curves of the runs of one environment: the score over steps and over time, and others."""
    names = {name for run in runs for name in _named(run)}
    # One that all runs have, so that none is missing; else one that some have.
    every = [_named(run) for run in runs if run.reports]
    common = [name for name in SCORES if all(name in own for own in every)]
    scores = common or [name for name in SCORES if name in names]
    scores.sort(key=lambda name: not name.startswith("episode/"))
    score = next(iter(scores), None)
    wanted: list[tuple[str, Any, str]] = []
    if score is not None:
        wanted = [("Score", "env_steps", score), ("Score over time", "wall_s", score)]
    wanted += [(title, "env_steps", name) for name, title in _CURVES.items() if name in names]
    own = sorted(name for name in names if name.startswith(ENV))
    wanted += [(text(name), "env_steps", name) for name in own[:_MOST_OWN]]
    found = ((title, curves_of(runs, x, name)) for title, x, name in wanted)
    return [Picture(title, address(data)) for title, data in found if data is not None]


def _compared(runs: Sequence[RunSummary]) -> Opening | None:
    """Compares the first group of finished runs with the others; runs of a group differ only in
    their seed.  None unless there are two groups, and one of them has several runs."""
    groups: dict[str, list[RunSummary]] = {}
    for run in runs:
        if run.state == "finished" and run.score is not None:
            groups.setdefault(group_key(run.options, run.sources), []).append(run)
    members = list(groups.values())
    if not 1 < len(members) <= _MOST_SIDES or max(map(len, members)) == 1:
        return None
    labels = group_labels([own[0].options for own in members], [own[0].sources for own in members])
    sides = {
        text(label): [Member(text(run.folder), run) for run in own]
        for label, own in zip(labels, members, strict=True)
    }
    try:
        found, said = scores(sides, None)
        parts = compare(found, scales(sides, found, {})[0])
    except QuintetError as fault:
        return Opening([text(fault)], (), (), (), {})
    said += comparison_page.sentences(parts)
    drawn = svg(comparison_page.figure(parts, WIDTH_IN))
    pictures = [Picture("Fractions of runs, means and comparisons", address(drawn))]
    return Opening(said, comparison_page.HEADER, comparison_page.rows(parts), pictures, {})


def _entry(run: RunSummary, marks: Sequence[Finding] | None, name: str) -> Entry:
    """The section of one run."""
    health = health_over_time(run.reports)
    rows = [(name, text(value), run.sources.get(name, "")) for name, value in run.options.items()]
    given = [row for row in rows if row[2] and not row[2].startswith("default")]
    how = run.score_kind.partition(",")[1:]
    score = "-"
    if run.score is not None:
        score = f"{number(run.score[1])} ({run.score[0]}{''.join(how)})"
    last = run.reports[-1] if run.reports else {}
    films, left_out = _films(run.folder)
    doubtful = [
        text(name)
        for name, value in last.items()
        if "health/" in name and value == NUMBERS["doubtful"]
    ]
    return Entry(
        run=run,
        name=text(name),
        score=score,
        time="-" if run.wall_s is None else clock(run.wall_s),
        steps=run.steps,
        health=None if health is None else Picture("Health over time", address(health)),
        lineage=_lineage(run.folder),
        films=films,
        films_left_out=left_out,
        given=given,
        others=[row for row in rows if row not in given],
        doubtful=doubtful,
        marks=None if marks is None else [*map(_in_words, marks)],
    )


def _in_words(found: Finding) -> dict[str, str]:
    """A finding as printable texts."""
    return {
        "name": found.name,
        "degree": found.degree,
        "said": text(found.said),
        "advice": text(found.advice),
        "evidence": text(in_words(found.evidence)),
        "command": text(found.command, _MOST_COMMAND),
        "link": found.link,
    }


def _lineage(folder: Path) -> Picture | None:
    """The decisions of a population; None without one, or if it can't be read."""
    if not (folder / EVENTS).exists():
        return None
    with suppress(QuintetError):
        figure = lineage_figure(read_events(folder))
        figure.set_size_inches(WIDTH_IN, figure.get_figheight())
        drawn = svg(figure)
        return Picture("Copies and tuned options of the population", address(drawn))
    return None


def _films(folder: Path) -> tuple[list[Picture], list[str]]:
    """The films in a run folder and in its folder ``videos``: at most three, ordinary files of at
    most 16 MiB; and the names of those that are left out.
    """
    found: list[Picture] = []
    left_out: list[str] = []
    for place in (folder, folder / "videos"):
        with suppress(OSError, FileFault):
            if not stat.S_ISDIR(os.lstat(place).st_mode) and place != folder:
                continue
            for name in sorted(os.listdir(place)):
                path = place / name
                status = os.lstat(path)
                if not name.lower().endswith(".mp4") or not stat.S_ISREG(status.st_mode):
                    continue
                if status.st_size > _FILM_BYTES or len(found) == _MOST_FILMS:
                    left_out.append(text(name))
                    continue
                data = files.read_bytes(path)
                if data[4:8] == b"ftyp":
                    found.append(Picture(text(name), address(data, "video/mp4")))
    return found, left_out


def address(data: bytes, kind: str = "image/svg+xml") -> str:
    """The data as an address that needs no other resource."""
    return f"data:{kind};base64,{b64encode(data).decode()}"
