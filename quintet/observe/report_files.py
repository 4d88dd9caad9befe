"""Reads, compares and repairs the reports in ``metrics.jsonl`` and ``progress.csv``.

Both hold the same reports.  A checkpoint holds their number and checksum (a `Mark`), which detects
damage even in a readable file; lost reports are then restored from the other file.
"""

import csv
import io
import json
import math
import os
import re
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final
from zlib import crc32

from quintet.errors import FileFault, QuintetError
from quintet.system import files, manifest
from quintet.system.inside import require_own

JSONL_FILE = "metrics.jsonl"
CSV_FILE = "progress.csv"

MARK = "reports"
"""Key of the mark in a checkpoint's meta."""

Report = dict[str, float]
Notice = Callable[[str], None]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,200}")  # names of metrics
_MOST_FAULTS = 3  # faults that are named one by one
_MOST_FAULTS_KEPT = 100_000
_MOST_LINE = 2**22  # bytes; a report of a hundred policies has a tenth of it


class Kept(NamedTuple):
    """The reports with which a sink starts, all up to `env_steps`; -1: none."""

    reports: Sequence[Mapping[str, float]]
    env_steps: int


class Mark(NamedTuple):
    """The number of reports at a checkpoint, and their CRC-32."""

    number: int = 0
    crc: int = 0

    def after(self, report: Mapping[str, float]) -> "Mark":
        """The mark after one more report."""
        text = json.dumps(dict(report), sort_keys=True)
        return Mark(self.number + 1, crc32(text.encode(), self.crc))


def mark_of(reports: Iterable[Mapping[str, float]]) -> Mark:
    mark = Mark()
    for report in reports:
        mark = mark.after(report)
    return mark


def mark_in(meta: Mapping[str, object]) -> Mark | None:
    """The mark in a checkpoint's meta; None without one."""
    held = meta.get(MARK)
    return Mark(*held) if isinstance(held, list) else None


@final
@dataclass
class Held:
    """The contents of one file.

    newest: whether `reports` holds only one report, of the newest value of every metric.
    faults: sentences about its damage; if there are any, reports may be missing or wrong.
    torn: whether its last line is incomplete because the writer or the machine stopped.
    steps: the env_steps of each report; hashes: of each report and those before it.
    mark: of the first reports, as many as `marked`.
    """

    path: Path
    newest: bool = False
    marked: int = 0
    reports: list[Report] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    torn: bool = False
    steps: "array[float]" = field(default_factory=lambda: array("d"))
    hashes: "array[int]" = field(default_factory=lambda: array("q"))
    mark: Mark = field(default_factory=Mark)

    def add(self, report: Report) -> None:
        """Adds the next report."""
        if self.mark.number < self.marked:
            self.mark = self.mark.after(report)
        before = self.hashes[-1] if self.hashes else 0
        self.hashes.append(hash((before, frozenset(report.items()))))
        self.steps.append(report.get("env_steps", 0))
        if self.newest and self.reports:
            self.reports[0] |= report
        else:
            self.reports.append(report)


class Gathered(NamedTuple):
    """The reports of a run, oldest first, and the contents of its files."""

    reports: list[Report]
    held: list[Held]


def files_of(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """The files of reports that a run wrote at a checkpoint; one of earlier sinks may be beside
    them.

    meta: of the checkpoint.
    """
    sinks = meta.get("config", {}).get("report.sinks")
    both = {"jsonl": JSONL_FILE, "csv": CSV_FILE}
    return tuple(name for sink, name in both.items() if isinstance(sinks, list) and sink in sinks)


def gather(
    run_dir: Path,
    mark: Mark | None,
    notice: Notice,
    names: Sequence[str] = (),
    *,
    newest: bool = False,
) -> Gathered:
    """All reports in the files of a run: from a file without faults, else the remaining reports of
    both.

    names: the files that count, see `files_of`; empty, or if none of them is there: both.
    mark: mark of the reports that must at least exist; None: unknown.
    notice: receives a message about every fault and what was done about it.
    newest: whether the newest value of every metric is enough, as one report in place of all.
    """
    if not any(os.path.lexists(run_dir / name) for name in names):
        names = (JSONL_FILE, CSV_FILE)
    found = [_held(run_dir / name, mark, newest) for name in names]
    held = [each for each in found if each is not None]
    if mark is not None and mark.number and not held:
        notice(f"{run_dir} has neither {JSONL_FILE} nor {CSV_FILE}: its reports are lost")
    for each in held:
        for fault in each.faults[:_MOST_FAULTS]:
            notice(fault)
        if len(each.faults) > _MOST_FAULTS:
            notice(f"{len(each.faults) - _MOST_FAULTS:,} more faults in {each.path}")
        if each.torn:
            notice(f"the last line of {each.path} is torn and left out")
    whole = [each for each in held if not each.faults]
    if whole:
        damaged = [each for each in held if each.faults]
        if damaged:
            notice(f"the reports of {damaged[0].path} are taken from {whole[0].path}")
        elif not _agree(whole):
            notice(f"{JSONL_FILE} and {CSV_FILE} of {run_dir} differ; {JSONL_FILE} is believed")
            return Gathered(whole[0].reports, held)
        return Gathered(max(whole, key=lambda each: len(each.steps)).reports, held)
    by_steps: dict[float, Report] = {}
    for each in held:
        for report in each.reports:
            by_steps.setdefault(report.get("env_steps", 0), report)
    reports = [by_steps[steps] for steps in sorted(by_steps)]
    left = len({steps for each in held for steps in each.steps})
    if len(held) > 1 or (held and mark is not None and left < mark.number):
        of = f" of {mark.number:,}" if mark is not None else ""
        notice(f"{left:,}{of} reports are left in {' and '.join(e.path.name for e in held)}")
    return Gathered(reports, held)


def _agree(whole: Sequence[Held]) -> bool:
    """Whether the files hold the same reports, except that one may end earlier."""
    together = min(len(each.hashes) for each in whole)
    return not together or len({each.hashes[together - 1] for each in whole}) == 1


def set_damaged_aside(held: Sequence[Held], notice: Notice) -> None:
    """Renames damaged files, which are then written again; raises FileFault if one can't be
    renamed.
    """
    for each in held:
        if each.faults:
            notice(f"the damaged {each.path} is kept as {files.set_aside(each.path)}")


def read_metrics(
    run_dir: Path, notice: Notice = files.warn_on_stderr, *, newest: bool = False
) -> list[Report]:
    """All reports of a run, oldest first.

    notice: receives a message about everything damaged or missing.
    newest: as of `gather`.

    Raises:
        QuintetError: both ``metrics.jsonl`` and ``progress.csv`` are missing, or the folder
            contains a link.
    """
    run_dir = files.given_path(run_dir)
    require_own(run_dir)
    if not any(os.path.lexists(run_dir / name) for name in (JSONL_FILE, CSV_FILE)):
        raise QuintetError(
            f"{run_dir} has no {JSONL_FILE}: give the folder of a run that reported to jsonl"
        )
    last = manifest.newest(run_dir / "checkpoints")
    meta = last.meta if last else {}
    for name in files_of(meta):
        if not os.path.lexists(run_dir / name):
            notice(f"{run_dir / name} is not there")
    return gather(run_dir, mark_in(meta), notice, files_of(meta), newest=newest).reports


def columns_of(reports: Iterable[Mapping[str, float]]) -> list[str]:
    """Columns of a table of these reports; each report appends its new ones, sorted."""
    columns: list[str] = []
    for report in reports:
        columns += new_columns(columns, report)
    return columns


_FIRST_COLUMNS = (
    "env_steps",
    "wall_s",
    "updates",
    "episode/return_mean",
    "episode/success_rate",
    "episode/length_mean",
)


def new_columns(columns: Sequence[str], report: Mapping[str, float]) -> list[str]:
    """The names in a report without a column, in the order of their new columns."""
    new = [name for name in report if name not in columns]
    first = [name for name in _FIRST_COLUMNS if name in new and not columns]
    return first + sorted(set(new) - set(first))


def csv_line(cells: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _held(path: Path, mark: Mark | None, newest: bool) -> Held | None:
    if not os.path.lexists(path):
        return None
    held = Held(path, newest, 0 if mark is None else mark.number)
    read: Callable[[bytes], Report] | None = None if path.name == CSV_FILE else _json_report
    try:
        for number, line in enumerate(files.read_lines(path, _MOST_LINE), start=1):
            if not line.endswith(b"\n") and len(line) <= _MOST_LINE:
                held.torn = True
            elif read is None:
                # Names and numbers hold neither commas nor quotes, so lines are split as they are.
                header = [sys.intern(x) for x in line[:-1].decode(errors="replace").split(",")]
                # Names of another learner or version may be unknown: only their form is checked.
                if odd := [name for name in header if not _NAME.fullmatch(name)]:
                    said = f"the header of {path} is damaged ({odd[0][:200]!r} is no metric)"
                    return Held(path, newest, faults=[said])
                read = partial(_csv_report, header)
            else:
                _take(held, read, line, number)
    except FileFault as fault:
        return Held(path, newest, faults=[str(fault)])
    if mark is not None and not held.faults and held.mark != mark:
        short = held.mark.number < mark.number
        what = f"{held.mark.number:,} reports in place of" if short else "other reports than"
        held.faults.append(
            f"{path} is damaged: it holds {what} the {mark.number:,} of the checkpoint"
        )
    return held


def _take(held: Held, read: Callable[[bytes], Report], line: bytes, number: int) -> None:
    """Adds the report in a line, or a fault."""
    try:
        if len(line) > _MOST_LINE:
            raise ValueError(f"it has more than {_MOST_LINE:,} bytes")
        report = read(line[:-1])
        if not _are_finite(report.values()):
            raise ValueError("not all values are finite numbers")
        held.add(report)
    except ValueError as fault:
        if len(held.faults) < _MOST_FAULTS_KEPT:
            said = f"line {number} of {held.path} is damaged ({fault}) and left out"
            held.faults.append(said)


def _are_finite(values: Collection[Any]) -> bool:
    """`files.is_number` of all values, many times as fast."""
    try:
        return {*map(type, values)} <= {int, float} and all(map(math.isfinite, values))
    except OverflowError:
        return False


def _json_report(line: bytes) -> Report:
    report = files.parse_json(line)
    if not isinstance(report, dict):
        raise ValueError("no object")
    return {sys.intern(name): value for name, value in report.items()}


def _csv_report(header: Sequence[str], line: bytes) -> Report:
    cells = line.decode("ascii").split(",")
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells under {len(header)} names")
    named = zip(header, cells, strict=True)
    return {name: _number(cell) for name, cell in named if cell}


def _number(cell: str) -> float:
    # An int stays one, for the mark.
    return int(cell) if cell.lstrip("-").isdigit() else float(cell)
