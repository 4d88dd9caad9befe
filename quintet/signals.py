"""Ctrl-C, SIGTERM and the end of the terminal as a request to stop."""

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
    """Ctrl-C, SIGTERM and SIGHUP ask `target` to stop; a second Ctrl-C ends it at once.

    Signals reach only the main thread; elsewhere the caller keeps its own handling.
    """

    def handle(number: int, _: FrameType | None) -> None:
        if target.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        target.request_stop()

    with _handled([signal.SIGINT, *_ends()], handle):
        yield


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that what is half done is undone, as by Ctrl-C."""

    def handle(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handled(_ends(), handle):
        yield


@contextmanager
def interrupts_for_us_alone() -> Iterator[None]:
    """Processes that begin within never get Ctrl-C, which a terminal sends to all of them: this
    one does, and ends them when it is time.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # Blocked and not ignored: what comes meanwhile is handled afterwards.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ends() -> list[signal.Signals]:
    """What asks a process to end, without what the caller has it ignore, as nohup does."""
    found = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]  # Windows has one
    return [n for n in found if n is not None and signal.getsignal(n) is not signal.SIG_IGN]


@contextmanager
def _handled(numbers: list[signal.Signals], handle: "signal._HANDLER") -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
