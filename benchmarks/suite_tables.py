"""The tables of the suite: scores over bars, with the losses first, and quintet beside its peer."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from records import path_of, record_of
from rows import PEER, SOURCES, TASKS, Anchor, Row, Task

from quintet.observe.comparison import Estimate, Part, compare
from quintet.observe.intervals import iqm, resampled
from quintet.observe.sides import At, read_sides, scores

LEVELS = (0.5, 0.8, 0.9, 1.0, 1.1)
"""Fractions of the bar at which the performance profile is read."""


class Standing(NamedTuple):
    """A task's best cell within its budget.

    over: scores of its seeds on a scale on which random actions have 0 and the bar is 1.
    """

    task: Task
    row: Row
    scores: NDArray[np.float64]
    bar: float
    over: NDArray[np.float64]


def budget_of(record: dict[str, Any]) -> int:
    return int(record.get("until") or record["config"]["total_env_steps"])


def within_budget(task: Task) -> list[tuple[Row, dict[str, Any]]]:
    """The recorded cells of a task, each of the task's budget at most."""
    found = [(row, record) for row in task.rows if (record := record_of(row)) is not None]
    return [
        (row, record)
        for row, record in found
        if record["runs"] and task.env_steps and budget_of(record) <= task.env_steps
    ]


def scores_of(row: Row, record: dict[str, Any]) -> NDArray[np.float64]:
    return np.array([run[row.score] for run in record["runs"]], np.float64)


def standing_of(task: Task) -> Standing | None:
    """None where nothing is recorded yet, or there is nothing that it could be held against."""
    cells = within_budget(task)
    ours = [(row, record) for row, record in cells if not row.is_peers]
    peers = [scores_of(*cell).mean() for cell in cells if cell[0].is_peers]
    bar = task.bar if task.bar is not None else max(peers, default=None)
    if not ours or bar is None:
        return None
    row, record = max(ours, key=lambda cell: scores_of(*cell).mean())
    values, chance = scores_of(row, record), record["random"][row.score]
    return Standing(task, row, values, float(bar), (values - chance) / (bar - chance))


def published(task: Task) -> Anchor | None:
    """The highest score that others publish within the budget."""
    known = [x for x in task.anchors if x.env_steps and x.env_steps <= (task.env_steps or 0)]
    return max(known, key=lambda anchor: anchor.score, default=None)


def bars_table() -> str:
    """Every task that has a record, those that are furthest below their bar first."""
    found = [each for task in TASKS if task.number and (each := standing_of(task))]
    lines = [
        "| task | env_steps | learner | seeds | mean | lowest, highest | bar | over bar "
        "| published |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for task, row, values, bar, over in sorted(found, key=lambda each: float(each.over.mean())):
        best = published(task)
        beside = "" if best is None else f"{best.learner.upper()} {best.score:,.4g} ({best.source})"
        cells = (
            task.name, f"{task.env_steps:,}", row.algo.upper(), str(len(values)),
            f"**{number(values.mean())}**", f"{number(values.min())}, {number(values.max())}",
            number(bar), f"{over.mean():.2f}", beside,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    missing = [
        task.name for task in TASKS if task.number and task.name not in {x.task.name for x in found}
    ]
    notes = [
        f"- {each.task.name}: {each.task.note}"
        for each in found
        if each.over.mean() < 1 and each.task.note
    ]
    used = {best.source for each in found if (best := published(each.task)) is not None}
    sources = [f"- {name}: {SOURCES[name]}." for name in SOURCES if name in used]
    over = summary([each.over for each in found])
    return "\n".join([*lines, "", *over, *notes, *said(missing), *sources])


def said(missing: Sequence[str]) -> list[str]:
    return [f"- No record yet: {'; '.join(missing)}."] if missing else []


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.0f}"


def summary(over: list[NDArray[np.float64]]) -> list[str]:
    """The interquartile mean over tasks and seeds, and the performance profile."""
    if not over:
        return []
    several = [values for values in over if len(values) > 1]
    ends = resampled(iqm, *several) if several else None
    interval = "" if ends is None else f" [{ends[0]:.2f}, {ends[1]:.2f}]"
    few = len(over) - len(several)
    without = f", without {few} of one seed" if few else ""
    above = [float(np.mean([(x >= level - 1e-9).mean() for x in over])) for level in LEVELS]
    profile = ", ".join(
        f"{share:.0%} at {level:g}" for level, share in zip(LEVELS, above, strict=True)
    )
    return [
        f"- Score over bar, interquartile mean over {len(several)} tasks{without}: "
        f"**{float(iqm(*several)) if several else float('nan'):.2f}**{interval}.",
        f"- Runs that reach a fraction of their bar, mean over tasks: {profile}.",
    ]


def peer_table() -> str:
    """quintet beside Stable-Baselines3 by task: at the end, and where the faster one ended."""
    pairs = [(task, *pair) for task in TASKS if task.number and (pair := pair_of(task))]
    if not pairs:
        return "Not recorded yet."
    lines = [
        "| task | quintet | Stable-Baselines3 | better at equal env_steps | at equal seconds |",
        "|---|---|---|---|---|",
    ]
    verdicts = [compared(pairs, None), compared(pairs, At("seconds"))]
    for index, (task, mine, theirs) in enumerate(pairs):
        parts = [verdict[index] for verdict in verdicts]
        cells = (
            task.name,
            f"{mine.algo.upper()} {number(parts[0].sides[0].mean)}",
            f"{theirs.algo.removeprefix(PEER).upper()} {number(parts[0].sides[1].mean)}",
            *map(verdict_of, parts),
        )
        lines.append(f"| {' | '.join(cells)} |")
    if len(pairs) > 1:
        over = [verdict_of(verdict[-1]) for verdict in verdicts]
        lines.append(f"| **all {len(pairs)} tasks** | | | **{over[0]}** | **{over[1]}** |")
    return "\n".join(lines)


def pair_of(task: Task) -> tuple[Row, Row] | None:
    """The best cell of each side, with equal budgets within the task's."""
    cells = within_budget(task)
    theirs = [cell for cell in cells if cell[0].is_peers]
    budgets = {budget_of(cell[1]) for cell in theirs}
    mine = [x for x in cells if not x[0].is_peers and budget_of(x[1]) in budgets]
    if not mine:
        return None
    row, record = max(mine, key=lambda cell: scores_of(*cell).mean())
    same = [cell for cell in theirs if budget_of(cell[1]) == budget_of(record)]
    return row, max(same, key=lambda cell: scores_of(*cell).mean())[0]


def compared(pairs: Sequence[tuple[Task, Row, Row]], at: At | None) -> list[Part]:
    """The comparison by task, and over tasks if there are several."""
    of: dict[str, dict[str, NDArray[np.float64]]] = {"quintet": {}, "SB3": {}}
    for task, *rows in pairs:
        places = {side: [path_of(row)] for side, row in zip(of, rows, strict=True)}
        for side, own in scores(read_sides(places), at)[0].items():
            (of[side][task.name],) = own.values()
    return compare(of, dict.fromkeys(of["quintet"], (0.0, 1.0)))


def verdict_of(part: Part) -> str:
    (duel,) = part.duels
    return f"{duel.better or 'not decided'}, {estimate(duel.improvement)}"


def estimate(found: Estimate) -> str:
    ends = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{ends}"
