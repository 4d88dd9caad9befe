"""A timer of the phases of a run."""

from collections.abc import Callable
from time import perf_counter
from typing import Literal, final, get_args

Phase = Literal[
    "stepping",
    "making",
    "acting",
    "learning",
    "replay",
    "waiting",
    "checkpoint",
    "evaluation",
    "other",
]
"""Phases of a process; "making" is the whole restart of its streams, "other" everything without a
name.
"""

PHASES: tuple[Phase, ...] = get_args(Phase)


@final
class PhaseTimer:
    """Adds up seconds by phase: `switch` ends one phase and begins the next.

    It may be used by one thread only.  A switch takes about a tenth of a microsecond, so the step
    loop may call it.
    """

    __slots__ = ("_begins", "_phase", "_reported", "_seconds", "_since")

    def __init__(self, begins: Callable[[Phase], None] = lambda _: None) -> None:
        """begins: called with a phase when that begins for the first time."""
        self._begins = begins
        self._seconds: dict[Phase, float] = {"other": 0.0}  # a phase enters when it begins
        self._reported: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._phase: Phase = "other"
        self._since = perf_counter()

    def switch(self, phase: Phase) -> Phase:
        """Begins `phase` and returns the phase that ended, so that callers can switch back to
        it."""
        now = perf_counter()
        before = self._phase
        self._seconds[before] += now - self._since
        self._phase = phase
        self._since = now
        if phase not in self._seconds:
            self._seconds[phase] = 0.0
            self._begins(phase)
        return before

    def now(self) -> tuple[Phase, float]:
        """The current phase and its start by `perf_counter`; may be called from other threads."""
        return self._phase, self._since

    def seconds(self) -> dict[Phase, float]:
        """Seconds by phase since the timer was made."""
        self.switch(self._phase)
        return {phase: self._seconds.get(phase, 0.0) for phase in PHASES}

    def report(self) -> dict[str, float]:
        """Shares of the time since the last report as ``time/PHASE_frac``, which sum to 1.

        Phases that took no time are absent.
        """
        total = self.seconds()
        passed = {phase: total[phase] - self._reported[phase] for phase in PHASES}
        self._reported = total
        whole = sum(passed.values())
        if whole <= 0:
            return {}
        return {f"time/{phase}_frac": s / whole for phase, s in passed.items() if s > 0}

    def told(self) -> str:
        """The seconds since the timer was made, and the share of each phase, as text."""
        seconds = {phase: s for phase, s in self.seconds().items() if s > 0}
        whole = sum(seconds.values())
        largest = sorted(seconds, key=lambda phase: -seconds[phase])
        parts = [f"{phase} {100 * seconds[phase] / whole:.0f}%" for phase in largest]
        return f"{whole:.1f} s: {', '.join(parts)}"
