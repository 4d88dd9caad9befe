"""Processes that are part of this one: how they begin, get their work, speak and end with it.

A child is a Python that runs this module's `main`, which calls ``MODULE.main()``, with a payload on
its standard input; what it prints is handed line by line to the parent's `say`.  Its standard input
stays open for as long as the parent lives: when it closes, the parent is gone, however it went.  A
child that is tied to its parent is ended by the system.  It looks for modules where the parent
does: ``python -m`` would look into the working folder first, whatever lies there.
"""

import ctypes
import importlib
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import final

_LENGTH = struct.Struct("<Q")
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

_START = (
    "import sys; sys.path[:] = {path!r}; from quintet.system.child import main; sys.exit(main())"
)


@final
class Child:
    """A process of ours, seen by the parent."""

    def __init__(
        self,
        module: str,
        say: Callable[[str], None],
        pass_fds: Sequence[int] = (),
        environ: Mapping[str, str] | None = None,
        tied: bool = False,
    ) -> None:
        """say: gets every line that the child prints, from a thread of its own.

        pass_fds: files that the child finds under the same numbers, which it is given as arguments.
        tied: the system ends it at once when the thread that makes this object ends (Linux), also
            while the child still imports what it needs.
        """
        self.printed = False  # whether it has said anything
        parent = str(os.getpid()) if tied else ""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START.format(path=sys.path), parent, module]
            + [str(number) for number in pass_fds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=pass_fds,
            # Ctrl-C in a terminal reaches the parent alone, which passes it on, once.  A session of
            # its own would do that too, but Linux shares the cores out evenly among sessions.
            process_group=0,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environ or {})},
        )
        self._speaker = threading.Thread(target=self._speak, args=(say,), daemon=True)
        self._speaker.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, payload: bytes) -> None:
        """What the child waits for when it begins; once."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it is gone already; its status will tell
            self._process.stdin.write(_LENGTH.pack(len(payload)) + payload)
            self._process.stdin.flush()

    def _speak(self, say: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # to its end, or the child would block
            self.printed = True
            say(line.decode(errors="replace").rstrip())

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def ended(self) -> bool:
        return self.status is not None

    def terminate(self) -> None:
        """SIGTERM, which unlike SIGINT leaves no traceback of a process that just begins."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends it at once, and what it has begun itself; `wait` takes what it leaves behind."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit status, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: it has not ended by then.
        """
        status = self._process.wait(timeout_s)
        # A grandchild may hold standard output open; what it says is not waited for.
        self._speaker.join(timeout=1.0)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, RuntimeError):  # a thread may be writing to it still
            self._process.stdin.close()
        if not self._speaker.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()
        return status


# The child's side


def main() -> int:
    """Runs a module's `main` with the rest of the arguments (the parent's number, the module, ...),
    tied to the parent, if it is named, before anything that takes long is imported.
    """
    if sys.argv[1]:
        _die_with_parent(int(sys.argv[1]))
    module = importlib.import_module(sys.argv[2])
    sys.argv[:3] = [str(module.__file__)]
    status: int = module.main()
    return status


def _die_with_parent(parent: int) -> None:
    """Has the system end this process with its parent, whatever it is doing then (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before the system was asked
        os._exit(130)


def receive(when_orphaned: Callable[[], None]) -> bytes:
    """Called first by a child: its payload; `when_orphaned` is called, in a thread of its own, when
    the parent is gone.
    """
    stdin = sys.stdin.fileno()
    (length,) = _LENGTH.unpack(_read_exactly(stdin, _LENGTH.size))
    payload = _read_exactly(stdin, length)

    def watch() -> None:
        while os.read(stdin, 1):
            pass
        when_orphaned()

    threading.Thread(target=watch, daemon=True).start()
    return payload


def _read_exactly(handle: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(handle, min(count, 1 << 20))
        if not part:
            sys.exit(130)  # the parent is gone before anything began
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
