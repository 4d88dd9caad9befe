"""The one judgement that a process hangs: its silence, without the time in which it had no core.

Waits for a core are counted by the system: Linux only, and where the kernel keeps this account;
elsewhere no process is seen to wait for a core.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import final

import psutil

_LONG_S = 5.0
"""Seconds of silence of a process before the waits of its children for a core are read, too."""

Delays = dict[int, float]
"""Seconds that threads have waited for a core since they began, by thread id."""


def own_delay_s() -> float:
    """Seconds that this thread has waited for a core."""
    return _delay_s(Path("/proc/thread-self")) or 0.0


def _delay_s(thread: Path) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    return None


def delays_of(pid: int) -> Delays:
    """The waits of a process's threads."""
    found: Delays = {}
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            if (delay_s := _delay_s(thread)) is not None:
                found[int(thread.name)] = delay_s
    return found


def delays_below(pid: int) -> Delays:
    """The waits of the threads of all children of a process, as of a compiler."""
    found: Delays = {}
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            found |= delays_of(child.pid)
    return found


@final
class CoreWaits:
    """Seconds that a process waits for a core between two reads."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        own: Callable[[int], Delays] = delays_of,
        below: Callable[[int], Delays] = delays_below,
    ):
        """own, below: return the delays of a process's threads, and of its descendants' threads."""
        self._clock, self._own, self._below = clock, own, below
        self._looked_s: float | None = None
        self._seen: Delays = {}

    def look(self, pid: int, deep: bool = True) -> float:
        """Seconds since the last look, 0 at the first one, in which a thread of the process waited;
        deep: threads of the processes that it began count too.
        """
        now, before = self._clock(), self._looked_s
        passed_s = 0.0 if before is None else now - before
        found = self._own(pid)
        waited_s = self._longest(found)
        # A process that has its core may be waiting for others, as for a compiler.
        if deep and (before is None or waited_s < passed_s / 2):
            others = self._below(pid)
            waited_s = max(waited_s, self._longest(others))
            found |= others
        self._looked_s, self._seen = now, found
        return min(waited_s, passed_s)

    def _longest(self, found: Delays) -> float:
        seen = self._seen
        return max((s - seen[thread] for thread, s in found.items() if thread in seen), default=0.0)


@final
class Silence:
    """Seconds without progress of a process, of those in which it had a core and was looked at.

    A machine may be slow without a fault: whoever watches may have been stopped itself, and with it
    perhaps all processes, as containers are.  So a look counts at most the time of two looks.

    seconds: of the silence; without_core_s: seconds since the last progress in which the process
        had no core, which do not count.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        make_waits: Callable[[], CoreWaits] = CoreWaits,
    ):
        self.seconds = self.without_core_s = 0.0
        self._clock, self._make_waits = clock, make_waits
        self._looked_s: float | None = None
        self._progress: object = None
        self._waits = make_waits()

    def look(self, pid: int | None, progress: object, every_s: float) -> float:
        """Seconds since the first look that found this progress.

        pid: None for one of another machine, whose waits for a core are not known.
        progress: a value that differs as soon as the process has got on.
        every_s: seconds from one look to the next, where nothing is late.
        """
        now, before = self._clock(), self._looked_s
        self._looked_s = now
        if before is None or progress != self._progress:
            self._progress, self.seconds, self.without_core_s = progress, 0.0, 0.0
            self._waits = self._make_waits()
            if pid is not None:
                self._waits.look(pid, deep=False)
            return 0.0
        passed_s = min(now - before, 2 * every_s)
        waited_s = 0.0
        if pid is not None:
            deep = self.seconds + self.without_core_s > _LONG_S
            waited_s = min(self._waits.look(pid, deep), passed_s)
        self.without_core_s += waited_s
        self.seconds += passed_s - waited_s
        return self.seconds

    @property
    def told(self) -> str:
        """Text after the seconds in a message, or ""."""
        if self.without_core_s < 1.0:
            return ""
        return f" (and {self.without_core_s:.0f} s more in which it had no core)"
