"""Processes of the runtime, as a test sees them."""

from contextlib import suppress

import psutil

from quintet.jobs.child_process import _servers


def processes_of(pid: int | None = None) -> list[psutil.Process]:
    """Those that a process, this one by default, has begun and that have not ended."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):  # some other test's, which has ended
            # The fork server takes note of an end a moment after whoever waited for it.
            if child.name().split()[0] in ("worker", "inference", "learner") and runs(child):
                found.append(child)
    return found


def open_files() -> int:
    """Of this process, but for those of fork servers, which stay."""
    return psutil.Process().num_fds() - len(_servers)


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended, seen or unseen by who must take note of it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
