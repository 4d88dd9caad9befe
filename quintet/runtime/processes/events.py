"""Events of sampler processes, and the grants of each process."""

from collections import deque
from typing import NamedTuple, final

from quintet.errors import QuintetError
from quintet.runtime.batch import Unroll
from quintet.runtime.processes.messages import Fill, Place
from quintet.runtime.processes.process import Process

SERVER = -1
"""Index of the server, in place of a worker's."""


class Filled(NamedTuple):
    """A worker has filled one slot per group.

    granted: largest number of env_steps that could have been executed.
    """

    worker: int
    unrolls: list[Unroll]
    granted: int


class Asking(NamedTuple):
    """A worker has finished its rows, executed this many env_steps, and requests further rows."""

    worker: int
    executed: int


class Lost(NamedTuple):
    """A worker abandoned its unroll because the server ended; its streams must restart.

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
    """A sampler process and its grants."""

    def __init__(self, index: int, places: tuple[Place, ...]):
        self.index, self.places = index, places
        self.granted: deque[Fill] = deque()
        self.busy_since_s = 0.0
        self.paused = False  # it has done its rows and waits for more
        self.lost = False  # its streams must begin again before it fills another slot
        self.process: Process

    @property
    def num_streams(self) -> int:
        return sum(place.num_streams for place in self.places)

    @property
    def what(self) -> str:
        first, last = self.places[0], self.places[-1]
        return f"streams {first.first_stream} to {last.first_stream + last.num_streams - 1}"
