"""Text that quintet prints, or writes to ``log.txt``.

Names, errors and output of others are text in it: they can neither command a terminal nor fill it.
"""

import ctypes
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TextIO, final

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but ends of lines and tabs; the last two ranges change the direction of text."""

_MOST_CHARACTERS = 20_000
_MOST_IN_LOG = 100_000
"""The latter of a message in ``log.txt``."""
_TAIL_SHARE = 0.25


_apart: list[TextIO] = []
"""The stream of results within `results_apart`."""


def say(text: object, *, end: str = "\n") -> None:
    """Prints a result to standard output."""
    print(plain(str(text)), end=end, flush=True, file=_apart[0] if _apart else None)


@contextmanager
def results_apart() -> Iterator[None]:
    """Keeps standard output for `say`: what others print in the block goes to standard error, also
    what they write to the file itself.
    """
    if _apart:
        yield
        return
    with ExitStack() as ends:
        results: TextIO = sys.stdout
        with suppress(OSError, ValueError):  # a stream without a file, or one that was closed
            results.flush()
            kept = ends.enter_context(open(os.dup(1), "w", encoding=results.encoding))
            results = kept if results.fileno() == 1 else results
            os.dup2(2, 1)
            ends.callback(os.dup2, kept.fileno(), 1)
            ends.callback(ctypes.CDLL(None).fflush, None)  # writes what libraries in C keep
        ends.callback(_apart.clear)
        _apart.append(results)
        ends.enter_context(redirect_stdout(sys.stderr))
        yield


def note(text: object) -> None:
    """Prints a message to standard error, apart from results; a long one as `message` has it."""
    print(message(str(text)), file=sys.stderr, flush=True)


def message(text: str) -> str:
    """A text of which others may have written a part, as it is printed and kept in ``log.txt``."""
    return short(plain(short(text)))


def plain(text: str) -> str:
    """A text without colours, in which other control characters have their names, as ``\\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    without = _COLOURS.sub("", text.replace("\r\n", "\n"))
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], without)


def short(text: str, most: int = _MOST_CHARACTERS) -> str:
    """A text of at most `most` characters and a note: a longer one without its middle."""
    if len(text) <= most:
        return text
    tail = int(most * _TAIL_SHARE)
    left_out = len(text) - most
    return f"{text[: most - tail]} [... {left_out:,} characters left out ...] {text[-tail:]}"


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
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {short(plain(text), _MOST_IN_LOG)}"
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
    """The part of a text stream that rich and quintet use, silent after a failed write."""

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
