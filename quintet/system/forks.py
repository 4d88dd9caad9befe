"""Ends children of os.fork() that return from users' code.

Such a child would continue its parent's work: train the same run in the same folder and shared
memory.  Children that users' code ends itself, like multiprocessing's, are not affected.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

generation = 0
"""Number of forks between this process and the one that called `watch` first. It differs from its
value before a call of users' code only in a child that returned from that call.
"""


@cache
def watch() -> None:
    """Counts forks from here on."""

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
    if isinstance(error, SystemExit):  # it did mean to end
        code = error.code
        os._exit(code if isinstance(code, int) else int(code is not None))
    told = f"{what} called os.fork(), and the child did not end in its code: it was ended\n"
    with suppress(OSError):
        os.write(2, told.encode(errors="replace"))
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
