"""First steps of a child process: it ties itself to its parent, reads its payload and runs its
module.

Its arguments: the pid of the parent with which the system ends it (or ""), its name, a module, and
the numbers of the files that it was given.
"""

import ctypes
import importlib
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable

LENGTH = struct.Struct("<Q")
"""Format of the payload's length, which precedes it on standard input."""

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_SET_NAME = 15  # PR_SET_NAME

_START = "import sys; sys.path[:] = {path!r}; from quintet.jobs.entry import main; sys.exit(main())"


def command(arguments: list[str]) -> list[str]:
    """The command line of a Python process that calls `main`.  It looks for modules where this
    process does: ``python -m`` would look into the working folder first.
    """
    return [sys.executable, "-P", "-c", _START.format(path=sys.path), *arguments]


def main() -> int:
    """Calls ``MODULE.main()``, tied to the parent before any slow import."""
    parent, name, module_name = sys.argv[1:4]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_NAME, name.encode()[:15])  # top and ps show it
    if parent:
        die_with_parent(int(parent))
    module = importlib.import_module(module_name)
    sys.argv[:4] = [str(module.__file__)]
    status: int = module.main()
    return status


def die_with_parent(parent: int) -> None:
    """Makes the system end this process with its parent, in any state (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the system was asked
        os._exit(130)


def outlive_parent() -> None:
    """Takes `die_with_parent` back."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, 0)


def receive(when_orphaned: Callable[[], None]) -> bytes:
    """Reads the payload; a thread calls `when_orphaned` when the parent is gone."""
    stdin = sys.stdin.fileno()
    (length,) = LENGTH.unpack(_read_exactly(stdin, LENGTH.size))
    payload = _read_exactly(stdin, length)

    def watch() -> None:
        while os.read(stdin, 1):
            pass
        when_orphaned()

    threading.Thread(target=watch, daemon=True).start()
    return payload


def _read_exactly(handle: int, count: int) -> bytes:
    """`count` bytes of a pipe; exits if it ends before."""
    parts = []
    while count:
        part = os.read(handle, min(count, 1 << 20))
        if not part:
            sys.exit(130)  # the parent is gone before anything began
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
