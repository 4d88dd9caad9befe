"""Staying awake through a wait of microseconds."""

import os
import sys
import time
from typing import final

if sys.platform == "linux":
    import resource

_LONGEST_S = 200e-6
"""Of longer steps what sleeping costs is a small part."""
_FIRST_S = 20e-6
_LONGER, _SHORTER = 1.05, 0.995  # one step in ten is late
_GIVEN_UP_FOR = 2_000  # steps

SLEEPS_ARE_COUNTED = sys.platform == "linux"
"""Whether the system tells how often a thread went to sleep, without which nothing here works."""


@final
class ShortWait:
    """Passes the time that a step in another thread usually takes, without sleeping.

    A thread that sleeps for 0.1 ms is woken late and finds its core cold: with 64 CartPoles that
    cost a tenth of the whole training.  How long to stay awake follows the steps: longer when the
    thread slept nevertheless until the step was there, and else a little shorter.  Where the
    longest time is too short, as for slow steps or beside other processes that want the cores, it
    is given up for 2,000 steps.

    Only time is spent here; what is computed is the same.
    """

    def __init__(self) -> None:
        self.awake_s = _FIRST_S
        self._given_up_for = 0
        self._begun_at = 0.0
        self._slept_before = 0

    def begin(self) -> None:
        """The step has begun."""
        self._begun_at = time.perf_counter()

    def stay_awake(self) -> None:
        """Passes what is left of the usual time."""
        if self._given_up_for:
            return
        until = self._begun_at + self.awake_s
        while time.perf_counter() < until:
            os.sched_yield()
        self._slept_before = _times_slept()

    def collected(self) -> None:
        """The step's result is here."""
        if self._given_up_for:
            self._given_up_for -= 1
        elif _times_slept() == self._slept_before:
            self.awake_s *= _SHORTER
        elif self.awake_s * _LONGER <= _LONGEST_S:
            self.awake_s *= _LONGER
        else:
            self.awake_s, self._given_up_for = _FIRST_S, _GIVEN_UP_FOR


def _times_slept() -> int:
    """How often this thread gave its core away to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
