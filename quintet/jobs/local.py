"""Jobs in processes of this machine."""

import json
import os
import pickle
import select
import threading
import time
from collections.abc import Callable
from math import inf
from tempfile import TemporaryFile
from typing import IO, Any, final

from quintet.jobs.child_process import Child
from quintet.jobs.job import BLAMELESS, Job, Outcome
from quintet.system.files import advice, reason

_CLOSED_S = 5.0
"""Seconds for a process to end after it has closed the files that it was given."""


@final
class LocalPlace:
    """This machine: each job is a `Child`."""

    def start(self, job: Job, say: Callable[[str], None]) -> "_Running":
        return _Running(job, say)


@final
class _Running:
    """A job in a process, which writes its answers into a file."""

    def __init__(self, job: Job, say: Callable[[str], None]):
        self._answers = TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        self._outcome: Outcome | None = None
        self._late, self._ending = False, threading.Lock()
        self._ends_at, self._say = time.monotonic() + job.limits.seconds, say
        self._closed_s: float | None = None
        # Users' code may close files that are not its own; this one tells of it.
        self._lifeline, child_end = os.pipe()
        files = [self._answers.fileno(), child_end]
        try:
            self._child = Child(job.name, job.module, say, files, job.environ, preload=job.preload)
        except BaseException:
            self._answers.close()
            os.close(self._lifeline)
            raise
        finally:
            os.close(child_end)
        self._child.give(pickle.dumps((job.limits.nbytes, job.state, job.payload)))

    def outcome(self) -> Outcome | None:
        if self._outcome is None and time.monotonic() > self._ends_at and not self._child.ended:
            self._late = True
            self._child.kill()
        if self._child.ended:
            self._end()
        elif self._outcome is None:
            self._require_files()
        return self._outcome

    def _require_files(self) -> None:
        """Ends a process that can't answer any more."""
        now, waiting = time.monotonic(), select.poll()
        waiting.register(self._lifeline, 0)  # the end of all writers
        if self._closed_s is None and waiting.poll(0):
            self._closed_s = now  # perhaps it ends
        elif self._closed_s is not None and now - self._closed_s > _CLOSED_S:
            self._say(f"closed its channel, did not end within {_CLOSED_S:g} s, and is killed")
            self._child.kill()
            self._closed_s = inf

    def stop(self) -> None:
        if self._outcome is None:
            self._child.terminate()

    def kill(self) -> None:
        if self._outcome is None:
            self._child.kill()
            self._end()

    def _end(self) -> None:
        with self._ending:  # another thread may kill it meanwhile
            if self._outcome is None:
                status = self._child.wait()
                self._outcome = Outcome(status, _answer_in(self._answers), self._late)
                self._answers.close()
                os.close(self._lifeline)


def cannot_begin(fault: OSError) -> Outcome:
    """The end of a job whose process the system refused to start."""
    text = f"its process can't be started: {reason(fault)}; {advice(fault)}"
    return Outcome(1, {"error": text, BLAMELESS: True})


def _answer_in(file: IO[bytes]) -> dict[str, Any] | None:
    """The newest value of every key of the answers, one JSON object a line; None without any."""
    file.seek(0)
    found: dict[str, Any] | None = None
    for line in file.read().splitlines():
        try:
            each = json.loads(line)
        except ValueError:  # a kill cut the line, or a stranger's code wrote here
            continue
        if isinstance(each, dict):
            found = {**(found or {}), **each}
    return found
