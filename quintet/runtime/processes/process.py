"""One process of the runtime, seen by its parent: started, read from, watched, ended."""

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from socket import socketpair
from typing import Any, final

import cloudpickle

from quintet import errors
from quintet.errors import ConfigError, QuintetError, WorkerFault
from quintet.jobs import child_process, user_state
from quintet.jobs.child_process import Child
from quintet.jobs.silence import Silence
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.messages import Failed, Ready, Stop

STOP_GRACE_S = 5.0
"""Seconds for a process to close its environments."""

_LOOK_EVERY_S = 1.0

_TOLD_EVERY_S = 10.0
"""Seconds between two notices about a wait."""

_START_S = 60.0
"""Seconds for a process before its first row, in addition to its timeout for a
row: importing, making environments, compiling.  Time in which it waited for a core does not count.
"""

PRELOAD = (
    "quintet.runtime.processes.worker",
    "quintet.runtime.processes.stepper",
    "quintet.runtime.processes.server",
    "quintet.envs.make",  # imports most of what they need
)

# Threads that wait for each other must not burn the cores that others want.  How many PyTorch uses,
# the process sets itself; it is read when NumPy is loaded, too.
ENVIRON = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}


def prepare() -> None:
    """Starts the fork server early, so that its imports overlap with other work."""
    child_process.prepare(PRELOAD, ENVIRON)


IMPORTING, MAKING, COMPILING = -3, -2, -1
"""Values of a process's row number before its first row, which is row 0."""


def pickled(work: object, refusal: str, instead: str) -> bytes:
    """Pickles the work of another process; callables that no module holds are sent by value.

    refusal, instead: parts of the ConfigError about work that can't be sent: the refusal, and what
        to do instead.
    """
    # The script of a process that multiprocessing has begun, where nobody else can import it.
    script = sys.modules.get("__mp_main__")
    if script is not None:
        cloudpickle.register_pickle_by_value(script)
    try:
        return bytes(cloudpickle.dumps(work))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(f"{refusal} ({error}); {instead}") from error


@final
@dataclass(frozen=True)
class ProcessKind:
    """Name, module and work of a process, and phrases for messages about it.

    name: for messages (worker 0), and of its tensors; what: of the run it has, for messages.
    files: descriptors that it gets after the arena's and the channel's.
    place: phrase for its place, in which {} stands for its row; making: what it makes before it is
        ready.
    slow_start: advice if that or its imports take long.
    fault: class of the error at its end.
    """

    name: str
    what: str
    module: str
    work: bytes
    files: Sequence[int] = ()
    place: str = "at row {} of an unroll"
    making: str = "making or resetting environments"
    slow_start: str = "raise runtime.worker_timeout_s if environments take so long to make"
    fault: type[WorkerFault] = WorkerFault


@final
class WaitNotice:
    """Prints a notice every ten seconds of a wait."""

    def __init__(self, notice: Callable[[str], None], what: Callable[[], str]):
        """Begins the wait; `what` returns a few words about the awaited process."""
        self._notice, self._what = notice, what
        self._begin_s = self._told_s = time.monotonic()

    def look(self) -> None:
        """Prints a notice if one is due; called about every second."""
        now = time.monotonic()
        if now - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now
            self._notice(f"waiting for {now - self._begin_s:.0f} s: {self._what()}")


@final
class Process:
    """A process connected by a channel and a shared arena."""

    def __init__(
        self, kind: ProcessKind, arena: Arena, say: Callable[[str], None], timeout_s: float
    ):
        """arena: has the tensors of `progress_specs`; say: receives the process's output."""
        self.kind, self.arena, self.say, self.timeout_s = kind, arena, say, timeout_s
        self.row = arena.tensor(f"{kind.name}/row").numpy()
        self.child: Child | None = None
        self.channel: Connection
        self.ready = False
        self.silence = Silence()
        self._sending = threading.Lock()

    @property
    def name(self) -> str:
        pid = "" if self.child is None else f", pid {self.child.pid}"
        return f"{self.kind.name} ({self.kind.what}{pid})"

    def launch(self) -> None:
        """Starts the process; `await_ready` waits until it can be used."""
        ours, child_end = socketpair()
        self.channel, self.ready = Connection(ours.detach()), False
        self.silence = Silence()
        self.row[1] = IMPORTING
        say, name, kind = self.say, self.kind.name, self.kind
        try:
            self.child = Child(
                name,
                kind.module,
                lambda line: say(f"[{name}] {line}"),
                [self.arena.file, child_end.fileno(), *kind.files],
                ENVIRON,
                PRELOAD,
            )
        finally:
            child_end.close()
        contents = {"state": user_state.capture(), "specs": self.arena.specs, "work": kind.work}
        # A thread gives it, since the child reads only once it has imported what it needs.
        payload = pickle.dumps(contents)
        threading.Thread(target=self.child.give, args=(payload,), daemon=True).start()

    def await_ready(self, notice: WaitNotice) -> None:
        """Waits for the first message; raises QuintetError if it failed, or took too long."""
        assert self.child is not None
        allowed_s = _START_S + self.timeout_s
        while not self.channel.poll(min(_LOOK_EVERY_S, allowed_s)):
            notice.look()
            silent_s = self.silence.look(self.child.pid, IMPORTING, _LOOK_EVERY_S)
            if silent_s < allowed_s:
                continue
            fault = (
                f"{self.name} must be ready within {allowed_s:.0f} s, but was {self.doing} for "
                f"{silent_s:.0f} s{self.silence.told}; {self.cure}"
            )
            self.end()
            raise self.kind.fault(fault)
        message = self.hear()
        if isinstance(message, QuintetError):
            raise message
        assert isinstance(message, Ready)
        self.row[0] = time.monotonic_ns()
        self.ready = True

    def send(self, message: tuple[Any, ...]) -> None:
        with self._sending, suppress(OSError):  # whoever waits for a lost process will hear
            self.channel.send(message)

    def hear(self) -> Any:
        """The next message, or an error if there can be none, after which the process is ended."""
        try:
            message = self.channel.recv()
        except (EOFError, OSError):
            return self.lost()
        if isinstance(message, Failed):
            error = error_of(message, self.name, self.kind.fault)
            self.end(STOP_GRACE_S)  # environments are closed first
            return error
        return message

    def lost(self) -> QuintetError:
        """The error of a process that ended without a message."""
        return self.failed(self.kind.fault(self._ending()))

    def overdue(
        self, work: object, must: str, rest: str, grace_s: float = 0.0
    ) -> QuintetError | None:
        """Ends the process if it has not responded for too long; then returns the error.  Called
        about every second.

        work: a value that differs with each piece of work, at whose begin its silence begins anew.
        must, rest: parts of the message: what it must do, and the text after the time without a
            response.
        grace_s: added to its timeout.
        """
        silent_s = self.silent_s(work)
        if silent_s <= self.allowed_s + grace_s:
            return None
        return self.failed(
            WorkerFault(
                f"{self.name} must {must} within {self.allowed_s:g} s, but has been silent for "
                f"{silent_s:.0f} s{self.silence.told}{rest}"
            )
        )

    def failed(self, error: QuintetError) -> QuintetError:
        """Ends what is left of the process; returns the error."""
        self.end()
        return error

    @property
    def gone(self) -> bool:
        """Whether it has ended, although a child of it keeps its channel open."""
        ended = self.ready and self.child is not None and self.child.ended
        return ended and not self.channel.poll()

    @property
    def allowed_s(self) -> float:
        """Seconds for which it may currently not respond."""
        return self.timeout_s + (_START_S if self.row[1] < 0 else 0.0)

    @property
    def doing(self) -> str:
        """The worker's activity before its first row; "" later."""
        if self.row[1] == COMPILING:
            return "compiling or computing its first actions"
        return {IMPORTING: "importing modules", MAKING: self.kind.making}.get(int(self.row[1]), "")

    @property
    def cure(self) -> str:
        """Advice if this activity takes too long."""
        if self.row[1] == COMPILING:
            return "raise runtime.worker_timeout_s, or use --runtime.compile off"
        return self.kind.slow_start

    def silent_s(self, work: object) -> float:
        """Seconds without progress in this piece of work, see `Silence`; 0 after a message."""
        # A waiting message may be old, where this process was stopped itself.
        if not self.ready or self.channel.poll():
            return 0.0
        assert self.child is not None
        return self.silence.look(self.child.pid, (int(self.row[0]), work), _LOOK_EVERY_S)

    def _ending(self) -> str:
        """Describes how it ended without a message."""
        assert self.child is not None
        try:
            status = self.child.wait(STOP_GRACE_S)
            closed = ""
        except subprocess.TimeoutExpired:  # users' code has closed files that are not its own
            self.child.kill()
            status = self.child.wait()
            closed = f"closed its channel, did not end within {STOP_GRACE_S:g} s, and "
        how = f"{closed}was killed" if closed else child_process.how_ended(status)
        row = int(self.row[1])
        place = f"while {self.doing}" if row < 0 else self.kind.place.format(row)
        place = place if self.ready else f"before it was ready, {place}"
        printed = "what it printed is above" if self.child.printed else "it printed nothing"
        return f"{self.name} {how} {place}; {printed}"

    def kill(self) -> None:
        """Kills it, from any thread; `end` does the rest."""
        child = self.child
        if child is not None:
            child.kill()

    def end(self, grace_s: float = 0.0) -> None:
        """Kills it, unless it ends by itself in time, and closes its channel."""
        self.ready = False
        if self.child is None:
            return
        with suppress(subprocess.TimeoutExpired):
            if grace_s > 0:
                self.child.wait(grace_s)
        self.child.kill()
        self.child.wait()
        self.channel.close()
        self.child = None


def error_of(message: Failed, name: str, fault: type[WorkerFault] = WorkerFault) -> QuintetError:
    """Rebuilds the exception of a process of this name from its `Failed` message."""
    kind = getattr(errors, message.kind, None)
    error: QuintetError
    if isinstance(kind, type) and issubclass(kind, QuintetError) and kind is not WorkerFault:
        error = kind(message.text)
    else:
        error = fault(f"{name} failed: {message.text}")
    error.detail = message.detail
    if message.detail:  # callers from Python would see this process's frames alone
        error.add_note(f"In {name}:\n{message.detail}")
    return error


def await_all(processes: Sequence[Process], notice: Callable[[str], None]) -> None:
    """Waits until all are ready; `notice` gets who is waited for, when that takes long.  Raises
    QuintetError if one of them failed, or took too long.
    """

    def what() -> str:
        first, *others = [each for each in processes if not each.ready]
        more = f", and {len(others)} more are waited for" if others else ""
        return f"{first.kind.name} is {first.doing or 'starting'}{more}"

    waiting = WaitNotice(notice, what)
    for process in processes:
        process.await_ready(waiting)


def stop_all(processes: Sequence[Process]) -> None:
    """Asks all to end; kills those that don't end soon, or all if this is interrupted."""
    try:
        for process in processes:
            if process.child is not None:
                process.send(Stop())
        deadline = time.monotonic() + STOP_GRACE_S
        for process in processes:
            process.end(max(0.01, deadline - time.monotonic()))
    finally:
        for process in processes:
            process.end()
