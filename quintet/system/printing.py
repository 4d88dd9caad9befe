"""What quintet prints.  Names, errors and output of others are text in it: they can neither command
a terminal nor fill it.
"""

import re
import sys

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""All but ends of lines and tabs; the last two ranges change the direction of text."""

_MOST_CHARACTERS = 20_000
_TAIL_SHARE = 0.25


def say(text: object, *, end: str = "\n") -> None:
    """Prints a result to standard output."""
    print(plain(str(text)), end=end, flush=True)


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
