"""Processes of the runtime, as a test sees them."""

from contextlib import suppress

import psutil


def processes_of(pid: int | None = None) -> list[psutil.Process]:
    """Those that a process, this one by default, has begun and that have not ended."""
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):  # some other test's, which has ended
            if any("quintet.runtime" in word for word in child.cmdline()):
                found.append(child)
    return found


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended, seen or unseen by who must take note of it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
