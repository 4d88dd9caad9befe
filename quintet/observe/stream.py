"""Text streams: terminals, streams whose reader may disappear, and ``log.txt``."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO, final

from quintet.system.printing import message, plain, short

_MOST_CHARACTERS = 100_000
"""Most characters of a message in ``log.txt``."""


@final
class LogFile:
    """``log.txt``; each `write` appends a message with its time.

    Failed writes are ignored: a full disk must not hide the message about it.
    """

    encoding = "utf-8"

    def __init__(self, path: Path) -> None:
        """Raises OSError if it can't be opened."""
        self._file: int | None = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
        )

    def write(self, text: str) -> int:
        if self._file is not None:
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {short(plain(text), _MOST_CHARACTERS)}"
            with suppress(OSError):
                os.write(self._file, line.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        """Closes the file; may be called more than once."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@final
class QuietStream:
    """The part of a text stream that rich and quintet use; after a failed write it writes
    nothing."""

    def __init__(self, stream: TextIO, log: LogFile | None = None) -> None:
        """log: also receives the text."""
        self._stream, self._log = stream, log
        self._alive = True

    def line(self, text: str) -> None:
        """Writes a line as `message` has it, so that it is seen at once."""
        self.write(f"{message(text)}\n")
        self.flush()

    @property
    def encoding(self) -> str:
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        if self._log is not None:
            self._log.write(text)
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
        # The interpreter flushes standard output once more when it ends, which would fail with a
        # message and a status of its own; so the buffer goes to /dev/null.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def is_terminal(stream: TextIO) -> bool:
    """Whether it is a terminal that supports more than plain ASCII lines."""
    try:
        # rich takes these two for dumb terminals as well.
        able = os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
        return stream.isatty() and able and (stream.encoding or "utf").lower().startswith("utf")
    except ValueError:  # closed
        return False
