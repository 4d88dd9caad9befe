"""Draws the learning curves of the records in benchmarks/results.

python benchmarks/pictures.py      writes docs/images/ALGO-learning.png
"""

from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from records import ROOT, record_of
from rows import ROWS, Row

from quintet.observe.plots import Curve, Run, draw_group

COLUMNS = 3
# One for each interval between scheduled checkpoints: there running episodes are given up, so that
# those which end soon after are short ones, and more points would show that.
POINTS = 21
ONE_SEED_POINTS = 100
TITLE_LETTERS = 34  # in a line


def runs_of(record: dict[str, Any], score: str) -> list[Run]:
    """The seeds of a record; their final score is the last point of evaluation."""
    runs, metric = [], f"episode/{score}"
    total = float(record.get("until") or record["config"]["total_env_steps"])
    for run in record["runs"]:
        points = np.array(
            [(row["env_steps"], row[metric]) for row in run["curve"] if metric in row], np.float64
        )
        final = Curve(np.array([total]), np.array([run[score]]))
        config = {"seed": run["seed"], **record["config"]}
        runs.append(Run(ROOT, config, Curve(points[:, 0], points[:, 1]), final))
    return runs


def panel(axes: Axes, row: Row, record: dict[str, Any], beside: dict[str, dict[str, Any]]) -> None:
    """Mean and band over the seeds, their final scores, and what was asked for.

    beside: other records to draw, by their titles.
    """
    title = row.told
    for number, (label, each) in enumerate({"": record, **beside}.items()):
        runs = runs_of(each, row.score)
        label = label or ("the preset" if beside else "")
        draw_group(axes, number, label, runs, POINTS if len(runs) > 1 else ONE_SEED_POINTS)
        for run in runs:
            axes.plot(run.evaluations.x, run.evaluations.y, "o", ms=4, mfc="white", mec="0.1",
                      zorder=3, clip_on=False)  # fmt: skip
    if len(record["runs"]) == 1:
        title += f" (seed {record['runs'][0]['seed']} only)"
    if beside:
        axes.legend(fontsize=6, frameon=False, handlelength=1.2)
    for value, line in ((row.must, ":"), (row.aim, "--")):
        if value is not None:
            axes.axhline(value, color="0.4", ls=line, lw=1, zorder=1)
    axes.set_title(fill(title, TITLE_LETTERS), loc="left", fontsize=9, fontweight="bold")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if row.score == "success_rate":
        axes.set_ylim(0.0, 1.05)
    else:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(0, record["config"]["total_env_steps"])
    axes.tick_params(labelsize=8)
    axes.grid(True, color="0.92", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw(algo: str) -> None:
    rows = {row.name: row for row in ROWS if row.algo == algo}
    records = {name: record for name in rows if (record := record_of(rows[name])) is not None}
    found = [name for name in records if not rows[name].beside]
    lines = -(-len(found) // COLUMNS)
    figure = Figure(figsize=(9.0, 0.6 + 2.1 * lines), dpi=105, layout="constrained")
    places = figure.subplots(lines, COLUMNS, squeeze=False)
    for axes in places.flat[len(found) :]:
        axes.set_visible(False)
    for axes, name in zip(places.flat, found, strict=False):
        beside = {
            rows[other].title.removeprefix("the same").lstrip(", "): records[other]
            for other in records
            if rows[other].beside == name
        }
        panel(axes, rows[name], records[name], beside)
    figure.supxlabel(
        "env steps.  Thick line and band: mean of training episodes and its 95% bootstrap interval "
        "over the table's seeds; thin lines: seeds.\nCircles: 100 greedy episodes of each final "
        "policy.  Dotted: must, dashed: aim.",
        fontsize=8,
    )
    rates = any(rows[name].score == "success_rate" for name in found)
    figure.supylabel("episode return" + ", or success rate" * rates, fontsize=9)
    out = ROOT / "docs" / "images" / f"{algo}-learning.png"
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}")
    figure.savefig(temporary, pil_kwargs={"optimize": True})
    temporary.replace(out)
    print(out, f"{out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    for algo in ("ppo", "impala", "appo", "ddpg", "acer"):
        draw(algo)
