"""Plots of learning curves and of final scores."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from quintet.checkpoints import run_record
from quintet.errors import QuintetError
from quintet.observe.figures import (
    LINES,
    MARKERS,
    figure_classes,
    line_colour,
    require_format,
    save,
    style_axes,
)
from quintet.observe.intervals import bootstrap_band, iqm, resampled
from quintet.observe.metrics import METRICS_ELSEWHERE, by_policy, describe
from quintet.observe.plot_groups import env_name, group_labels, options_of, plain
from quintet.observe.report_files import read_metrics
from quintet.observe.run_summary import actions_evaluated, bounded, group_key, names_apart, text
from quintet.system import files
from quintet.system.printing import note

Axis = Literal["env_steps", "wall_s"]
Kind = Literal["curve", "bars"]

_SCORES = ("success_rate", "return_mean")  # default metrics, the preferred one first
EVALUATED = {
    "episode/return_mean": "eval/return_mean",
    "episode/return_min": "eval/return_mean",
    "episode/return_max": "eval/return_mean",
    "episode/success_rate": "eval/success_rate",
}
"""Metrics of training, and the metrics of evaluations that are drawn as markers with them."""
_FINAL_PART = 0.1  # last part of a run's env_steps, over which a final score is a mean

_MOST_OPTIONS = 2  # options in the name of a single run
_CHARACTERS_PER_IN = 12.5  # text of a legend
_BAR_CHARACTERS = 40  # longest line of a name beside a bar
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++")


@final
@dataclass(frozen=True)
class Curve:
    """One metric of one run over one axis, in ascending order; both ``[N]``."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]


@final
@dataclass(frozen=True)
class Run:
    """One run: its folder, its configuration, the metric that is drawn, its evaluations, and the
    sources of its options as far as known."""

    folder: Path
    config: dict[str, Any]
    curve: Curve
    evaluations: Curve
    sources: Mapping[str, str] = field(default_factory=dict)


def plot_runs(
    run_dirs: Sequence[Path],
    out: Path,
    kind: Kind = "curve",
    x: Axis = "env_steps",
    metric: str | None = None,
) -> Path:
    """Draws a metric of runs and returns `out`.  Runs that differ only in their seed are a group.
    Runs without the metric are left out, with a line on standard error.

    curve: the metric over env_steps or wall time: for each group the mean over seeds with its 95%
        bootstrap band, over the part of the axis that all seeds have reached, and a thin line for
        each seed.  Evaluations are markers if the metric is a return or the success rate of
        training.
    bars: final scores: for each group the interquartile mean over runs with its 95% bootstrap
        interval, and a mark for each run; one panel per environment.  Runs that failed or have
        not finished are left out, unless all did.  The final score of a run is its last evaluation;
        for other metrics the mean over the last tenth of its env_steps.

    metric: None: the success rate if every run has one, else the mean return; from training for
        curves, from evaluations for bars, or the other way round if a run lacks it.

    Raises:
        QuintetError: there are no runs, no run has the metric, the file format is unknown, or
            matplotlib is missing.
    """
    out = files.given_path(out)
    if not run_dirs:
        raise QuintetError("plotting needs at least one run folder, none was given")
    require_format(out)
    # One run under two names is no second seed.
    folders = {each.resolve(): each for each in map(files.given_path, run_dirs)}.values()
    left_out: list[QuintetError] = []
    reports = _reports(list(folders), kind, left_out)
    if metric is None:
        metric = _default_metric(kind, reports)
    runs = []
    for folder in reports:
        with _leaving_out(left_out):
            for own, of_one in policies_of(reports[folder], metric):
                runs.append(_load(folder, of_one, x, metric, own))
    if not runs:
        raise left_out[0]
    for fault in left_out:
        note(f"left out: {fault}")
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(group_key(run.config, run.sources), []).append(run)
    if kind == "bars":
        return save(_bars(metric, list(groups.values())), out)
    return save(curves(x, metric, labelled(groups.values())), out)


def labelled(groups: Iterable[list[Run]]) -> list[tuple[str, list[Run]]]:
    """Groups of runs with their names: those of their folders where groups are single runs that
    differ in many options."""
    runs = list(groups)
    configs = [members[0].config for members in runs]
    labels = group_labels(configs, [x[0].sources for x in runs])
    folders = [members[0].folder for members in runs]
    single = len({*folders}) == len(folders) and all(len(members) == 1 for members in runs)
    if single and any(label.count(", ") > _MOST_OPTIONS for label in labels):
        labels = names_apart(folders)
    return list(zip(labels, runs, strict=True))


def _reports(
    folders: Sequence[Path], kind: Kind, left_out: list[QuintetError]
) -> dict[Path, list[dict[str, float]]]:
    """The reports of each run that has reports; for bars of the finished runs, if any.

    left_out: receives the reasons why runs are left out.
    """
    reports: dict[Path, list[dict[str, float]]] = {}
    for folder in folders:
        with _leaving_out(left_out):
            found = [bounded(report) for report in read_metrics(folder)]
            if not found:
                raise QuintetError(f"{folder} has no reports yet")
            reports[folder] = found
    records = {folder: run_record.read(folder) for folder in reports}
    ended = {
        folder: "failed" if of.state == "failed" else "has not finished"
        for folder, of in records.items()
        if of is not None and of.state != "finished"
    }
    if kind == "bars" and len(ended) < len(reports):
        for folder, how in ended.items():
            del reports[folder]
            left_out.append(QuintetError(f"{folder} {how}, so it has no final score"))
    return reports


@contextmanager
def _leaving_out(left_out: list[QuintetError]) -> Iterator[None]:
    """Catches the error of a run, which is then left out."""
    try:
        yield
    except QuintetError as fault:
        left_out.append(fault)


def _default_metric(kind: Kind, reports: Mapping[Path, Sequence[Mapping[str, float]]]) -> str:
    """A score that all runs have; prints to standard error if bars are not of evaluations."""
    runs = [own for run in reports.values() for _, own in policies_of(run, None)]
    sources = ("episode", "eval") if kind == "curve" else ("eval", "episode")
    names = [f"{source}/{score}" for score in _SCORES for source in sources]
    reported = [{name for report in run for name in report} for run in runs]
    common = [name for name in names if all(name in each for each in reported)]
    found = common[0] if common else f"{sources[0]}/return_mean"
    if kind == "bars" and runs and not found.startswith("eval/"):
        wanted = f"eval/{found.partition('/')[2]}"
        lacks = [
            str(folder)
            for folder, run in reports.items()
            if not any(name.endswith(wanted) for report in run for name in report)
        ]
        note(
            f"warning: final scores are those of training ({found}), since {', '.join(lacks[:3])} "
            f"{'has' if len(lacks) == 1 else 'have'} no evaluations"
        )
    return found


def policies_of(
    reports: Sequence[Mapping[str, float]], metric: str | None
) -> list[tuple[dict[str, int], Sequence[Mapping[str, float]]]]:
    """The reports of each policy of a run under plain names, with its distinguishing values; the
    run's own reports if it has one policy or reports the metric itself.
    """
    parts = [by_policy(report) for report in reports]
    policies = sorted({policy for each in parts for policy in each})
    if not policies or any(metric in report for report in reports):
        return [({}, reports)]
    return [
        (
            {"policy": policy},
            [{**report, **own.get(policy, {})} for report, own in zip(reports, parts, strict=True)],
        )
        for policy in policies
    ]


def _load(
    folder: Path,
    reports: Sequence[Mapping[str, float]],
    x: Axis,
    metric: str,
    own: Mapping[str, Any],
) -> Run:
    """own: entries added to the run's configuration."""
    curve = extract(reports, x, metric)
    evaluations = extract(reports, x, EVALUATED.get(metric, f"eval/{metric}"))
    if len(curve.x) == 0:
        have = sorted({name for report in reports for name in report} - {"env_steps", "wall_s"})
        ours = METRICS_ELSEWHERE.get(metric.rpartition("/")[2])
        near = [ours] if ours in have else difflib.get_close_matches(metric, have, n=1)
        raise QuintetError(
            f"{folder} has no values of {metric} over {x} yet ({len(reports)} reports)"
            + (f"; did you mean {text(near[0])}?" if near else ".")
            + f" It has: {', '.join(map(text, have)) or 'nothing'}"
        )
    record = run_record.read(folder)
    sources = {} if record is None else record.sources
    return Run(folder, {**options_of(folder), **own}, curve, evaluations, sources)


def extract(reports: Sequence[Mapping[str, float]], x: Axis, metric: str) -> Curve:
    points = [(report[x], report[metric]) for report in reports if x in report and metric in report]
    ordered = np.array(sorted(points, key=lambda point: point[0]), dtype=np.float64).reshape(-1, 2)
    return Curve(ordered[:, 0], ordered[:, 1])


def _resample(curve: Curve, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """The curve at the evenly spaced points of `grid`: the mean of the values nearest to each
    point.

    Points without such values are interpolated, at the ends from the next value outside.
    """
    step = (grid[1] - grid[0]) or 1.0
    nearest = np.rint((curve.x - grid[0]) / step).astype(np.int64)
    inside = (nearest >= 0) & (nearest < len(grid))
    if not inside.any():
        return np.interp(grid, curve.x, curve.y)
    counts = np.bincount(nearest[inside], minlength=len(grid))
    sums = np.bincount(nearest[inside], weights=curve.y[inside], minlength=len(grid))
    filled = counts > 0
    before, after = np.nonzero(nearest < 0)[0][-1:], np.nonzero(nearest >= len(grid))[0][:1]
    x = np.concatenate([curve.x[before], grid[filled], curve.x[after]])
    y = np.concatenate([curve.y[before], sums[filled] / counts[filled], curve.y[after]])
    drawn: NDArray[np.float64] = np.interp(grid, x, y)
    return drawn


def in_seeds(members: Sequence[Run]) -> str:
    """The number of seeds in words; also the number of runs if a seed is there twice."""
    seeds = len({str(run.config.get("seed", run.folder)) for run in members})
    count = f"{seeds} seed{'' if seeds == 1 else 's'}"
    return count if seeds == len(members) else f"{len(members)} runs of {count}"


def _acting(metric: str, run: Run) -> str:
    """The actions of the evaluations of a metric; "" for metrics of training."""
    return actions_evaluated(run.config) if metric.startswith("eval/") else ""


def _final(run: Run, metric: str) -> float:
    if metric.startswith("eval/"):
        return float(run.curve.y[-1])
    late = run.curve.x >= (1 - _FINAL_PART) * run.curve.x[-1]
    return float(run.curve.y[late].mean())


def _bars(metric: str, groups: Sequence[Sequence[Run]]) -> Any:
    """Draws a panel for each environment, and each way in which evaluations act, with a bar for
    each group, from top to bottom in the given order; groups with the same name have the same
    colour.
    """
    ways = {_acting(metric, members[0]) for members in groups}
    panels: dict[tuple[str, str], list[list[Run]]] = {}
    for members in groups:
        key = env_name(members[0].config), _acting(metric, members[0])
        panels.setdefault(key, []).append(list(members))
    named = {key: labelled(labels_and_runs) for key, labels_and_runs in panels.items()}
    heights_in = [
        sum(0.3 + 0.16 * (2 + len(label) // _BAR_CHARACTERS) for label, _ in labels_and_runs)
        for labels_and_runs in named.values()
    ]
    figure_class, _ = figure_classes()
    height_in = 0.6 + 0.9 * len(panels) + sum(heights_in)
    figure = figure_class(figsize=(7.0, height_in), dpi=150)
    figure.set_layout_engine("constrained")
    placed = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights_in)[:, 0]
    colors: dict[str, int] = {}  # numbers of colours by label
    for axes, ((env, way), labels_and_runs) in zip(placed, named.items(), strict=True):
        _draw_bars(axes, metric, dict(labels_and_runs), colors)
        _decorate(axes, {env}, "x", f", {way} actions" if way and len(ways) > 1 else "")
        if metric.endswith("success_rate"):
            axes.set_xlim(-0.02, 1.02)
    way = ways.pop() if len(ways) == 1 else ""
    # The label may be wider than the axes, beside which the names of groups stand.
    placed[-1].set_xlabel(f"final {_named(metric)}{f', {way} actions' if way else ''}", loc="right")
    meaning = "bar: interquartile mean; line: its 95% bootstrap interval; circles: runs"
    figure.supxlabel(meaning, x=0.01, ha="left", fontsize=8)
    return figure


def _draw_bars(
    axes: Any, metric: str, groups: Mapping[str, Sequence[Run]], numbers: dict[str, int]
) -> None:
    """numbers: indices of colours by group name; new names are added."""
    names = []
    for place, (label, members) in enumerate(groups.items()):
        number = numbers.setdefault(label, len(numbers))
        scores = np.array([_final(run, metric) for run in members])
        mean = float(iqm(scores))
        interval = resampled(iqm, scores)
        axes.barh(
            place,
            mean,
            height=0.6,
            color=line_colour(number),
            alpha=0.45,
            hatch=_HATCHES[number % len(_HATCHES)],
            edgecolor="white",
        )
        if interval is not None:
            axes.plot(interval, [place, place], color="0.1", lw=2, solid_capstyle="butt")
        spread = np.linspace(-0.2, 0.2, len(scores)) if len(scores) > 1 else np.zeros(1)
        axes.plot(scores, place + spread, "o", ms=4, mfc="white", mec="0.1", ls="none")
        count = in_seeds(members)
        names.append(f"{plain(label, _BAR_CHARACTERS)}\n{mean:,.4g}, {count}")
    axes.set_yticks(range(len(groups)), names, fontsize=9)
    axes.invert_yaxis()
    axes.axvline(0, color="0.5", lw=0.8)


def curves(
    x: Axis, metric: str, named: Sequence[tuple[str, list[Run]]], width_in: float = 7.0
) -> Any:
    """A figure of the curves of groups of runs, by name."""
    figure_class, formatter_class = figure_classes()
    characters = int(_CHARACTERS_PER_IN * (width_in - 0.8)) - len(" (99 seeds, 95% band)")
    groups = [(plain(label, characters), members) for label, members in named]
    evaluations = _evaluation_names(run for _, members in groups for run in members)
    entries = len(groups) + len(evaluations)
    rows = entries + sum(label.count("\n") for label, _ in groups) if len(groups) > 1 else 1
    legend_in = 0.12 + 0.22 * rows
    height_in = 4.2 + legend_in
    figure = figure_class(figsize=(width_in, height_in), dpi=150)
    # the legend stands below the axes: names of groups are long, and curves may be anywhere
    bottom = legend_in / height_in
    figure.set_layout_engine("constrained", rect=(0, bottom, 1, 1 - bottom))
    axes = figure.add_subplot()
    for number, (label, members) in enumerate(groups):
        draw_group(axes, number, label, members)
        _draw_evaluations(axes, number, members)
    for name, filling in evaluations.items():
        axes.plot([], [], color="0.4", ls="none", marker="o", mfc=filling or "0.4", label=name)
    if x == "env_steps":
        axes.xaxis.set_major_formatter(formatter_class(sep=""))
    _decorate(axes, {env_name(members[0].config) for _, members in groups}, "both")
    axes.set_xlabel("env steps" if x == "env_steps" else "wall time [s]")
    axes.set_ylabel(_named(metric))
    if metric.endswith("success_rate"):
        axes.set_ylim(-0.02, 1.02)
    axes.set_xlim(left=0)
    ncols = 1 if len(groups) > 1 else entries
    figure.legend(loc="lower left", bbox_to_anchor=(0.02, 0.0), frameon=False, ncols=ncols)
    return figure


def _decorate(axes: Any, envs: set[str], grid: str, more: str = "") -> None:
    title = plain(", ".join(sorted(envs - {""}))) or "runs"
    axes.set_title(f"{title}{more}", loc="left", fontweight="bold")
    style_axes(axes, grid)


def draw_group(
    axes: Any, number: int, label: str, members: Sequence[Run], points: int = 200
) -> None:
    """Draws the runs of one group in the style of its index: mean, band and thin lines, or its
    single run.

    Mean and band cover the part of the axis that all runs have; without such a part they are left
    out.

    points: number of points of a drawn curve, each the mean of the reports around it.
    """
    colour, line = line_colour(number), LINES[number % len(LINES)]
    again = number // len(LINES)
    marked = {"marker": MARKERS[(again - 1) % len(MARKERS)], "markevery": 0.1} if again else {}
    if len(members) == 1:
        curve = members[0].curve
        if len(curve.x) > 2 * points:
            grid = np.linspace(curve.x[0], curve.x[-1], points)
            curve = Curve(grid, _resample(curve, grid))
        marked = {"marker": "o"} if len(curve.x) == 1 else marked
        axes.plot(curve.x, curve.y, color=colour, ls=line, lw=1.4, label=label, **marked)
        return
    for run in members:
        grid = np.linspace(run.curve.x[0], run.curve.x[-1], points)
        y = _resample(run.curve, grid)
        marker = "o" if len(run.curve.x) == 1 else None
        axes.plot(grid, y, color=colour, ls=line, lw=0.6, alpha=0.45, marker=marker, ms=3)
    start = max(run.curve.x[0] for run in members)
    end = min(run.curve.x[-1] for run in members)
    if start > end:  # one of them has just begun
        axes.plot([], [], color=colour, ls=line, lw=0.6, label=f"{label} ({in_seeds(members)})")
        return
    grid = np.linspace(start, end, points)
    curves = np.stack([_resample(run.curve, grid) for run in members])
    low, high = bootstrap_band(curves)
    axes.fill_between(grid, low, high, color=colour, alpha=0.2, lw=0)
    name = f"{label} ({in_seeds(members)}, 95% band)"
    marked = {"marker": "o"} if start == end else marked
    mean = curves.mean(axis=0)
    axes.plot(grid, mean, color=colour, ls=line, lw=2.0, label=name, **marked)


def _evaluation_names(runs: Iterable[Run]) -> dict[str, str | None]:
    """The names of evaluations in a legend, with their environment if it differs from training's,
    and how they act if they sample; each with the filling of its markers, None for their colour.
    """
    evaluated = [run for run in runs if len(run.evaluations.x)]
    own = {str(x) for run in evaluated if (x := run.config.get("eval.env.id")) is not None}
    where = f" in {plain(', '.join(sorted(own)))}" if own else ""
    ways = sorted({actions_evaluated(run.config) for run in evaluated})
    mixed = len(ways) > 1
    return {
        f"evaluation{where}{f', {way} actions' if way and (mixed or way == 'sampled') else ''}": (
            None if way == "sampled" else "white"
        )
        for way in ways
    }


def _draw_evaluations(axes: Any, number: int, members: Sequence[Run]) -> None:
    look = {"ls": "none", "clip_on": False, "mec": line_colour(number)}
    look |= {"marker": MARKERS[number % len(MARKERS)]}
    look |= {"ms": 6.0, "alpha": 1.0} if len(members) == 1 else {"ms": 3.5, "alpha": 0.6}
    for run in members:
        sampled = actions_evaluated(run.config) == "sampled"
        look["mfc"] = line_colour(number) if sampled else "white"
        # An empty line without clipping would take the layout's room down to the figure's corner.
        if len(run.evaluations.x):
            axes.plot(run.evaluations.x, run.evaluations.y, **look)


def _named(metric: str) -> str:
    """A metric's name in words, with its unit."""
    readable = {
        "episode/return_mean": "mean episode return",
        "episode/length_mean": "mean episode length",
        "episode/success_rate": "success rate",
        "eval/return_mean": "mean evaluation return",
        "eval/success_rate": "success rate in evaluations",
    }
    found = describe(metric)
    unit = f" [{found.unit}]" if found and found.unit != "1" else ""
    return plain(readable.get(metric, metric) + unit)
