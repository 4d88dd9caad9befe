"""A run's messages to the user and to ``log.txt``."""

import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO, final

from quintet.observe.pace import Score
from quintet.observe.progress import LineProgress, Progress
from quintet.system.printing import LogFile, QuietStream, is_terminal, message, note


@final
class RunLog:
    """Shows progress and messages to the user, and writes both to the log."""

    def __init__(self) -> None:
        self._log: LogFile | None = None
        self._parts: list[Progress] = []
        self._in_terminal = self._hidden = False

    def begin(self, make: Callable[[TextIO], Progress], shown: TextIO | None, log: LogFile) -> None:
        """Called when the run has begun; until then only warnings are shown.

        make: makes a progress display on a stream; shown: the stream that the user sees; None:
            progress is not shown.
        """
        self._hidden = shown is None
        shown = io.StringIO() if shown is None else shown
        self._log, self._in_terminal = log, is_terminal(shown)
        # Plain lines for the log: those that are shown, or beside a dashboard its own.
        streams: list[Any] = [shown, log] if self._in_terminal else [QuietStream(shown, log)]
        self._parts += map(make, streams)

    def update(self, report: Mapping[str, float], recent: Score) -> None:
        for part in self._parts:
            part.update(report, recent)

    def stage(self, text: str) -> None:
        for part in self._parts:
            part.stage(message(text))

    def waiting(self, text: str) -> None:
        for part in self._parts:
            part.waiting(message(text))

    def say(self, text: str) -> None:
        for part in self._parts:
            part.say(message(text))

    def note(self, text: str) -> None:
        """Writes a line to ``log.txt`` only."""
        if self._log is not None:
            self._log.write(f"{text}\n")

    def answer(self, text: str) -> None:
        """Answers a user's signal or call, visibly even if progress is not shown."""
        self.say(text)
        if self._hidden:
            with suppress(OSError, ValueError, AttributeError):  # closed, or none at all
                note(text)

    def warn(self, text: str) -> None:
        """Writes a line to standard error, apart from results, or shows it in the dashboard."""
        line = f"warning: {text}"
        if self._in_terminal:
            self.say(line)
            return
        if self._log is not None:
            self._log.write(f"{line}\n")
        with suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            note(line)

    def last_lines(self) -> None:
        """Writes the last plain lines of progress, before what is said of the end."""
        for part in self._parts:
            if isinstance(part, LineProgress):
                part.close()

    def close(self) -> None:
        for part in self._parts:
            part.close()
