"""Content of a run's folder before training: the options of the run that resumes, or what prevents
a new run there.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quintet.config.run import MAY_CHANGE_ON_RESUME
from quintet.errors import CheckpointError, ConfigError
from quintet.options import shown
from quintet.system import files, manifest, run_record, saved_options

BEFORE_CONFIG = (".lock", "log.txt", ".config.yaml.tmp", ".tmp-config.yaml")
"""Files that a run may leave if it is killed right at its start."""


def read_saved(run_dir: Path) -> saved_options.SavedOptions | None:
    """The options with which the run in a folder was trained; None for a new run: there is no run,
    or it has no readable checkpoint.

    Raises:
        ConfigError: the folder holds something else, or can't be read.
    """
    try:
        found = saved_options.read(run_dir)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    held = held_in(run_dir)
    if found is None and held and not held & {saved_options.FILE, "checkpoints"}:
        raise ConfigError(
            f"run_dir must be a new or empty folder, or one with a run, got {run_dir} with "
            f"{', '.join(sorted(held)[:3])} and no {saved_options.FILE}: give another --run-dir"
        )
    return found


def differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Options in both that differ and that no resume may change: name, old value, new value."""
    return [
        (name, was[name], now[name])
        for name in now
        if name in was
        and was[name] != now[name]
        and name not in MAY_CHANGE_ON_RESUME
        and not name.startswith(("eval.", "report."))
    ]


def require_same(place: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises CheckpointError if the checkpoint at `place`, trained with the options `was`, belongs
    to another run than one with the options `now`.
    """
    others = [
        f"{name} was {shown(old)} and is {shown(new)}" for name, old, new in differing(was, now)
    ]
    if others:
        raise CheckpointError(
            f"{place} must be a checkpoint of this run, got one of another ({'; '.join(others)}): "
            "remove it, or give another --run-dir"
        )


def held_in(run_dir: Path) -> set[str]:
    """Names in a folder, except those that a run may leave right at its start."""
    try:
        names = os.listdir(run_dir) if run_dir.is_dir() else []
    except OSError as fault:
        raise ConfigError(str(files.cannot_read(run_dir, fault))) from fault
    return {*names} - {*BEFORE_CONFIG}


def require_movable(run_dir: Path) -> None:
    """Raises ConfigError for a folder that --overwrite must not rename: one without a run, or the
    working folder.
    """
    held, known = held_in(run_dir), {saved_options.FILE, "checkpoints", "metrics.jsonl"}
    if not held:
        return
    if run_record.FILE not in held or not held & known:
        raise ConfigError(
            f"--overwrite must name a folder that a run has made, got {run_dir}, which holds "
            f"{', '.join(sorted(held)[:3])}: give another --run-dir, or rename it yourself"
        )
    if Path.cwd().is_relative_to(run_dir.resolve()):
        raise ConfigError(
            f"--overwrite must not name the working folder, got {run_dir}: leave it first"
        )


def left_reports(run_dir: Path) -> bool:
    """Whether a run in a folder has reported something, but has no checkpoint, whole or not."""
    reports = run_dir / "metrics.jsonl"
    begun = manifest.numbered(run_dir / "checkpoints")
    return not begun and reports.is_file() and reports.stat().st_size > 0
