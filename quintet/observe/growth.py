"""Growth of the memory of a run's processes, reported while memory is still free."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, final

from quintet.system.memory import free_bytes

_FIRST_S = 120.0
"""Seconds in which a process may fill its caches before growth counts."""

_EVERY_S, _WINDOWS = 30.0, 6
"""Least length of a window in seconds, and number of windows in a row that must have grown."""

_EVEN = 0.5
"""Fraction of the mean growth that each window must have: filling caches grow ever slower."""

_LEAST_BYTES = 64e6
"""Least growth over all windows that is reported."""

_MARGIN = 2.0  # times the rest of the run, whose speed may change


class Held(NamedTuple):
    """Private memory of a process, without shared memory and mapped files."""

    name: str
    bytes: float


@final
class Growth:
    """Finds processes that grow at an even rate, and reports each of them once."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, free: Callable[[], float] = free_bytes
    ):
        self._clock, self._free = clock, free
        self._first_s: dict[int, float] = {}
        self._windows: dict[int, deque[tuple[float, float]]] = {}  # (time, bytes) by process
        self._reported: set[int] = set()

    def look(self, held: Mapping[int, Held], left_s: float) -> list[str]:
        """A sentence for each process that would use up the free memory before the run's end.

        held: private memory by pid; left_s: seconds left of the run.
        """
        now, said = self._clock(), []
        for pid in self._windows.keys() - held.keys():
            del self._windows[pid], self._first_s[pid]
            self._reported.discard(pid)
        for pid, (name, own) in held.items():
            first_s = self._first_s.setdefault(pid, now)
            seen = self._windows.setdefault(pid, deque(maxlen=_WINDOWS + 1))
            if now - first_s < _FIRST_S or (seen and now - seen[-1][0] < _EVERY_S):
                continue
            seen.append((now, own))
            if pid in self._reported or (rate := _rate(seen)) is None:
                continue
            free = self._free()
            if free / rate < _MARGIN * left_s:
                self._reported.add(pid)
                said.append(
                    f"{name} (pid {pid}) holds {own / 1e9:.2f} GB and grows by "
                    f"{60 * rate / 1e6:,.0f} MB a minute; at this rate the {free / 1e9:.1f} GB "
                    f"that are free last {free / rate / 60:,.0f} minutes, and about "
                    f"{left_s / 60:,.0f} are left of the run: an environment, an encoder or a "
                    "callback may keep what it no longer needs"
                )
        return said


def _rate(seen: deque[tuple[float, float]]) -> float | None:
    """Growth of a process in bytes per second; None if it does not grow evenly."""
    if len(seen) <= _WINDOWS:
        return None
    (begin_s, first), (end_s, last) = seen[0], seen[-1]
    rate = (last - first) / (end_s - begin_s)
    pairs = zip(list(seen), list(seen)[1:], strict=False)
    even = all(b - a >= _EVEN * rate * (then - now) for (now, a), (then, b) in pairs)
    return rate if even and last - first >= _LEAST_BYTES else None
