"""Content of a run's folder before anything is trained in it: the run's options, or what stands in
the way of a new one.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from quintet.config.layers import flatten, options
from quintet.config.run import MAY_CHANGE_ON_RESUME
from quintet.errors import CheckpointError, ConfigError
from quintet.system import files, manifest, run_record, saved_options

BEFORE_CONFIG = (".lock", "log.txt", ".config.yaml.tmp", ".tmp-config.yaml")
"""Files that a run may leave if it is killed right at its start."""

_MOST_SHOWN = 200  # characters of a value


def read_saved(
    run_dir: Path, notice: Callable[[str], None] = lambda _: None
) -> dict[str, Any] | None:
    """The resolved configuration in a run folder by dotted name; None where there is no run.

    Where ``config.yaml`` is missing or damaged, the newest whole checkpoint has it.

    notice: receives a message for each change since the run wrote the folder.

    Raises:
        ConfigError: the folder holds something else, nothing in it can be read, or ``config.yaml``
            and the checkpoint differ in an option that can't change.
    """
    try:
        found = saved_options.read(run_dir)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    if found is None:
        _require_unused(run_dir)
        return None
    saved, fault = {}, found.fault
    if fault is None:
        try:
            saved = flat(found.values)
        except ConfigError as error:
            fault = f"{run_dir / saved_options.FILE}: {error}"
    stored = flat(found.stored) if found.checkpoint else {}
    if fault is None and found.altered and (lost := sorted(stored.keys() - saved.keys())):
        fault = f"{run_dir / saved_options.FILE} is incomplete (no {', '.join(lost[:3])})"
    if fault is not None:
        if not stored:
            raise ConfigError(
                f"{run_dir / saved_options.FILE} must be readable, got a damaged file "
                f"({fault}): restore it, or give another --run-dir, or --overwrite"
            )
        notice(f"{fault}; the run's options are taken from {found.checkpoint}")
        return stored
    if "env.id" not in saved:
        raise ConfigError(
            f"{run_dir / saved_options.FILE} must be whole, got a file without env.id: "
            "restore it, or give another --run-dir, or --overwrite"
        )
    if found.altered or stored:
        _compare(run_dir, saved, found, stored, notice)
    return saved


def _compare(
    run_dir: Path,
    saved: Mapping[str, Any],
    found: saved_options.SavedOptions,
    stored: Mapping[str, Any],
    notice: Callable[[str], None],
) -> None:
    """Compares ``config.yaml`` with the options of the checkpoint; raises ConfigError if they
    differ in an option that can't change.
    """
    path = run_dir / saved_options.FILE
    differ = differing(stored, saved)
    if differ:
        raise ConfigError(
            f"{path} says another run than {found.checkpoint}, which was trained with other "
            "options:\n"
            + "\n".join(
                f"  - {name}: {shortened(was)}, the file says {shortened(now)}"
                for name, was, now in differ
            )
            + f"\nput them back, or remove {path}, which is then written anew from the checkpoint; "
            "to train with other options give another --run-dir"
        )
    if found.altered:
        changed = [
            f"{name} {stored[name]!r} -> {saved[name]!r}"
            for name in saved
            if name in stored and saved[name] != stored[name]
        ]
        told = f": {', '.join(changed)}" if changed else ""
        notice(f"{path} was changed since the run wrote it{told}; it is taken as it is")


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


def shortened(value: object) -> str:
    """A value from a file, shortened for a message."""
    text = ascii(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def require_same(place: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises CheckpointError if the checkpoint at `place`, trained with the options `was`, belongs
    to another run than one with the options `now`.
    """
    others = [
        f"{name} was {shortened(old)} and is {shortened(new)}"
        for name, old, new in differing(was, now)
    ]
    if others:
        raise CheckpointError(
            f"{place} must be a checkpoint of this run, got one of another ({'; '.join(others)}): "
            "remove it, or give another --run-dir"
        )


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted name; raises ConfigError if no algorithm is named, or an unknown one."""
    algo = values.get("algo")
    if not isinstance(algo, str):
        raise ConfigError(f"no algorithm is named (algo: {algo!r})")
    return flatten(values, options(algo))


def _require_unused(run_dir: Path) -> None:
    """Raises ConfigError where a folder without a run holds something else."""
    others = sorted(_held(run_dir))
    if others:
        raise ConfigError(
            f"run_dir must be a new or empty folder, or one with a run, got {run_dir} with "
            f"{', '.join(others[:3])} and no {saved_options.FILE}: give another --run-dir"
        )


def _held(run_dir: Path) -> set[str]:
    """Names in a folder, but for those that a run may leave at its very start."""
    try:
        names = os.listdir(run_dir) if run_dir.is_dir() else []
    except OSError as fault:
        raise ConfigError(str(files.cannot_read(run_dir, fault))) from fault
    return {*names} - {*BEFORE_CONFIG}


def require_movable(run_dir: Path) -> None:
    """Raises ConfigError for a folder that --overwrite must not rename: one that holds something
    else than a run, or in which the user works.
    """
    held = _held(run_dir)
    if not held:
        return
    if run_record.FILE not in held or not held & {
        saved_options.FILE,
        "checkpoints",
        "metrics.jsonl",
    }:
        raise ConfigError(
            f"--overwrite must name a folder that a run has made, got {run_dir}, which holds "
            f"{', '.join(sorted(held)[:3])}: give another --run-dir, or rename it yourself"
        )
    if Path.cwd().is_relative_to(run_dir.resolve()):
        raise ConfigError(
            f"--overwrite must name another folder than the working folder, got {run_dir}: leave "
            "it first"
        )


def ended_at_once(run_dir: Path) -> bool:
    """Whether the run in a folder has no checkpoint, and its record says that it trained on no
    env_step and trains no more.
    """
    if manifest.numbered(run_dir / "checkpoints"):
        return False
    record = run_record.read(run_dir)
    return record is not None and record.env_steps == 0 and record.state != "running"
