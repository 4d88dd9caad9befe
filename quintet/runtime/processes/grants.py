"""Slots and their holders: each slot is free, granted to a worker, or read by the learner."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, final

from quintet.errors import QuintetError
from quintet.runtime.batch import Lease, Unroll
from quintet.runtime.processes.messages import Fill, Place
from quintet.runtime.processes.process import Process
from quintet.runtime.slots import Slot

SERVER = -1
"""Index of the server, in place of a worker's."""


class Filled(NamedTuple):
    """A worker has filled one slot per group.

    granted: largest number of env_steps that could have been executed.
    slots: index of the slot, by group.
    """

    worker: int
    unrolls: list[Unroll]
    granted: int
    slots: tuple[int, ...]


class Asking(NamedTuple):
    """A worker has finished its rows, executed this many env_steps, and requests further rows."""

    worker: int
    executed: int


class Lost(NamedTuple):
    """A worker abandoned its unroll because the server or its node ended; its streams must restart.

    executed: env_steps of the unroll.
    """

    worker: int
    executed: int


class Died(NamedTuple):
    """A worker, or the SERVER, ended or was ended because it did not respond; `error` says how.

    executed: env_steps of the worker's unfinished unroll; its current row may or may not count.
    """

    worker: int
    error: QuintetError
    executed: int


Event = Filled | Asking | Lost | Died


@final
class Sampler:
    """A sampler process and its grants.

    process: the process, if it is one of this machine.
    """

    def __init__(self, index: int, places: tuple[Place, ...]):
        self.index, self.places = index, places
        self.granted: deque[Fill] = deque()
        self.busy_since_s = 0.0
        self.paused = False  # has done its rows and waits for more
        self.lost = False  # streams must begin again before it fills another slot
        self.process: Process

    @property
    def num_streams(self) -> int:
        return sum(place.num_streams for place in self.places)

    @property
    def what(self) -> str:
        first, last = self.places[0], self.places[-1]
        return f"streams {first.first_stream} to {last.first_stream + last.num_streams - 1}"


@final
class Grants:
    """The slots of every group, and the grants of them.  Methods may be called by any thread."""

    def __init__(self, slots: Mapping[int, list[Slot]]):
        """slots: by group."""
        self.slots = slots
        self.free = {group: deque(range(len(mine))) for group, mine in slots.items()}
        # Called with a worker when one of its slots may be granted again, in any thread.
        self.on_free: Callable[[int], object] = lambda _: None
        self.lock = threading.RLock()
        self._count = 0

    def take(
        self, sampler: Sampler, versions: tuple[int, ...] | None, rows: int, asks: bool
    ) -> Fill | None:
        """Grants a worker one free slot of each of its groups; None if there are none."""
        with self.lock:
            free = [self.free[place.group] for place in sampler.places]
            if not all(free):
                return None
            slots = tuple(mine.popleft() for mine in free)
            self._count += 1
            for slot in self._of(sampler, slots):
                slot.header[:] = self._count, 0
                slot.valid[:] = False  # makes `executed` count the rows written from now on
            if not sampler.granted:
                sampler.busy_since_s = time.monotonic()
            fill = Fill(slots, self._count, versions, rows, asks)
            sampler.granted.append(fill)
            return fill

    def extend(self, sampler: Sampler, rows: int) -> None:
        """Adds rows to the unroll of a worker that has asked for them."""
        with self.lock:
            grant = sampler.granted[0]
            sampler.granted[0] = grant._replace(rows=grant.rows + rows)
            sampler.paused, sampler.busy_since_s = False, time.monotonic()

    def filled(self, sampler: Sampler) -> Filled:
        """The unrolls of a worker's oldest grant, whose slots are free when they are released."""
        with self.lock:
            grant = sampler.granted.popleft()
            sampler.busy_since_s = time.monotonic()
        unrolls: list[Unroll] = []
        held = zip(sampler.places, grant.slots, self._of(sampler, grant.slots), strict=True)
        for place, k, slot in held:
            unrolls.append(slot.unroll(Lease(partial(self._freed, sampler.index, place.group, k))))
        return Filled(sampler.index, unrolls, grant.rows * sampler.num_streams, grant.slots)

    def take_back(self, sampler: Sampler) -> int:
        """Frees the slots that were granted to a worker but not filled; returns the env_steps
        executed for them.
        """
        executed = 0
        with self.lock:
            sampler.paused = False
            while sampler.granted:
                slots = sampler.granted.popleft().slots
                executed += sum(slot.executed for slot in self._of(sampler, slots))
                for place, k in zip(sampler.places, slots, strict=True):
                    self.free[place.group].append(k)
        return executed

    def _of(self, sampler: Sampler, slots: tuple[int, ...]) -> list[Slot]:
        groups = (place.group for place in sampler.places)
        return [self.slots[group][k] for group, k in zip(groups, slots, strict=True)]

    def _freed(self, worker: int, group: int, slot: int) -> None:
        with self.lock:
            self.free[group].append(slot)
        self.on_free(worker)
