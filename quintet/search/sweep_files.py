"""Files that a sweep leaves, ``best.yaml``, ``trials.csv``, ``importance.png``, and lines for the
terminal.
"""

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from quintet.errors import QuintetError
from quintet.observe.figures import figure_classes, save, style_axes
from quintet.observe.intervals import bootstrap_band
from quintet.observe.run_summary import table
from quintet.search.sweep import TRIALS, Found, name_of, values_text
from quintet.system import files

_MOST_ROWS = 10
_FIRM_TRIALS = 50
"""Complete trials from which importances say something: PED-ANOVA compares the best tenth of them
with all."""


def write(found: Found) -> list[str]:
    """Writes the files; returns their names, and a sentence where a picture can't be drawn."""
    wrote = ["trials.csv"]
    files.write_whole(found.folder / "trials.csv", _csv(found).encode())
    best = found.winner
    if best is not None:
        values = {**found.options, **found.values(best)}
        files.write_whole(found.folder / "best.yaml", files.dump_yaml(values).encode())
        wrote.append("best.yaml")
    if found.importances:
        try:
            _draw(found)
            wrote.append("importance.png")
        except QuintetError as fault:
            wrote.append(f"no importance.png: {fault}")
    elif found.unknown:
        wrote.append(f"no importance.png: {found.unknown}")
    return wrote


def _csv(found: Found) -> str:
    """The table of all trials, with the scores of their fresh seeds."""
    out = io.StringIO()
    rows = csv.writer(out)
    names = [one.name for one in found.space]
    of_fresh = [f"fresh_seeds{what}" for what in ("", "_mean", "_low", "_high", "_scores")]
    rows.writerow(["trial", "state", found.metric, *of_fresh, *names, "error"])
    for each in found.trials:
        values, fresh = found.values(each), found.fresh.get(each.number, [])
        rows.writerow(
            [
                name_of(each),
                each.state,
                "" if each.score is None else each.score,
                *_of_fresh(fresh),
                *(values[name] for name in names),
                each.error,
            ]
        )
    return out.getvalue()


def _of_fresh(scores: list[float]) -> tuple[Any, ...]:
    """Number, mean, 95% interval and scores of fresh seeds, as far as there are any."""
    if not scores:
        return ("",) * 5
    (low,), (high,) = bootstrap_band(np.array(scores)[:, None])
    # Equal scores make the interval a point, which says nothing of other seeds.
    ends = (float(low), float(high)) if len({*scores}) > 1 else ("", "")
    return len(scores), float(np.mean(scores)), *ends, " ".join(map(repr, scores))


def _draw(found: Found) -> None:
    """Writes ``importance.png``, a bar for each option."""
    figure_class, _ = figure_classes()
    names = sorted(found.importances, key=lambda name: found.importances[name])
    figure = figure_class(figsize=(7.0, 1.2 + 0.35 * len(names)), dpi=150)
    figure.set_layout_engine("constrained")
    axes: Any = figure.add_subplot()
    axes.barh(names, [found.importances[name] for name in names], color="0.5")
    axes.set_xlabel(f"importance for {found.metric} (PED-ANOVA), fraction")
    style_axes(axes, "x")
    save(figure, found.folder / "importance.png")


def lines(found: Found) -> Iterator[str]:
    """Lines about the best trials, their scores on fresh seeds, the number of trials, the one whose
    options are in ``best.yaml``, and the options that mattered."""
    rows = [("trial", found.metric, "fresh seeds: mean, 95% interval", "values")]
    for each in found.ranked[:_MOST_ROWS]:
        rows.append(
            (
                f"{TRIALS}/{name_of(each)}",
                "-" if each.score is None else f"{each.score:,.4g}",
                _interval(found.fresh.get(each.number, [])),
                values_text(found.space, each.drawn),
            )
        )
    yield from table(rows) if len(rows) > 1 else ()
    states = [each.state for each in found.trials]
    words = {"complete": "complete", "pruned": "pruned", "fail": "failed", "running": "not ended"}
    counts = [f"{states.count(state)} {word}" for state, word in words.items() if state in states]
    yield f"{len(states)} trial{'' if len(states) == 1 else 's'}: {', '.join(counts) or 'none'}"
    if found.winner is not None:
        why = "by its fresh seeds" if found.fresh.get(found.winner.number) else "by its one seed"
        yield f"best: {TRIALS}/{name_of(found.winner)}, {why}"
    if found.importances:
        text = ", ".join(f"{name} {x:.2f}" for name, x in found.importances.items())
        doubt = f" (doubtful with fewer than {_FIRM_TRIALS} trials)"
        yield f"importance for the score: {text}{doubt * (states.count('complete') < _FIRM_TRIALS)}"


def _interval(scores: list[float]) -> str:
    if not scores:
        return "-"
    if len({*scores}) == 1:
        return f"{scores[0]:,.4g}, {f'{len(scores)} equal seeds' if scores[1:] else '1 seed'}"
    count, mean, low, high, _ = _of_fresh(scores)
    return f"{mean:,.4g} [{low:,.4g}, {high:,.4g}], {count} seeds"
