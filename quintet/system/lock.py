"""One process per run folder."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Self, final

from quintet.errors import CheckpointError
from quintet.system import files


@final
class RunLock:
    """Keeps a second process from training into the same folder.

    The system releases the lock when the process ends, however it ends.  A context manager.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def acquire(self) -> Self:
        """Takes the lock, creating the folder if need be.

        Raises:
            CheckpointError: another process holds it; the message names its pid.
        """
        if self._file is not None:
            raise CheckpointError(f"this process already holds the lock of {self._folder}")
        try:
            files.make_folder(self._folder)
            file = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as fault:
            raise self._refused(fault) from fault
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except OSError as fault:
            held = fault.errno in (errno.EWOULDBLOCK, errno.EACCES)
            holder = os.pread(file, 64, 0).decode(errors="replace").strip() or "unknown"
            os.close(file)
            if held:
                raise CheckpointError(
                    f"{self._folder} is in use by the process with pid {holder}. Wait for it, "
                    "stop it, or give another run_dir"
                ) from fault
            raise self._refused(fault) from fault
        self._file = file
        return self

    def _refused(self, fault: OSError) -> CheckpointError:
        place = fault.filename or self._folder
        return CheckpointError(
            f"a run_dir is required in which files can be made and locked, {place} can't be: "
            f"{files.reason(fault)}; {files.advice(fault)}, or give another run_dir"
        )

    def release(self) -> None:
        """Gives the lock back; does nothing when it is not held."""
        # The file stays: removing it would let two processes lock two files of the same name.
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_fault: object) -> None:
        self.release()
