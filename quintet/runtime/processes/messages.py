"""Messages between the runtime's processes, and the names of their tensors in the arena."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import torch

from quintet.envs.vector import VectorEnv
from quintet.observe.timing import PHASES
from quintet.protocols import Actor, DataPlan
from quintet.runtime.policies import ONE_POLICY, Assignment
from quintet.runtime.processes.arena import Arena, prefixed
from quintet.runtime.slots import RowSpecs, Slot, slot_specs
from quintet.runtime.torch_settings import GpuMath
from quintet.types import Spaces, TensorSpec


class Place(NamedTuple):
    """A group's index and its streams in the run, and the number of the worker that has it."""

    group: int
    first_stream: int
    num_streams: int
    worker: int = 0


class Ready(NamedTuple):
    """A process's first message: it is ready to work."""


class Restart(NamedTuple):
    """Makes the next unroll restart every stream, seeded by (seed, group, iteration).

    states: by group, what its environments take first, see `quintet.envs.own_state`; empty: they
        keep theirs.
    """

    iteration: int
    states: tuple[Sequence[bytes], ...] = ()


class Fill(NamedTuple):
    """Grants a worker slots to fill.

    slots: index of the slot to fill, by group.
    number: number of the grant.
    versions: versions of the weights to act with, by policy; None: the newest.
    rows: number of rows of the unroll; fewer at the end of a run.
    asks: whether the worker requests further rows after these.
    task: what its environments are told first, see `quintet.envs.tasks`; None: nothing new.
    """

    slots: tuple[int, ...]
    number: int
    versions: tuple[int, ...] | None
    rows: int
    asks: bool
    task: bytes | None = None


class Paused(NamedTuple):
    """Reports that a worker has finished its granted rows and waits for `More`.

    executed: env_steps in the unroll so far.
    """

    executed: int


class More(NamedTuple):
    """Answers a paused worker: further rows, or 0 to end the unroll."""

    rows: int


class Full(NamedTuple):
    """Reports that the slots of a grant hold all granted rows.

    states: by group, the state that its environments offer; empty where none does.
    options: by group, those of its episodes, see `Slot.options`.
    """

    slots: tuple[int, ...]
    states: tuple[Sequence[bytes], ...]
    options: tuple[Sequence[Any], ...]


class Discarded(NamedTuple):
    """Reports that a worker abandoned its unroll because the inference server ended."""


class Failed(NamedTuple):
    """A failing process's last message; `detail`: the whole traceback of a user's code."""

    kind: str
    text: str
    detail: str


class Stop(NamedTuple):
    """Asks any process to end in an orderly way."""


class Ask(NamedTuple):
    """Asks a stepper to restart every stream, with these seeds; to step them, with the actions in
    shared memory; to save the state of its environments, for the answer, or to load this one; or to
    tell them a text, see `quintet.envs.tasks`.
    """

    what: Literal["restart", "step", "save", "load", "tell"]
    given: Any = None


class Stepped(NamedTuple):
    """Reports that a stepper has done what it was asked for; rows are in shared memory.

    begun: by stream of the stepper, the options of a reset, with a curriculum.
    """

    states: Sequence[bytes] = ()
    begun: Mapping[int, Any] = {}


class Line(NamedTuple):
    """The inference server's address, and the token that a worker sends first."""

    address: str
    token: bytes


@final
@dataclass(frozen=True)
class StepperWork:
    """The pickled work of a process that steps environments for another one.

    make_env: makes the environments of its streams, `first` to `end` (exclusive).
    timeout_s: seconds after which it reports where a step hangs.
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
    exact: whether each forward is for one group, with the weights that it requests.  Otherwise
        waiting groups are served together, up to `batch_max` streams, once there are `batch_min`
        streams or the first has waited for `batch_timeout_s`.
    gpu: how it computes on a GPU.
    """

    make_actor: Callable[[], Actor]
    device: str = "cpu"
    threads: int = 1
    exact: bool = False
    batch_min: int = 1
    batch_max: int = 512
    batch_timeout_s: float = 0.1
    gpu: GpuMath | None = None


@final
@dataclass(frozen=True)
class WorkerSpec:
    """Everything that the sampler processes of a run have in common; cloudpickle must be able to
    send it.

    make_env: makes the environments of one group.
    num_slots: number of slots of each group.
    assignment: assignment of policies to groups.
    timeout_s: longest time of a worker for one row, and, in addition to 60 s, for its start.
    threads: number of PyTorch's threads in each worker.
    server: the inference server's options; None: workers compute actions.
    first_worker: number of the first worker in the run, for messages.
    num_metrics: number of the environment's own numbers of an episode.
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
    first_worker: int = 0
    num_metrics: int = 0

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

    most_waiting: largest number of streams that wait at the same time; a worker requests one group
        at a time.
    """

    options: ServerOptions
    places: tuple[Place, ...]
    assignment: Assignment
    token: bytes
    most_waiting: int


class Connect(NamedTuple):
    """Asks a learner to connect to the others through the store at this port of this machine."""

    port: int


class Begin(NamedTuple):
    """Gives a learner the first learner's state: these scalars, and tensors that follow."""

    scalars: dict[str, Any]


class Learn(NamedTuple):
    """Asks a learner for an update with the batch in shared memory.

    cut: whether the batch has a `Rollout.trace_cut`.
    """

    env_steps: int
    cut: bool
    replayed: bool


class Compare(NamedTuple):
    """Asks a learner for the checksum of its state, a `Sum` with this number."""

    number: int


class Sum(NamedTuple):
    """CRC-32 of a learner's state."""

    number: int
    crc: int


def progress_specs(name: str) -> dict[str, TensorSpec]:
    """Tensors that a process of this name and its parent share: ``row`` and ``seconds`` by phase.

    row: four numbers: time of its last sign of life in ns; its row of the unroll, or its update; 1
        if it must stop at once, or the number of exchanges that a learner joined; batches that a
        learner is done with.
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


def slot_bytes(arena: Arena, group: int, k: int, slot: Slot) -> memoryview:
    """The memory of a group's slot, with the same layout in any arena."""
    names = list(slot.memory)
    prefix = f"slot/{group}/{k}/"
    return arena.span(prefix + names[0], prefix + names[-1])


def open_slots(arena: Arena, spec: WorkerSpec, rows: RowSpecs, place: Place) -> list[Slot]:
    """A group's slots over their memory."""
    memory = [arena.below(f"slot/{place.group}/{k}/") for k in range(spec.num_slots)]
    return [Slot(each, rows, spec.plan) for each in memory]
