"""What the runtime's processes say to each other, and where their tensors stand in the arena."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch

from quintet.envs.vector import VectorEnv
from quintet.observe.timing import PHASES
from quintet.protocols import Actor, DataPlan, Learner, Ranks
from quintet.runtime.policies import Assignment
from quintet.runtime.processes.arena import Arena
from quintet.runtime.slots import RowSpecs, Slot
from quintet.types import TensorSpec


class Place(NamedTuple):
    """Where a group stands in the run."""

    group: int
    first_stream: int
    num_streams: int


class Ready(NamedTuple):
    """The first message of a worker: its environments are made."""


class Restart(NamedTuple):
    """The next unroll begins every stream anew, keyed by (seed, group, iteration)."""

    iteration: int


class Fill(NamedTuple):
    """A grant: number of the slot, by group, and its generation; versions of the weights by policy,
    None for the newest; rows of the unroll, all but at the end of a run, and whether to ask then
    for more.
    """

    slots: tuple[int, ...]
    generation: int
    versions: tuple[int, ...] | None
    rows: int
    asks: bool


class Paused(NamedTuple):
    """The rows that were granted are done; how many env_steps were executed in the unroll so far.
    The answer is a number of rows more, 0 to end it.
    """

    executed: int


class More(NamedTuple):
    """To a worker that has paused."""

    rows: int


class Full(NamedTuple):
    """The slots of a grant hold whole unrolls, or as many rows as were granted."""

    slots: tuple[int, ...]


class Discarded(NamedTuple):
    """The inference server ended in the middle of the unroll, which is given up."""


class Failed(NamedTuple):
    """The last message of a worker that can't go on: what kind of error, its words, and the whole
    traceback where a user's code raised it.
    """

    kind: str
    text: str
    detail: str


class Stop(NamedTuple):
    """Close the environments and end."""


class Line(NamedTuple):
    """How a worker finds the inference server, and what it says first."""

    address: str
    token: bytes


@final
@dataclass(frozen=True)
class Work:
    """What a sampler process is given."""

    index: int
    places: tuple[Place, ...]
    make_env: Callable[[Place], VectorEnv]
    make_actor: Callable[[], Actor]
    assignment: Assignment
    rows: RowSpecs
    plan: DataPlan
    seed: int
    num_slots: int
    threads: int
    timeout_s: float
    line: Line | None


@final
@dataclass(frozen=True)
class ServerOptions:
    """How the inference server serves.

    make_actor: on the device where it computes.
    exact: one forward for each group, by the weights that it asks for; else groups that wait are
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
class ServerWork:
    """What the inference server is given.

    most_waiting: streams that can wait at once, as a worker asks for one group at a time.
    """

    options: ServerOptions
    places: tuple[Place, ...]
    assignment: Assignment
    token: bytes
    most_waiting: int


class Connect(NamedTuple):
    """To a learner: find the others by the store at this port of this machine."""

    port: int


class Begin(NamedTuple):
    """To a learner: take the first one's state, whose tensors are broadcast; its scalars."""

    scalars: dict[str, Any]


class Learn(NamedTuple):
    """To a learner: make an update with the batch in shared memory.

    cut: the batch has a `Rollout.trace_cut`; replayed: `Rollout.replayed`.
    """

    env_steps: int
    cut: bool
    replayed: bool


class Configure(NamedTuple):
    """To a learner: other options."""

    options: Any


class Compare(NamedTuple):
    """To a learner: say what your state is; answered by a `Sum` of the same number."""

    number: int


class Sum(NamedTuple):
    """CRC-32 of a learner's state."""

    number: int
    crc: int


@final
@dataclass(frozen=True)
class LearnerWork:
    """What a learner's process is given; see `quintet.runtime.parallel.learners.LearnerCrew`."""

    index: int
    size: int
    device: str
    make_learner: Callable[[Ranks], Learner]
    rows: RowSpecs
    plan: DataPlan
    threads: int
    exact: bool


def header_name(group: int, slot: int) -> str:
    """Of the tensor (generation, rows executed) of a slot."""
    return f"slot/{group}/{slot}/header"


def slot_prefix(group: int, slot: int) -> str:
    """Before the names of a slot's tensors."""
    return f"slot/{group}/{slot}/rows/"


def progress_specs(name: str) -> dict[str, TensorSpec]:
    """What a process tells of itself: (time of its last sign of life in ns, row of the unroll) and
    seconds by phase; and, as third of the first, whether it is told to stop in the middle.
    """
    return {
        f"{name}/row": TensorSpec((3,), torch.int64),
        f"{name}/seconds": TensorSpec((len(PHASES),), torch.float64),
    }


def open_slot(arena: Arena, work_rows: RowSpecs, plan: DataPlan, group: int, slot: int) -> Slot:
    """A slot of a group, over its memory in the arena."""
    return Slot(arena.below(slot_prefix(group, slot)), work_rows, plan)
