"""``quintet diff``: what differs between two runs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, final

from tyro.conf import Positional, arg

from quintet.errors import ConfigError, QuintetError
from quintet.observe.metrics import newest, plain_name
from quintet.observe.run_summary import SCORES, RunSummary, number, read_summary, table, text
from quintet.system.places import run_path
from quintet.system.printing import say

_NOT_COMPARED = ("run_dir", "resume")
_MOST_METRICS = 8
_OF_TIME = ("wall_s", "throughput/", "time/", "machine/", "worker", "server/", "process/", "node/")


@final
@dataclass(frozen=True)
class Diff:
    """Compares two runs: options and their sources, versions, environment, curves."""

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="A B")] = ()
    """two runs"""
    as_json: Annotated[bool, arg(name="json")] = False
    """print one JSON object"""

    def execute(self) -> None:
        """Prints the differences."""
        if len(self.runs) != 2:
            raise ConfigError(
                f"quintet diff must get two runs, got {len(self.runs)}: quintet diff runs/A runs/B"
            )
        a, b = (_readable(read_summary(run_path(run))) for run in self.runs)
        found = differences(a, b)
        say(json.dumps(found, default=str) if self.as_json else in_words(found, a, b))


def _readable(run: RunSummary) -> RunSummary:
    if not run.options:
        said = run.faults[0] if run.faults else "it has neither options nor checkpoints"
        raise QuintetError(f"a run must have options, got {run.folder}: {said}")
    return run


def differences(a: RunSummary, b: RunSummary) -> dict[str, Any]:
    """The differences of two runs; everything as JSON can hold it."""
    return {
        "runs": [str(a.folder), str(b.folder)],
        "states": [a.state, b.state],
        "options": {
            name: {"values": list(values), "sources": [a.sources.get(name), b.sources.get(name)]}
            for name, values in _differing(a.options, b.options).items()
            if name not in _NOT_COMPARED
        },
        "versions": _differences(a.system, b.system),
        "environment": _differences(a.spaces, b.spaces),
        "reports": _reports(a, b),
        "scores": {
            name: [newest(run.reports, name) for run in (a, b)]
            for name in dict.fromkeys((*SCORES, *a.numbers, *b.numbers))
            if any(newest(run.reports, name) is not None for run in (a, b))
        },
        "env_steps": [a.env_steps, b.env_steps],
        "wall_s": [a.wall_s, b.wall_s],
    }


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [*a, *(name for name in b if name not in a)]
    return {name: (a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]] | None:
    """The differences; None if nothing is known of one of the two."""
    return {k: list(x) for k, x in _differing(a, b).items()} if a and b else None


def _reports(a: RunSummary, b: RunSummary) -> dict[str, Any]:
    """Place where two curves part: the number of reports at the same env_steps, how many first ones
    are equal in all common numbers but times and memory, and the env_steps and metrics of the next
    one, which differs; None and no metrics if all are equal.
    """
    of = [_spans(run) for run in (a, b)]
    common = sorted(of[0].keys() & of[1].keys())
    for equal, (before, steps) in enumerate(common):
        one, two = of[0][before, steps], of[1][before, steps]
        names = [
            name
            for name in one.keys() & two.keys()
            if one[name] != two[name] and not plain_name(name).startswith(_OF_TIME)
        ]
        if names:
            return {
                "common": len(common),
                "equal": equal,
                "at": int(steps),
                "metrics": sorted(names),
            }
    return {"common": len(common), "equal": len(common), "at": None, "metrics": []}


def _spans(run: RunSummary) -> dict[tuple[float, float], Mapping[str, float]]:
    """Reports by the env_steps before and at each, since they hold means over the steps between."""
    found = [each for each in run.reports if "env_steps" in each]
    ends = [each["env_steps"] for each in found]
    return dict(zip(zip([0.0, *ends], ends, strict=False), found, strict=True))


def in_words(found: Mapping[str, Any], a: RunSummary, b: RunSummary) -> str:
    """The differences as lines."""
    lines = [f"{x}  {text(run.folder)} ({run.state})" for x, run in (("A", a), ("B", b))]
    lines += ["", "options"]
    rows = [
        (name, *(_with_source(x, by) for x, by in zip(*own.values(), strict=True)))
        for name, own in found["options"].items()
    ]
    lines += _table(rows)
    for part in ("versions", "environment"):
        lines += ["", part]
        if found[part] is None:
            lines.append("  not known of both")
        else:
            lines += _table([(name, *map(text, own)) for name, own in found[part].items()])
    lines += ["", "curves"]
    parts = found["reports"]
    if not parts["common"]:
        lines.append("  the runs have no reports of the same env_steps, so none were compared")
    elif not parts["metrics"]:
        lines.append(f"  no difference in {parts['common']:,} reports of the same env_steps")
    else:
        names = ", ".join(map(text, parts["metrics"][:_MOST_METRICS]))
        more = len(parts["metrics"]) - _MOST_METRICS
        lines.append(
            f"  of {parts['common']:,} reports at the same env_steps the first {parts['equal']:,} "
            f"are equal; at {parts['at']:,} these differ: {names}"
            + (f" and {more} more" if more > 0 else "")
        )
    rows = [(name, *map(number, own)) for name, own in found["scores"].items()]
    rows += [(name, *map(number, found[name])) for name in ("env_steps", "wall_s")]
    return "\n".join([*lines, *_table(rows)])


def _with_source(value: Any, source: str | None) -> str:
    shown = "-" if value is None else text(value)
    return f"{shown} ({source})" if source else shown


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    return [f"  {line}" for line in table(rows)] or ["  no difference"]
