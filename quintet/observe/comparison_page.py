"""A comparison of sides as rows, sentences and a picture."""

from collections.abc import Sequence
from typing import Any

from quintet.observe.comparison import MOST_SEEDS, Duel, Estimate, Part
from quintet.observe.figures import LINES, MARKERS, figure_classes, line_colour, style_axes
from quintet.observe.plot_groups import plain
from quintet.observe.run_summary import number

HEADER = ("task", "side", "runs", "mean", "IQM [95%]", "P(first > side) [95%]", "better")

_LABEL = 40  # characters of a line of a name
_SHOWN_TAUS = (10, 20, 30, 40)  # places in a profile


def rows(parts: Sequence[Part]) -> list[tuple[str, ...]]:
    """The rows of a table with `HEADER`, a side in each."""
    return [
        (
            part.task or "all, normalised",
            side.name,
            str(side.runs),
            number(side.mean),
            _ends(side.iqm),
            "" if duel is None else _ends(duel.improvement),
            "" if duel is None else duel.better or "not decided",
        )
        for part in parts
        for side, duel in zip(part.sides, [None, *part.duels], strict=True)
    ]


def profile_rows(part: Part) -> list[tuple[str, ...]]:
    """A table of the fractions of runs above some scores."""
    taus = part.sides[0].taus
    return [
        ("runs above", *(number(taus[place]) for place in _SHOWN_TAUS)),
        *((side.name, *(_ends(side.profile[k]) for k in _SHOWN_TAUS)) for side in part.sides),
    ]


def sentences(parts: Sequence[Part]) -> list[str]:
    """A sentence for each comparison that is not decided."""
    return [
        f"{part.task or 'all tasks'}: not decided between {' and '.join(duel.names)}: "
        f"{_missing(duel, '' if part.task else ' of each task')}"
        for part in parts
        for duel in part.duels
        if duel.better is None
    ]


def _missing(duel: Duel, each: str) -> str:
    """Reason why a comparison is undecided, and seeds that would decide it."""
    found = duel.improvement
    if found.low is None or found.high is None:
        return "one run does not show how others vary, so add seeds to sides that have only one"
    reason = f"{duel.chance:.0%} of shuffles of the sides are as far apart"
    if found.low <= 0.5 <= found.high:
        reason = "the interval holds 0.5"
    if duel.seeds is None:
        return f"{reason}; at this difference {MOST_SEEDS:,} seeds a side may not be enough"
    return (
        f"{reason}; {duel.seeds} seeds{each} a side would decide with a probability of 80% if "
        f"P stays {found.value:.2f} (Noether 1987)"
    )


def _ends(found: Estimate) -> str:
    ends = "" if found.low is None else f" [{number(found.low)}, {number(found.high)}]"
    return f"{number(found.value)}{ends}"


def figure(parts: Sequence[Part], width_in: float = 8.0) -> Any:
    """A picture: the fractions of runs above each score with their bands, over all tasks; and for
    each task the interquartile means and the probabilities of improvement with their intervals.
    """
    figure_class, _ = figure_classes()
    sides, several = parts[-1].sides, len(parts) > 1
    labels = [plain(side.name, _LABEL) for side in sides]
    legend_in = 0.15 + 0.2 * sum(1 + label.count("\n") for label in labels)
    rows_in = 0.5 + len(parts) * (0.25 + 0.16 * len(sides))
    height_in = 2.8 + rows_in + legend_in
    made = figure_class(figsize=(width_in, height_in), dpi=150)
    bottom = legend_in / height_in
    made.set_layout_engine("constrained", rect=(0, bottom, 1, 1 - bottom))
    grid = made.add_gridspec(2, 2, height_ratios=(2.8, rows_in), width_ratios=(3, 2))
    _draw_profile(made.add_subplot(grid[0, :]), parts[-1], labels)
    means, duels = made.add_subplot(grid[1, 0]), made.add_subplot(grid[1, 1])
    for row, part in enumerate(parts):
        scale = part.scale if several else (0.0, 1.0)
        _draw_row(means, row, [_scaled(side.iqm, *scale) for side in part.sides])
        _draw_row(duels, row, [None, *(duel.improvement for duel in part.duels)])
    means.set_xlabel(f"IQM{', normalised' if several else ''}\n(lines: 95% intervals)", fontsize=9)
    duels.set_xlabel("P(first > side)", fontsize=9)
    duels.axvline(0.5, color="0.4", lw=1.0)
    duels.set_xlim(-0.03, 1.03)
    names = [plain(part.task, _LABEL // 2) or "all" for part in parts]
    for axes, shown in ((means, names), (duels, [""] * len(names))):
        axes.set_yticks(range(len(names)), shown, fontsize=8)
        axes.set_ylim(len(names) - 0.5, -0.5)
        style_axes(axes, "x")
    made.legend(loc="lower left", bbox_to_anchor=(0.02, 0.0), frameon=False)
    return made


def _draw_profile(axes: Any, part: Part, labels: Sequence[str]) -> None:
    for place, (side, label) in enumerate(zip(part.sides, labels, strict=True)):
        colour, marker = line_colour(place), MARKERS[place % len(MARKERS)]
        look = {"ls": LINES[place % len(LINES)], "lw": 1.8, "ms": 4, "drawstyle": "steps-post"}
        values = [each.value for each in side.profile]
        axes.plot(side.taus, values, color=colour, label=label, marker=marker, markevery=10, **look)
        if band := [(x.low, x.high) for x in side.profile if x.low is not None]:
            ends = zip(*band, strict=True)
            axes.fill_between(side.taus, *ends, step="post", color=colour, alpha=0.15)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("fraction of runs above")
    axes.set_xlabel(plain(f"return in {part.task}") if part.task else "normalised score")
    style_axes(axes)


def _scaled(found: Estimate, low: float, high: float) -> Estimate:
    every = (found.value, found.low, found.high)
    value, *ends = (None if x is None else (x - low) / (high - low) for x in every)
    return Estimate(value or 0.0, *ends)


def _draw_row(axes: Any, row: int, sides: Sequence[Estimate | None]) -> None:
    for place, found in enumerate(sides):
        if found is not None:
            at = row + 0.6 * ((place + 0.5) / len(sides) - 0.5)
            look = {"color": line_colour(place), "lw": 2.0, "solid_capstyle": "butt"}
            ends = [x for x in (found.low, found.high) if x is not None]
            axes.plot(ends, [at] * len(ends), **look)
            axes.plot([found.value], [at], marker=MARKERS[place % len(MARKERS)], ms=5, **look)
