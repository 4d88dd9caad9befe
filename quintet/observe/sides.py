"""Sides of a comparison: runs of folders and of records of benchmarks, and their scores."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, RootModel

from quintet.checkpoints.manifest import Checked, Word, content_fault
from quintet.errors import FileFault, QuintetError
from quintet.observe.comparison import pooled_scale
from quintet.observe.metrics import newest, signed
from quintet.observe.run_summary import RunSummary, actions_evaluated, find_runs, read_summary, text
from quintet.options.bounds import LARGEST
from quintet.system import files

Array = NDArray[np.float64]
Kind = Literal["final evaluation", "last evaluation", "training"]

_METRICS: dict[Kind, str] = {
    "last evaluation": "eval/return_mean",
    "training": "episode/return_mean",
}
_KINDS: tuple[Kind, ...] = ("final evaluation", *_METRICS)  # the best first
_AXES = {"steps": "env_steps", "seconds": "wall_s"}
_FACTS = ("env.backend", "env.kwargs", "env.max_episode_steps")  # may differ under one name
_MOST_BYTES = 2**28
_REACHED = 0.99  # fraction of a place that a run must reach: its last report may be before its end


@final
@dataclass(frozen=True)
class Member:
    """A run of a side.

    final: mean return of the final policy, where it was evaluated apart.
    known: returns of uniformly random actions and of a good policy, ``random`` and ``bar``.
    """

    name: str
    run: RunSummary
    final: float | None = None
    known: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The environment in which the run was scored."""
        return text(self.run.options.get("eval.env.id") or self.run.environment)


Sides = Mapping[str, Sequence[Member]]
Scores = Mapping[str, Mapping[str, Array]]
"""The scores of each side by task."""


class At(NamedTuple):
    """The place on curves at which runs are scored; None: the first end of a task's runs."""

    axis: Literal["steps", "seconds"]
    value: float | None = None


Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
_Pair = Annotated[list[Finite], Field(min_length=2, max_length=2)]


class _Run(Checked):
    return_mean: Finite
    curve: list[dict[str, Finite]] = Field(default=[])
    evaluations: list[_Pair] = Field(default=[])


class _Record(Checked):
    env: Word
    runs: Annotated[list[_Run], Field(min_length=1)]
    random: dict[str, Finite] = Field(default={})
    bar: Finite | None = None
    config: dict[str, Any] = Field(default={})


class _Bars(RootModel[dict[str, dict[Literal["random", "bar"], Finite]]]):
    model_config = ConfigDict(strict=True)


def read_sides(places: Mapping[str, Iterable[Path]]) -> Sides:
    """The runs of each side, of folders and of records; raises QuintetError for a place without
    scores, and for a run on two sides."""
    sides: dict[str, dict[str, Member]] = {}
    for side, own in places.items():
        members = {key: each for place in own for key, each in _read(place).items()}
        for other, runs in sides.items():
            for key in members.keys() & runs.keys():
                raise QuintetError(
                    f"a run must be on one side, got {runs[key].name} on {other} and {side}: leave "
                    "it out of one"
                )
        sides[side] = members
    return {side: [*own.values()] for side, own in sides.items()}


def _read(place: Path) -> dict[str, Member]:
    """The runs of a place, each by a name that no other has."""
    name = text(files.shown(place))
    if place.is_file():
        record: _Record = _checked(_Record, place, "a record of benchmarks/suite.py")
        known = {"random": record.random.get("return_mean"), "bar": record.bar}
        options = {**record.config, "env.id": record.env, "eval.env.id": None}
        return {
            f"{place.resolve()}:{number}": Member(
                f"run {number} of {name}",
                RunSummary(place, "finished", options=options, reports=_reports(run)),
                run.return_mean,
                known,
            )
            for number, run in enumerate(record.runs, start=1)
        }
    if not (found := find_runs(place)):
        raise QuintetError(
            "a side must have run folders, folders with runs, or records (.json), got "
            f"{name}: correct its name, or leave it out"
        )
    return {str(folder.resolve()): _of_folder(folder) for folder in found}


def _of_folder(folder: Path) -> Member:
    run, name = read_summary(folder), text(files.shown(folder))
    scored = any(newest(run.reports, metric) is not None for metric in _METRICS.values())
    if not scored or not run.environment:
        without = "scores" if run.environment else "options"
        why = next(iter(run.faults), f"{run.state}, without {without}")
        raise QuintetError(f"a run must have options and returns, got {name} ({why}): leave it out")
    return Member(name, run)


def _checked(model: type[BaseModel], path: Path, form: str) -> Any:
    """The content of a JSON file."""
    try:
        content = files.parse_json(files.read_bytes(path, most=_MOST_BYTES))
        fault = content_fault(model, content)
    except (FileFault, ValueError) as error:
        fault = str(error)
    if fault is not None:
        where = text(files.shown(path))
        raise QuintetError(
            f"{where} must be {form}, got {text(fault)}: correct it, or leave it out"
        )
    return model.model_validate(content)


def _reports(run: _Run) -> list[dict[str, float]]:
    """The curve of a run of a record, and its evaluations, at the time of their env_steps."""
    curve = [each for each in run.curve if "env_steps" in each]
    times = sorted((each["env_steps"], each["wall_s"]) for each in curve if "wall_s" in each)
    reports = [{"env_steps": n, _METRICS["last evaluation"]: x} for n, x in run.evaluations]
    if times:
        steps, seconds = np.array(times).T
        for each in reports:
            each["wall_s"] = float(np.interp(each["env_steps"], steps, seconds))
    return sorted([*curve, *reports], key=lambda report: report["env_steps"])


def scores(
    sides: Sides, at: At | None, metric: str | None = None
) -> tuple[dict[str, dict[str, Array]], list[str]]:
    """The scores of the tasks that all sides have, and sentences about them.

    at: None: final scores. Else scores from curves, up to a place.
    metric: a number of the environment, perhaps after a minus, in place of returns.

    Raises:
        QuintetError: the sides share no task, or a run has no such score.
    """
    tasks = {side: list(dict.fromkeys(each.task for each in own)) for side, own in sides.items()}
    every = dict.fromkeys(task for own in tasks.values() for task in own)
    common = [task for task in every if all(task in own for own in tasks.values())]
    if not common:
        listed = "; ".join(f"{side} of {', '.join(own)}" for side, own in tasks.items())
        raise QuintetError(
            f"sides must share an environment, got {listed}: compare runs of the same environment"
        )
    left = [task for task in every if task not in common]
    notes = [f"left out, since not all sides have them: {', '.join(left)}"] if left else []
    returns: dict[str, dict[str, list[dict[Kind, float]]]] = {side: {} for side in sides}
    for task in common:
        runs = {side: [x for x in own if x.task == task] for side, own in sides.items()}
        together = [each for own in runs.values() for each in own]
        notes += _differences(task, together)
        place = math.inf if at is None else _place(together, at)
        notes += [] if at is None else [f"{task}: scored at {place:,.0f} {_AXES[at.axis]}"]
        for side, own in runs.items():
            returns[side][task] = [_returns(each, at, place, metric) for each in own]
    kinds = {side: _kind(side, own) for side, own in returns.items()}
    if len({*kinds.values()}) > 1:
        notes.insert(0, "warning: these kinds of scores differ even for one policy")
    counts = {side: sum(map(len, own.values())) for side, own in returns.items()}
    said = [f"{x}: {_in_words(counts[x], sides[x], kinds[x], at)}" for x in sides]
    of = {
        side: {task: np.array([each[kinds[side]] for each in runs]) for task, runs in own.items()}
        for side, own in returns.items()
    }
    return of, said + notes


def _kind(side: str, returns: Mapping[str, Sequence[Mapping[Kind, float]]]) -> Kind:
    """The best kind that all runs of a side have."""
    for kind in _KINDS:
        if all(kind in each for runs in returns.values() for each in runs):
            return kind
    raise QuintetError(
        f"the runs of a side must all have scores of one kind, got {side} with no such kind: give "
        "a later place, or leave out runs that lack scores"
    )


def _in_words(count: int, members: Sequence[Member], kind: Kind, at: At | None) -> str:
    """The number of a side's runs, and the kind of their scores."""
    ways = sorted({actions_evaluated(each.run.options) for each in members} - {""})
    source: str = "returns of training" if kind == "training" else kind
    if kind == "last evaluation":
        source = "evaluations during training" if at else source
        source += f", {' and '.join(ways)} actions" if ways else ""
    return f"{count} run{'' if count == 1 else 's'}, scored by {source}"


def _differences(task: str, members: Sequence[Member]) -> list[str]:
    """Warnings where options that define a task's environment differ between its runs."""
    notes = []
    for name in _FACTS:
        options = [each.run.options for each in members]
        found = {text(json.dumps(each[name], default=str)) for each in options if name in each}
        if len(found) > 1:
            kinds = " and ".join(sorted(found))
            notes.append(f"warning: {task} is not the same in all runs, {name}: {kinds}")
    return notes


def _place(members: Sequence[Member], at: At) -> float:
    """The place of a task's runs, which all of them have reached."""
    ends = {x.name: (x.run.env_steps if at.axis == "steps" else x.run.wall_s) or 0 for x in members}
    first = min(ends, key=lambda name: ends[name])
    value = ends[first] if at.value is None else at.value
    if not ends[first] >= _REACHED * value:
        raise QuintetError(
            f"the place must not be after the end of a run, got {value:,.0f} {_AXES[at.axis]}, but "
            f"{first} ends at {ends[first]:,.0f}: compare with --equal {at.axis}"
        )
    return value


def _returns(member: Member, at: At | None, place: float, metric: str | None) -> dict[Kind, float]:
    """A run's last return, or metric, by kind, or the last ones up to a place on its curves."""
    final, names = (member.final, _METRICS) if metric is None else (None, _kinds(metric))
    found: dict[Kind, float | None] = {"final evaluation": final if at is None else None}
    reports = member.run.reports
    if at is not None:
        axis = _AXES[at.axis]
        reports = [report for report in reports if report.get(axis, math.inf) <= place]
    elif member.run.state != "finished":
        raise QuintetError(
            f"a run must have finished to have a final score, got {member.name} "
            f"({member.run.state}): leave it out, or compare with --equal steps"
        )
    found |= {kind: newest(reports, name) for kind, name in names.items()}
    return {kind: value for kind, value in found.items() if value is not None}


def _kinds(metric: str) -> dict[Kind, str]:
    """The names of a metric in reports, by kind."""
    name, sign = signed(metric)
    name, minus = name.removeprefix("eval/"), "-" if sign < 0 else ""
    return {"last evaluation": f"{minus}eval/{name}", "training": f"{minus}{name}"}


def read_bars(path: Path | None) -> dict[str, dict[str, float]]:
    """Known returns by task, as of `Member`; none without a file."""
    form = 'an object such as {"Hopper-v4": {"random": 18, "bar": 3000}}'
    return {} if path is None else _checked(_Bars, path, form).root


def scales(
    sides: Sides, found: Scores, bars: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, tuple[float, float]], str]:
    """The scores that are 0 and 1 over tasks, and a sentence about them.

    bars: known returns by task, which take the place of those of records.
    """
    known, pooled = {}, {}
    for task in next(iter(found.values())):
        pooled[task] = pooled_scale([own[task] for own in found.values()])
        of = [each.known for own in sides.values() for each in own if each.task == task]
        ends = {
            name: x for own in (*of, bars.get(task, {})) for name, x in own.items() if x is not None
        }
        if len(ends) == 2:
            known[task] = ends["random"], ends["bar"]
            if not ends["bar"] > ends["random"]:
                raise QuintetError(
                    f"the bar of {task} must be above random actions, got {ends['bar']:,.4g} and "
                    f"{ends['random']:,.4g}: correct --bars"
                )
    if lacking := [task for task in pooled if task not in known]:
        return pooled, (
            "over tasks 0 is the lowest and 1 the highest score of all sides, since the returns of "
            f"random actions and of a bar are not known in {lacking[0]} (--bars)"
        )
    return known, "over tasks 0 is the return of random actions and 1 that of the bar"
