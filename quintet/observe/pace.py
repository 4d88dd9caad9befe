"""The speed of a run, its time left, its scores, and their formats."""

import time
from collections import deque
from typing import NamedTuple, final

_RATE_WINDOW_S = 30.0


SHOWN_EVERY_S = 1.0
"""Seconds after which a run shows its progress, whether or not a report is due."""

_SHORTEST_S, _LONGEST_S = 1.0, 240.0
_SHARE_OF_TIME = 0.01


def report_interval_s(wall_s: float) -> float:
    """Seconds between two reports in a run that has taken `wall_s` so far.

    A run of 20 s has 20 reports, a run of an hour 460, a run of a day 900, and each further day
    adds 360.
    """
    return min(max(_SHORTEST_S, _SHARE_OF_TIME * wall_s), _LONGEST_S)


class Score(NamedTuple):
    """Mean return and success rate, if they exist."""

    return_: float | None = None
    success: float | None = None


NO_SCORE = Score()


@final
class Pace:
    """Speed over the last half minute, and the time left at that speed."""

    def __init__(self, total: int, start: int) -> None:
        self.total = total
        self.done = start
        self._points: deque[tuple[float, int]] = deque([(time.monotonic(), start)])

    def advance(self, env_steps: int) -> None:
        now = time.monotonic()
        self.done = env_steps
        self._points.append((now, env_steps))
        while len(self._points) > 2 and now - self._points[0][0] > _RATE_WINDOW_S:
            self._points.popleft()

    def restart(self) -> None:
        """Measures the speed from the last point on, without the time before it."""
        self._points = deque([self._points[-1]])

    @property
    def percent(self) -> int:
        """A percentage, rounded down, so that 100 means done."""
        return min(100, 100 * self.done // max(1, self.total))

    @property
    def steps_per_s(self) -> float | None:
        seconds = self._points[-1][0] - self._points[0][0]
        steps = self._points[-1][1] - self._points[0][1]
        return steps / seconds if seconds > 0 and steps > 0 else None

    @property
    def left_s(self) -> float | None:
        rate = self.steps_per_s
        return max(0, self.total - self.done) / rate if rate else None


@final
class Meter:
    """Mean speed of a run from a first point on.

    first: env_steps and seconds of that point; None before.
    steps_per_s: env_steps per second from there to the newest point; 0 without a second one.
    """

    def __init__(self) -> None:
        self.first: tuple[float, float] | None = None
        self.steps_per_s = self.passed_s = 0.0

    def advance(self, env_steps: float, wall_s: float) -> None:
        if self.first is None:
            self.first = env_steps, wall_s
        elif wall_s > self.first[1]:
            self.passed_s = wall_s - self.first[1]
            self.steps_per_s = (env_steps - self.first[0]) / self.passed_s


def percent(share: float) -> str:
    """7.5%  62%  100%"""
    return f"{100 * share:.3g}%"


def clock(seconds: float) -> str:
    """0:07  12:34  1:02:03  3 days"""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    clock = (
        f"{minutes}:{whole % 60:02d}" if hours == 0 else f"{hours}:{minutes:02d}:{whole % 60:02d}"
    )
    return clock if hours < 48 else f"{hours // 24} days"


def count(number: int, noun: str) -> str:
    """1 worker  2,048 streams"""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
