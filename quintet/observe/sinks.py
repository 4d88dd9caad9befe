"""Sinks of reports: ``metrics.jsonl``, its table ``progress.csv`` and TensorBoard event files in a
run's folder, Weights & Biases, and sinks of installed packages.

A resumed run first drops reports after the checkpoint and then appends to the same files, so every
env_step is reported once.  Writes are not buffered: the whole line is in ``metrics.jsonl`` when
`write` returns.
"""

import io
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias, final

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import ArrayLike

from quintet.errors import QuintetError
from quintet.observe.metrics import check, clean
from quintet.observe.pace import count
from quintet.observe.report_files import (
    CSV_FILE,
    JSONL_FILE,
    Gathered,
    Kept,
    Mark,
    Notice,
    Report,
    columns_of,
    gather,
    table,
)
from quintet.options.bounds import MOST_SECONDS
from quintet.options.declaration import Options, option
from quintet.system import files
from quintet.system.plugins import Catalog

if TYPE_CHECKING:
    from quintet.observe.package_sink import ThreadedSink
    from quintet.observe.wandb_sink import WandbSink


class SinkRun(NamedTuple):
    """A run that begins or goes on.

    options: by dotted name.
    env_steps: of the checkpoint from which it goes on; reports beyond it come again. -1: a new run.
    """

    run_dir: Path
    options: Mapping[str, Any]
    env_steps: int


@final
@dataclass(frozen=True, kw_only=True)
class PackageSink:
    """A sink of an installed package, which names it as an entry point ``quintet.sinks``.  A thread
    calls its functions; one that raises an error or hangs does not stop the run.

    open: returns the first argument of the other functions, for instance a connection.
    write: gets a report, numbers by name, of which ``env_steps`` is one.
    text: gets a name and a text.
    picture: gets a name, env_steps and a picture ``[H, W, 3]``, uint8.
    """

    open: Callable[[SinkRun], Any]
    write: Callable[[Any, dict[str, float]], object]
    text: Callable[[Any, str, str], object]
    picture: Callable[[Any, str, int, np.ndarray], object]
    close: Callable[[Any], object]


SINKS = Catalog("quintet.sinks", "sink", PackageSink, {}, "quintet.jobs.imports:import_apart")
"""The sinks of installed packages."""

if TYPE_CHECKING:
    SinkName = str
else:
    SinkName = Literal["jsonl", "csv", "tensorboard", "wandb", *SINKS.names()]

TENSORBOARD_FOLDER = "tensorboard"

HISTOGRAM_BINS = 30
"""Number of bins, TensorBoard's default."""

_EVENTS = re.compile(r"events\.out\.tfevents\.(\d{10}\.\d{6})\.")


@final
class ReportConfig(Options):
    """Interval and destinations of a run's reports."""

    interval_s: Annotated[float, Ge(0), Le(MOST_SECONDS)] | Literal["auto"] = option(
        "auto", also="log_interval log_freq"
    )
    """least seconds between reports; 0: a report every iteration; auto: a hundredth of the run's
    time so far, from 1 s to 240 s
    """
    progress: bool = option(True, also="verbose progress_bar")
    """show progress on standard output"""
    sinks: tuple[SinkName, ...] = option(
        ("jsonl", "csv", "tensorboard"), also="track wandb use_wandb with_wandb logger"
    )
    """destinations of reports; csv: jsonl, and a table of it, made at checkpoints and at the end;
    tensorboard is left out if it is not installed; wandb: Weights & Biases, with its own settings
    (WANDB_PROJECT, WANDB_MODE=offline, ...); installed packages add others
    """


@final
class Reporter:
    """All sinks of a run as one; checks names and leaves out non-finite values."""

    def __init__(
        self,
        sinks: Sequence["Sink"],
        notice: Callable[[str], None] = files.warn_on_stderr,
    ) -> None:
        """notice: receives one message if there are histograms that no sink shows."""
        self._sinks = tuple(sinks)
        self._notice: Callable[[str], None] | None = notice

    def write(
        self, report: Mapping[str, float], histograms: Mapping[str, ArrayLike] | None = None
    ) -> dict[str, float]:
        """Sends a report to every sink and returns the numbers that were sent.

        histograms: values ``[N]`` by name, on the CPU, for sinks that show histograms.
        """
        check(report)
        finite = clean(report)
        for sink in self._sinks:
            sink.write(finite)
        if histograms:
            self._write_histograms(int(report.get("env_steps", 0)), histograms)
        return finite

    def _write_histograms(self, env_steps: int, histograms: Mapping[str, ArrayLike]) -> None:
        """Writes finite values to sinks that show them; says once if there is no such sink."""
        check(histograms)
        shown = [sink for sink in self._sinks if not isinstance(sink, JsonlSink | CsvSink)]
        finite: dict[str, np.ndarray] = {}
        for name, values in histograms.items():
            x = np.asarray(values, np.float64).ravel()
            if (x := x[np.isfinite(x)]).size:
                finite[name] = x
        for sink in shown:
            sink.write_histograms(env_steps, finite)
        if not shown and self._notice is not None:
            self._notice(
                "histograms are shown only by tensorboard and wandb, and this run writes to "
                "neither: install one and keep it in report.sinks"
            )
            self._notice = None

    def sync(self) -> Mark | None:
        """Syncs all reports so far to the disk; returns the mark of ``metrics.jsonl``."""
        for sink in self._sinks:
            sink.sync()
        return next((sink.mark for sink in self._sinks if isinstance(sink, JsonlSink)), None)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


def open_sinks(
    config: ReportConfig,
    run_dir: Path,
    *,
    resume_env_steps: int | None,
    notice: Notice,
    warn: Notice = files.warn_on_stderr,
    meta: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Reporter:
    """Opens the sinks of a run.

    resume_env_steps: env_steps of the checkpoint that the run resumes from; None: a new run, which
        drops reports of an earlier start in `run_dir`.
    notice: receives a message if a sink is left out or reports are dropped.
    warn: receives a message about any damage.
    meta: of the checkpoint.
    options: the run's options by dotted name, for sinks that show them.

    Raises:
        QuintetError: the files can't be written.
    """
    upto = -1 if resume_env_steps is None else resume_env_steps
    gathered = gather(run_dir, meta or {}, warn)
    kept = [report for report in gathered.reports if report.get("env_steps", 0) <= upto]
    dropped = len(gathered.reports) - len(kept)
    if dropped:
        where = f"beyond {upto:,} env_steps" if upto >= 0 else "of an earlier start"
        notice(f"dropped {count(dropped, 'report')} {where}, which training writes again")
    alone = run_dir / CSV_FILE
    if not os.path.lexists(run_dir / JSONL_FILE) and os.path.lexists(alone):
        warn(f"{alone} is kept as {files.set_aside(alone, 'old')}: only {JSONL_FILE} is read")
    _set_damaged_aside(gathered, run_dir, warn)
    also = ("jsonl",) * ("csv" in config.sinks)  # the table is made from the lines
    sinks: list[Sink] = []
    for name in dict.fromkeys((*also, *config.sinks)):
        if name == "jsonl":
            sinks.append(JsonlSink(run_dir))
        elif name == "csv":
            sinks.append(CsvSink(run_dir))
        elif name == "wandb":
            from quintet.observe.wandb_sink import WandbSink

            sinks.append(WandbSink(run_dir, options or {}))
        elif name != "tensorboard":
            from quintet.observe.package_sink import ThreadedSink

            opened = partial(SinkRun, run_dir, options or {})
            sinks.append(ThreadedSink(name, SINKS.find(name), opened, notice))
        else:
            try:
                sinks.append(TensorBoardSink(run_dir / TENSORBOARD_FOLDER))
            except ImportError:
                notice(
                    "tensorboard is not installed, so no event files are written "
                    '(pip install "quintet-rl[tensorboard]")'
                )
    for sink in sinks:
        sink.begin(Kept(kept, upto))
    return Reporter(sinks, notice)


def mend_reports(run_dir: Path, meta: Mapping[str, Any], warn: Notice) -> list[Report]:
    """The reports of a finished run, with the meta of its last checkpoint; a damaged file is
    written again.  Raises QuintetError if it can't be written.
    """
    gathered = gather(run_dir, meta, warn)
    if _set_damaged_aside(gathered, run_dir, warn):
        JsonlSink(run_dir).begin(Kept(gathered.reports, 0))
    return gathered.reports


def _set_damaged_aside(gathered: Gathered, run_dir: Path, warn: Notice) -> bool:
    """Renames damaged reports, and returns whether they were."""
    if gathered.damaged:
        path = run_dir / JSONL_FILE
        warn(f"the damaged {path} is kept as {files.set_aside(path)}")
    return gathered.damaged


@final
class JsonlSink:
    """A line with a JSON object for each report."""

    def __init__(self, run_dir: Path) -> None:
        self._file = _AppendFile(run_dir / JSONL_FILE)
        self.sync, self.close = self._file.sync, self._file.close
        self.mark = Mark()

    def begin(self, kept: Kept) -> None:
        content = b"".join(map(_json_line, kept.reports))
        self._file.replace(content)
        self.mark = Mark().after(content)

    def write(self, report: Mapping[str, float]) -> None:
        line = _json_line(report)
        self._file.append(line)
        self.mark = self.mark.after(line)


@final
class CsvSink:
    """A table of the reports in ``metrics.jsonl``, as of the last sync, and of the end.

    It is written again if there are new columns.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._file = run_dir, _AppendFile(run_dir / CSV_FILE)
        self._columns: dict[str, None] = {}
        self._new: list[Mapping[str, float]] = []

    def begin(self, kept: Kept) -> None:
        self._columns = columns_of(kept.reports)
        header = ",".join(self._columns) + "\n" if self._columns else ""
        self._file.replace(header.encode() + table(self._columns, kept.reports))

    def write(self, report: Mapping[str, float]) -> None:
        self._new.append(report)

    def sync(self) -> None:
        if columns_of(self._new, self._columns) != self._columns:
            self.begin(Kept(gather(self._run_dir, {}, lambda _: None).reports, 0))
        elif self._new:
            self._file.append(table(self._columns, self._new))
            self._file.sync()
        self._new = []

    def close(self) -> None:
        with suppress(QuintetError):  # the error that ends the run is said; checkpoints say theirs
            self.sync()
        self._file.close()


@final
class TensorBoardSink:
    """Scalars over env_steps in one TensorBoard event file per start of the run.

    A report is one event.  TensorBoard's record writer encodes it and this class writes it:
    TensorBoard's event writer has a thread that ends without an error if the disk is full.
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

    def begin(self, kept: Kept) -> None:
        """Begins a new event file that makes TensorBoard purge later steps of older files."""
        self.close()
        if os.path.lexists(self._folder) and not self._folder.is_dir():
            files.set_aside(self._folder)
        if kept.env_steps < 0:
            for stale in self._folder.glob("events.out.tfevents.*"):
                with suppress(IsADirectoryError, PermissionError):  # none of ours
                    stale.unlink()
        else:
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._add(step=kept.env_steps + 1, session_log=start)

    def write(self, report: Mapping[str, float]) -> None:
        values = [
            self._summary.Summary.Value(tag=name, simple_value=value)
            for name, value in report.items()
            if name != "env_steps"
        ]
        step = int(report.get("env_steps", 0))
        self._add(step=step, summary=self._summary.Summary(value=values))

    def write_histograms(self, env_steps: int, histograms: Mapping[str, np.ndarray]) -> None:
        values = []
        for name, x in histograms.items():
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

    def sync(self) -> None:
        """Does nothing, since no resume needs these files."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, **event: Any) -> None:
        if self._file is None:
            with _writing(self._folder):
                self._folder.mkdir(exist_ok=True)
                matches = map(_EVENTS.match, os.listdir(self._folder))
            # TensorBoard reads files of a folder in the order of their names: microseconds first,
            # and after earlier files whatever the clock says
            newest = max((float(found[1]) for found in matches if found), default=0.0)
            started = f"{max(time.time(), newest + 1e-6):017.6f}"
            name = f"events.out.tfevents.{started}.{socket.gethostname()}.{os.getpid()}"
            self._file = _AppendFile(self._folder / name)
            self._add(file_version="brain.Event:2")
        framed = io.BytesIO()
        record = self._event.Event(wall_time=time.time(), **event).SerializeToString()
        self._framed(framed).write(record)
        self._file.append(framed.getvalue())


Sink: TypeAlias = "JsonlSink | CsvSink | TensorBoardSink | WandbSink | ThreadedSink"
"""Takes reports in the order of their env_steps."""


def _json_line(report: Mapping[str, float]) -> bytes:
    return f"{json.dumps(dict(report))}\n".encode()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns an OSError within the block into one sentence for the user."""
    try:
        yield
    except OSError as fault:
        free = ""
        with suppress(OSError):
            free = f", {shutil.disk_usage(path.parent).free:,} bytes free"
        raise QuintetError(
            f"can't write {path} ({files.reason(fault)}{free}); {files.advice(fault)} and give the "
            "same command again, or give another run_dir"
        ) from fault


@final
class _AppendFile:
    """A file that grows by whole records; a record that does not fit on the disk is removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def append(self, record: bytes) -> None:
        with _writing(self._path):
            if self._handle is None:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            size = os.fstat(self._handle).st_size
            try:
                files.write_all(self._handle, record)
            except OSError:
                os.ftruncate(self._handle, size)
                raise

    def replace(self, content: bytes) -> None:
        """Replaces the content of the file atomically; for empty content no file is made."""
        self.close()
        if not content and not self._path.exists():
            return
        with _writing(self._path):
            files.write_whole(self._path, content)

    def sync(self) -> None:
        if self._handle is not None:
            with _writing(self._path):
                os.fsync(self._handle)
                files.sync_folder(self._path.parent)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
