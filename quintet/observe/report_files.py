"""Reads the reports of a run in ``metrics.jsonl``, and makes the table ``progress.csv`` from them.

A checkpoint holds the size and checksum of ``metrics.jsonl`` (a `Mark`), which detects damage even
where every line can be read.
"""

import csv
import io
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from quintet.checkpoints import manifest
from quintet.checkpoints.links import require_own
from quintet.errors import FileFault, QuintetError
from quintet.system import files

JSONL_FILE = "metrics.jsonl"
CSV_FILE = "progress.csv"

MARK = "report_bytes"
"""Key of the mark in a checkpoint's meta."""

Report = dict[str, float]
Notice = Callable[[str], None]

_MOST_FAULTS = 3  # faults that are named one by one
_MOST_LINE = 2**22  # bytes; a report of a hundred policies has a tenth of it


class Kept(NamedTuple):
    """The reports with which a sink starts, all up to `env_steps`; -1: none."""

    reports: Sequence[Mapping[str, float]]
    env_steps: int


class Mark(NamedTuple):
    """The size of ``metrics.jsonl`` at a checkpoint, and its CRC-32."""

    size: int = 0
    crc: int = 0

    def after(self, content: bytes) -> "Mark":
        """The mark after more content."""
        return Mark(self.size + len(content), crc32(content, self.crc))


class Gathered(NamedTuple):
    """The readable reports of a run, oldest first, and whether their file has others."""

    reports: list[Report]
    damaged: bool = False


def gather(
    run_dir: Path, meta: Mapping[str, Any], notice: Notice, *, newest: bool = False
) -> Gathered:
    """The reports of a run, without an incomplete last line, which is no damage.

    meta: of the checkpoint whose mark the reports must have; empty without one.
    notice: receives a message about every fault.
    newest: whether the newest value of every metric is enough, as one report in place of all.
    """
    path, marked, mark = run_dir / JSONL_FILE, Mark(*(meta.get(MARK) or ())), Mark()
    reports: list[Report] = []
    if not os.path.lexists(path):
        if marked.size:
            notice(f"{path} is not there: its reports are lost")
        return Gathered(reports)
    faults, torn = 0, False
    try:
        for number, line in enumerate(files.read_lines(path, _MOST_LINE), start=1):
            torn = not line.endswith(b"\n") and len(line) <= _MOST_LINE
            if torn:
                break
            if mark.size < marked.size:
                mark = mark.after(line)
            try:
                report = _report(line)
            except ValueError as fault:
                faults += 1
                if faults <= _MOST_FAULTS:
                    notice(f"line {number} of {path} is damaged ({fault}) and left out")
                continue
            if newest and reports:
                reports[0] |= report
            else:
                reports.append(report)
    except FileFault as fault:
        notice(str(fault))
        return Gathered([], damaged=True)
    if faults > _MOST_FAULTS:
        notice(f"{faults - _MOST_FAULTS:,} more faults in {path}")
    elif not faults and mark != marked:
        size = f"{marked.size:,} bytes"
        notice(f"{path} is damaged: its first {size} are not those of the checkpoint")
    if torn:
        notice(f"the last line of {path} is torn and left out")
    return Gathered(reports, damaged=faults > 0)


def _report(line: bytes) -> Report:
    """The report of a line; raises ValueError if it is no object of finite numbers."""
    if len(line) > _MOST_LINE:
        raise ValueError(f"it has more than {_MOST_LINE:,} bytes")
    report = files.parse_json(line)
    if not isinstance(report, dict):
        raise ValueError("no object")
    if not _are_finite(report.values()):
        raise ValueError("not all values are finite numbers")
    return {sys.intern(name): value for name, value in report.items()}


def _are_finite(values: Collection[Any]) -> bool:
    """`files.is_number` of all values, many times as fast."""
    try:
        return {*map(type, values)} <= {int, float} and all(map(math.isfinite, values))
    except OverflowError:
        return False


def read_metrics(
    run_dir: Path, notice: Notice = files.warn_on_stderr, *, newest: bool = False
) -> list[Report]:
    """All reports of a run, oldest first.

    notice: receives a message about everything damaged or missing.
    newest: as of `gather`.

    Raises:
        QuintetError: ``metrics.jsonl`` is missing, or the folder contains a link.
    """
    run_dir = files.given_path(run_dir)
    require_own(run_dir)
    if not os.path.lexists(run_dir / JSONL_FILE):
        raise QuintetError(
            f"{run_dir} has no {JSONL_FILE}: give the folder of a run that reported to jsonl"
        )
    last = manifest.newest(run_dir / "checkpoints", notice)
    return gather(run_dir, last.meta if last else {}, notice, newest=newest).reports


_FIRST_COLUMNS = (
    "env_steps",
    "wall_s",
    "updates",
    "episode/return_mean",
    "episode/success_rate",
    "episode/length_mean",
)


def columns_of(
    reports: Iterable[Mapping[str, float]], columns: Iterable[str] = ()
) -> dict[str, None]:
    """A table's columns after `columns`: each report appends its new ones, sorted."""
    found = dict.fromkeys(columns)
    for report in reports:
        if not found:
            found |= dict.fromkeys(name for name in _FIRST_COLUMNS if name in report)
        found |= dict.fromkeys(sorted(report.keys() - found.keys()))
    return found


def table(columns: Mapping[str, None], reports: Iterable[Mapping[str, float]]) -> bytes:
    """The reports as rows of CSV; an absent metric is an empty cell."""
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(reports)
    return text.getvalue().encode()
