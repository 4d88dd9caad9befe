"""A job: work of a process, where it may run, and how it ended."""

import signal
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Protocol

BLAMELESS = "blameless"
"""Key of an answer with an error that is no fault of the job: a full disk, a process or node that
there is not."""


class Limits(NamedTuple):
    """Limits of a process: seconds until it is killed, and bytes of its own data (Linux)."""

    seconds: float = inf
    nbytes: float = inf


class Job(NamedTuple):
    """Work of a process.

    name: for its lines, and for lists of processes.
    module: import string of the module whose ``main()`` the process calls, which begins with
        `quintet.jobs.work.receive`; payload: what that returns.
    folder: folder of the run that it trains.
    state: of users' code in this process, see `quintet.jobs.user_state`, which the other one gets.
    preload, environ: see `quintet.jobs.child_process.Child`.
    """

    name: str
    module: str
    payload: bytes
    folder: Path | None = None
    limits: Limits = Limits()
    state: Mapping[str, Any] | None = None
    preload: Sequence[str] = ()
    environ: Mapping[str, str] = {}


class Outcome(NamedTuple):
    """End of a job.

    status: exit status, negative for a signal; None: it was not started.
    answer: what the process has answered, the newest value of every key; None: nothing.
    late: whether it was killed since its time was over.
    """

    status: int | None
    answer: dict[str, Any] | None
    late: bool = False

    @property
    def by_signal(self) -> bool:
        """Whether the user's signal ended the process, or it was not started."""
        stopped = (self.answer or {}).get("status") == "stopped"
        return stopped or (self.answer is None and self.status in (None, 130, -signal.SIGTERM))


class Handle(Protocol):
    """A job that was started at a place."""

    def outcome(self) -> Outcome | None:
        """The end of the job; None while it runs.  Called again and again, since it also drives
        what the place must do for the job.
        """

    def stop(self) -> None:
        """Asks the process to end in an orderly way."""

    def kill(self) -> None:
        """Ends the process, and what it has started, at once; later calls do nothing."""


class Place(Protocol):
    """Starts jobs: this machine, or a cluster."""

    def start(self, job: Job, say: Callable[[str], None]) -> Handle:
        """Starts a job; `say` receives every line that it prints.

        Raises OSError if the system refuses to start a process.
        """
