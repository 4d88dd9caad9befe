"""``log.txt``: every line that a person was told, with its time."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, final

from quintet.observe.pace import Score
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
class Voice:
    """What a run says: to the person as progress, and all of it to the log as well."""

    def __init__(
        self,
        make: Callable[[TextIO], Progress] | None = None,
        shown: TextIO | None = None,
        log: LogFile | None = None,
    ) -> None:
        """make: what shows progress on a stream; None, before a run has begun: nothing does.
        shown: where the person sees it.
        """
        self._log, self._parts = log, list[Progress]()
        self._in_terminal = shown is not None and is_terminal(shown)
        if make is not None and shown is not None:
            # Plain lines for the log: those that are shown, or beside a dashboard its own.
            streams: list[Any] = [shown]
            if log is not None:
                streams = [shown, log] if self._in_terminal else [Tee(shown, log)]
            self._parts += map(make, streams)

    def update(self, report: Mapping[str, float], recent: Score) -> None:
        """See `Progress`, as of the others."""
        for part in self._parts:
            part.update(report, recent)

    def stage(self, text: str) -> None:
        for part in self._parts:
            part.stage(text)

    def waiting(self, text: str) -> None:
        for part in self._parts:
            part.waiting(text)

    def say(self, message: str) -> None:
        for part in self._parts:
            part.say(message)

    def warn(self, message: str) -> None:
        """A line on standard error, where results never are; a dashboard has the terminal for
        itself and shows it.
        """
        line = f"warning: {message}"
        if self._in_terminal:
            self.say(line)
            return
        if self._log is not None:
            self._log.write(f"{line}\n")
        with suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        for part in self._parts:
            part.close()
