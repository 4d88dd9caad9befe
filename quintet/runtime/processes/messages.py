"""Messages between the runtime's processes, and the names of their tensors in the arena."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch

from quintet.envs.vector import VectorEnv
from quintet.observe.timing import PHASES
from quintet.protocols import Actor, DataPlan
from quintet.runtime.policies import ONE_POLICY, Assignment
from quintet.runtime.processes.arena import Arena, prefixed
from quintet.runtime.slots import RowSpecs, Slot, slot_specs
from quintet.types import Spaces, TensorSpec


class Place(NamedTuple):
    """A group's number and its streams in the run."""

    group: int
    first_stream: int
    num_streams: int


class Ready(NamedTuple):
    """A process's first message: it is ready to work."""


class Restart(NamedTuple):
    """Makes the next unroll begin every stream again, keyed by (seed, group, iteration)."""

    iteration: int


class Fill(NamedTuple):
    """Grants a worker slots to fill.

    slots: number of the slot to fill, by group.
    number: of the grant.
    versions: of the weights to act by, by policy; None: the newest.
    rows: rows of the unroll; fewer than all at the end of a run.
    asks: whether the worker asks for more after these rows.
    """

    slots: tuple[int, ...]
    number: int
    versions: tuple[int, ...] | None
    rows: int
    asks: bool


class Paused(NamedTuple):
    """Says that a worker has done its granted rows and waits for `More`.

    executed: env_steps in the unroll so far.
    """

    executed: int


class More(NamedTuple):
    """Answers a worker that has paused: rows to add, 0 to end the unroll."""

    rows: int


class Full(NamedTuple):
    """Says that the slots of a grant hold all granted rows."""

    slots: tuple[int, ...]


class Discarded(NamedTuple):
    """Says that a worker gave its unroll up, as the inference server ended."""


class Failed(NamedTuple):
    """A failing process's last message: the error's class, its text, and the whole traceback where
    a user's code raised it.
    """

    kind: str
    text: str
    detail: str


class Stop(NamedTuple):
    """Asks any process to end in good order."""


class Reset(NamedTuple):
    """Asks a stepper to begin every stream again with these seeds."""

    seeds: tuple[int, ...]


class Step(NamedTuple):
    """Asks a stepper to step every stream by the actions in shared memory."""


class Stepped(NamedTuple):
    """Says that a stepper's rows are in shared memory."""


class Line(NamedTuple):
    """The inference server's address, and the token that a worker sends first."""

    address: str
    token: bytes


@final
@dataclass(frozen=True)
class StepperWork:
    """The pickled work of a process that steps environments for another one.

    make_env: makes those of its streams, first to end (which is not one of them).
    timeout_s: after which it says where a step hangs.
    """

    index: int
    first: int
    end: int
    make_env: Callable[[], VectorEnv]
    timeout_s: float


@final
@dataclass(frozen=True)
class ServerOptions:
    """Options of the inference server.

    make_actor: makes an actor on `device`.
    exact: one forward per group, by the weights that it asks for.  Otherwise waiting groups are
        served together, up to `batch_max` streams, once there are `batch_min` or the first has
        waited for `batch_timeout_s`.
    """

    make_actor: Callable[[], Actor]
    device: str = "cpu"
    threads: int = 1
    exact: bool = False
    batch_min: int = 1
    batch_max: int = 512
    batch_timeout_s: float = 0.1


@final
@dataclass(frozen=True)
class WorkerSpec:
    """All that the sampler processes of a run have in common; cloudpickle must be able to send it.

    make_env: of one group.
    num_slots: of each group.
    assignment: of the policies to the groups.
    timeout_s: how long a worker may take for one row, and beyond 60 s for its start.
    threads: of PyTorch in each worker.
    server: where actions are computed; None: in the workers.
    """

    make_env: Callable[[Place], VectorEnv]
    make_actor: Callable[[], Actor]
    spaces: Spaces
    plan: DataPlan
    seed: int
    places: tuple[Place, ...]
    num_workers: int
    num_slots: int
    assignment: Assignment = ONE_POLICY
    timeout_s: float = 60.0
    threads: int = 1
    server: ServerOptions | None = None

    @property
    def num_streams(self) -> int:
        return sum(place.num_streams for place in self.places)


@final
@dataclass(frozen=True)
class Work:
    """The pickled work of a sampler process."""

    index: int
    places: tuple[Place, ...]
    spec: WorkerSpec
    line: Line | None


@final
@dataclass(frozen=True)
class ServerWork:
    """The pickled work of the inference server.

    most_waiting: streams that can wait at once; a worker asks for one group at a time.
    """

    options: ServerOptions
    places: tuple[Place, ...]
    assignment: Assignment
    token: bytes
    most_waiting: int


class Connect(NamedTuple):
    """Asks a learner to connect to the others by the store at this port of this machine."""

    port: int


class Begin(NamedTuple):
    """Gives a learner the first one's state: these scalars, and tensors that follow."""

    scalars: dict[str, Any]


class Learn(NamedTuple):
    """Asks a learner for an update with the batch in shared memory.

    cut: whether the batch has a `Rollout.trace_cut`.
    """

    env_steps: int
    cut: bool
    replayed: bool


class Configure(NamedTuple):
    """Gives a learner new options."""

    options: Any


class Compare(NamedTuple):
    """Asks a learner for the checksum of its state, a `Sum` of this number."""

    number: int


class Sum(NamedTuple):
    """CRC-32 of a learner's state."""

    number: int
    crc: int


def progress_specs(name: str) -> dict[str, TensorSpec]:
    """Tensors that a process of this name and its parent share: ``row`` and ``seconds`` by phase.

    row: time of its last sign of life in ns; its row of the unroll, or update; 1 if it must stop at
        once, or the exchanges that a learner joined; batches that a learner is done with.
    """
    return {
        f"{name}/row": TensorSpec((4,), torch.int64),
        f"{name}/seconds": TensorSpec((len(PHASES),), torch.float64),
    }


def slots_in_arena(spec: WorkerSpec, rows: RowSpecs, place: Place) -> dict[str, TensorSpec]:
    """The tensors of a group's slots."""
    of_slot = slot_specs(rows, spec.plan, place.num_streams)
    specs: dict[str, TensorSpec] = {}
    for k in range(spec.num_slots):
        specs |= prefixed(f"slot/{place.group}/{k}/", of_slot)
    return specs


def open_slots(arena: Arena, spec: WorkerSpec, rows: RowSpecs, place: Place) -> list[Slot]:
    """A group's slots over their memory."""
    memory = [arena.below(f"slot/{place.group}/{k}/") for k in range(spec.num_slots)]
    return [Slot(each, rows, spec.plan) for each in memory]
