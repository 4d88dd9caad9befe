"""``quintet runs``: a table of the runs in a folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

from tyro.conf import Positional, arg

from quintet.errors import QuintetError
from quintet.observe.pace import clock
from quintet.observe.run_summary import RunSummary, find_runs, number, read_summary, table, text
from quintet.system.files import shown
from quintet.system.places import run_path
from quintet.system.printing import say

_COLUMNS = ("run", "learner", "environment", "seed", "state", "env_steps", "score", "time", "when")


@final
@dataclass(frozen=True)
class Runs:
    """Lists runs: their learner, environment, seed, state, score and time."""

    folder: Annotated[Positional[str], arg(metavar="DIR")] = "runs"
    """folder of runs, or of one run"""
    as_json: Annotated[bool, arg(name="json")] = False
    """print one JSON array"""

    def execute(self) -> None:
        """Prints the list."""
        place = run_path(self.folder)
        if not place.is_dir():
            raise QuintetError(
                f"DIR must be a folder, got {self.folder}: give the folder that holds your runs"
            )
        runs = (read_summary(each, newest=True) for each in find_runs(place))
        if self.as_json:
            say(json.dumps([as_entry(each) for each in runs]))
        elif found := [(cells(each, place), fault_of(each)) for each in runs]:
            say(in_words(found))
        else:
            say(f"no runs in {shown(place)}")


def as_entry(run: RunSummary) -> dict[str, Any]:
    """A run for programs."""
    name, value = run.score or (None, None)
    return {
        "run": str(run.folder),
        "learner": run.learner,
        "environment": run.environment,
        "seed": run.options.get("seed"),
        "state": run.state,
        "env_steps": run.env_steps,
        "total_env_steps": run.total_env_steps,
        "score": value,
        "score_metric": name,
        "score_actions": run.score_kind.partition(", ")[2] or None,
        "metrics": run.numbers,
        "wall_s": run.wall_s,
        "at": run.at,
        "choices": [each.model_dump() for each in run.choices],
        "error": run.error or None,
        "faults": list(run.faults),
    }


def cells(run: RunSummary, place: Path) -> tuple[str, ...]:
    """The row of a run, named within `place`."""
    try:
        name = str(run.folder.relative_to(place))
    except ValueError:
        name = str(run.folder)
    measure = "" if run.score is None else run.score[0].partition("/")[2].partition("_")[0]
    score = "-" if run.score is None else f"{measure} {number(run.score[1])} ({run.score_kind})"
    return (
        text(run.folder.name if name == "." else name),
        run.learner or "-",
        run.environment or "-",
        run.seed or "-",
        run.state,
        run.steps,
        score,
        "-" if run.wall_s is None else clock(run.wall_s),
        run.at[:16].replace("T", " ") or "-",
    )


def fault_of(run: RunSummary) -> str:
    """The reason why a run failed or is damaged; "" for others."""
    if run.state == "damaged":
        whole = [each for each in run.faults if "damaged" in each] or run.faults
        return whole[0] if whole else "its options can't be read"
    return run.error if run.state == "failed" else ""


def in_words(rows: Sequence[tuple[tuple[str, ...], str]]) -> str:
    """A line per run, and the faults of damaged and failed ones.

    rows: the cells of each run, and its fault, "" without one.
    """
    faults = [f"{row[0]}: {said}" for row, said in rows if said]
    return "\n".join([*table([_COLUMNS, *(row for row, _ in rows)]), *faults])
