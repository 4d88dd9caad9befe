"""Turns Ctrl-C, SIGTERM and a closed terminal into a request to stop."""

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from math import inf
from types import FrameType
from typing import final

_TOLD_AFTER_S = 1.0  # time of a stop before it says what it waits for
_HEEDED_S = 0.4  # time for the main thread to handle a second Ctrl-C
_LEFT_S = 0.4  # time to restore the terminal then
_UNDONE_S: ContextVar[float] = ContextVar("undone_s", default=5.0)
"""Seconds for open files and processes to close after a second Ctrl-C."""

_UNDONE_BY_COMMAND_S = 0.6  # the same where the process is a command's, and not a user's own
INTERRUPTED = 128 + signal.SIGINT  # exit status
_asked: list[int] = []
"""Numbers of the signals that have asked this process's command to stop, in order."""


class Ended(SystemExit):
    """Raised by `exit_on_signals`: the system has asked this process to end."""


STOPS = (KeyboardInterrupt, Ended)
"""Exceptions that end this process, raised in any code; all others from an environment, including
sys.exit(), are its own errors.
"""


@final
@dataclass
class StopRequest:
    """Whether a run, or a group of runs, was asked to stop in an orderly way.

    tell: reports what the stop waits for.
    abandon: restores the terminal before the process ends at once.  Both are called from another
        thread.
    signalled: whether a signal asked for it.
    """

    tell: Callable[[], object]
    abandon: Callable[[], object] = lambda: None
    made: bool = False
    signalled: bool = False


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[None]:
    """Makes Ctrl-C, SIGTERM and SIGHUP a request to stop; a second Ctrl-C ends the process at once.

    While the main thread is in C code, Python runs no handler.  So a thread also receives the
    signals, reports what the stop waits for, and ends the process at a second Ctrl-C.  If the C
    code holds Python's lock, that thread can't run either, and (with glibc) the system ends the
    process at the second Ctrl-C.

    Only the main thread receives signals; in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, *_ends()]
    listener = _Listener(request, numbers)

    def handle(number: int, _: FrameType | None) -> None:
        listener.rearm()
        request.signalled = True
        _asked.append(number)
        if request.made and number == signal.SIGINT:
            listener.heeded = True
            raise KeyboardInterrupt
        request.made = True

    try:
        with _handled(numbers, handle):
            listener.rearm = _deadly_second(signal.SIGINT)
            yield
    finally:
        listener.close()


@contextmanager
def save_on_signal(request: Callable[[], None]) -> Iterator[None]:
    """Makes SIGUSR1 request a checkpoint within the block, unless users' code handles it."""
    of_main = threading.current_thread() is threading.main_thread()
    free = signal.getsignal(signal.SIGUSR1) in (signal.SIG_DFL, signal.SIG_IGN)
    if not (of_main and free):
        yield
        return
    with _handled([signal.SIGUSR1], lambda *_: request()):
        yield


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Ended, so that a command undoes unfinished work.

    SIGUSR1, by which batch systems give notice, ends no command that has nothing to save yet, nor
    what it starts.
    """

    def handle(number: int, _: FrameType | None) -> None:
        raise Ended(128 + number)

    before = _UNDONE_S.set(_UNDONE_BY_COMMAND_S)
    _asked.clear()
    unused = signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    notices = [signal.SIGUSR1] if unused else []
    try:
        with _handled(notices, signal.SIG_IGN), _handled(_ends(), handle):
            yield
    finally:
        _UNDONE_S.reset(before)


def stopped_status() -> int:
    """Exit status of a command that was stopped: 128 and the number of the last signal that asked
    for it, as of a process that the signal ends.
    """
    return 128 + _asked[-1] if _asked else INTERRUPTED


@contextmanager
def interrupts_for_us_alone() -> Iterator[None]:
    """Blocks Ctrl-C for processes that begin within the block; this process ends them in time.

    Ctrl-C interrupts the block as soon as its thread, the main one, runs Python code; a second one
    ends the process at once.
    """
    message = b"waiting for an environment to be made; a second Ctrl-C ends at once\n"
    with ExitStack() as ends:
        if threading.current_thread() is threading.main_thread():
            # The listener comes first, so that its thread receives what the main thread blocks.
            request = StopRequest(lambda: os.write(2, message))
            ends.callback(_Listener(request, [signal.SIGINT]).close)
        # Blocked and not ignored: a signal at the end of the block is handled afterwards.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        ends.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        yield


@final
class _Listener:
    """Receives every signal at once in a thread: Python's C code writes its number to a pipe before
    the main thread runs a handler.
    """

    def __init__(self, request: StopRequest, numbers: Collection[int]) -> None:
        self.heeded = False  # the main thread is ending after a second Ctrl-C
        self.rearm: Callable[[], object] = lambda: None  # replaced with Python's handler
        self._request, self._numbers = request, frozenset(numbers)
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
        with suppress(OSError):
            os.close(self._writer)
        self._thread.join(_TOLD_AFTER_S)

    def _listen(self) -> None:
        """Tells of a request to end; after a second Ctrl-C ends a process that does not heed it."""
        asked, tell_s, end_s = False, inf, inf
        while True:
            heard = self._hear(min(tell_s, end_s))
            if heard == b"":
                with suppress(OSError):
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
                self._request.tell()
            if time.monotonic() >= end_s:
                if not self.heeded:
                    self._end()
                end_s = time.monotonic() + self._undone_s - _HEEDED_S
                self.heeded = False

    def _hear(self, until_s: float) -> bytes | None:
        """Numbers of received signals; empty at the end; None if there were none in that time."""
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        left_ms = None if until_s == inf else max(0.0, until_s - time.monotonic()) * 1e3 + 1.0
        if not poll.poll(left_ms):
            return None
        try:
            heard = os.read(self._reader, 512)
        except OSError:  # users' code has closed it (`system.forks`)
            return b""
        if self._before >= 0:  # the pipe of other code, such as an event loop
            with suppress(OSError):
                os.write(self._before, heard)
        return heard

    def _end(self) -> None:
        """Ends the process, whatever its main thread is doing."""

        def leave() -> None:
            self._request.abandon()
            sys.stdout.flush()

        leaving = threading.Thread(target=leave, daemon=True)  # may wait for a lock
        leaving.start()
        leaving.join(_LEFT_S)
        with suppress(OSError):
            os.write(2, b"interrupted\n")
        os._exit(INTERRUPTED)


_pipes: set[int] = set()
"""Writing ends of the pipes for this process's signals."""


@cache
def _leave_pipes_to_parents() -> None:
    """Keeps forked processes, as environments, from writing their signals to this pipe."""

    def leave() -> None:
        pipe = signal.set_wakeup_fd(-1)
        if pipe not in _pipes:
            signal.set_wakeup_fd(pipe)

    os.register_at_fork(after_in_child=leave)


def _deadly_second(number: int) -> Callable[[], object]:
    """Makes the system end this process at the second signal of that number, unless the returned
    function is called in between (glibc; elsewhere nothing changes).
    """
    install = getattr(ctypes.CDLL(None), "sysv_signal", None)
    if install is None:
        return lambda: None
    # A signal removes a handler that was installed in this way, by the rule of System V.
    install.argtypes, install.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    of_python = install(number, None)  # Python's handler in C, which asks for the one in Python
    install(number, of_python)
    return lambda: install(number, of_python)


def _ends() -> list[signal.Signals]:
    """Signals that ask a process to end, except those that it ignores, as under nohup."""
    ends = (signal.SIGTERM, signal.SIGHUP)
    return [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def _handled(numbers: list[signal.Signals], handle: "signal._HANDLER") -> Iterator[None]:
    """Handles the signals in the block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
