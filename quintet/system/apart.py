"""Work that may hang, crash, or take all memory: done in a process with limits.

The process answers by lines of JSON, which the parent reads when it has ended.
"""

import json
import math
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any, final

from quintet.system import entry
from quintet.system.child import Child

_PAUSE_S = 0.01

ENVIRON = {"OPENBLAS_NUM_THREADS": "1"}
"""NumPy's threads wait for each other on a busy machine: with two, a fit took seven times as long.
"""


@final
@dataclass(frozen=True)
class Limits:
    """Seconds and bytes that a process may take; the bytes are those of its own data (Linux)."""

    seconds: float
    nbytes: float = math.inf


@final
@dataclass(frozen=True)
class Answers:
    """The lines of a process, in order; its exit status; whether it was ended for its time."""

    lines: list[dict[str, Any]]
    status: int
    late: bool

    @property
    def last(self) -> dict[str, Any]:
        """The newest value of every key."""
        return {key: value for line in self.lines for key, value in line.items()}


def ask(module: str, payload: Any, limits: Limits, say: Callable[[str], None]) -> Answers:
    """Runs ``MODULE.main()`` in a process, which begins with `receive`.

    say: receives what it prints.
    """
    with TemporaryFile() as answers:
        name = module.split(".")[1]
        child = Child(name, module, say, [answers.fileno()], ENVIRON)
        try:
            child.give(pickle.dumps((limits, payload)))
            deadline = time.monotonic() + limits.seconds
            while not child.ended and time.monotonic() < deadline:
                time.sleep(_PAUSE_S)
            late = not child.ended
        finally:
            child.kill()
            status = child.wait()
        return Answers(_lines(answers), status, late)


def _lines(answers: IO[bytes]) -> list[dict[str, Any]]:
    answers.seek(0)
    found = []
    for line in answers.read().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # it was killed while it wrote, or a stranger's code wrote here
            continue
    return [each for each in found if isinstance(each, dict)]


# In the process


def receive() -> tuple[Any, Callable[[dict[str, Any]], None]]:
    """The payload, and what writes a line of the answer; the limit of memory holds from here on."""
    limits, payload = pickle.loads(entry.receive(lambda: os._exit(130)))
    if math.isfinite(limits.nbytes):
        with suppress(ValueError, OSError):  # a lower limit of the user's stays
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (int(limits.nbytes), hard))
    with suppress(ValueError, OSError):  # a crash leaves no file in the user's folder
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1)

    def tell(content: dict[str, Any]) -> None:
        out.write(json.dumps(content) + "\n")
        out.flush()

    return payload, tell
