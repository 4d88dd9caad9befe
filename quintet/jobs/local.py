"""Jobs in processes of this machine."""

import json
import pickle
import threading
import time
from collections.abc import Callable
from tempfile import TemporaryFile
from typing import IO, Any, final

from quintet.jobs.child_process import Child
from quintet.jobs.job import BLAMELESS, Job, Outcome
from quintet.system.files import advice, reason


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
        self._ends_at = time.monotonic() + job.limits.seconds
        files = [self._answers.fileno()]
        try:
            self._child = Child(job.name, job.module, say, files, job.environ, preload=job.preload)
        except BaseException:
            self._answers.close()
            raise
        self._child.give(pickle.dumps((job.limits.nbytes, job.state, job.payload)))

    def outcome(self) -> Outcome | None:
        if self._outcome is None and time.monotonic() > self._ends_at and not self._child.ended:
            self._late = True
            self._child.kill()
        if self._child.ended:
            self._end()
        return self._outcome

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


def cannot_begin(fault: OSError) -> Outcome:
    """The end of a job whose process the system refused to start."""
    said = f"its process can't be started: {reason(fault)}; {advice(fault)}"
    return Outcome(1, {"error": said, BLAMELESS: True})


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
