"""Slots and their holders: each slot is free, granted to a worker, or read by the learner."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, final

from quintet.errors import QuintetError
from quintet.runtime.batch import Lease, Unroll
from quintet.runtime.processes import messages
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.messages import Fill, Place, WorkerSpec
from quintet.runtime.slots import RowSpecs, Slot
from quintet.types import TensorSpec

SERVER = -1
"""Index of the server, in place of a worker's."""


class Filled(NamedTuple):
    """A worker has filled one slot per group.

    granted: largest number of env_steps that could have been executed.
    full: the worker's message.
    """

    worker: int
    unrolls: list[Unroll]
    granted: int
    full: messages.Full


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


class Reached(Protocol):
    """A worker's process, on this machine or on a node."""

    @property
    def ready(self) -> bool:
        """Whether it can fill slots."""

    def send(self, message: tuple[Any, ...]) -> None:
        """Sends it a message; its loss is heard elsewhere."""


@final
class Sampler:
    """A sampler process and its grants.

    new: whether its streams have not restarted since the process began.
    task: the newest `Grants.task` that was sent to its environments.
    """

    process: Reached

    def __init__(self, index: int, places: tuple[Place, ...]):
        self.index, self.places = index, places
        self.granted: deque[Fill] = deque()
        self.busy_since_s = 0.0
        self.paused = False  # has done its rows and waits for more
        self.must_restart = False  # streams must begin again before it fills another slot
        self.new = True
        self.task: bytes | None = None

    @property
    def num_streams(self) -> int:
        return sum(place.num_streams for place in self.places)

    @property
    def what(self) -> str:
        first, last = self.places[0], self.places[-1]
        return f"streams {first.first_stream} to {last.first_stream + last.num_streams - 1}"


@final
class Grants:
    """The slots of every group, and the workers that are granted them.  Methods may be called by
    any thread.

    states: by group, what its environments offer, as of its last unroll; new processes take it at
        their first restart.
    slots: by group, as soon as there is memory for them.
    task: what environments are told with the next grants, see `quintet.envs.tasks`.
    """

    _arena: Arena

    def __init__(self, spec: WorkerSpec):
        self._spec = spec
        groups = shares(spec.places, spec.num_workers)
        self.samplers = [Sampler(index, places) for index, places in enumerate(groups)]
        self.states: dict[int, Sequence[bytes]] = {}
        self.slots: dict[int, list[Slot]] = {}
        self.task: bytes | None = None
        self.free = {place.group: deque(range(spec.num_slots)) for place in spec.places}
        # Called with a worker when one of its slots may be granted again, in any thread.
        self.on_free: Callable[[int], object] = lambda _: None
        self.lock = threading.RLock()
        self._count = 0

    def open(self, rows: RowSpecs, others: Mapping[str, TensorSpec]) -> Arena:
        """Makes memory for slots and other tensors; raises ConfigError if there is too little."""
        specs, places = dict(others), self._spec.places
        for place in places:
            specs |= messages.slots_in_arena(self._spec, rows, place)
        self._arena = arena = Arena.create(specs)
        self.slots = {p.group: messages.open_slots(arena, self._spec, rows, p) for p in places}
        return arena

    def bytes_of(self, index: int, slots: Sequence[int]) -> list[memoryview]:
        """The memory of slots of a worker, one of each of its groups."""
        groups = [place.group for place in self.samplers[index].places]
        triples = zip(groups, slots, self._of(self.samplers[index], slots), strict=True)
        return [messages.slot_bytes(self._arena, *each) for each in triples]

    def close(self) -> None:
        """Gives memory back, with the last view of it."""
        self._arena.close()
        self.slots.clear()
        self.samplers.clear()
        del self._arena

    def grant(
        self, index: int, versions: tuple[int, ...] | None, rows: int, asks: bool = False
    ) -> bool:
        """Has a worker fill one free slot of each of its groups; False if there are none.  See
        `Fill`; a worker that `asks` waits for `extend`.

        versions: of the weights to act with; rows: of the unroll.
        """
        sampler = self.samplers[index]
        with self.lock:
            free = [self.free[place.group] for place in sampler.places]
            if not sampler.process.ready or sampler.must_restart or not all(free):
                return False
            self._count += 1
            slots = tuple(group.popleft() for group in free)
            # A task is sent only if it is new.
            task = None if sampler.task is self.task else self.task
            sampler.task = self.task
            self.give(index, Fill(slots, self._count, versions, rows, asks, task))
        return True

    def give(self, index: int, fill: Fill) -> None:
        """Has a worker fill these slots."""
        sampler = self.samplers[index]
        with self.lock:
            for slot in self._of(sampler, fill.slots):
                slot.header[:] = fill.number, 0
                slot.valid[:] = False  # makes `executed` count the rows written from now on
            if not sampler.granted:
                sampler.busy_since_s = time.monotonic()
            sampler.granted.append(fill)
            sampler.process.send(fill)

    def extend(self, index: int, rows: int) -> None:
        """Answers a worker's request for rows: the number of further rows, 0 to end its unroll."""
        sampler = self.samplers[index]
        with self.lock:
            grant = sampler.granted[0]
            sampler.granted[0] = grant._replace(rows=grant.rows + rows)
            sampler.paused, sampler.busy_since_s = False, time.monotonic()
            sampler.process.send(messages.More(rows))

    def restart(self, index: int, iteration: int) -> None:
        """Restarts a worker's streams with its next grant."""
        sampler = self.samplers[index]
        with self.lock:
            states: tuple[Sequence[bytes], ...] = ()
            if sampler.new:
                sampler.task = None
            if sampler.new and self.states:
                states = tuple(self.states.get(place.group, ()) for place in sampler.places)
            sampler.must_restart = sampler.new = False
            sampler.process.send(messages.Restart(iteration, states))

    def hear(self, index: int, message: Any) -> Event:
        """Records a worker's message; returns its event."""
        sampler = self.samplers[index]
        if isinstance(message, messages.Discarded):  # the worker dropped its unfinished unrolls
            return self.lose(index)
        if isinstance(message, messages.Paused):
            sampler.paused = True
            return Asking(index, message.executed)
        assert isinstance(message, messages.Full)
        for place, states in zip(sampler.places, message.states, strict=False):
            self.states[place.group] = states
        with self.lock:
            grant = sampler.granted.popleft()
            sampler.busy_since_s = time.monotonic()
        unrolls: list[Unroll] = []
        slots = self._of(sampler, grant.slots)
        triples = zip(sampler.places, grant.slots, slots, message.options, strict=True)
        for place, k, slot, options in triples:
            slot.options = options
            unrolls.append(slot.unroll(Lease(partial(self._freed, index, place.group, k))))
        return Filled(index, unrolls, grant.rows * sampler.num_streams, message)

    def died(self, index: int, error: QuintetError) -> Died:
        """The event of the end of a worker's process, whose slots are free again."""
        return Died(index, error, self.lose(index).executed)

    def lose(self, index: int) -> Lost:
        """Frees the slots that were granted to a worker but not filled; it gets others when its
        streams have restarted.
        """
        sampler, executed = self.samplers[index], 0
        with self.lock:
            sampler.paused, sampler.must_restart = False, True
            while sampler.granted:
                slots = sampler.granted.popleft().slots
                executed += sum(slot.executed for slot in self._of(sampler, slots))
                for place, k in zip(sampler.places, slots, strict=True):
                    self.free[place.group].append(k)
        return Lost(index, executed)

    def _of(self, sampler: Sampler, slots: Sequence[int]) -> list[Slot]:
        groups = (place.group for place in sampler.places)
        return [self.slots[group][k] for group, k in zip(groups, slots, strict=True)]

    def _freed(self, worker: int, group: int, slot: int) -> None:
        with self.lock:
            self.free[group].append(slot)
        self.on_free(worker)


def shares(places: Sequence[Place], num_workers: int) -> list[tuple[Place, ...]]:
    """The groups of each worker, divided as evenly as possible, neighbours together."""
    count = len(places)
    ends = [count * k // num_workers for k in range(num_workers + 1)]
    return [tuple(places[a:b]) for a, b in pairwise(ends)]
