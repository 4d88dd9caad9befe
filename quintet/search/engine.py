"""The engine of many runs: trials side by side, whose ends decide which come next."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

from quintet.checkpoints.lock import OpenFolder
from quintet.errors import QuintetError
from quintet.jobs import group
from quintet.jobs.child_process import how_ended
from quintet.jobs.job import BLAMELESS, Job, Outcome, Place


class Stopped(Exception):
    """The user has stopped the trials."""


@final
class Engine:
    """Runs the trials of a sweep or race, whose folder this process has locked.

    at_once: number of trials at the same time.
    place: where they train; None: in processes of this machine.
    """

    def __init__(
        self,
        folder: OpenFolder,
        at_once: int,
        say: Callable[[str], None],
        line: Callable[[str], None],
    ) -> None:
        """say: receives messages of the engine; line: the lines that trials print."""
        self.at_once = at_once
        self.place: Place | None = None
        self._folder, self._say, self._line = folder, say, line

    @contextmanager
    def run(self, jobs: Sequence[Job]) -> Iterator[list[Outcome]]:
        """Runs trials to their ends, which the block takes in the order of the jobs.

        Raises:
            CheckpointError: the folder is not there any more, before or after the trials.
            QuintetError: after the block, for a fault that is not a trial's, such as a full disk.
            Stopped: after the block, if the user stopped them.
        """
        self._folder.check()
        stop = group.stop_request(self._say)
        ended = group.run_all(jobs, self.at_once, self._line, self.place, stop=stop)
        self._folder.check()
        yield ended
        for job, how in zip(jobs, ended, strict=True):
            if is_blameless(how):
                raise QuintetError(f"[{job.name}] {fault_of(how)}")
        if stop.made or any(how.by_signal for how in ended):
            raise Stopped


def fault_of(how: Outcome) -> str:
    """The reason why a trial failed; "" for one that answered with a status, or was stopped."""
    answer = how.answer or {}
    if "error" in answer:
        return str(answer["error"])
    if "status" in answer or how.by_signal:
        return ""
    assert how.status is not None  # only a process that was not started has none
    return f"its process {how_ended(how.status)}"


def is_blameless(how: Outcome) -> bool:
    """Whether a fault that is not the trial's ended it."""
    return BLAMELESS in (how.answer or {})


def was_killed(how: Outcome) -> bool:
    """Whether a trial's process ended without an answer, though nobody had stopped it."""
    return how.answer is None and not how.by_signal
