"""The pictures of a report's page, as SVG without outside resources."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from quintet.findings.health import NUMBERS, State
from quintet.observe.figures import figure_classes, style_axes
from quintet.observe.plot_groups import plain
from quintet.observe.plots import (
    EVALUATED,
    Axis,
    Run,
    curves,
    extract,
    labelled,
    policies_of,
)
from quintet.observe.run_summary import RunSummary, group_key

_HEALTH = re.compile(r"((?:policy_\d+/)?)health/([a-z_]+)")
_MOST_PARTS = 16

WIDTH_IN = 5.6
"""Width of a picture, so that its texts can be read on a page of 420 pixels."""

_COLOURS: dict[State, str] = {
    "reliable": "#009E73",
    "not known yet": "#D9D9D9",
    "doubtful": "#E69F00",
}


def svg(figure: Any) -> bytes:
    """The figure as an SVG document, in which texts are shapes."""
    import matplotlib

    out = io.BytesIO()
    with (
        warnings.catch_warnings(),  # a letter that the font lacks
        matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "quintet"}),
    ):
        warnings.simplefilter("ignore")
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def curves_of(runs: Sequence[RunSummary], x: Axis, metric: str) -> bytes | None:
    """Curves of a metric with bands over seeds; None if no run has it."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        for own, reports in policies_of(run.reports, metric):
            curve = extract(reports, x, metric)
            if not len(curve.x):
                continue
            options = {**run.options, **own}
            evaluations = extract(reports, x, EVALUATED.get(metric, f"eval/{metric}"))
            drawn = Run(run.folder, options, curve, evaluations, run.sources)
            groups.setdefault(group_key(options, run.sources), []).append(drawn)
    if not groups:
        return None
    return svg(curves(x, metric, labelled(groups.values()), WIDTH_IN))


def health_over_time(reports: Sequence[Mapping[str, float]]) -> bytes | None:
    """A strip for each part of the learner: its state over env_steps; None without any."""
    parts = sorted(
        {name for report in reports for name in report if _HEALTH.fullmatch(name)},
        key=lambda name: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", name)],
    )
    more = len(parts) - _MOST_PARTS
    parts = parts[:_MOST_PARTS]
    if not parts:
        return None
    figure_class, formatter = figure_classes()
    figure = figure_class(figsize=(WIDTH_IN, 0.9 + 0.32 * len(parts)), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.add_subplot()
    for place, name in enumerate(parts):
        for state, colour in _COLOURS.items():
            spans = _spans(reports, name, state)
            if spans:
                axes.broken_barh(spans, (place - 0.4, 0.8), color=colour, lw=0)
    axes.set_yticks(range(len(parts)), [plain(_name(name)) for name in parts])
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("env steps" + (f" ({more} more parts are not drawn)" if more > 0 else ""))
    axes.xaxis.set_major_formatter(formatter(sep=""))
    style_axes(axes, "x")
    from matplotlib.patches import Patch

    signs = [Patch(color=colour, label=state) for state, colour in _COLOURS.items()]
    figure.legend(handles=signs, loc="outside upper left", ncols=3, frameon=False)
    return svg(figure)


def _name(metric: str) -> str:
    policy, part = _HEALTH.fullmatch(metric).groups()  # type: ignore[union-attr]
    whose = f" of {policy.rstrip('/').replace('_', ' ')}" if policy else ""
    return f"{part.replace('_', ' ')}{whose}"


def _spans(
    reports: Sequence[Mapping[str, float]], name: str, state: State
) -> list[tuple[float, float]]:
    """The beginning and the width of each stretch of env_steps in a state; a report has the state
    of the steps before it."""
    spans: list[tuple[float, float]] = []
    before = 0.0
    for report in reports:
        now = report.get("env_steps", before)
        if name in report and report[name] == NUMBERS[state] and now > before:
            if spans and sum(spans[-1]) == before:
                spans[-1] = spans[-1][0], now - spans[-1][0]
            else:
                spans.append((before, now - before))
        before = max(now, before)
    return spans
