"""Ctrl-C and SIGTERM as a request to stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Stoppable(Protocol):
    """Something that ends by itself, in good order, soon after it was asked to."""

    stop_requested: bool

    def request_stop(self) -> None: ...


@contextmanager
def stop_on_signals(target: Stoppable) -> Iterator[None]:
    """Ctrl-C and SIGTERM ask `target` to stop; a second Ctrl-C ends it at once.

    Signals reach only the main thread; elsewhere the caller keeps its own handling.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: FrameType | None) -> None:
        if target.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        target.request_stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
