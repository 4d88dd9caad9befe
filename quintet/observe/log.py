"""What a run says, to the person and to ``log.txt``."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO, final

from quintet.observe.pace import Score
from quintet.observe.progress import Progress
from quintet.observe.stream import LogFile, QuietStream, is_terminal


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
                streams = [shown, log] if self._in_terminal else [QuietStream(shown, log)]
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
