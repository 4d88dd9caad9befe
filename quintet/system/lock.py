"""One process per run folder."""

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from quintet.errors import CheckpointError
from quintet.system import files
from quintet.system.inside import require_own


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Keeps other processes from training in the same folder, which is made if it is missing, until
    this process ends, however it ends.

    Raises CheckpointError if a process holds it, by its pid, or something in the folder is a link.
    """
    try:
        files.make_folder(folder)
        require_own(folder, writes=True)
        file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as fault:
        raise _refused(folder, fault) from fault
    # The file stays: removing it would let two processes lock two files of the same name.
    with open(file, "r+b", buffering=0):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except OSError as fault:
            if fault.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise _refused(folder, fault) from fault
            holder = _said_in(file)
            pid = holder.pid if holder.pid else "unknown"
            raise CheckpointError(
                f"{folder} is in use by the process with pid {pid}. Wait for it, stop it, or "
                "give another run_dir"
            ) from fault
        yield


class Holder(NamedTuple):
    """The process that holds the lock of a folder; pid 0: it has not said yet."""

    pid: int
    host: str


def holder_of(folder: Path) -> Holder | None:
    """The process that trains in a folder; None: none does.  Raises CheckpointError."""
    try:
        file = os.open(folder / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise CheckpointError(str(files.cannot_read(folder / ".lock", fault))) from fault
    with open(file, "rb", buffering=0):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _said_in(file)
        return None


def _said_in(file: int) -> Holder:
    pid, *host = os.pread(file, 300, 0).decode(errors="replace").split() or ["0"]
    return Holder(int(pid) if pid.isascii() and pid.isdigit() else 0, host[0] if host else "")


def _refused(folder: Path, fault: OSError) -> CheckpointError:
    return CheckpointError(
        f"a run_dir is required in which files can be made and locked, {fault.filename or folder} "
        f"can't be: {files.reason(fault)}; {files.advice(fault)}, or give another run_dir"
    )
