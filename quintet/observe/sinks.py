"""Where reports go: ``metrics.jsonl``, ``progress.csv`` and TensorBoard event files in the run's
folder.

A resumed run goes on in the same files: what they hold beyond the checkpoint is dropped first, so
every env_step is reported once.  Files are written without buffers of our own: a line is in the
file, whole, when `write` returns.
"""

import csv
import io
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol, final

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, Field

from quintet.errors import QuintetError
from quintet.observe.metrics import check, clean

SinkName = Literal["jsonl", "csv", "tensorboard"]

JSONL_FILE = "metrics.jsonl"
CSV_FILE = "progress.csv"
TENSORBOARD_FOLDER = "tensorboard"

HISTOGRAM_BINS = 30
"""What TensorBoard's own histograms have by default."""

_FIRST_COLUMNS = (
    "env_steps",
    "wall_s",
    "updates",
    "episode/return_mean",
    "episode/success_rate",
    "episode/length_mean",
)


@final
class ReportConfig(BaseModel):
    """How often a run reports, and where to."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    interval_s: float = Field(
        default=1.0,
        ge=0,
        description="Seconds between reports at least; 0 reports every iteration.",
    )
    progress: bool = Field(default=True, description="Show progress on standard output.")
    sinks: tuple[SinkName, ...] = Field(
        default=("jsonl", "csv", "tensorboard"),
        description="Where reports go; tensorboard is left out where it is not installed.",
    )


def _to_stderr(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


class Sink(Protocol):
    """Takes reports in the order of their env_steps."""

    def resume_at(self, env_steps: int) -> None:
        """Drops what is stored beyond `env_steps`; -1 drops everything."""
        ...

    def write(self, report: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@final
class Reporter:
    """All sinks of a run as one; checks names and leaves out non-finite values."""

    def __init__(self, sinks: Sequence[Sink], notice: Callable[[str], None] = print) -> None:
        """notice: receives one message when there are distributions and no sink shows them."""
        self._sinks = tuple(sinks)
        self._notice: Callable[[str], None] | None = notice

    def write(
        self, report: Mapping[str, float], histograms: Mapping[str, ArrayLike] | None = None
    ) -> dict[str, float]:
        """Sends a report to every sink and returns the numbers that were sent.

        histograms: values ``[N]`` by name, on the CPU, whose distribution TensorBoard shows.
        """
        check(report)
        finite = clean(report)
        for sink in self._sinks:
            sink.write(finite)
        if histograms:
            self._write_histograms(int(report.get("env_steps", 0)), histograms)
        return finite

    def _write_histograms(self, env_steps: int, histograms: Mapping[str, ArrayLike]) -> None:
        check(histograms)
        shown = [sink for sink in self._sinks if isinstance(sink, TensorBoardSink)]
        for sink in shown:
            sink.write_histograms(env_steps, histograms)
        if not shown and self._notice is not None:
            self._notice(
                "histograms are shown by tensorboard only, and nothing is written for it: install "
                "it and keep it among report.sinks"
            )
            self._notice = None

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def open_sinks(
    config: ReportConfig,
    run_dir: Path,
    *,
    resume_env_steps: int | None,
    notice: Callable[[str], None],
) -> Reporter:
    """Opens the sinks of a run.

    resume_env_steps: env_steps of the checkpoint that the run goes on from; None begins anew and
        empties what an earlier try left in `run_dir`.
    notice: receives a message when a sink, or a damaged line of an earlier report, is left out.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    sinks: list[Sink] = []
    for name in dict.fromkeys(config.sinks):
        if name == "jsonl":
            sinks.append(JsonlSink(run_dir / JSONL_FILE, notice))
        elif name == "csv":
            sinks.append(CsvSink(run_dir / CSV_FILE))
        else:
            try:
                sinks.append(TensorBoardSink(run_dir / TENSORBOARD_FOLDER))
            except ImportError:
                notice(
                    "tensorboard is not installed, so no event files are written "
                    '(pip install "quintet[tensorboard]")'
                )
    for sink in sinks:
        sink.resume_at(-1 if resume_env_steps is None else resume_env_steps)
    return Reporter(sinks, notice)


@final
class JsonlSink:
    """One JSON object per report and line."""

    def __init__(self, path: Path, notice: Callable[[str], None] = _to_stderr) -> None:
        self._path = path
        self._file = _AppendFile(path)
        self._notice = notice

    def resume_at(self, env_steps: int) -> None:
        kept = [
            json.dumps(report)
            for report in _read_jsonl(self._path, self._notice)
            if report.get("env_steps", 0) <= env_steps
        ]
        self._file.replace("".join(f"{line}\n" for line in kept).encode())

    def write(self, report: Mapping[str, float]) -> None:
        self._file.append(f"{json.dumps(dict(report))}\n".encode())

    def close(self) -> None:
        self._file.close()


@final
class CsvSink:
    """One row per report; a metric that is absent is an empty cell.

    When a report brings a new name, the file is rewritten with a column more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _AppendFile(path)
        self._columns: list[str] = []

    def resume_at(self, env_steps: int) -> None:
        self._columns, rows = self._stored()
        kept = [row for row in rows if int(float(row.get("env_steps") or 0)) <= env_steps]
        if not kept:
            self._columns = []
        self._rewrite(kept)

    def write(self, report: Mapping[str, float]) -> None:
        new = [name for name in report if name not in self._columns]
        if new:
            rows = self._stored()[1]
            first = [n for n in _FIRST_COLUMNS if n in new and not self._columns]
            self._columns += first + sorted(set(new) - set(first))
            self._rewrite(rows)
        self._file.append(_csv_line([report.get(name, "") for name in self._columns]))

    def close(self) -> None:
        self._file.close()

    def _stored(self) -> tuple[list[str], list[dict[str, str]]]:
        """Header and whole rows of the file; a torn last row is left out."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return [], []
        whole = text[: text.rfind("\n") + 1]
        lines = list(csv.reader(io.StringIO(whole)))
        if not lines:
            return [], []
        header = lines[0]
        return header, [
            dict(zip(header, cells, strict=True))
            for cells in lines[1:]
            if len(cells) == len(header)
        ]

    def _rewrite(self, rows: Sequence[Mapping[str, str]]) -> None:
        lines = [_csv_line(self._columns)] if self._columns else []
        lines += [_csv_line([row.get(name, "") for name in self._columns]) for row in rows]
        self._file.replace(b"".join(lines))


@final
class TensorBoardSink:
    """Scalars over env_steps in one TensorBoard event file per start of the run.

    A report is one event.  It is framed by tensorboard's record writer but written by us:
    tensorboard's own event writer works in a thread that a full disk ends unseen.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ImportError when tensorboard is not installed."""
        # imported here: takes about a tenth of a second, which only runs with this sink should pay
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        self._framed: Any = RecordWriter
        self._folder = folder
        self._file: _AppendFile | None = None

    def resume_at(self, env_steps: int) -> None:
        """Begins a new event file that tells TensorBoard to purge later steps of the older ones."""
        self.close()
        if env_steps < 0:
            for stale in self._folder.glob("events.out.tfevents.*"):
                stale.unlink()
        else:
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._add(step=env_steps + 1, session_log=start)

    def write(self, report: Mapping[str, float]) -> None:
        values = [
            self._summary.Summary.Value(tag=name, simple_value=value)
            for name, value in report.items()
            if name != "env_steps"
        ]
        step = int(report.get("env_steps", 0))
        self._add(step=step, summary=self._summary.Summary(value=values))

    def write_histograms(self, env_steps: int, histograms: Mapping[str, ArrayLike]) -> None:
        """Adds the distributions of the finite ones of these values, where there are any."""
        values = []
        for name, given in histograms.items():
            x = np.asarray(given, np.float64).ravel()
            x = x[np.isfinite(x)]
            if not x.size:
                continue
            counts, edges = np.histogram(x, bins=HISTOGRAM_BINS)
            histogram = self._summary.HistogramProto(
                min=x.min(),
                max=x.max(),
                num=x.size,
                sum=x.sum(),
                sum_squares=(x * x).sum(),
                bucket_limit=edges[1:].tolist(),
                bucket=counts.tolist(),
            )
            values.append(self._summary.Summary.Value(tag=name, histo=histogram))
        self._add(step=env_steps, summary=self._summary.Summary(value=values))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, *, step: int, summary: Any = None, session_log: Any = None) -> None:
        if self._file is None:
            self._file = self._begin()
        event = self._event.Event(
            wall_time=time.time(), step=step, summary=summary, session_log=session_log
        )
        self._file.append(self._record(event))

    def _begin(self) -> "_AppendFile":
        # TensorBoard reads the files of a folder in the order of their names: microseconds first
        started = f"{time.time():017.6f}"
        name = f"events.out.tfevents.{started}.{socket.gethostname()}.{os.getpid()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise _cannot_write(self._folder, fault) from fault
        file = _AppendFile(self._folder / name)
        header = self._event.Event(wall_time=time.time(), file_version="brain.Event:2")
        file.append(self._record(header))
        return file

    def _record(self, event: Any) -> bytes:
        framed = io.BytesIO()
        self._framed(framed).write(event.SerializeToString())
        return framed.getvalue()


def read_metrics(
    run_dir: Path, notice: Callable[[str], None] = _to_stderr
) -> list[dict[str, float]]:
    """All reports of a run, oldest first; a torn last line (a crash, or a run at work) is left out.

    notice: receives one message for each damaged line within, which is left out.

    Raises:
        QuintetError: there is no ``metrics.jsonl``.
    """
    path = Path(run_dir) / JSONL_FILE
    if not path.is_file():
        raise QuintetError(
            f"{run_dir} has no {JSONL_FILE}: give the folder of a run that reported to jsonl"
        )
    return _read_jsonl(path, notice)


def _read_jsonl(path: Path, notice: Callable[[str], None]) -> list[dict[str, float]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    reports: list[dict[str, float]] = []
    # what follows the last line feed is empty or torn
    for number, line in enumerate(lines[:-1], start=1):
        try:
            report = json.loads(line)
            if not isinstance(report, dict):
                raise ValueError("no object")
            if not all(isinstance(value, int | float) for value in report.values()):
                raise ValueError("not all values are numbers")
        except ValueError as fault:
            notice(f"line {number} of {path} is damaged ({fault}) and left out")
            continue
        reports.append(report)
    return reports


def _csv_line(cells: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _cannot_write(path: Path, fault: OSError) -> QuintetError:
    free = ""
    with suppress(OSError):
        free = f", {shutil.disk_usage(path.parent).free:,} bytes free"
    return QuintetError(
        f"can't write {path} ({fault.strerror or fault}{free}). Make room there and resume, or "
        "give another run_dir"
    )


@final
class _AppendFile:
    """A file that grows by whole records: one that does not fit is taken back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def append(self, record: bytes) -> None:
        try:
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            size = os.fstat(self._handle).st_size
            try:
                _write_all(self._handle, record)
            except OSError:
                os.ftruncate(self._handle, size)
                raise
        except OSError as fault:
            raise _cannot_write(self._path, fault) from fault

    def replace(self, content: bytes) -> None:
        """Gives the file new content, all at once; an empty file need not exist."""
        self.close()
        if not content and not self._path.exists():
            return
        beside = self._path.with_name(f".tmp-{self._path.name}")
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                _write_all(handle, content)
                os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(beside, self._path)
        except OSError as fault:
            with suppress(OSError):
                beside.unlink()
            raise _cannot_write(self._path, fault) from fault

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
