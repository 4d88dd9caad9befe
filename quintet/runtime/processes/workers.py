"""The sampler processes, and their inference server: granted slots, watched, replaced."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from socket import socket
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from quintet.errors import QuintetError, WorkerFault
from quintet.observe.timing import PHASES
from quintet.protocols import Actor
from quintet.runtime.batch import ColumnBlock, Lease
from quintet.runtime.processes.arena import Arena, prefixed
from quintet.runtime.processes.crew import Crew, listen, sendable, shares
from quintet.runtime.processes.events import (
    SERVER,
    Arrival,
    Asking,
    Died,
    Event,
    Filled,
    Grant,
    Lost,
    Sampler,
)
from quintet.runtime.processes.mailbox import mailbox_specs
from quintet.runtime.processes.messages import (
    Discarded,
    Fill,
    Full,
    Line,
    More,
    Paused,
    Restart,
    ServerWork,
    Stop,
    Work,
    header_name,
    open_slot,
    progress_specs,
    slot_prefix,
)
from quintet.runtime.processes.params import Board, board_specs
from quintet.runtime.processes.patience import Patience, whereabouts
from quintet.runtime.processes.process import STOP_GRACE_S, Process, ProcessKind, await_all
from quintet.runtime.processes.remote import record_specs_of_remote
from quintet.runtime.slots import RowSpecs, Slot, slot_specs
from quintet.types import Publication, TensorSpec

_LOOK_EVERY_S = 0.5
"""How often processes are looked at that say nothing."""

_LATE_S = 2.0
"""How much later that may be before nobody is judged by the time that has passed."""


@final
class Workers:
    """Starts the crew's processes, grants them slots and tells what becomes of them.

    One thread at a time may call `start`, `replace`, `events` and `close`; the others, and leases
    of the blocks that it gives, are for any.
    """

    def __init__(
        self,
        crew: Crew,
        publications: Sequence[Publication],
        on_free: Callable[[int], object] | None = None,
    ):
        """publications: one of each policy, of the shapes that all will have.

        on_free: called with a worker when one of its slots may be granted again, in whatever thread
        was done with it.

        Raises:
            ConfigError: what workers are made of can't be sent, or there is too little memory.
        """
        self.crew = crew
        self.on_free: Callable[[int], object] = on_free or _ignore
        actor = crew.assignment.make_actor(crew.make_actor)
        self.rows = RowSpecs.of(crew.spaces, actor)
        if crew.server is not None:
            specs = record_specs_of_remote(actor)
            self.rows = RowSpecs(crew.spaces, actor.action_spec, specs, actor.state_specs)
        self.samplers = [
            Sampler(index, places)
            for index, places in enumerate(shares(crew.places, crew.num_workers))
        ]
        self._listener: socket | None = None
        line: Line | None = None
        if crew.server is not None:
            self._listener, line = listen(crew)
        work = [self._work_of(sampler, line) for sampler in self.samplers]
        self._arena = arena = Arena.create(self._specs(publications, actor))
        self.boards = [Board(arena, policy) for policy in range(len(publications))]
        self._slots: dict[tuple[int, int], Slot] = {}
        self._headers: dict[tuple[int, int], NDArray[Any]] = {}
        self._free: dict[int, deque[int]] = {}
        for place in crew.places:
            self._free[place.group] = deque(range(crew.num_slots))
            for k in range(crew.num_slots):
                slot = open_slot(arena, self.rows, crew.plan, place.group, k)
                slot.belongs_to(*place[:2], crew.assignment.of(place.group)[0])
                self._slots[place.group, k] = slot
                self._headers[place.group, k] = arena.tensor(header_name(place.group, k)).numpy()
        for sampler, given in zip(self.samplers, work, strict=True):
            name = f"worker/{sampler.index}"
            kind = ProcessKind(
                f"worker {sampler.index}", sampler.what, "quintet.runtime.processes.worker", given
            )
            sampler.process = self._process(kind, name)
        self.server = self._server(line) if line is not None else None
        self._seconds = {
            name: arena.tensor(f"{name}/seconds").numpy() for name in self._process_names()
        }
        self._reported = {name: np.zeros(len(PHASES)) for name in self._seconds}
        self._generation = 0
        self._closed = False
        self._looked_at_s = self._awake_since_s = 0.0
        self._lock = threading.RLock()

    def _process_names(self) -> list[str]:
        names = [f"worker/{sampler.index}" for sampler in self.samplers]
        return names if self.crew.server is None else [*names, "server"]

    def _process(self, kind: ProcessKind, name: str) -> Process:
        row = self._arena.tensor(f"{name}/row").numpy()
        return Process(kind, self._arena, row, self.crew.say, self.crew.timeout_s)

    def _specs(self, publications: Sequence[Publication], actor: Actor) -> dict[str, TensorSpec]:
        crew = self.crew
        specs: dict[str, TensorSpec] = {}
        for place in crew.places:
            of_slot = slot_specs(self.rows, crew.plan, place.num_streams)
            for k in range(crew.num_slots):
                specs[header_name(place.group, k)] = TensorSpec((2,), torch.int64)
                specs |= prefixed(slot_prefix(place.group, k), of_slot)
        for policy, publication in enumerate(publications):
            specs |= board_specs(policy, publication)
        for name in self._process_names():
            specs |= progress_specs(name)
        if crew.server is not None:
            specs["server/served"] = TensorSpec((2,), torch.float64)
            for place in crew.places:
                specs |= mailbox_specs(crew.spaces, actor, place)
        return specs

    def _work_of(self, sampler: Sampler, line: Line | None) -> bytes:
        crew = self.crew
        return sendable(
            Work(
                index=sampler.index,
                places=sampler.places,
                make_env=crew.make_env,
                make_actor=crew.make_actor,
                assignment=crew.assignment,
                rows=self.rows,
                plan=crew.plan,
                seed=crew.seed,
                num_slots=crew.num_slots,
                threads=crew.threads,
                timeout_s=crew.timeout_s,
                line=line,
            )
        )

    def _server(self, line: Line) -> Process:
        crew, listener = self.crew, self._listener
        options = crew.server
        assert options is not None
        assert listener is not None
        most_waiting = sum(max(p.num_streams for p in s.places) for s in self.samplers)
        work = ServerWork(options, crew.places, crew.assignment, line.token, most_waiting)
        module = "quintet.runtime.processes.server"
        kind = ProcessKind(
            "inference server", options.device, module, sendable(work), [listener.fileno()]
        )  # fmt: skip
        return self._process(kind, "server")

    @property
    def _processes(self) -> list[Process]:
        found = [sampler.process for sampler in self.samplers]
        return found if self.server is None else [*found, self.server]

    def start(self) -> None:
        """Starts the processes that there are not, and waits until all are ready.

        Raises:
            QuintetError: one of them failed, or took too long; the others go on starting.
        """
        missing = [process for process in self._processes if process.child is None]
        for process in missing:
            process.launch()
        await_all([each for each in self._processes if not each.ready], self.crew.notice)

    def replace(self, index: int) -> None:
        """A new process in place of a worker, or the SERVER, that died.

        Raises:
            QuintetError: it failed, or took too long.
        """
        process = self.server if index == SERVER else self.samplers[index].process
        assert process is not None
        process.launch()
        await_all([process], self.crew.notice)

    def publish(self, publication: Publication) -> None:
        """Puts weights where every worker finds them."""
        self.boards[publication.policy].write(publication)

    def restart(self, index: int, iteration: int) -> None:
        """The next grant of a worker begins its streams anew."""
        sampler = self.samplers[index]
        with self._lock:
            sampler.lost = False
            sampler.process.send(Restart(iteration))

    def grant(
        self,
        index: int,
        versions: tuple[int, ...] | None,
        rows: int | None = None,
        asks: bool = False,
    ) -> bool:
        """Has a worker fill one free slot of each of its groups; False if there are none.

        versions: of the weights to act by, by policy; None: the newest when it begins.
        rows: of the unroll; None: all.
        asks: after fewer rows than all the worker waits for `extend`.
        """
        sampler = self.samplers[index]
        rows = self.crew.plan.unroll_steps if rows is None else rows
        with self._lock:
            free = [self._free[place.group] for place in sampler.places]
            if not all(free) or not sampler.process.ready or sampler.lost:
                return False
            slots = tuple(mine.popleft() for mine in free)
            self._generation += 1
            for place, k in zip(sampler.places, slots, strict=True):
                self._headers[place.group, k][:] = self._generation, 0
                self._slots[place.group, k].begin_empty()
            if not sampler.granted:
                sampler.busy_since_s = time.monotonic()
            sampler.granted.append(Grant(slots, self._generation, rows))
            sampler.process.send(Fill(slots, self._generation, versions, rows, asks))
        return True

    def extend(self, index: int, rows: int) -> None:
        """Answers a worker that asks: so many rows more, 0 to end its unroll."""
        sampler = self.samplers[index]
        with self._lock:
            grant = sampler.granted[0]
            sampler.granted[0] = grant._replace(rows=grant.rows + rows)
            sampler.paused, sampler.busy_since_s = False, time.monotonic()
            sampler.process.send(More(rows))

    def events(self, timeout_s: float) -> list[Event]:
        """What has happened, oldest first; waits for something as long as `timeout_s`.

        Whoever is told that a process died must `replace` it or `close` all.
        """
        channels: dict[Any, int] = {
            sampler.process.channel: sampler.index
            for sampler in self.samplers
            if sampler.process.ready
        }
        if self.server is not None and self.server.ready:
            channels[self.server.channel] = SERVER
        heard = [self._hear(channels[channel]) for channel in wait(list(channels), timeout_s)]
        return [*heard, *self._silent()]

    def _hear(self, index: int) -> Event:
        if index == SERVER:
            assert self.server is not None
            error = self.server.hear()
            assert isinstance(error, QuintetError)  # it says nothing else
            return Died(SERVER, error, 0)
        sampler = self.samplers[index]
        message = sampler.process.hear()
        if isinstance(message, QuintetError):
            return Died(index, message, self._take_back(sampler))
        if isinstance(message, Discarded):
            with self._lock:
                sampler.lost = True
                return Lost(index, self._take_back(sampler))
        if isinstance(message, Paused):
            sampler.paused = True
            return Asking(index, message.executed)
        assert isinstance(message, Full)
        return self._filled(sampler, message.slots)

    def _filled(self, sampler: Sampler, slots: tuple[int, ...]) -> Filled | Died:
        grant = sampler.granted[0]
        steps = grant.rows
        blocks, arrivals = [], []
        for place, k in zip(sampler.places, slots, strict=True):
            generation, rows = self._headers[place.group, k].tolist()
            if (slots, generation, rows) != (grant.slots, grant.generation, steps):
                fault = (
                    f"{sampler.process.name} must give slots {grant.slots} of grant "
                    f"{grant.generation} with {steps} rows, it gave {slots} of grant {generation} "
                    f"with {rows}"
                )
                error = sampler.process.failed(WorkerFault(fault))
                return Died(sampler.index, error, self._take_back(sampler))
            slot = self._slots[place.group, k]
            lease = Lease(partial(self._freed, sampler.index, place.group, k))
            blocks.append(ColumnBlock(slot.rollout, slot.episodes(), lease))
            arrivals.append(Arrival(place.group, slot.executed, slot.running))
        with self._lock:
            sampler.granted.popleft()
            sampler.busy_since_s = time.monotonic()
        return Filled(sampler.index, blocks, arrivals, steps * sampler.num_streams)

    def _freed(self, index: int, group: int, slot: int) -> None:
        with self._lock:
            self._free[group].append(slot)
        self.on_free(index)

    def _take_back(self, sampler: Sampler) -> int:
        """What a worker was granted and has not filled is free again; gives the env_steps that were
        executed for it.
        """
        executed = 0
        with self._lock:
            sampler.paused = False
            while sampler.granted:
                grant = sampler.granted.popleft()
                for place, k in zip(sampler.places, grant.slots, strict=True):
                    executed += self._slots[place.group, k].executed
                    self._free[place.group].append(k)
        return executed

    def _silent(self) -> list[Died]:
        """Processes that have something to do and have shown no sign of life for too long."""
        found: list[Died] = []
        now = time.monotonic()
        passed_s = now - self._looked_at_s
        if passed_s < min(_LOOK_EVERY_S, self.crew.timeout_s / 4):
            return found
        self._looked_at_s = now
        if passed_s > _LOOK_EVERY_S + _LATE_S:
            # This process was stopped itself, or busy; with it perhaps all, as containers are.
            self._awake_since_s = now
        for sampler in self.samplers:
            process = sampler.process
            if process.gone:
                error = process.failed(WorkerFault(process.obituary()))
                found.append(Died(sampler.index, error, self._take_back(sampler)))
                continue
            since_s = max(sampler.busy_since_s, self._awake_since_s)
            at_work = sampler.granted and not sampler.paused
            silent_s = process.silent_s(since_s) if at_work else 0.0
            if silent_s > process.allowed_s:
                error = process.failed(WorkerFault(_silence_told(sampler, silent_s)))
                found.append(Died(sampler.index, error, self._take_back(sampler)))
        if self.server is not None:
            silent_s = self.server.silent_s(self._awake_since_s)
            if silent_s > self.server.allowed_s:
                fault = (
                    f"{self.server.name} must serve within {self.server.allowed_s:g} s, it has "
                    f"been silent for {silent_s:.0f} s{self.server.silence.told}; raise "
                    "runtime.worker_timeout_s if a forward may take so long"
                )
                found.append(Died(SERVER, self.server.failed(WorkerFault(fault)), 0))
        return found

    def patience(self) -> Patience:
        """For a wait for samples that begins now."""

        def what() -> str:
            busy = [sampler.process for sampler in self.samplers if sampler.granted]
            rows = {process.kind.name: (int(process.row[1]), process.doing) for process in busy}
            return whereabouts(rows, self.crew.plan.unroll_steps)

        return Patience(self.crew.notice, what)

    def report(self) -> dict[str, float]:
        """Shares of every process's time since the last report, ``worker/INDEX/PHASE_frac`` and
        ``server/PHASE_frac``, and how many streams the server acts on at once.
        """
        found: dict[str, float] = {}
        for name, now in self._seconds.items():
            passed = now - self._reported[name]
            if (passed < 0).any():  # it was replaced
                passed = now.copy()
            self._reported[name] = now.copy()
            whole = passed.sum()
            if whole > 0:
                by_phase = zip(PHASES, (passed / whole).tolist(), strict=True)
                found |= {f"{name}/{phase}_frac": share for phase, share in by_phase if share > 0}
        if self.server is not None:
            forwards, streams = self._arena.tensor("server/served").tolist()
            if forwards:
                found["server/batch_mean"] = streams / forwards
        return found

    def kill(self) -> None:
        """Ends all processes at once; from any thread, before `close`."""
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """Ends all processes; those that do not close their environments soon, or all of them if
        this is interrupted, are killed.  Once more does nothing.
        """
        if self._closed:
            return
        self._closed = True
        self.on_free = _ignore
        try:
            self._stop()
        finally:
            for process in self._processes:
                process.end()
            self._let_go()

    def _stop(self) -> None:
        """Asks all processes to end, and waits a while."""
        for process in self._processes:
            if process.child is not None:
                process.row[2] = 1  # in the middle of an unroll, which nobody waits for
                process.send(Stop())
        deadline = time.monotonic() + STOP_GRACE_S
        for process in self._processes:
            process.end(max(0.01, deadline - time.monotonic()))

    def _let_go(self) -> None:
        """Gives memory and socket back."""
        if self._listener is not None:
            place = self._listener.getsockname()
            self._listener.close()
            if isinstance(place, str) and place:  # on Linux it has no name in the file system
                with suppress(OSError):
                    os.unlink(place)
        self._arena.close()
        # Its memory goes with the last view of it.
        self._slots.clear()
        self._headers.clear()
        self.boards.clear()
        self._seconds.clear()
        self.samplers.clear()
        self.server = None
        del self._arena


def _silence_told(sampler: Sampler, silent_s: float) -> str:
    """What is said of a worker that has been silent for too long."""
    process = sampler.process
    slots = ", ".join(
        f"{k} of group {place.group}"
        for place, k in zip(sampler.places, sampler.granted[0].slots, strict=True)
    )
    where = f"at row {int(process.row[1])} of slot {slots}"
    cure = "raise runtime.worker_timeout_s if a step may take so long"
    if process.doing:
        where, cure = f"while {process.doing}", process.cure
    return (
        f"{process.name} must do a row within {process.allowed_s:g} s, it has been silent for "
        f"{silent_s:.0f} s{process.silence.told} {where}: an environment hangs, or the process was "
        f"stopped; {cure}"
    )


def _ignore(worker: int) -> None:
    """What there is to do when a slot is free again, for who grants them when he likes."""
