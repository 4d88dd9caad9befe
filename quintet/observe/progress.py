"""What a person sees while a run trains: a dashboard in a terminal, plain lines elsewhere.

Output never stops a run: when the pipe or the terminal is gone, it ends quietly.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TextIO, final

from quintet.observe.advice import Setting, count
from quintet.observe.limits import Cause, cause, crowded, limit
from quintet.observe.shares import TimeShares
from quintet.observe.timing import Phase

_LINE_INTERVAL_S = 10.0
_MOST_SILENCE_S = 600.0  # about what is waited for
_RATE_WINDOW_S = 30.0


class Progress(Protocol):
    """Shows how far a run is."""

    def update(
        self,
        report: Mapping[str, float],
        recent_return: float | None = None,
        recent_success: float | None = None,
    ) -> None:
        """Shows a report, and mean return and success rate of the last episodes."""
        ...

    def stage(self, text: str) -> None:
        """Shows what is going on until the next report, "" for nothing worth telling."""
        ...

    def waiting(self, text: str) -> None:
        """Shows what training has been waiting for, for seconds."""
        ...

    def say(self, message: str) -> None:
        """Shows a message on a line of its own, at once."""
        ...

    def close(self) -> None:
        """Shows the last state and gives the terminal back; may be called twice."""
        ...


@final
@dataclass(frozen=True)
class Begin:
    """Where a run begins or goes on: how far it is, and its best evaluation's score so far."""

    env_steps: int = 0
    best: float | None = None


FROM_NOTHING = Begin()


def make_progress(
    total_env_steps: int,
    title: str,
    stream: TextIO | None = None,
    *,
    folder: str = "",
    begin: Begin = FROM_NOTHING,
    setting: Setting | None = None,
) -> Progress:
    """A dashboard when `stream` (standard output by default) is a terminal, else plain lines.

    folder: of the run, named beside the title.
    begin: of a resumed run; the time left is judged from there.
    setting: what the speed depends on; without it nothing is said of what limits it.
    """
    out = stream if stream is not None else sys.stdout
    pace = Pace(total_env_steps, begin.env_steps)
    if not is_terminal(out):
        return LineProgress(f"{title} -> {folder}" if folder else title, out, pace, setting)
    # imported here: a run without a terminal never needs rich
    from quintet.observe.dashboard import TerminalProgress, View

    return TerminalProgress(View(title, folder, pace, setting, best=begin.best), out)


def first_stage(setting: Setting) -> str:
    """What a run does before its timer runs: it starts its processes, or collects."""
    if not setting.num_workers:
        return _collecting(setting)
    server = " and the inference server" if setting.inference == "server" else ""
    return f"starting {count(setting.num_workers, 'worker')}{server}"


def stage_of(phase: Phase, setting: Setting) -> str | None:
    """What the first of a phase is, and why it takes long: graphs are compiled when they are first
    called; None: nothing worth telling.
    """
    if phase in ("acting", "waiting") and setting.compiles:
        return "compiling acts (up to a minute), then collecting"
    if phase == "waiting":
        return _collecting(setting)
    if phase == "learning":
        return "first update" + (", which compiles it: up to a minute" if setting.compiles else "")
    return None


def _collecting(setting: Setting) -> str:
    return f"collecting the first {setting.batch_steps:,}"


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

    @property
    def percent(self) -> int:
        """Rounded down, so that 100 means done."""
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
class LineProgress:
    """One plain line per shown report, at most every ten seconds, and one at the end.

    What limits the speed is said once, when the run has got going, or at once where others take the
    cores, since its first steps may then take minutes; and again at the end if that has changed.
    """

    def __init__(
        self, title: str, stream: TextIO, pace: Pace, setting: Setting | None = None
    ) -> None:
        self._out = QuietStream(stream)
        self._pace = pace
        self._setting = setting
        self._shares = TimeShares()
        self._told: Cause | None = None
        self._shown_at = self._silent_until = float("-inf")
        self._silence_s = _LINE_INTERVAL_S
        self._evaluation = _Scores()
        self._pending: str | None = None
        self.say(title)

    def update(
        self,
        report: Mapping[str, float],
        recent_return: float | None = None,
        recent_success: float | None = None,
    ) -> None:
        self._pace.advance(int(report.get("env_steps", self._pace.done)))
        self._shares.add(report)
        if "eval/return_mean" in report:
            self._evaluation = _Scores(report["eval/return_mean"], report.get("eval/success_rate"))
        self._pending = f"{self._pace.percent:3d}%  " + _summary(
            self._pace, _Scores(recent_return, recent_success), self._evaluation
        )
        now = time.monotonic()
        if now - self._shown_at >= _LINE_INTERVAL_S:
            begun = self._shown_at > float("-inf")
            self._shown_at = now
            self._flush()
            if self._told is None and (begun or self._crowded):
                self._tell()

    def stage(self, text: str) -> None:
        """Says nothing: lines stay where they are, and a stage passes."""

    def waiting(self, text: str) -> None:
        """Says so ever more rarely, since a slow run waits in every iteration."""
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + self._silence_s
            self._silence_s = min(2 * self._silence_s, _MOST_SILENCE_S)
            self._flush()
            self.say(text)

    def say(self, message: str) -> None:
        self._out.write(f"{message}\n")
        self._out.flush()

    def close(self) -> None:
        self._flush()
        if self._told is not None:
            self._tell()

    def _flush(self) -> None:
        if self._pending is not None:
            self.say(self._pending)
            self._pending = None

    def _tell(self) -> None:
        """What limits the speed, unless the same was said last."""
        load = self._shares.recent()
        if self._setting is None or not load.learner:
            return
        told = cause(load, self._setting)
        if told != self._told:
            self._told = told
            self.say(limit(load, self._setting, starting=self._shares.starting))

    @property
    def _crowded(self) -> bool:
        return self._setting is not None and crowded(self._shares.recent(), self._setting)


@final
class QuietStream:
    """The part of a text stream that rich and we use, silent from the first failed write on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._alive = True

    @property
    def encoding(self) -> str:
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if self._alive:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode("ascii", "backslashreplace").decode())
            except (OSError, ValueError):  # ValueError: the stream was closed
                self._end()
        return len(text)

    def flush(self) -> None:
        if self._alive:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._end()

    def _end(self) -> None:
        self._alive = False
        # The interpreter flushes standard output once more when it ends, and would then complain
        # and end with a status of its own: what is left in the buffer goes nowhere.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at it, on a terminal that can do more than print lines."""
    try:
        # The two that rich, too, takes for dumb.
        return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    except ValueError:  # closed
        return False


class _Scores(NamedTuple):
    """Mean return and success rate, where there are any."""

    return_: float | None = None
    success: float | None = None


def _summary(pace: Pace, recent: _Scores, evaluation: _Scores) -> str:
    parts = [f"{pace.done:,}/{pace.total:,} env steps"]
    if pace.steps_per_s is not None:
        parts.append(f"{pace.steps_per_s:,.0f} steps/s")
    if pace.left_s is not None and pace.done < pace.total:
        parts.append(f"{clock(pace.left_s)} left")
    for name, scores in (("return", recent), ("evaluation", evaluation)):
        if scores.return_ is not None:
            parts.append(f"{name} {scores.return_:,.1f}")
            if scores.success is not None:
                parts[-1] += f" ({percent(scores.success)} won)"
    return "  ".join(parts)


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
