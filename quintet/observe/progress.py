"""What a person sees while a run trains: a bar in a terminal, plain lines elsewhere.

Output never stops a run: when the pipe or the terminal is gone, it ends quietly.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol, TextIO, cast, final

_LINE_INTERVAL_S = 10.0
_RATE_WINDOW_S = 30.0


class Progress(Protocol):
    """Shows how far a run is."""

    def update(self, report: Mapping[str, float], recent_return: float | None = None) -> None:
        """Shows a report; `recent_return` is the mean return of the last episodes."""
        ...

    def say(self, message: str) -> None:
        """Shows a message on a line of its own, at once."""
        ...

    def close(self) -> None:
        """Shows the last state and gives the terminal back; may be called twice."""
        ...


def make_progress(
    total_env_steps: int,
    title: str,
    stream: TextIO | None = None,
    *,
    start_env_steps: int = 0,
) -> Progress:
    """A bar when `stream` (standard output by default) is a terminal, else plain lines.

    start_env_steps: where a resumed run begins; the time left is judged from there.
    """
    out = stream if stream is not None else sys.stdout
    pace = _Pace(total_env_steps, start_env_steps)
    if _is_terminal(out):
        return TerminalProgress(title, out, pace)
    return LineProgress(title, out, pace)


@final
class _Pace:
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
    """One plain line per shown report, at most every ten seconds, and one at the end."""

    def __init__(self, title: str, stream: TextIO, pace: _Pace) -> None:
        self._out = QuietStream(stream)
        self._pace = pace
        self._shown_at = float("-inf")
        self._evaluation: float | None = None
        self._pending: str | None = None
        self.say(title)

    def update(self, report: Mapping[str, float], recent_return: float | None = None) -> None:
        self._pace.advance(int(report.get("env_steps", self._pace.done)))
        self._evaluation = report.get("eval/return_mean", self._evaluation)
        self._pending = f"{_percent(self._pace):3d}%  " + _summary(
            self._pace, recent_return, self._evaluation
        )
        now = time.monotonic()
        if now - self._shown_at >= _LINE_INTERVAL_S:
            self._shown_at = now
            self._flush()

    def say(self, message: str) -> None:
        self._out.write(f"{message}\n")
        self._out.flush()

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._pending is not None:
            self.say(self._pending)
            self._pending = None


@final
class TerminalProgress:
    """A bar and a line of figures at the foot of a terminal; messages go above them."""

    def __init__(self, title: str, stream: TextIO, pace: _Pace) -> None:
        # imported here: a run without a terminal never needs rich
        from rich.console import Console
        from rich.live import Live

        self._title = title
        self._pace = pace
        self._recent_return: float | None = None
        self._evaluation: float | None = None
        # what the environment or a library prints must not tear the bar; what the person sent
        # elsewhere (2>errors.txt) goes on going there
        self._live = Live(
            console=Console(file=cast(TextIO, QuietStream(stream))),
            auto_refresh=False,  # no thread that would compete with training; reports come often
            redirect_stdout=stream is sys.stdout,
            redirect_stderr=stream is sys.stdout and _is_terminal(sys.stderr),
        )
        self._live.start()
        self._draw()

    def update(self, report: Mapping[str, float], recent_return: float | None = None) -> None:
        self._pace.advance(int(report.get("env_steps", self._pace.done)))
        self._evaluation = report.get("eval/return_mean", self._evaluation)
        self._recent_return = recent_return
        self._draw()

    def say(self, message: str) -> None:
        self._live.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        pace = self._pace
        head = Table.grid(padding=(0, 1), expand=True)
        head.add_column(no_wrap=True, max_width=max(10, self._live.console.width // 2))
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, justify="right")
        head.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=max(1, pace.total), completed=pace.done),
            f"{_percent(pace):3d}%",
        )
        figures = Text(_summary(pace, self._recent_return, self._evaluation), style="cyan")
        self._live.update(Group(head, figures), refresh=True)


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


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def _percent(pace: _Pace) -> int:
    """Rounded down, so that 100 means done."""
    return min(100, 100 * pace.done // max(1, pace.total))


def _summary(pace: _Pace, recent_return: float | None, evaluation: float | None) -> str:
    parts = [f"{pace.done:,}/{pace.total:,} env steps"]
    if pace.steps_per_s is not None:
        parts.append(f"{pace.steps_per_s:,.0f} steps/s")
    if pace.left_s is not None and pace.done < pace.total:
        parts.append(f"{_clock(pace.left_s)} left")
    if recent_return is not None:
        parts.append(f"return {recent_return:,.1f}")
    if evaluation is not None:
        parts.append(f"evaluation {evaluation:,.1f}")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    clock = (
        f"{minutes}:{whole % 60:02d}" if hours == 0 else f"{hours}:{minutes:02d}:{whole % 60:02d}"
    )
    return clock if hours < 48 else f"{hours // 24} days"
