"""What the sampler processes of a run are made of, and what each is given."""

import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from socket import AF_UNIX, socket

from quintet.envs.vector import VectorEnv
from quintet.protocols import Actor, DataPlan
from quintet.runtime.policies import ONE_POLICY, Assignment
from quintet.runtime.processes.messages import Line, Place, ServerOptions, ServerWork, Work
from quintet.runtime.processes.process import pickled
from quintet.types import Spaces


@dataclass(frozen=True)
class Crew:
    """What the sampler processes of a run are made of.

    make_env: of one group; with `make_actor` it must be something that cloudpickle can send.
    num_slots: of each group.
    assignment: of the policies to the groups.
    timeout_s: how long a worker may take for one row, and beyond 60 s for its start.
    threads: of PyTorch in each worker.
    server: where actions are computed; None: in the workers.
    say: gets what workers print, and what became of them.
    notice: gets what is waited for, when that takes long.
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
    say: Callable[[str], None] = print
    notice: Callable[[str], None] = lambda _: None
    server: ServerOptions | None = None


def sendable(work: Work | ServerWork) -> bytes:
    return pickled(
        work,
        "worker processes require an environment, a model and a schedule that can be sent to them, "
        "these can't be",
        "give the environment's id or a function that makes it, and functions that hold nothing of "
        "this process, or use --runtime.kind serial",
    )


def listen(crew: Crew) -> tuple[socket, Line]:
    """Where workers find the server, whichever process that is at the time."""
    name = f"quintet-{secrets.token_hex(8)}"
    listener = socket(AF_UNIX)
    # A name that begins with 0 is in no file system (Linux).
    abstract = sys.platform == "linux"
    address = f"\0{name}" if abstract else os.path.join(tempfile.gettempdir(), name)
    listener.bind(address)
    listener.listen(crew.num_workers)
    return listener, Line(address, secrets.token_bytes(16))


def shares(places: Sequence[Place], num_workers: int) -> list[tuple[Place, ...]]:
    """Which groups each worker has: as even as can be, neighbours together."""
    count = len(places)
    ends = [count * k // num_workers for k in range(num_workers + 1)]
    return [tuple(places[a:b]) for a, b in pairwise(ends)]
