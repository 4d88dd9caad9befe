"""A node's side of a job: its process, the same as on one machine."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

from quintet.jobs import user_state
from quintet.jobs.job import Handle, Job, Outcome
from quintet.jobs.local import LocalPlace, cannot_begin

_HEARD_S = 1.0
_LOOK_EVERY_S = 0.05


class Heard(NamedTuple):
    """Lines of a job since the last ones, and its outcome once it has ended."""

    lines: Sequence[str]
    outcome: Outcome | None


@final
class Host:
    """A process on a node, which has one job that ends with it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._outcome: Outcome | None = None
        self._news = threading.Condition()
        self._handle: Handle | None = None
        self._ending: Callable[[Handle], object] | None = None

    def begin(self, job: Job, working_folder: str) -> bool:
        """Begins the job; True.

        working_folder: of the command's process.
        """
        if job.state is not None:
            user_state.enter(working_folder)
            job = job._replace(state=user_state.for_this_machine(job.state))
        threading.Thread(target=self._run, args=(job,), daemon=True).start()
        return True

    def _run(self, job: Job) -> None:
        outcome: Outcome | None = None
        try:
            handle = LocalPlace().start(job, self._say)
        except OSError as fault:
            outcome = cannot_begin(fault)
        else:
            with self._news:
                self._handle = handle
                if self._ending is not None:  # somebody asked for an end meanwhile
                    self._ending(handle)
            while (outcome := handle.outcome()) is None:
                time.sleep(_LOOK_EVERY_S)
        with self._news:
            self._outcome = outcome
            self._news.notify_all()

    def _say(self, line: str) -> None:
        with self._news:
            self._lines.append(line)
            self._news.notify_all()

    def heard(self) -> Heard:
        """News of the job; waits a second for some."""
        with self._news:
            self._news.wait_for(lambda: self._lines or self._outcome, _HEARD_S)
            lines, self._lines = self._lines, []
            return Heard(lines, self._outcome)

    def stop(self) -> None:
        """Asks the job's process to end in an orderly way."""
        self._end(lambda handle: handle.stop())

    def kill(self) -> None:
        """Ends the job's process at once."""
        self._end(lambda handle: handle.kill())

    def _end(self, how: Callable[[Handle], object]) -> None:
        with self._news:
            self._ending = how
            if self._handle is not None:
                how(self._handle)
