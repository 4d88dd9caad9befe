"""What happens to sampler processes, and what each of them was granted."""

from collections import deque
from typing import NamedTuple, final

from quintet.errors import QuintetError
from quintet.runtime.batch import Part
from quintet.runtime.processes.messages import Place
from quintet.runtime.processes.process import Process

SERVER = -1
"""In place of a worker's number."""


class Arrival(NamedTuple):
    """The unroll of a group: env_steps executed in it, and of episodes that have not ended."""

    group: int
    executed: int
    running: int


class Filled(NamedTuple):
    """A worker's slots hold unrolls, one for each of its groups.

    granted: the most env_steps that could have been executed.
    """

    worker: int
    parts: list[Part]
    arrivals: list[Arrival]
    granted: int


class Asking(NamedTuple):
    """A worker has executed so many env_steps of its unroll and asks for more rows."""

    worker: int
    executed: int


class Lost(NamedTuple):
    """A worker gave up its unroll, as the server ended; its streams must begin anew.

    executed: env_steps of the unroll that was given up.
    """

    worker: int
    executed: int


class Died(NamedTuple):
    """A worker, or the SERVER, is gone or as good as; `error` says how.

    executed: env_steps of the unroll that the worker was at, which is given up; of the row at work
        they may count or not.
    """

    worker: int
    error: QuintetError
    executed: int


class Grant(NamedTuple):
    """Slots that a worker may fill, one of each of its groups, with so many rows."""

    slots: tuple[int, ...]
    generation: int
    rows: int


Event = Filled | Asking | Lost | Died


@final
class Sampler:
    """One sampler process and what it was granted."""

    def __init__(self, index: int, places: tuple[Place, ...]):
        self.index, self.places = index, places
        self.granted: deque[Grant] = deque()
        self.busy_since_s = 0.0
        self.paused = False  # it has done its rows and waits to be told of more
        self.lost = False  # its streams must begin anew before it fills anything
        self.process: Process

    @property
    def num_streams(self) -> int:
        return sum(place.num_streams for place in self.places)

    @property
    def what(self) -> str:
        first, last = self.places[0], self.places[-1]
        return f"streams {first.first_stream} to {last.first_stream + last.num_streams - 1}"
