"""Waiting for microseconds without sleeping."""

import os
import sys
import time
from typing import final

if sys.platform == "linux":
    import resource

_LONGEST_S = 200e-6
"""Longest time to stay awake; in longer steps the cost of sleeping is small."""
_FIRST_S = 20e-6
_LONGER, _SHORTER = 1.05, 0.995  # balanced where one step in ten is late
_GIVEN_UP_FOR = 2_000  # steps

SLEEPS_ARE_COUNTED = sys.platform == "linux"
"""Whether the system counts a thread's sleeps, which `ShortWait` needs."""


@final
class ShortWait:
    """Waits without sleeping for about as long as a step in another thread usually takes.

    A thread that sleeps for 0.1 ms wakes late on a cold core: with 64 CartPoles this cost a tenth
    of the training time.  The time to stay awake grows when the thread slept nevertheless until the
    step ended, and otherwise shrinks a little.  If even the longest time is too short, as with slow
    steps or busy cores, it pauses for 2,000 steps.  No result changes.
    """

    def __init__(self) -> None:
        self.awake_s = _FIRST_S
        self._given_up_for = 0
        self._begun_at = 0.0
        self._slept_before = 0

    def begin(self) -> None:
        """Called when the step has begun."""
        self._begun_at = time.perf_counter()

    def stay_awake(self) -> None:
        """Waits for the rest of the usual time."""
        if self._given_up_for:
            return
        until = self._begun_at + self.awake_s
        while time.perf_counter() < until:
            os.sched_yield()
        self._slept_before = _times_slept()

    def collected(self) -> None:
        """Called when the step's result has arrived."""
        if self._given_up_for:
            self._given_up_for -= 1
        elif _times_slept() == self._slept_before:
            self.awake_s *= _SHORTER
        elif self.awake_s * _LONGER <= _LONGEST_S:
            self.awake_s *= _LONGER
        else:
            self.awake_s, self._given_up_for = _FIRST_S, _GIVEN_UP_FOR


def _times_slept() -> int:
    """Number of times that this thread gave up its core to wait."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
