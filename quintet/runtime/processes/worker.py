"""A sampler process, which `quintet.runtime.processes.workers` starts.

It fills slots that it is granted: a grant names one slot for each of its groups, and the version of
the weights to act by.
"""

import errno
import gc
import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, final

from quintet.envs.make import tell
from quintet.envs.own_state import keeper
from quintet.errors import QuintetError, WorkerFault
from quintet.jobs import entry, user_state
from quintet.jobs.child_process import FOR_PARENT
from quintet.observe.timing import PhaseTimer
from quintet.runtime.processes import messages
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.messages import Work
from quintet.runtime.processes.params import Board
from quintet.runtime.processes.process import COMPILING, MAKING
from quintet.runtime.processes.remote import Mailbox, RemoteActor, ServerGone, ServerLine
from quintet.runtime.sampler import GroupSampler, unroll
from quintet.runtime.seed_tree import group_seeds
from quintet.runtime.slots import RowSpecs, Slot
from quintet.runtime.torch_settings import configure_torch
from quintet.system.memory import memory_fault
from quintet.system.printing import note
from quintet.system.user_code import raised, traced


class Stopped(Exception):
    """The process must end within an unroll."""


@final
class Worker:
    """Groups of environments and their actors, which fill the granted slots."""

    def __init__(self, work: Work, arena: Arena, channel: Connection):
        self.work, self.channel, spec = work, channel, work.spec
        self.timer = PhaseTimer()
        self.groups: list[GroupSampler] = []
        self.slots: list[list[Slot]] = []
        self.row = arena.tensor(f"worker {work.index}/row").numpy()
        self.row[1] = MAKING
        self.seconds = arena.tensor(f"worker {work.index}/seconds").numpy()
        num_policies = spec.assignment.num_policies
        self.boards = [Board(arena, policy) for policy in range(num_policies)]
        self.loaded = [[-1] * num_policies for _ in work.places]
        self.restarts: messages.Restart | None = None  # comes with the next unroll
        # The server's end has broken the streams: grants are ignored until the next restart.
        self.must_restart = False
        line = None
        if work.line is not None:
            line = ServerLine(*work.line, spec.timeout_s, lambda: self.beat(int(self.row[1])))
        for place in work.places:
            actor = spec.assignment.make_actor(spec.make_actor)
            if line is not None:
                policies, mailbox = spec.assignment.of(place.group), Mailbox(arena, place.group)
                actor = RemoteActor(actor, policies, mailbox, line, place.group)
            env = spec.make_env(place._replace(worker=work.index))
            keys = (place.first_stream, spec.assignment, place.group)
            self.groups.append(GroupSampler(env, actor, spec.plan, *keys))
            rows = RowSpecs.of(spec.spaces, actor, spec.num_metrics)
            self.slots.append(messages.open_slots(arena, spec, rows, place))
        self.keepers = [keeper(group.env) for group in self.groups]

    def run(self) -> None:
        """Answers messages until it is told to stop."""
        # The objects made so far stay: the garbage collector need not look at them.
        gc.collect()
        gc.freeze()
        self.channel.send(messages.Ready())
        while True:
            self.timer.switch("waiting")
            message = self.channel.recv()
            if isinstance(message, messages.Stop):
                return
            if isinstance(message, messages.Restart):
                self.restarts, self.must_restart = message, False
            elif isinstance(message, messages.Fill) and not self.must_restart:
                try:
                    self.fill(message)
                except ServerGone:
                    self.must_restart = True
                    self.channel.send(messages.Discarded())

    def fill(self, grant: messages.Fill) -> None:
        """Collects one unroll of every group into the granted slots."""
        # Row 0 after a restart takes longer: environments are made, the first act is compiled.
        begins = self.restarts is not None
        self.beat(MAKING if begins else 0)
        self.timer.switch("acting")
        self.load(grant.versions)
        slots = [of_group[k] for of_group, k in zip(self.slots, grant.slots, strict=True)]
        if grant.task is not None:
            for group in self.groups:
                tell(group.env, grant.task)
        if self.restarts is not None:
            self.timer.switch("making")
            for own, states in zip(self.keepers, self.restarts.states, strict=False):
                if own is not None:
                    own.load(states)
            for place, group, slot in zip(self.work.places, self.groups, slots, strict=True):
                keys = (self.work.spec.seed, place.group, self.restarts.iteration)
                group.restart(*group_seeds(*keys, place.num_streams), slot)
                self.beat(MAKING)
            self.restarts = None
        first = COMPILING if begins else 0
        more = None
        if grant.rows < self.work.spec.plan.unroll_steps:
            more = partial(self.more, grant)
        unroll(self.groups, slots, self.timer, lambda row: self.beat(row or first), more)
        for slot, group in zip(slots, self.groups, strict=True):
            slot.header[:] = grant.number, group.rows
        self.seconds[:] = list(self.timer.seconds().values())
        options = tuple(slot.options for slot in slots)
        self.channel.send(messages.Full(grant.slots, self.states(), options))

    def states(self) -> tuple[Sequence[bytes], ...]:
        """States that the environments offer, by group; empty where none does."""
        if not any(self.keepers):
            return ()
        return tuple([] if own is None else own.save() for own in self.keepers)

    def more(self, grant: messages.Fill, rows: int) -> int:
        """The number of rows of a short unroll that follow after `rows`."""
        if rows == 0:
            return grant.rows
        if not grant.asks:
            return 0
        self.timer.switch("waiting")
        self.channel.send(messages.Paused(sum(group.executed(rows) for group in self.groups)))
        answer = self.channel.recv()
        if not isinstance(answer, messages.More):
            raise Stopped
        return answer.rows

    def load(self, versions: tuple[int, ...] | None) -> None:
        """Loads the weights with which an unroll acts."""
        for group, loaded in zip(self.groups, self.loaded, strict=True):
            for policy in group.policies:
                board = self.boards[policy]
                needed = None if versions is None else versions[policy]
                if loaded[policy] != (board.version if needed is None else needed):
                    loaded[policy] = board.read(group.publish, needed)

    def beat(self, row: int) -> None:
        """Shows the parent that the worker is alive, and its row; raises Stopped if the parent asks
        it to end at once.
        """
        self.row[0], self.row[1] = time.monotonic_ns(), row
        if self.row[2]:
            raise Stopped

    def close(self) -> None:
        for group in self.groups:
            group.env.close()


def _ignore(*_: object) -> None:
    """Handles a signal that is for the parent."""


def _heed() -> None:
    """Lets signals end the forks of environments, as those of any program."""
    for number in FOR_PARENT:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.SIG_DFL)


def begin() -> tuple[Any, Arena, Connection]:
    """Prepares a process of the runtime; returns its pickled work, its memory and its channel."""
    # A signal to all processes of a run is for the parent, which stops in good order.  Programs
    # that environments begin would keep SIG_IGN, and could not be ended by their `close`.
    for number in FOR_PARENT:
        signal.signal(number, _ignore)
    os.register_at_fork(after_in_child=_heed)
    files: Sequence[str] = sys.argv[1:]
    payload = pickle.loads(entry.receive(lambda: os._exit(130)))
    user_state.restore(payload["state"])
    arena = Arena(payload["specs"], int(files[0]))
    return payload["work"], arena, Connection(int(files[1]))


def report_failure(channel: Connection, error: BaseException) -> None:
    """Sends a message for the user, and the whole traceback for log.txt."""
    if not isinstance(error, QuintetError):
        short = memory_fault(error)
        text = f"it {raised(error)}" if short is None else str(short)
        error = traced(WorkerFault(text), error)
    try:
        channel.send(messages.Failed(type(error).__name__, str(error), error.detail))
    except OSError as lost:
        if lost.errno != errno.EBADF:  # the parent is gone
            raise
        note(f"error: {error}")
        os._exit(1)  # users' code has closed this process's files, so nothing ends in order


def _let_others_finish() -> None:
    """Has this process not preempt the learner when it wakes (2 to 3% faster on few cores)."""
    if sys.platform == "linux":
        with suppress(OSError):  # sandboxes may have no such policy
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> int:
    pickled, arena, channel = begin()
    worker = None
    try:
        work: Work = user_state.work_of(pickled)
        configure_torch(work.spec.threads, "cpu")
        _let_others_finish()
        worker = Worker(work, arena, channel)
        worker.run()
    except Stopped:
        return 0
    except BaseException as error:  # an environment's own code may raise anything
        report_failure(channel, error)
        return 1
    finally:
        if worker is not None:
            worker.close()
    return 0
