"""The folder of a run and its files other than reports.

They are ``config.yaml`` (the options), ``checkpoints/``, ``log.txt`` and ``run.json``, which says
how the run ended and which code version began it; `quintet.run.policy_folder` has the files of each
policy.
"""

import dataclasses
import json
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from quintet.checkpoints import checkpoint, manifest, run_record, saved_options
from quintet.checkpoints.links import is_ours
from quintet.checkpoints.lock import OpenFolder, run_lock
from quintet.errors import CheckpointError, FileFault, QuintetError
from quintet.findings.choices import as_choice
from quintet.findings.record import Finding
from quintet.system import files
from quintet.system.printing import LogFile, message, short
from quintet.types import Rollout

OLD = "old"
"""Suffix (followed by a number) of a run's folder that was moved aside."""


def move_aside(run_dir: Path) -> Path | None:
    """Renames a run's folder to ``NAME.old-1``, ``-2``, ...; its new place, None where there was
    none. Raises CheckpointError if a process trains in it.
    """
    if not run_dir.exists():
        return None
    with run_lock(run_dir):
        return files.set_aside(run_dir, OLD)


def clear(run_dir: Path) -> None:
    """Removes what a run of this process has just made in its folder, so that it begins again."""
    with run_lock(run_dir):
        for entry in list(os.scandir(run_dir)):
            if not is_ours(entry.name) or entry.name == ".lock":
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


@final
class RunFolder:
    """Writes the files of a run while its folder is still the folder in which it began."""

    def __init__(self, path: Path, signed: bool) -> None:
        """signed: whether checkpoints get this user's signature, if there is a key."""
        self.path, self.signed = path, signed
        self.checkpoints = path / "checkpoints"
        self.log: LogFile | None = None
        self.sources: Mapping[str, str] = {}  # origins of the options' values, for run.json
        self.revision: str | None = None  # version of the user's code, for run.json
        self._handle: OpenFolder | None = None  # kept open, to notice another folder in its place
        self._damage_reports: set[str] = set()  # messages that were given
        self._fields: dict[str, Any] = {}  # entries of run.json beside its state

    def open(self) -> None:
        """Makes the folder if it is missing, and keeps a handle of it."""
        with self._writing():
            files.make_folder(self.path)
            self._handle = OpenFolder(self.path)
            checkpoint.clean_temporary(self.checkpoints)
            checkpoint.clean_temporary(self.path)

    @contextmanager
    def _writing(self, name: str = "") -> Iterator[Path]:
        """The place of a file, from which a folder in its way is set aside; raises FileFault where
        the block can't write into the run folder.
        """
        place = self.path / name
        try:
            if name and place.is_dir():
                files.set_aside(place)
            yield place
        except OSError as fault:
            raise FileFault(
                f"a run folder must be writable, {fault.filename or self.path} is not "
                f"({files.reason(fault)}): {files.advice(fault)}, or give another --run-dir"
            ) from fault

    def check(self) -> None:
        """Raises CheckpointError if the folder was moved or removed since it was opened."""
        assert self._handle is not None
        self._handle.check()

    def open_log(self) -> LogFile:
        """Opens ``log.txt``; new lines follow the lines of earlier starts."""
        with self._writing("log.txt") as place:
            self.log = LogFile(place)
        return self.log

    def write_options(self, values: Mapping[str, Any]) -> None:
        """Writes ``config.yaml``."""
        with self._writing(saved_options.FILE):
            saved_options.write(self.path, values)

    # Checkpoints

    def newest(self, exact: bool, warn: Callable[[str], None]) -> checkpoint.Checkpoint | None:
        """The checkpoint from which a run resumes; None for a new run.  Raises CheckpointError if
        none that fits can be read.

        exact: whether it must be exact.
        """
        try:
            found = checkpoint.latest(self.checkpoints, exact_only=exact, warn=warn)
        except CheckpointError as error:
            other = checkpoint.find(self.checkpoints)[0] if exact else None
            instead = f"remove {self.checkpoints} to start the run again"
            if other is not None:
                instead = f"use --resume latest to continue from {other.path}, which is not exact"
            raise CheckpointError(f"{error}, or {instead}") from error
        if found is None and exact and checkpoint.any_of_run(self.checkpoints):
            raise CheckpointError(
                f"--resume exact must have an exact checkpoint, but {self.checkpoints} has "
                "none yet: use --resume latest, or start again in another --run-dir"
            )
        return found

    def damaged_exact(self) -> list[str]:
        """Faults of all checkpoints that may be exact; empty if one of them is intact."""
        found, faults = checkpoint.find(self.checkpoints, exact_only=True)
        return faults if found is None else []

    def keep_batch(
        self, batch: Rollout, meta: Mapping[str, Any], warn: Callable[[str], None]
    ) -> str:
        """Writes the batch on which an update failed; returns a sentence that says where."""
        place = self._write_batch(batch, meta)
        last = checkpoint.latest(self.checkpoints, warn=warn)
        good = f"the last good checkpoint is {last.path}" if last else "there was no checkpoint yet"
        return f"The offending batch is kept in {place}; {good}"

    def _write_batch(self, batch: Rollout, meta: Mapping[str, Any]) -> str:
        """Writes ``failed_batch``; returns its place, or why there is none."""
        tensors: dict[str, Tensor] = {}
        batch = batch.source or batch  # the copy on the CPU
        for name in (field.name for field in dataclasses.fields(batch)):
            value = getattr(batch, name)
            if isinstance(value, dict):
                tensors |= {f"{name}/{part}": x for part, x in value.items()}
            elif value is not None:
                tensors[name] = torch.as_tensor(value)
        try:
            self.check()
            return str(checkpoint.write(self.path, "failed_batch", {"batch": tensors}, meta))
        except CheckpointError as error:
            return f"nowhere ({error})"

    def remove_newer(self, than: Path) -> list[str]:
        """Sets aside inexact or damaged checkpoints after `than`; returns a note for each."""
        notes = []
        for name in manifest.numbered(self.checkpoints):
            if int(name) > int(than.name):
                path = self.checkpoints / name
                kept = checkpoint.take_away(path)
                done = f"removed {path}" if kept is None else f"kept {path} as {kept}"
                notes.append(f"{done}, as it is newer than the checkpoint of this resume")
        return notes

    def prune(
        self, keep: int, protect: Callable[[dict[str, Any]], bool], warn: Callable[[str], None]
    ) -> None:
        """Calls `checkpoint.prune`; each damaged checkpoint is reported once."""

        def once(message: str) -> None:
            if message not in self._damage_reports:
                self._damage_reports.add(message)
                warn(message)

        checkpoint.prune(self.checkpoints, keep, protect, once)

    # run.json

    def begin_record(self, system: Mapping[str, str], evaluated: str = "") -> None:
        """Writes ``run.json`` as a run begins or resumes; `evaluated`: where it is evaluated."""
        sources = run_record.first_sources(self.path, self.sources)
        self._fields = {"revision": self.revision, "system": dict(system), "sources": sources}
        self._fields["choices"] = [each.model_dump() for each in self.choices]
        if evaluated:
            self._fields["evaluated_in"] = evaluated
        with self._writing(run_record.FILE):
            self._write_record("running", None, None)

    def add_choices(self, doubts: Sequence[Finding], env_steps: int) -> None:
        """Adds doubtful choices to ``run.json``."""
        if doubts and self._fields:
            choices = [as_choice(each) | {"env_steps": env_steps} for each in doubts]
            self._fields["choices"] += choices
            with suppress(OSError):  # a full disk, as the next checkpoint tells
                self._write_record("running", None, None)

    @property
    def choices(self) -> list[run_record.Choice]:
        """Doubtful choices that ``run.json`` has."""
        record = run_record.read(self.path)
        return [] if record is None else record.choices

    def check_record(self, warn: Callable[[str], None]) -> None:
        """Sets aside the ``run.json`` of a finished run if it can't be read."""
        path = self.path / run_record.FILE
        if os.path.lexists(path) and run_record.read(self.path) is None:
            warn(f"{path} holds no record that can be read; it is kept as {files.set_aside(path)}")

    def end_record(
        self,
        state: str,
        env_steps: int,
        error: BaseException | None = None,
        *,
        in_log: bool = True,
    ) -> None:
        """Records how the run ended (finished, stopped or failed), and in ``log.txt`` the error
        with its traceback.  A failure to write is ignored, so that it does not hide the error.
        """
        if error is not None and in_log and self.log is not None:
            whole = "the run was interrupted"
            if not isinstance(error, KeyboardInterrupt):
                detail = error.detail if isinstance(error, QuintetError) else ""
                trace = short("".join(traceback.format_exception(error)).rstrip())
                whole = f"the run ended by an error: {trace}\n{detail}".rstrip()
            self.log.write(f"{whole}\n")
        if not self._fields:
            return
        with suppress(CheckpointError, OSError):
            self.check()
            said = None
            if error is not None:
                text = (str(error).splitlines() or [""])[0]
                said = message(f"{type(error).__name__}: {text}".removesuffix(": "))
            self._write_record(state, env_steps, said)

    def _write_record(self, state: str, env_steps: int | None, error: str | None) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        said = {"state": state, "at": now, "env_steps": env_steps, "error": error, **self._fields}
        files.write_whole(self.path / run_record.FILE, json.dumps(said, indent=1).encode() + b"\n")

    def close(self) -> None:
        """Closes the folder; may be called more than once."""
        if self.log is not None:
            self.log.close()
        if self._handle is not None:
            self._handle.close()
            self._handle = None
