"""Ctrl-C, SIGTERM and the end of the terminal as a request to stop."""

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from math import inf
from types import FrameType
from typing import Protocol, final

_TOLD_AFTER_S = 1.0
"""How long a stop may take before the person is told what it waits for."""

_HEEDED_S = 0.4
"""How long the main thread may take to heed a second Ctrl-C before the process is ended."""

_LEFT_S = 0.4
"""How long giving the terminal back may take then."""

_UNDONE_S: ContextVar[float] = ContextVar("undone_s", default=5.0)
"""How long what is open may take to close after a second Ctrl-C before the process is ended."""

_UNDONE_BY_COMMAND_S = 0.6
"""The same where the process is a command's, and not a user's own."""

_INTERRUPTED = 130
"""Exit status of a process that Ctrl-C has ended."""


class Stoppable(Protocol):
    """Something that ends by itself, in good order, soon after it was asked to."""

    stop_requested: bool

    def request_stop(self) -> None: ...

    def tell_stopping(self) -> None:
        """Tells the person what the stop waits for; called from another thread."""
        ...

    def abandon(self) -> None:
        """Gives the terminal back, as the process ends at once; called from another thread."""
        ...


@contextmanager
def stop_on_signals(target: Stoppable) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP ask `target` to stop; a second Ctrl-C ends it at once.

    While the main thread is in C code that does not return, no handler of Python's runs: a thread
    hears the signals as well, says what is waited for, and ends the process by a second Ctrl-C.
    Where that C code keeps Python's lock so that no thread can run, nothing can be said, and (with
    glibc) the system ends the process by the second Ctrl-C.

    Signals reach only the main thread; elsewhere the caller keeps its own handling.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, *_ends()]
    listener = _Listener(target, numbers)

    def handle(number: int, _: FrameType | None) -> None:
        listener.rearm()
        if target.stop_requested and number == signal.SIGINT:
            listener.heeded = True
            raise KeyboardInterrupt
        target.request_stop()

    try:
        with _handled(numbers, handle):
            listener.rearm = _deadly_second(signal.SIGINT)
            yield
    finally:
        listener.close()


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that what is half done is undone, as by Ctrl-C.

    For a command: its process may be ended while it closes what is open.
    """

    def handle(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = _UNDONE_S.set(_UNDONE_BY_COMMAND_S)
    try:
        with _handled(_ends(), handle):
            yield
    finally:
        _UNDONE_S.reset(before)


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


@final
class _Listener:
    """Hears every signal in a thread, at once, by the number that Python's C code writes to a pipe
    before the main thread runs a handler.
    """

    def __init__(self, target: Stoppable, numbers: Collection[int]) -> None:
        self.heeded = False  # the main thread is on its way out by a second Ctrl-C
        self.rearm: Callable[[], None] = _nothing
        self._target, self._numbers = target, frozenset(numbers)
        self._undone_s = _UNDONE_S.get()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        _pipes.add(self._writer)
        _leave_pipes_to_parents()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="signals")
        self._thread.start()

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        _pipes.discard(self._writer)
        os.close(self._writer)
        self._thread.join(_TOLD_AFTER_S)

    def _listen(self) -> None:
        asked, tell_s, end_s = False, inf, inf
        while True:
            heard = self._hear(min(tell_s, end_s))
            if heard == b"":
                os.close(self._reader)
                return
            for number in self._numbers & {*(heard or b"")}:
                self.rearm()
                count = (heard or b"").count(number)
                if number == signal.SIGINT and (asked or count > 1):
                    end_s = min(end_s, time.monotonic() + _HEEDED_S)
                elif not asked:
                    tell_s = time.monotonic() + _TOLD_AFTER_S
                asked = True
            if time.monotonic() >= tell_s:
                tell_s = inf
                self._target.tell_stopping()
            if time.monotonic() >= end_s:
                if not self.heeded:
                    self._end()
                end_s = time.monotonic() + self._undone_s - _HEEDED_S
                self.heeded = False

    def _hear(self, until_s: float) -> bytes | None:
        """Numbers of signals; none at the end, None where there were none by then."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        left_ms = None if until_s == inf else max(0.0, until_s - time.monotonic()) * 1e3 + 1.0
        if not poll.poll(left_ms):
            return None
        heard = os.read(self._reader, 512)
        if self._before >= 0:  # somebody else's, as an event loop's
            with suppress(OSError):
                os.write(self._before, heard)
        return heard

    def _end(self) -> None:
        """Ends the process, whatever its main thread is doing."""

        def leave() -> None:
            self._target.abandon()
            sys.stdout.flush()

        leaving = threading.Thread(target=leave, daemon=True)  # what it needs may be locked
        leaving.start()
        leaving.join(_LEFT_S)
        with suppress(OSError):
            os.write(2, b"interrupted\n")
        os._exit(_INTERRUPTED)


_pipes: set[int] = set()
"""Ends of pipes that signals of this process are written to."""


@cache
def _leave_pipes_to_parents() -> None:
    """A process that is forked, as environments may be, must not write its signals to our pipe."""

    def leave() -> None:
        pipe = signal.set_wakeup_fd(-1)
        if pipe not in _pipes:
            signal.set_wakeup_fd(pipe)

    os.register_at_fork(after_in_child=leave)


def _nothing() -> None:
    """What there is to do before Python's handler is in place."""


def _deadly_second(number: int) -> Callable[[], None]:
    """Has the system itself end this process by the second signal of that number, unless what this
    gives is called in between, by any thread (glibc; elsewhere nothing changes).
    """
    install = getattr(ctypes.CDLL(None), "sysv_signal", None)
    if install is None:
        return _nothing
    # As in System V, a handler that it installs is taken away by the signal that calls it.
    install.argtypes, install.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    of_python = install(number, None)  # its handler in C, which asks for the one in Python
    install(number, of_python)

    def rearm() -> None:
        install(number, of_python)

    return rearm


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
