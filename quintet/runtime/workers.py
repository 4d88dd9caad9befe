"""The sampler processes as their parent sees them: begun, granted slots, watched, replaced."""

import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from socket import socketpair
from typing import Any, NamedTuple, final

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray

from quintet import errors
from quintet.child import Child
from quintet.envs.vector import VectorEnv
from quintet.errors import ConfigError, QuintetError, WorkerFault
from quintet.observe.timing import PHASES
from quintet.protocols import Actor, DataPlan
from quintet.runtime.arena import Arena, prefixed
from quintet.runtime.batch import Lease, Part
from quintet.runtime.messages import (
    Failed,
    Fill,
    Full,
    Place,
    Ready,
    Restart,
    Stop,
    Work,
    header_name,
    open_slot,
    progress_specs,
    slot_prefix,
)
from quintet.runtime.params import Board, board_specs
from quintet.runtime.slots import RowSpecs, Slot, slot_specs
from quintet.types import Publication, TensorSpec

_LOOK_EVERY_S = 0.5
"""How often workers are looked at that say nothing."""

STOP_GRACE_S = 5.0
"""Seconds that a worker has for closing its environments."""


@dataclass(frozen=True)
class Crew:
    """What the sampler processes of a run are made of.

    make_env: of one group; with `make_actor` it must be something that cloudpickle can send.
    num_slots: of each group.
    timeout_s: how long a worker may take for one row, and beyond 60 s for its start.
    threads: of PyTorch in each worker.
    say: gets what workers print, and what became of them.
    """

    make_env: Callable[[Place], VectorEnv]
    make_actor: Callable[[], Actor]
    rows: RowSpecs
    plan: DataPlan
    seed: int
    places: tuple[Place, ...]
    num_workers: int
    num_slots: int
    timeout_s: float = 60.0
    threads: int = 1
    say: Callable[[str], None] = print


class Filled(NamedTuple):
    """A worker's slots hold whole unrolls, one for each of its groups."""

    worker: int
    parts: list[Part]


class Died(NamedTuple):
    """A worker is gone, or as good as; `error` says how."""

    worker: int
    error: QuintetError


class Grant(NamedTuple):
    """Slots that a worker may fill, one of each of its groups."""

    slots: tuple[int, ...]
    generation: int


@final
class _Process:
    """One sampler process."""

    def __init__(self, index: int, places: tuple[Place, ...]):
        self.index, self.places = index, places
        self.child: Child | None = None
        self.channel: Connection
        self.ready = False
        self.granted: deque[Grant] = deque()
        self.busy_since_s = 0.0
        self.restarts = 0
        self.sending = threading.Lock()

    @property
    def name(self) -> str:
        first, last = self.places[0], self.places[-1]
        streams = f"{first.first_stream} to {last.first_stream + last.num_streams - 1}"
        pid = "" if self.child is None else f", pid {self.child.pid}"
        return f"worker {self.index} (streams {streams}{pid})"

    def send(self, message: tuple[Any, ...]) -> None:
        with self.sending, suppress(OSError):  # it is gone: whoever waits for it will hear
            self.channel.send(message)


@final
class Workers:
    """Starts the crew's processes, grants them slots and tells what becomes of them.

    One thread at a time may call its methods; leases of the parts that it gives can be released in
    any.
    """

    def __init__(
        self,
        crew: Crew,
        publications: Sequence[Publication],
        on_free: Callable[[int], object] = lambda _: None,
    ):
        """publications: one of each policy, of the shapes that all will have.

        on_free: called with a worker when one of its slots may be granted again, in whatever thread
        was done with it.

        Raises:
            ConfigError: what workers are made of can't be sent, or there is too little memory.
        """
        self.crew, self.on_free = crew, on_free
        self.num_policies = len(publications)
        self.processes = [
            _Process(index, places)
            for index, places in enumerate(shares(crew.places, crew.num_workers))
        ]
        self._payloads = [self._payload(process) for process in self.processes]
        self._arena = arena = Arena.create(self._specs(publications))
        self.boards = [Board(arena, policy) for policy in range(self.num_policies)]
        self._slots: dict[tuple[int, int], Slot] = {}
        self._headers: dict[tuple[int, int], NDArray[Any]] = {}
        self._free: dict[int, deque[int]] = {}
        for place in crew.places:
            self._free[place.group] = deque(range(crew.num_slots))
            for k in range(crew.num_slots):
                self._slots[place.group, k] = open_slot(arena, crew.rows, crew.plan, place, k)
                self._headers[place.group, k] = arena.tensor(header_name(place.group, k)).numpy()
        self._rows = [arena.tensor(f"worker/{p.index}/row").numpy() for p in self.processes]
        self._seconds = [arena.tensor(f"worker/{p.index}/seconds").numpy() for p in self.processes]
        self._reported = [np.zeros(len(PHASES)) for _ in self.processes]
        self._generation = 0
        self._started = False
        self._looked_at_s = 0.0
        self._lock = threading.RLock()

    def _specs(self, publications: Sequence[Publication]) -> dict[str, TensorSpec]:
        crew = self.crew
        specs: dict[str, TensorSpec] = {}
        for place in crew.places:
            of_slot = slot_specs(crew.rows, crew.plan, place.num_streams)
            for k in range(crew.num_slots):
                specs[header_name(place.group, k)] = TensorSpec((2,), torch.int64)
                specs |= prefixed(slot_prefix(place.group, k), of_slot)
        for policy, publication in enumerate(publications):
            specs |= board_specs(policy, publication)
        for process in self.processes:
            specs |= progress_specs(process.index)
        return specs

    def _payload(self, process: _Process) -> bytes:
        crew = self.crew
        work = Work(
            index=process.index,
            places=process.places,
            make_env=crew.make_env,
            make_actor=crew.make_actor,
            num_policies=self.num_policies,
            rows=crew.rows,
            plan=crew.plan,
            seed=crew.seed,
            num_slots=crew.num_slots,
            threads=crew.threads,
        )
        try:
            return bytes(cloudpickle.dumps(work))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                "worker processes require an environment that can be sent to them, this one can't "
                f"be ({error}); give its id or a function that makes it, or use --runtime.kind "
                "serial"
            ) from error

    def start(self) -> None:
        """Starts all processes, if there are none, and waits until their environments are made.

        Raises:
            QuintetError: one of them failed, or took too long.
        """
        if self._started:
            return
        self._started = True
        for process in self.processes:
            self._launch(process)
        for process in self.processes:
            self._await_ready(process)

    def replace(self, index: int) -> None:
        """A new process in place of one that died; the slots that it was granted are free again.

        Raises:
            QuintetError: it failed, or took too long.
        """
        process = self.processes[index]
        process.restarts += 1
        self._launch(process)
        self._await_ready(process)

    def _launch(self, process: _Process) -> None:
        ours, theirs = socketpair()
        process.channel = Connection(ours.detach())
        process.ready = False
        say, name = self.crew.say, f"worker {process.index}"
        try:
            process.child = Child(
                "quintet.runtime.worker",
                lambda line: say(f"[{name}] {line}"),
                [self._arena.file, theirs.fileno()],
                # Threads that wait for each other must not burn the cores that others want.
                {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(self.crew.threads)},
            )
        finally:
            theirs.close()
        given = {
            "path": sys.path,
            "specs": self._arena.specs,
            "work": self._payloads[process.index],
        }
        process.child.give(pickle.dumps(given))

    def _await_ready(self, process: _Process) -> None:
        allowed_s = 60.0 + self.crew.timeout_s
        deadline = time.monotonic() + allowed_s
        while not process.ready:
            left = deadline - time.monotonic()
            if left <= 0 or not process.channel.poll(left):
                self._end(process)
                raise WorkerFault(
                    f"{process.name} must make its environments within {allowed_s:.0f} s, it has "
                    "not; raise runtime.worker_timeout_s if they take so long"
                )
            event = self._hear(process)
            if isinstance(event, Died):
                raise event.error

    def publish(self, publication: Publication, policy: int) -> None:
        """Puts weights where every worker finds them."""
        self.boards[policy].write(publication)

    def restart(self, index: int, iteration: int) -> None:
        """The next grant of a worker begins its streams anew."""
        self.processes[index].send(Restart(iteration))

    def grant(self, index: int, versions: tuple[int, ...] | None) -> bool:
        """Has a worker fill one free slot of each of its groups; False if there are none.

        versions: of the weights to act by, by policy; None: the newest when it begins.
        """
        process = self.processes[index]
        with self._lock:
            free = [self._free[place.group] for place in process.places]
            if not all(free) or not process.ready:
                return False
            slots = tuple(mine.popleft() for mine in free)
            self._generation += 1
            for place, k in zip(process.places, slots, strict=True):
                self._headers[place.group, k][:] = self._generation, 0
            if not process.granted:
                process.busy_since_s = time.monotonic()
            process.granted.append(Grant(slots, self._generation))
            process.send(Fill(slots, self._generation, versions))
        return True

    def events(self, timeout_s: float) -> list[Filled | Died]:
        """What has happened, oldest first; waits for something as long as `timeout_s`.

        Whoever is told that a worker died must `replace` it or `close` all.
        """
        channels: dict[Any, _Process] = {p.channel: p for p in self.processes if p.ready}
        heard = [self._hear(channels[channel]) for channel in wait(list(channels), timeout_s)]
        return [*(event for event in heard if event is not None), *self._silent()]

    def _hear(self, process: _Process) -> Filled | Died | None:
        try:
            message = process.channel.recv()
        except (EOFError, OSError):
            return self._died(process, WorkerFault(self._obituary(process)))
        if isinstance(message, Ready):
            process.ready = True
            return None
        if isinstance(message, Failed):
            return self._died(process, _error_of(message, process.name))
        assert isinstance(message, Full)
        return self._filled(process, message.slots)

    def _filled(self, process: _Process, slots: tuple[int, ...]) -> Filled | Died:
        grant = process.granted.popleft()
        process.busy_since_s = time.monotonic()
        steps = self.crew.plan.unroll_steps
        parts = []
        for place, k in zip(process.places, slots, strict=True):
            generation, rows = self._headers[place.group, k].tolist()
            if (slots, generation, rows) != (grant.slots, grant.generation, steps):
                process.granted.appendleft(grant)
                fault = (
                    f"{process.name} must give slots {grant.slots} of grant {grant.generation} "
                    f"with {steps} rows, it gave {slots} of grant {generation} with {rows}"
                )
                return self._died(process, WorkerFault(fault))
            slot = self._slots[place.group, k]
            lease = Lease(partial(self._freed, process.index, place.group, k))
            parts.append(Part(slot.rollout(), slot.episodes(), lease))
        return Filled(process.index, parts)

    def _freed(self, index: int, group: int, slot: int) -> None:
        with self._lock:
            self._free[group].append(slot)
        self.on_free(index)

    def _silent(self) -> list[Filled | Died]:
        """Workers that have a grant and have done no row for too long."""
        found: list[Filled | Died] = []
        now = time.monotonic()
        if now - self._looked_at_s < min(_LOOK_EVERY_S, self.crew.timeout_s / 4):
            return found
        self._looked_at_s = now
        for process in self.processes:
            # What waits to be heard may be old, where this process was stopped itself.
            if not process.ready or not process.granted or process.channel.poll():
                continue
            at_ns, row, _ = self._rows[process.index].tolist()
            silent_s = now - max(at_ns / 1e9, process.busy_since_s)
            if silent_s > self.crew.timeout_s:
                slots = ", ".join(
                    f"{k} of group {place.group}"
                    for place, k in zip(process.places, process.granted[0].slots, strict=True)
                )
                fault = (
                    f"{process.name} must do a row within {self.crew.timeout_s:g} s, it has been "
                    f"silent for {silent_s:.0f} s at row {row} of slot {slots}: an environment "
                    "hangs, or the process was stopped; raise runtime.worker_timeout_s if a step "
                    "may take so long"
                )
                found.append(self._died(process, WorkerFault(fault)))
        return found

    def _died(self, process: _Process, error: QuintetError) -> Died:
        """Ends what is left of a process; its slots are free again."""
        self._end(process)
        with self._lock:
            while process.granted:
                grant = process.granted.popleft()
                for place, k in zip(process.places, grant.slots, strict=True):
                    self._free[place.group].append(k)
        return Died(process.index, error)

    def _obituary(self, process: _Process) -> str:
        """How a process ended that left no message."""
        assert process.child is not None
        with suppress(subprocess.TimeoutExpired):
            process.child.wait(STOP_GRACE_S)
        status = process.child.status
        if status is not None and status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
            how += " (was there enough memory?)" if -status == signal.SIGKILL else ""
        else:
            how = f"ended with status {status}"
        row = int(self._rows[process.index][1])
        return f"{process.name} {how} at row {row} of an unroll; what it printed stands above"

    def _end(self, process: _Process) -> None:
        """Kills a process, if it is there, and closes its channel."""
        process.ready = False
        if process.child is not None:
            process.child.kill()
            process.child.wait()
            process.channel.close()
            process.child = None

    def report(self) -> dict[str, float]:
        """Shares of every worker's time since the last report, ``worker/INDEX/PHASE_frac``."""
        found: dict[str, float] = {}
        for process, now, before in zip(self.processes, self._seconds, self._reported, strict=True):
            passed = now - before
            if (passed < 0).any():  # it was replaced
                passed = now.copy()
            whole = passed.sum()
            before[:] = now
            if whole > 0:
                by_phase = zip(PHASES, (passed / whole).tolist(), strict=True)
                name = f"worker/{process.index}"
                found |= {f"{name}/{phase}_frac": share for phase, share in by_phase if share > 0}
        return found

    def close(self) -> None:
        """Ends all processes; those that do not close their environments soon are killed."""
        living = [process for process in self.processes if process.child is not None]
        for process in living:
            self._rows[process.index][2] = 1  # in the middle of an unroll, which nobody waits for
            process.send(Stop())
        deadline = time.monotonic() + STOP_GRACE_S
        for process in living:
            assert process.child is not None
            with suppress(subprocess.TimeoutExpired):
                process.child.wait(max(0.0, deadline - time.monotonic()))
            self._end(process)
        self._arena.close()
        # Its memory goes with the last view of it.
        for views in (self._slots, self._headers, self.boards, self._rows, self._seconds):
            views.clear()
        del self._arena


def shares(places: Sequence[Place], num_workers: int) -> list[tuple[Place, ...]]:
    """Which groups each worker has: as even as can be, neighbours together."""
    count = len(places)
    ends = [count * k // num_workers for k in range(num_workers + 1)]
    return [tuple(places[a:b]) for a, b in pairwise(ends)]


def _error_of(message: Failed, name: str) -> QuintetError:
    """What a worker could not go on for, as the same kind of error where it is one of ours."""
    kind = getattr(errors, message.kind, None)
    if isinstance(kind, type) and issubclass(kind, QuintetError):
        return kind(message.text)
    return WorkerFault(f"{name} failed: {message.text}")
