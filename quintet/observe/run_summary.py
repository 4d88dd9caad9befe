"""A run folder in a few facts, for tables, comparisons and pages.

A folder may come from another person, be damaged, or be written to meanwhile: everything is checked
where it is read, nothing is opened through a link, and nothing that it names is imported.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, final

from quintet.checkpoints import manifest, run_record, saved_options
from quintet.checkpoints.links import require_own
from quintet.checkpoints.lock import holder_of
from quintet.errors import CheckpointError, FileFault, QuintetError
from quintet.observe.metrics import ENV, newest, signed
from quintet.observe.report_files import JSONL_FILE, read_metrics
from quintet.options.bounds import LARGEST, MOST_STEPS
from quintet.system import files

State = Literal["running", "finished", "interrupted", "failed", "damaged"]

SCORES = ("eval/success_rate", "eval/return_mean", "episode/success_rate", "episode/return_mean")
"""Metrics of which the first that a run has is its score."""

NOT_PART_OF_GROUP = ("seed", "run_dir", "resume", "report", "checkpoint", "doctor")
"""Options, or parts of them, that may differ within an experiment."""
_NOT_IN_GROUP = ("eval.episodes", "eval.interval", "env.metrics")

_NONE: Mapping[str, str] = {}
_RUN_FILES = (run_record.FILE, JSONL_FILE)
_BESIDE = (".lock", "log.txt")  # beside config.yaml: others have files of this name
_MOST_BYTES = 2**30  # largest file that is read whole
_DEPTH = 4  # depth of folders in which runs are looked for, such as a sweep's: NAME/fresh/0007/s1
_MOST_TEXT = 400  # characters of a text that is shown


@final
@dataclass(frozen=True)
class RunSummary:
    """The facts in a run folder.

    faults: why it is damaged, and what else is wrong with its files.
    options: by dotted name; sources: their sources, as far as known.
    system: versions and the machine; empty if unknown.
    spaces: the observation and action space as JSON, of the newest checkpoint.
    at: when the run began, ended or was last written to, as text.
    trained: env_steps at its end or newest checkpoint, as far as known.
    """

    folder: Path
    state: State
    faults: tuple[str, ...] = ()
    error: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    system: Mapping[str, str] = field(default_factory=dict)
    spaces: Mapping[str, Any] = field(default_factory=dict)
    choices: Sequence[run_record.Choice] = ()
    reports: Sequence[Mapping[str, float]] = ()
    at: str = ""
    trained: int = 0

    @property
    def learner(self) -> str:
        return text(self.options.get("algo", ""))

    @property
    def environment(self) -> str:
        return text(self.options.get("env.id", ""))

    @property
    def seed(self) -> str:
        return text(self.options.get("seed", ""))

    @property
    def env_steps(self) -> int:
        return max(int(self._last("env_steps") or 0), self.trained)

    @property
    def total_env_steps(self) -> int | None:
        given = self.options.get("total_env_steps")
        return given if isinstance(given, int) and not isinstance(given, bool) else None

    @property
    def steps(self) -> str:
        """The env_steps so far, and the budget if some are left."""
        whole = self.total_env_steps
        left = f" of {whole:,}" if whole is not None and self.env_steps < whole else ""
        return f"{self.env_steps:,}{left}"

    @property
    def wall_s(self) -> float | None:
        return self._last("wall_s")

    @property
    def score(self) -> tuple[str, float] | None:
        """Name and newest value of the run's score, preferably the metric that chooses its best
        policy; of several policies the highest."""
        chosen, _ = signed(str(self.options.get("checkpoint.best_by", "")))
        own = (f"eval/{chosen}", chosen) if chosen.removeprefix("eval/").startswith(ENV) else ()
        for name in (*own, *SCORES):
            if (score := newest(self.reports, name)) is not None:
                return name, score
        return None

    @property
    def numbers(self) -> dict[str, float]:
        """The newest values of the environment's own numbers, of training and of evaluations."""
        names = {name for report in self.reports for name in report}
        own = sorted(name for name in names if name.startswith((ENV, f"eval/{ENV}")))
        return {name: x for name in own if (x := self._last(name)) is not None}

    @property
    def score_kind(self) -> str:
        """The kind of the score: ``episode``, ``eval``, or ``eval, greedy`` where that is known."""
        if self.score is None:
            return ""
        kind = self.score[0].split("/")[0]
        how = actions_evaluated(self.options) if kind == "eval" else ""
        return f"{kind}, {how}" if how else kind

    def _last(self, name: str) -> float | None:
        return next((each[name] for each in reversed(self.reports) if name in each), None)


def text(value: object, most: int = _MOST_TEXT) -> str:
    """A value as one line of at most `most` characters, the unprintable ones named."""
    shown = str(value)
    shown = shown if len(shown) <= most else f"{shown[: most - 3]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)


def is_of_group(name: str) -> bool:
    """Whether runs that differ in this option are of different experiments: it changes what is
    learned, or how it is measured.
    """
    return name.split(".")[0] not in NOT_PART_OF_GROUP and name not in _NOT_IN_GROUP


def actions_evaluated(options: Mapping[str, Any]) -> str:
    """The actions of a run's evaluations: greedy or sampled; "" if that is unknown."""
    greedy = options.get("eval.greedy")
    return "" if not isinstance(greedy, bool) else "greedy" if greedy else "sampled"


def names_apart(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: as many of the last parts of its path as tell all apart."""
    for parts in range(1, 1 + max((len(each.parts) for each in folders), default=0)):
        names = ["/".join(each.parts[-parts:]) for each in folders]
        if len({*names}) == len(names):
            return names
    return [str(each) for each in folders]


def group_key(config: Mapping[str, Any], sources: Mapping[str, str] = _NONE) -> str:
    """The configuration without seed and folder, as text; equal for runs of one experiment.

    sources: of the options, as far as known; two starts rarely measure the same number.
    """
    shared = {
        name: sources[name] if sources.get(name, "").startswith("measured") else x
        for name, x in config.items()
        if is_of_group(name)
    }
    return json.dumps(shared, sort_keys=True, default=str)


def find_runs(place: Path) -> list[Path]:
    """`place` if it is a run, else the runs up to four levels below.  Hidden folders and folders
    that were moved aside are skipped.

    Links are not followed: a stranger's folder may have links to all runs of this machine.  Links
    to folders elsewhere are named on standard error.
    """
    if _is_run(place):
        return [place]
    found: list[Path] = []
    links: list[str] = []
    left = [(place, 0)]
    while left:
        folder, depth = left.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                if re.search(r"^\.|\.old-\d+$", entry.name):
                    continue
                if entry.is_symlink():
                    links += [text(path)] * _leads_elsewhere(path, place)
                elif not _is_folder(entry):
                    continue
                elif _is_run(path):
                    found.append(path)
                elif depth + 1 < _DEPTH:
                    left.append((path, depth + 1))
    if links:
        more = f" and {len(links) - 3:,} more" if len(links) > 3 else ""
        files.warn_on_stderr(
            f"links to folders elsewhere are not followed: {', '.join(sorted(links)[:3])}{more}; "
            "name what they lead to"
        )
    return sorted(found)


def _leads_elsewhere(link: Path, place: Path) -> bool:
    """Whether a link leads to a folder that is not within `place`."""
    with suppress(OSError, RuntimeError):  # RuntimeError: it leads in a circle
        target = link.resolve(strict=True)
        return target.is_dir() and not target.is_relative_to(place.resolve())
    return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # the place is closed to us
        return entry.is_dir(follow_symlinks=False)
    return False


def _is_run(folder: Path) -> bool:
    """Whether a folder has files that only runs have."""
    present = {name for name in (*_RUN_FILES, *_BESIDE) if os.path.lexists(folder / name)}
    if present & {*_RUN_FILES}:
        return True
    if os.path.lexists(folder / saved_options.FILE):
        return bool(present)
    with suppress(CheckpointError):
        return bool(manifest.numbered(folder / "checkpoints"))
    return False


def read_summary(folder: Path, *, newest: bool = False) -> RunSummary:
    """The facts in the folder of a run; a folder that can't be read is a damaged run.

    newest: whether one report is enough, with the newest value of every metric: all reports may
        fill the memory.
    """
    at = _changed_at(folder)
    try:
        require_own(folder)
        running = holder_of(folder) is not None
        _require_readable(folder)
    except CheckpointError as fault:
        return RunSummary(folder, "damaged", (text(fault),), at=at)
    faults: list[str] = []
    broken = False
    meta = _newest_meta(folder, faults)
    options = dict(meta.get("config", {}))
    if not options:
        broken = _has_checkpoints(folder)
        try:
            content = files.read_yaml(folder / saved_options.FILE)
            options = dict(_flat(content)) if isinstance(content, Mapping) else {}
        except FileFault as fault:
            faults.append(text(fault))
        broken = broken or not options
    reports: list[dict[str, float]] = []
    notices: list[str] = []
    with suppress(QuintetError):  # the run may report to other sinks
        reports = [bounded(each) for each in read_metrics(folder, notices.append, newest=newest)]
    faults += map(text, notices)
    broken = broken or any("damaged" in each for each in notices)
    record = run_record.read(folder)
    error, system, at_end = "", dict(meta.get("system", {})), ""
    if record is not None:
        error = text(record.error or "")
        extra = record.model_extra or {}
        at_end = _local(extra.get("at"))
        last = next((x["env_steps"] for x in reversed(reports) if "env_steps" in x), math.inf)
        ended = record.env_steps or 0
        if record.state == "finished" and last < ended:
            faults.append(f"its reports end at {last:,.0f} of {ended:,} env_steps")
        own = extra.get("system")
        if not system and isinstance(own, Mapping):
            system = {str(k): str(x) for k, x in own.items()}
    policy = meta.get("policy") or (meta.get("policies") or [{}])[0].get("policy") or {}
    spaces = {
        name: policy[name] for name in ("observation_space", "action_space") if name in policy
    }
    return RunSummary(
        folder,
        _state(record, running=running, broken=broken),
        tuple(faults),
        error,
        {text(name): _plain(value) for name, value in options.items()},
        {} if record is None else {text(k): text(x) for k, x in record.sources.items()},
        {text(k): text(x) for k, x in system.items()},
        spaces,
        () if record is None else [_printable(each) for each in record.choices],
        reports,
        at_end or at,
        int((record and record.env_steps) or meta.get("env_steps") or 0),
    )


def learner_of(folder: Path) -> str:
    """The learner of the run in a folder; "" if its options can't be read."""
    with suppress(QuintetError):
        found = saved_options.read(folder)
        values = files.read_yaml(folder / saved_options.FILE) if found is None else found.values
        return text(values.get("algo", "")) if isinstance(values, Mapping) else ""
    return ""


def _require_readable(folder: Path) -> None:
    """Raises CheckpointError for a file that would fill the memory."""
    for name in (saved_options.FILE, "population.jsonl", *_RUN_FILES):
        with suppress(OSError):
            size = os.lstat(folder / name).st_size
            if size > _MOST_BYTES:
                raise CheckpointError(
                    f"{folder / name} must have at most {_MOST_BYTES:,} bytes to be read, got "
                    f"{size:,}: shorten it, or move it away"
                )


def _printable(choice: run_record.Choice) -> run_record.Choice:
    said, option = text(choice.said), text(choice.option)
    return choice.model_copy(update={"choice": text(choice.choice), "said": said, "option": option})


def _state(record: run_record.Record | None, *, running: bool, broken: bool) -> State:
    if running:
        return "running"
    if broken:
        return "damaged"
    if record is not None and record.state in ("finished", "failed"):
        return "finished" if record.state == "finished" else "failed"
    return "interrupted"  # stopped, or killed


def _newest_meta(folder: Path, faults: list[str]) -> Mapping[str, Any]:
    """Meta of the newest intact checkpoint, empty without one; adds to `faults`."""
    try:
        found = manifest.newest(folder / "checkpoints")
    except CheckpointError as fault:
        faults.append(text(fault))
        return {}
    if found is None and _has_checkpoints(folder):
        faults.append("none of its checkpoints can be read")
    return {} if found is None else found.meta


def _has_checkpoints(folder: Path) -> bool:
    with suppress(CheckpointError):
        return bool(manifest.numbered(folder / "checkpoints"))
    return True


def bounded(report: Mapping[str, float]) -> dict[str, float]:
    """A report without numbers that are too large for a picture."""
    most = {"env_steps": float(MOST_STEPS), "wall_s": float(MOST_STEPS)}
    return {
        name: x
        for name, x in report.items()
        if (0.0 <= x <= most[name] if name in most else abs(x) <= LARGEST)
    }


def _plain(value: object) -> Any:
    """A value of a file as JSON can hold it."""
    if isinstance(value, Mapping):
        return {text(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | None) else text(value)


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Mapping[str, Any]:
    """Nested options by dotted name; mappings that are values (``env.kwargs``) stay."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        whole = f"{prefix}{name}"
        if isinstance(value, Mapping) and not prefix and "." not in whole and value:
            flat |= _flat(value, f"{whole}.")
        else:
            flat[whole] = value
    return flat


def _changed_at(folder: Path) -> str:
    """Time of the folder's last change; "" if it is unknown."""
    with suppress(OSError):
        return _as_text(datetime.fromtimestamp(os.stat(folder).st_mtime))
    return ""


def _local(at: object) -> str:
    """A stored time in this machine's zone; "" if it is none."""
    with suppress(ValueError, OverflowError, OSError):
        return _as_text(datetime.fromisoformat(str(at)))
    return ""


def _as_text(at: datetime) -> str:
    return at.astimezone().isoformat(timespec="seconds")


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def number(value: float | None) -> str:
    """A number for a table, "-" without one."""
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
