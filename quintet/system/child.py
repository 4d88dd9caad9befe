"""Processes that are part of this one: how they begin, get their work, speak and end with it.

A child runs a module's `main` by way of `quintet.system.entry`, with a payload on its standard
input, which stays open for as long as the parent lives; what it prints goes to the parent's `say`.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import final

from quintet.system import entry, fork_server
from quintet.system.fork_server import Forked
from quintet.system.memory import limit_told


def prepare(preload: Sequence[str], environ: Mapping[str, str]) -> None:
    """Has a fork server import modules (Linux), for children that are about to begin."""
    if fork_server.AVAILABLE:
        fork_server.prepare(preload, _whole(environ))


def _whole(environ: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **environ}


def how_ended(status: int) -> str:
    """A process's end in words, by its exit status, negative for a signal."""
    if status >= 0:
        return f"ended with status {status}"
    how = f"was ended by {signal.Signals(-status).name}"
    if -status in (signal.SIGKILL, signal.SIGABRT):  # PyTorch's way where there is no memory
        how += f" (was there enough memory?{limit_told()})"
    return how


@final
class Child:
    """A process of ours, seen by the parent."""

    def __init__(
        self,
        name: str,
        module: str,
        say: Callable[[str], None],
        pass_fds: Sequence[int] = (),
        environ: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        """name: for lists of processes.  say: gets the child's lines, from a thread of its own.

        pass_fds: files whose numbers in the child it gets as arguments.
        preload: modules for a fork server to import, whose fork the child is (Linux).  The system
            ends it at once when this process ends, also while modules are imported.
        """
        self.printed = False  # whether it has said anything
        full = _whole(environ or {})
        self._process: subprocess.Popen[bytes] | Forked
        if preload and fork_server.AVAILABLE:
            self._process = Forked(preload, [name, module], pass_fds, full)
        else:
            numbers = [str(number) for number in pass_fds]
            self._process = subprocess.Popen(
                entry.command(["", name, module, *numbers]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=pass_fds,
                # Ctrl-C in a terminal reaches the parent alone, which passes it on, once.  A
                # session of its own would do that too, but Linux shares the cores out evenly among
                # sessions.
                process_group=0,
                env=full,
            )
        self._speaker = threading.Thread(target=self._speak, args=(say,), daemon=True)
        self._speaker.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, payload: bytes) -> None:
        """Sends the payload for which the child waits when it starts; once."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it is gone already; its status will tell
            self._process.stdin.write(entry.LENGTH.pack(len(payload)) + payload)
            self._process.stdin.flush()

    def _speak(self, say: Callable[[str], None]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:  # to its end, or the child would block
            self.printed = True
            say(line.decode(errors="replace").rstrip())

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def ended(self) -> bool:
        return self.status is not None

    def terminate(self) -> None:
        """SIGTERM, which unlike SIGINT leaves no traceback of a process that just begins."""
        self._process.terminate()

    def kill(self) -> None:
        """Ends it at once, and what it has begun itself; `wait` takes what it leaves behind."""
        if isinstance(self._process, Forked) and self._process.refused:
            return  # there is none but the server, which serves others
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> int:
        """Exit status, negative for a signal; raises subprocess.TimeoutExpired."""
        status = self._process.wait(timeout_s)
        # A grandchild may hold standard output open; what it says is not waited for.
        self._speaker.join(timeout=1.0)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, RuntimeError):  # a thread may be writing to it still
            self._process.stdin.close()
        if not self._speaker.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()
        return status
