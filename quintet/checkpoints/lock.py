"""The lock of a run folder: which process trains in it, and whether it is still there."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, final

from quintet.checkpoints.links import require_own
from quintet.errors import CheckpointError
from quintet.system import files

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_READ_S = 0.1  # a reader of a lock needs less
_TOLD_AFTER_S = 1.0

ORPHAN_GRACE_S = 60.0
"""Seconds that a member of a group has for an orderly stop after its parent has ended."""

_held: set[int] = set()
"""Files of the locks that this process holds."""


def _give_up() -> None:
    """Closes them in a fork, which may live longer than the process that it shares them with."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_give_up)


@final
class OpenFolder:
    """A folder that is held open, so that no other folder is taken for it."""

    def __init__(self, path: Path):
        self.path = path
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def check(self) -> None:
        """Raises CheckpointError if the folder was moved or removed since it was opened."""
        opened = os.fstat(self._handle)
        with suppress(OSError):
            current = os.stat(self.path)
            if (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino):
                return
        raise CheckpointError(
            f"the folder {self.path} was moved or removed during training, so the training ends; "
            "nothing is written in its place. Put it back and repeat the command, which goes on "
            "from the newest checkpoint"
        )

    def close(self) -> None:
        """Closes the folder."""
        os.close(self._handle)


@contextmanager
def run_lock(folder: Path) -> Iterator[OpenFolder]:
    """Keeps other processes from training in the same folder, which is made if it is missing, until
    this process ends, however it ends.  Gives the open folder.

    Raises CheckpointError if a process holds it, by its pid, or something in the folder is a link.
    """
    try:
        files.make_folder(folder)
        require_own(folder, writes=True)
        file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as fault:
        raise _refused(folder, fault) from fault
    # The file stays: removing it would let two processes lock two files of the same name.
    _held.add(file)
    try:
        try:
            _lock(file)
            os.ftruncate(file, 0)
            said = f"{os.getpid()} {socket.gethostname()} {os.getppid()}\n"
            os.pwrite(file, said.encode(), 0)
        except OSError as fault:
            if fault.errno not in _TAKEN:
                raise _refused(folder, fault) from fault
            raise _in_use(folder, _said_in(file)) from fault
        with closing(OpenFolder(folder)) as opened:
            yield opened
    finally:
        if file in _held:
            _held.remove(file)
            os.close(file)


def _lock(file: int) -> None:
    """Locks a file, which readers hold for a moment (`holder_of`); raises OSError."""
    until = time.monotonic() + _READ_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as fault:
            if fault.errno not in _TAKEN or time.monotonic() > until:
                raise
            time.sleep(0.005)
        else:
            return


def _in_use(folder: Path, holder: "Holder") -> CheckpointError:
    """The error for a folder in which another process trains."""
    away = holder.host and holder.host != socket.gethostname()
    place = f" on {holder.host}" if away else ""
    return CheckpointError(
        f"{folder} is in use by the process with pid {holder.pid or 'unknown'}{place}. Wait for "
        "it, stop it, or give another run_dir"
    )


class Holder(NamedTuple):
    """The process that holds the lock of a folder; pid 0: it has not said yet.

    parent: pid of its parent when it began; 0: unknown.
    """

    pid: int
    host: str
    parent: int = 0

    @property
    def is_orphan(self) -> bool:
        """Whether it runs on this machine, and its parent has ended."""
        if not self.parent or self.host != socket.gethostname():
            return False
        try:
            os.kill(self.parent, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


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


def require_free(folder: Path) -> None:
    """Raises CheckpointError if a process trains in a folder; `run_lock` keeps others out."""
    if (holder := holder_of(folder)) is not None:
        raise _in_use(folder, holder)


def await_left(folder: Path, say: Callable[[str], None] | None = None) -> None:
    """Waits until a process whose parent was killed has left the folder, at most for as long as
    such a process has time to end.

    say: receives a sentence if the wait is not short.
    """
    begin = time.monotonic()
    while (holder := holder_of(folder)) is not None:
        passed_s = time.monotonic() - begin
        if passed_s > ORPHAN_GRACE_S + 30.0:
            return
        if say is not None and passed_s > _TOLD_AFTER_S:
            say(
                f"waits for the process with pid {holder.pid}, of an earlier command that was "
                f"killed, to leave {folder}: at most {ORPHAN_GRACE_S:g} s"
            )
            say = None
        time.sleep(0.2)


def await_orphan(folder: Path, say: Callable[[str], None]) -> None:
    """The same, where that parent has ended; a process whose parent lives is not awaited."""
    with suppress(CheckpointError):  # the run itself says so
        holder = holder_of(folder)
        if holder is not None and holder.is_orphan:
            await_left(folder, say)


def _said_in(file: int) -> Holder:
    pid, host, parent, *_ = [*os.pread(file, 300, 0).decode(errors="replace").split(), *"   "]
    return Holder(_number(pid), host.strip(), _number(parent))


def _number(word: str) -> int:
    return int(word) if word.isascii() and word.isdigit() else 0


def _refused(folder: Path, fault: OSError) -> CheckpointError:
    return CheckpointError(
        "run_dir must be a folder in which files can be made and locked, got "
        f"{fault.filename or folder} ({files.reason(fault)}); {files.advice(fault)}, or give "
        "another run_dir"
    )
