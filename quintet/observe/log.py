"""``log.txt``: every line that a person was told, with its time."""

import io
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast, final

from quintet.observe.progress import Progress
from quintet.observe.stream import QuietStream, is_terminal


@final
class LogFile:
    """A text stream at whose end messages are added, one by each `write`.

    What can't be written is left out: a full disk must not hide the message that says so, nor a
    closed file what comes late.
    """

    encoding = "utf-8"

    def __init__(self, path: Path) -> None:
        """Raises OSError where it can't be opened."""
        self._file: int | None = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )

    def write(self, text: str) -> int:
        if self._file is not None:
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}"
            with suppress(OSError):
                os.write(self._file, line.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        """May be called twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@final
class Tee:
    """A text stream that writes to another one and to the log; it never raises."""

    encoding = "utf-8"

    def __init__(self, shown: TextIO, log: LogFile) -> None:
        self._shown, self._log = QuietStream(shown), log

    def write(self, text: str) -> int:
        self._log.write(text)
        return self._shown.write(text)

    def flush(self) -> None:
        self._shown.flush()

    def isatty(self) -> bool:
        return False


@final
class Several:
    """Shows the same in several places."""

    def __init__(self, parts: Sequence[Progress]) -> None:
        self._parts = tuple(parts)

    def update(
        self,
        report: Mapping[str, float],
        recent_return: float | None = None,
        recent_success: float | None = None,
    ) -> None:
        for part in self._parts:
            part.update(report, recent_return, recent_success)

    def stage(self, text: str) -> None:
        for part in self._parts:
            part.stage(text)

    def waiting(self, text: str) -> None:
        for part in self._parts:
            part.waiting(text)

    def say(self, message: str) -> None:
        for part in self._parts:
            part.say(message)

    def close(self) -> None:
        for part in self._parts:
            part.close()


@final
class Voice:
    """What a run says: to the person as progress, and all of it to the log as well."""

    def __init__(
        self, make: Callable[[TextIO], Progress], shown: TextIO, log: LogFile | None
    ) -> None:
        """make: what shows progress on a stream."""
        self._log, self._in_terminal = log, is_terminal(shown)
        # Plain lines for the log: those that are shown, or beside a dashboard its own.
        if log is None:
            self.progress = make(shown)
        elif self._in_terminal:
            self.progress = Several([make(shown), make(cast(TextIO, log))])
        else:
            self.progress = make(cast(TextIO, Tee(shown, log)))

    def say(self, message: str) -> None:
        """A line of its own."""
        self.progress.say(message)

    def warn(self, message: str) -> None:
        """A line on standard error, where results never are; a dashboard has the terminal for
        itself and shows it.
        """
        line = f"warning: {message}"
        if self._in_terminal:
            self.progress.say(line)
            return
        if self._log is not None:
            self._log.write(f"{line}\n")
        with suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            print(line, file=sys.stderr, flush=True)


def silent() -> Voice:
    """Of a run that has not begun."""
    return Voice(lambda _: Several(()), io.StringIO(), None)
