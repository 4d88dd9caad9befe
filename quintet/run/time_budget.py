"""The time of a run, from which its number of env_steps follows.

`quintet.search.minutes` finds the number before the run begins.  A clock decides only where a run
would take far longer than its time: it ends where it is, with a policy, an evaluation and its
env_steps as the number.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

from quintet.errors import BudgetChanged, TimeIsOver
from quintet.observe.pace import Meter
from quintet.observe.timing import Phase
from quintet.options.bounds import MOST_STEPS

LEAST_S = 3.0
"""Least seconds of a measurement of the speed, where the time allows them."""

LARGEST_SHARE = 0.2
"""Share of the time after which a slow measurement ends."""

SLACK_S = 0.5
"""Seconds beyond the time after which a run ends where it is."""

_OF_TRAINING = 0.94  # share of the time left; the rest is for evaluations and checkpoints
_CHECK_SHARE = 0.05  # share of the time after which the speed is looked at again
_FAR_OFF = 1.3  # factor
_LATE = 0.5  # share of the time that must be left to begin a run again
_LAST_EVALUATION = 1.02  # share of the time after which the last evaluation is left out
_EVALUATION_SHARE = 0.1  # share of the time that another evaluation may take
_EXPECTED_SHARE = 0.5  # largest share of the time that is kept for the last evaluation
_DIGITS = 2
_NOT_TRAINING: tuple[Phase, ...] = ("evaluation", "checkpoint")


@final
@dataclass
class TimeBudget:
    """A run's time, from `begin` on by `time.monotonic`.

    notes: what was measured, for the user; said: what was seen too late, "" without it.
    checks: whether the number of env_steps may still be corrected.
    speed: env_steps per second; start_s, start_steps: seconds and env_steps until the first update,
        once the run begins.
    bounded: whether the run ends where it is when the time is over, once it has learned from
        `least_batches`.
    making_s: seconds in which the environments of training are made.
    evaluation_s: seconds of an evaluation, as far as known.
    rows, batches: number of rows that were stepped here, and of batches that were learned from.
    """

    minutes: float
    begin: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)
    said: str = ""
    checks: bool = True
    speed: float = 0.0
    start_s: float = 0.0
    start_steps: float = 0.0
    bounded: bool = True
    least_batches: int = 1
    making_s: float = 0.0
    evaluation_s: float = 0.0
    rows: int = 0
    batches: int = 0
    _began: float = 0.0
    _batch_at: float = 0.0
    _evaluating_at: float = 0.0
    _meter: Meter = field(default_factory=Meter)

    def run_begins(self, began: float) -> None:
        """Called when the run itself, which began then, has made the environments of training."""
        self._began, self.making_s = began, time.monotonic() - began

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.begin

    def row(self, _: int = 0) -> None:
        """Called before every row; raises TimeIsOver."""
        self.rows += 1
        self._batch_at = self._batch_at or time.monotonic()
        if self._over(0.0):
            raise TimeIsOver("the time is over")

    def batch(self) -> bool:
        """Called after every batch; whether the next one would end too late."""
        self.batches += 1
        before, self._batch_at = self._batch_at, time.monotonic()
        return self._over(self._batch_at - before if before else 0.0)

    def _over(self, ahead_s: float) -> bool:
        kept_s = min(self.evaluation_s, _EXPECTED_SHARE * self.total_s)
        over = self.passed_s + ahead_s + kept_s > self.total_s + SLACK_S
        return over and self.bounded and self.batches >= self.least_batches

    def look(
        self, steps: int, total: int, seconds: Mapping[Phase, float], say: Callable[[str], None]
    ) -> None:
        """Called after every batch from the first update on, before which a run is faster; raises
        BudgetChanged, at most once, if the run is far too fast or too slow.

        seconds: of the run so far, by phase; say: receives what was seen too late.
        """
        if not self.checks:
            return
        training = sum(x for phase, x in seconds.items() if phase not in _NOT_TRAINING)
        fits = self.correction(steps, total, training)
        if self.said:
            say(self.said)
        if fits is not None:
            raise BudgetChanged(fits)

    def evaluation_begins(self) -> None:
        self._evaluating_at = time.monotonic()

    def evaluation_ends(self) -> None:
        """The next one may take as long, or longer if this one was not played to its end."""
        self.evaluation_s = max(self.evaluation_s, time.monotonic() - self._evaluating_at)
        self._batch_at = time.monotonic()

    def evaluation_late(self, is_last: bool) -> bool:
        """Whether an evaluation takes too long, as it may where episodes are long."""
        took_s = time.monotonic() - self._evaluating_at
        late = took_s > _EVALUATION_SHARE * self.total_s + SLACK_S
        if is_last:
            late = late and self.passed_s > _LAST_EVALUATION * self.total_s
        return late and self.bounded

    @property
    def total_s(self) -> float:
        return 60.0 * self.minutes

    def steps_left(self) -> float:
        """The env_steps that fit into the time that is left."""
        left_s = self.total_s - self.passed_s - self.start_s
        # A run that has begun has made them.
        left_s -= 0.0 if self._began else self.making_s
        left_s -= min(self.evaluation_s, _EXPECTED_SHARE * self.total_s)
        return self.start_steps + self.speed * max(left_s, 0.0) * _OF_TRAINING

    def correction(self, env_steps: int, total: int, seconds: float) -> int | None:
        """Another number of env_steps if the run, looked at once, is far too fast or too slow.

        seconds: of training so far, without evaluations and checkpoints.
        """
        if not self.checks:
            return None
        if self._meter.first is None:
            self.start_s, self.start_steps = time.monotonic() - self._began, env_steps
        self._meter.advance(env_steps, seconds)
        enough_s = max(_CHECK_SHARE * self.total_s, min(LEAST_S, LARGEST_SHARE * self.total_s))
        if self._meter.passed_s < enough_s:
            return None
        self.checks, speed = False, self._meter.steps_per_s
        left_s = self.total_s - self.passed_s
        needed_s = (total - env_steps) / max(speed, 1e-9) / _OF_TRAINING
        if left_s / _FAR_OFF <= needed_s <= _FAR_OFF * left_s:
            return None
        if left_s < _LATE * self.total_s:
            self.said = (
                f"minutes={self.minutes:g}: the run makes {speed:,.0f} env_steps/s, not "
                f"{self.speed:,.0f}, and will end in about {needed_s / 60:,.2g} minutes; this was "
                "seen too late to begin again"
            )
            return None
        before, self.speed = self.speed, speed
        fits = rounded(self.steps_left())
        self.notes = [
            f"minutes={self.minutes:g}: the run makes {speed:,.0f} env_steps/s, not "
            f"{before:,.0f}, so it begins again with {fits:,} env_steps in place of {total:,}; "
            "this is done only once"
        ]
        return fits


def rounded(steps: float) -> int:
    """A round number of steps, at most `steps`."""
    whole = int(min(max(steps, 1.0), MOST_STEPS))
    unit = 10 ** max(len(str(whole)) - _DIGITS, 0)
    return int(whole // unit * unit)
