"""A check that a folder is the same one, with the same locks, for processes of other machines.

One process writes a file and locks it; others find the file locked, and each writes one beside it.
"""

import errno
import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import final

from quintet.errors import ConfigError
from quintet.system import files

_NAME = ".quintet-probe-"

_REMEDY = "put the runs on a file system that all machines share, and name it by --run-dir"


@final
class SharedFolder:
    """A folder, made if it is missing, with a locked file.  `close` removes the file, and with it a
    folder that was made here and is empty.
    """

    def __init__(self, folder: Path):
        """Raises ConfigError if the folder can't be made or written to."""
        self.folder, self.token = folder, secrets.token_hex(8)
        self._new_folders = [each for each in (folder, *folder.parents) if not each.exists()]
        self._path = folder / f"{_NAME}{self.token}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as fault:
            self._remove()
            raise ConfigError(
                f"run_dir must be in a folder in which files can be made and locked, got {folder} "
                f"({files.reason(fault)}); {files.advice(fault)}, or give another run_dir"
            ) from fault

    def close(self) -> None:
        """Removes the files."""
        os.close(self._file)
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            for each in self.folder.glob(f"{self._path.name}*"):
                each.unlink()
            for folder in self._new_folders:
                folder.rmdir()

    def fault(self, who: str) -> str | None:
        """Reason why the process `who`, in which `fault_there` returned None, does not write into
        this folder; None: it does.
        """
        if Path(f"{self._path}-{who}").exists():
            return None
        return _elsewhere(self.folder, f"a file there that {os.uname().nodename} does not see")


def fault_there(folder: Path, token: str, who: str) -> str | None:
    """Reason why this process does not share a `SharedFolder` of another one, as the end of a
    sentence about it; None: it reads, writes and locks as the other does.
    """
    path = folder / f"{_NAME}{token}"
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        state = "another folder of this name" if folder.is_dir() else "no such folder"
        return _elsewhere(folder, state)
    except OSError as fault:
        return _elsewhere(folder, files.reason(fault))
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # refused where the other lock is seen
        return (
            f"must see locks of other machines in {folder}, got none: mount its file system with "
            "locks, or name another folder by --run-dir"
        )
    except OSError as fault:
        if fault.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return _elsewhere(folder, f"no locks ({files.reason(fault)})")
    finally:
        os.close(file)
    try:
        own = os.open(f"{path}-{who}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        os.close(own)
    except OSError as fault:
        return (
            f"must be able to write into {folder}, got {files.reason(fault)}; "
            f"{files.advice(fault)}, or name another folder by --run-dir"
        )
    return None


def _elsewhere(folder: Path, found: str) -> str:
    return f"must share the folder of the runs, {folder}, got {found}: {_REMEDY}"
