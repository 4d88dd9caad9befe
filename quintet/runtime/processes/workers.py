"""The sampler processes, and their inference server: started, heard, watched, replaced."""

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from socket import AF_UNIX, socket
from typing import Any, final

import torch
from numpy.typing import NDArray

from quintet.errors import QuintetError, WorkerFault
from quintet.observe.timing import PHASES
from quintet.protocols import Actor
from quintet.runtime.processes import messages
from quintet.runtime.processes.grants import SERVER, Died, Event, Grants, Sampler
from quintet.runtime.processes.messages import Line, Work, WorkerSpec
from quintet.runtime.processes.params import Board, board_specs
from quintet.runtime.processes.process import (
    Process,
    ProcessKind,
    WaitNotice,
    await_all,
    pickled,
    stop_all,
)
from quintet.runtime.processes.remote import mailbox_specs, record_specs_of_remote
from quintet.runtime.slots import RowSpecs
from quintet.system import printing
from quintet.types import Publication, TensorSpec

_LOOK_EVERY_S = 0.5
"""Seconds between two checks for processes that do not respond."""


@final
class Workers:
    """Starts the sampler processes, grants them slots and reports their events.

    states: by group, what its environments offer, as of its last unroll; new processes take it at
        their first restart.

    One thread at a time may call `start`, `replace`, `events` and `close`; other methods, and
    leases of its unrolls, may be used by any thread.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        publications: Sequence[Publication],
        say: Callable[[str], None] = printing.say,
        notice: Callable[[str], None] = lambda _: None,
    ):
        """publications: one of each policy, of the shapes that all will have.

        say: gets what processes print; notice: gets what a long wait is for.

        Raises ConfigError if what workers are made of can't be sent, or there is too little memory.
        """
        self.spec, self.say, self.notice = spec, say, notice
        actor = spec.assignment.make_actor(spec.make_actor)
        rows = RowSpecs.of(spec.spaces, actor, spec.num_metrics)
        if spec.server is not None:
            rows = replace(rows, record=record_specs_of_remote(actor))
        self.grants = Grants(spec)
        self._listener: socket | None = None
        kinds = self._process_kinds()
        shared = self._arena_specs(kinds, publications, actor)
        self._arena = arena = self.grants.open(rows, shared)
        self.boards = [Board(arena, policy) for policy in range(len(publications))]
        for group, stream, *_ in spec.places:
            for slot in self.grants.slots[group]:
                slot.belongs_to(group, stream, spec.assignment.of(group)[0])
        processes = [Process(kind, arena, say, spec.timeout_s) for kind in kinds]
        self.server = processes.pop(0) if spec.server is not None else None
        self.processes = processes  # workers, by index
        for sampler, process in zip(self.grants.samplers, processes, strict=True):
            sampler.process = process
        self._reported: dict[str, NDArray[Any]] = {}  # seconds by phase, by process
        self._closed = False
        self._looked_at_s = 0.0

    def _process_kinds(self) -> list[ProcessKind]:
        """The server, if there is one, then the workers; raises ConfigError as `__init__`."""
        spec, line = self.spec, None
        kinds: list[ProcessKind] = []
        if spec.server is not None:
            self._listener, line = _listen(spec.num_workers)
            kinds.append(self._server_kind(spec.server, self._listener, line))
        for each in self.grants.samplers:
            number = spec.first_worker + each.index
            work = sendable(Work(number, each.places, spec, line))
            module = "quintet.runtime.processes.worker"
            kinds.append(ProcessKind(f"worker {number}", each.what, module, work))
        return kinds

    def _arena_specs(
        self, kinds: Sequence[ProcessKind], publications: Sequence[Publication], actor: Actor
    ) -> dict[str, TensorSpec]:
        """Shared tensors besides slots: progress, weights, and those of the server."""
        spec = self.spec
        shared: dict[str, TensorSpec] = {}
        for kind in kinds:
            shared |= messages.progress_specs(kind.name)
        for policy, publication in enumerate(publications):
            shared |= board_specs(policy, publication)
        for place in spec.places if spec.server is not None else ():
            shared |= mailbox_specs(spec.spaces, actor, place)
        return shared | {"inference server/served": TensorSpec((2,), torch.float64)}

    def _server_kind(
        self, options: messages.ServerOptions, listener: socket, line: Line
    ) -> ProcessKind:
        most_waiting = sum(max(p.num_streams for p in s.places) for s in self.grants.samplers)
        places, assignment = self.spec.places, self.spec.assignment
        work = sendable(messages.ServerWork(options, places, assignment, line.token, most_waiting))
        module, files = "quintet.runtime.processes.server", [listener.fileno()]
        return ProcessKind("inference server", options.device, module, work, files)

    @property
    def _all(self) -> list[Process]:
        return self.processes if self.server is None else [*self.processes, self.server]

    def start(self) -> None:
        """Starts all missing processes, and waits until all are ready.  Raises QuintetError if one
        of them failed, or took too long; the others continue to start.
        """
        for index, process in enumerate(self._all):
            if process.child is None:
                self._launch(index, process)
        await_all([each for each in self._all if not each.ready], self.notice)

    def replace(self, index: int) -> None:
        """A new process in place of a worker, or the SERVER, that died; raises QuintetError if it
        failed, or took too long.
        """
        process = self.server if index == SERVER else self.processes[index]
        assert process is not None
        self._launch(index, process)
        await_all([process], self.notice)

    def _launch(self, index: int, process: Process) -> None:
        if process is not self.server:
            self.grants.samplers[index].new = True
        process.launch()

    def publish(self, publication: Publication) -> None:
        """Publishes weights to all workers."""
        self.boards[publication.policy].write(publication)

    def events(self, timeout_s: float) -> list[Event]:
        """Events since the last call, oldest first; waits for one as long as `timeout_s`.

        After the death of a process the caller must `replace` it or `close` all.
        """
        channels: dict[Any, int] = {
            each.channel: index for index, each in enumerate(self.processes) if each.ready
        }
        if self.server is not None and self.server.ready:
            channels[self.server.channel] = SERVER
        heard = [self._hear(channels[channel]) for channel in wait(list(channels), timeout_s)]
        return [*heard, *self._silent()]

    def _hear(self, index: int) -> Event:
        """The event of a process's message; the end of the process, if that is faulty."""
        if index == SERVER:
            assert self.server is not None
            error = self.server.hear()
            assert isinstance(error, QuintetError)  # the server says nothing else
            return Died(SERVER, error, 0)
        message = self.processes[index].hear()
        if isinstance(message, messages.Full):
            message = self._fault(index, message.slots) or message
        if isinstance(message, QuintetError):
            return self.grants.died(index, message)
        return self.grants.hear(index, message)

    def _fault(self, index: int, slots: tuple[int, ...]) -> QuintetError | None:
        """Ends a worker that filled other slots than were granted."""
        process, sampler = self.processes[index], self.grants.samplers[index]
        grant = sampler.granted[0]
        for place, k in zip(sampler.places, slots, strict=True):
            number, rows = self.grants.slots[place.group][k].header.tolist()
            if (slots, number, rows) != (grant.slots, grant.number, grant.rows):
                fault = (
                    f"{process.name} must give slots {grant.slots} of grant "
                    f"{grant.number} with {grant.rows} rows, got {slots} of grant {number} "
                    f"with {rows}"
                )
                return process.failed(WorkerFault(fault))
        return None

    def _silent(self) -> list[Died]:
        """Processes that have work and have not responded for too long."""
        dead: list[Died] = []
        now = time.monotonic()
        if now - self._looked_at_s < min(_LOOK_EVERY_S, self.spec.timeout_s / 4):
            return dead
        self._looked_at_s = now
        for sampler, process in zip(self.grants.samplers, self.processes, strict=True):
            error = process.lost() if process.gone else None
            if error is None and sampler.granted and not sampler.paused:
                where = _hangs_where(sampler, process)
                error = process.overdue(sampler.busy_since_s, "do a row", where)
            if error is not None:
                dead.append(self.grants.died(sampler.index, error))
        if self.server is not None:
            cure = "; raise runtime.worker_timeout_s if a forward may take so long"
            error = self.server.overdue(None, "serve", cure)
            if error is not None:
                dead.append(Died(SERVER, error, 0))
        return dead

    def wait_notice(self) -> WaitNotice:
        """Notices about a wait for samples that begins now."""
        steps = self.spec.plan.unroll_steps
        return WaitNotice(self.notice, lambda: whereabouts(self.progress(), steps))

    def progress(self) -> dict[str, tuple[int, str]]:
        """The row of each worker with a grant in its unroll, and its activity before row 0, by
        name.
        """
        pairs = zip(self.grants.samplers, self.processes, strict=True)
        busy = [process for sampler, process in pairs if sampler.granted]
        return {process.kind.name: (int(process.row[1]), process.doing) for process in busy}

    def report(self) -> dict[str, float]:
        """Shares of every process's time since the last report, ``worker/INDEX/PHASE_frac`` and
        ``server/PHASE_frac``, and the number of streams per forward of the server.
        """
        shares: dict[str, float] = {}
        for process in self._all:
            name = process.kind.name
            now = self._arena.tensor(f"{name}/seconds").numpy().copy()
            passed = now - self._reported.get(name, 0.0)
            if (passed < 0).any():  # the process was replaced
                passed = now
            self._reported[name] = now
            whole = passed.sum()
            if whole > 0:
                prefix = "server" if process is self.server else name.replace(" ", "/")
                by_phase = zip(PHASES, (passed / whole).tolist(), strict=True)
                shares |= {f"{prefix}/{phase}_frac": x for phase, x in by_phase if x > 0}
        if self.server is not None:
            forwards, streams = self._arena.tensor("inference server/served").tolist()
            if forwards:
                shares["server/batch_mean"] = streams / forwards
        return shares

    def kill(self) -> None:
        """Ends all processes at once; from any thread, before `close`."""
        for process in self._all:
            process.kill()

    def close(self) -> None:
        """Ends all processes, gives memory and socket back.  A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.grants.on_free = lambda _: None
        try:
            for process in self._all:
                process.row[2] = 1  # nobody waits for the rest of an unroll
            stop_all(self._all)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Gives back the socket and the memory."""
        if self._listener is not None:
            place = self._listener.getsockname()
            self._listener.close()
            if isinstance(place, str) and place:  # Linux has no name in the file system for it
                with suppress(OSError):
                    os.unlink(place)
        self.boards.clear()
        self.processes.clear()
        self.server = None
        self.grants.close()
        del self._arena


def _hangs_where(sampler: Sampler, process: Process) -> str:
    """The rest of the message about a worker that did not respond for too long."""
    slots = ", ".join(
        f"{k} of group {place.group}"
        for place, k in zip(sampler.places, sampler.granted[0].slots, strict=True)
    )
    where = f"at row {int(process.row[1])} of slot {slots}"
    cure = "raise runtime.worker_timeout_s if a step may take so long"
    if process.doing:
        where, cure = f"while {process.doing}", process.cure
    return f" {where}: an environment hangs, or the process was stopped; {cure}"


def whereabouts(rows: Mapping[str, tuple[int, str]], steps: int) -> str:
    """The progress of the slowest worker in its unroll of `steps` rows, or its activity before.

    rows: by worker, its row and its activity before row 0.
    """
    if not rows:
        return "no worker has anything to do"
    name = min(rows, key=lambda name: rows[name])
    others = f", the slowest of {len(rows)}" if len(rows) > 1 else ""
    row, doing = rows[name]
    return f"{name} is {doing or f'at row {row} of {steps}'}{others}"


def sendable(work: object) -> bytes:
    """Pickles the work of sampler processes; raises ConfigError if it can't be sent."""
    return pickled(
        work,
        "worker processes need an environment, a model and a schedule that can be sent to them",
        "give the environment's id or a function that makes it, and functions that hold nothing of "
        "this process, or use --runtime.kind serial",
    )


def _listen(num_workers: int) -> tuple[socket, Line]:
    """The socket through which workers reach the server, also after its replacement."""
    name = f"quintet-{secrets.token_hex(8)}"
    listener = socket(AF_UNIX)
    # A name that begins with 0 is in no file system (Linux).
    abstract = sys.platform == "linux"
    address = f"\0{name}" if abstract else os.path.join(tempfile.gettempdir(), name)
    listener.bind(address)
    listener.listen(num_workers)
    return listener, Line(address, secrets.token_bytes(16))
