"""Faults that users' code may bring on this process: it returns in a child, or closes files.

A child that returns from users' code would continue its parent's work: train the same run in the
same folder and shared memory.  Children that users' code ends itself, like multiprocessing's, are
not affected.

The next file that is opened gets the number of a closed one: a checkpoint that of standard output,
into which the next line would be written.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from quintet.errors import EnvironmentFault

_STANDARD = {0: "standard input", 1: "standard output", 2: "standard error"}
_FROM = 512
"""Number from which copies of standard files are looked for: code that closes all closes the low
ones.
"""


generation = 0
"""Number of forks between this process and the one that called `watch` first. It differs from its
value before a call of users' code only in a child that returned from that call.
"""


@cache
def watch() -> None:
    """Counts forks, and remembers which files are open, from here on."""
    _files()

    def count() -> None:
        global generation
        generation += 1

    os.register_at_fork(after_in_child=count)


def leave(what: str) -> None:
    """Ends this child, which the code of `what` forked, with the status of a sys.exit() under
    way."""
    error = sys.exception()
    if error is not None and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, SystemExit):  # the code meant to end
        code = error.code
        os._exit(code if isinstance(code, int) else int(code is not None))
    message = f"{what} called os.fork(), and the child did not end in its code: it was ended\n"
    with suppress(OSError):
        os.write(2, message.encode(errors="replace"))
    os._exit(1)


@contextmanager
def kept_out(what: str) -> Iterator[None]:
    """Ends children that return from the block's code."""
    watch()
    before = generation
    try:
        yield
    finally:
        if generation != before:
            leave(what)


@cache
def _files() -> tuple[int, dict[int, int]]:
    """A file that nobody else knows, and copies of the standard files that are open."""
    copies = {}
    for number in _STANDARD:
        with suppress(OSError):  # closed from the start, or a low limit of files
            copies[number] = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FROM)
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), copies


def require_files(who: str) -> None:
    """Raises EnvironmentFault if a file of this process was closed since `watch`; standard files
    are opened again, so that the error can be read.

    who: whose code was called.
    """
    unknown, copies = _files()
    closed = [name for number, name in _STANDARD.items() if number in copies and _shut(number)]
    for number, copy in copies.items():
        if _shut(number):
            with suppress(OSError):
                os.dup2(copy, number)
    if _shut(unknown):
        closed.append("files of quintet")
    if closed:
        raise EnvironmentFault(
            f"{who} must close only what it has opened, but its code closed "
            f"{' and '.join(closed)} of this process (os.close, os.closerange): mend it, or a "
            "library that it uses"
        )


def _shut(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False
