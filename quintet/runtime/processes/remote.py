"""The actor whose network is in the inference server, and the mailbox through which they exchange
a group's rows.
"""

import secrets
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from socket import AF_UNIX, socket
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from quintet.errors import WorkerFault
from quintet.protocols import Actor
from quintet.runtime.processes.arena import Arena, prefixed
from quintet.runtime.processes.messages import Place
from quintet.runtime.slots import VERSION
from quintet.spaces import action_spec, leaf_spec, observation_leaves
from quintet.types import ActOutput, Obs, Publication, Spaces, State, TensorSpec

BEGINS = -1
_AFTER = "after"
"""Leaf of the state that replaces the state on the server."""

_LOOK_EVERY_S = 0.5


class ServerGone(Exception):
    """The inference server ended in the middle of an unroll, which is lost."""


def mailbox_specs(spaces: Spaces, actor: Actor, place: Place) -> dict[str, TensorSpec]:
    """The tensors of a group's mailbox in an arena."""
    noise = actor.draw_noise(1, 1, torch.Generator())[0, 0]
    leaves = observation_leaves(spaces.observation)
    specs = {f"obs/{name}": leaf_spec(leaf) for name, leaf in leaves.items()}
    specs |= prefixed("state/", actor.state_specs) | prefixed("record/", actor.record_specs)
    specs |= {
        "is_first": TensorSpec((), torch.bool),
        "noise": TensorSpec(tuple(noise.shape), noise.dtype),
        "action": actor.action_spec,
        "env_action": action_spec(spaces.action),
    }
    streams = place.num_streams
    specs = {name: TensorSpec((streams, *s.shape), s.dtype) for name, s in specs.items()}
    specs |= {name: TensorSpec((1,), torch.int64) for name in ("version", "ticket")}
    return prefixed(_prefix(place.group), specs)


def _prefix(group: int) -> str:
    return f"mail/{group}/"


@final
class Mailbox:
    """A group's row of inputs and of outputs, in shared memory.

    The recorded state has one place: the server replaces its input by its output.
    """

    def __init__(self, arena: Arena, group: int):
        prefix = _prefix(group)
        self.obs: Obs = arena.below(prefix + "obs/")
        self.state: State = arena.below(prefix + "state/")
        self.record = arena.below(prefix + "record/")
        self.is_first = arena.tensor(prefix + "is_first")
        self.noise = arena.tensor(prefix + "noise")
        self.action = arena.tensor(prefix + "action")
        self.env_action = arena.tensor(prefix + "env_action")
        self.version = arena.tensor(prefix + "version")
        self.ticket = arena.tensor(prefix + "ticket")

    def ask(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor, ticket: int) -> None:
        """Writes the inputs of an act; only a request with this ticket refers to them."""
        for name, x in self.obs.items():
            x.copy_(obs[name])
        for name, x in self.state.items():
            x.copy_(state[name])
        self.is_first.copy_(is_first)
        self.noise.copy_(noise)
        self.ticket.fill_(ticket)

    def answer(self, out: ActOutput, rows: slice, version: int) -> None:
        """Writes these rows of a forward's outputs."""
        self.action.copy_(out.action[rows])
        self.env_action.copy_(out.env_action[rows])
        for name, x in self.record.items():
            x.copy_(out.record[name][rows])
        for name, x in self.state.items():
            x.copy_(out.state[name][rows])
        self.version.fill_(version)


class Request(NamedTuple):
    """Asks the server to act on a group's mailbox, which holds the same `ticket`.

    after: ticket of the act whose private state is continued; BEGINS: the streams restart.
    versions: versions of the weights at the start of the group's unroll, one per policy.
    """

    group: int
    ticket: int
    after: int
    versions: tuple[int, ...]

    def packed(self) -> bytes:
        numbers = (self.group, self.ticket, self.after, *self.versions)
        return struct.pack(f"<{len(numbers)}q", *numbers)

    @classmethod
    def unpacked(cls, data: bytes) -> Self:
        group, ticket, after, *versions = struct.unpack(f"<{len(data) // 8}q", data)
        return cls(group, ticket, after, tuple(versions))


@final
class ServerLine:
    """A worker's connection to the server, made at first use and again after a loss."""

    def __init__(self, address: str, token: bytes, timeout_s: float, alive: Callable[[], None]):
        """alive: called while waiting, to show the parent that this process is alive."""
        self._address, self._token = address, token
        self._timeout_s, self._alive = timeout_s, alive
        self._line: Connection | None = None

    def ask(self, request: Request) -> None:
        try:
            if self._line is None:
                plug = socket(AF_UNIX)
                plug.connect(self._address)
                self._line = Connection(plug.detach())
                self._line.send_bytes(self._token)
            self._line.send_bytes(request.packed())
        except OSError as error:
            self._lose_server(error)

    def wait(self, group: int) -> None:
        """Waits until the answer is in the mailbox; raises ServerGone if the server ended before,
        WorkerFault if it takes too long.
        """
        assert self._line is not None
        # The parent ends a silent server long before this, unless the server has no core.
        allowed_s = 10 * (60.0 + self._timeout_s)
        deadline = time.monotonic() + allowed_s
        try:
            while not self._line.poll(_LOOK_EVERY_S):
                self._alive()
                if time.monotonic() > deadline:
                    raise WorkerFault(
                        f"the inference server did not answer group {group} within "
                        f"{allowed_s:g} s: raise runtime.worker_timeout_s if a forward may take "
                        "longer"
                    )
            self._line.recv_bytes()
        except (EOFError, OSError) as error:
            self._lose_server(error)

    def _lose_server(self, error: Exception) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        raise ServerGone from error


@final
class RemoteActor:
    """Asks the server for the actions of one group; a local actor does everything else.

    The version of the weights is recorded for each row, since the server loads weights
    independently.  Private state stays on the server; here it is replaced by the ticket of the act
    that left it.
    """

    def __init__(
        self, local: Actor, policies: Sequence[int], mailbox: Mailbox, line: ServerLine, group: int
    ):
        """local: an actor like the server's; its weights are never used."""
        self.local, self.mailbox, self.line, self.group = local, mailbox, line, group
        self.action_spec, self.state_specs = local.action_spec, local.state_specs
        self.draw_noise = local.draw_noise
        self.versions = dict.fromkeys(policies, -1)
        # Tells this actor's requests from those that a dead worker has left.
        self.ticket = secrets.randbits(62)
        # Views of the mailbox, which holds the answer until the next act.
        record = {VERSION: mailbox.version.expand(mailbox.is_first.shape), **mailbox.record}
        state = {**mailbox.state, _AFTER: mailbox.ticket}
        self.out = ActOutput(mailbox.action, mailbox.env_action, record, state)
        self.record_specs: Mapping[str, TensorSpec] = record_specs_of_remote(local)

    def load(self, publication: Publication) -> None:
        """Records the version that the group requests; the server loads weights itself."""
        self.versions[publication.policy] = publication.version

    def initial_state(self, num_streams: int) -> State:
        initial = self.local.initial_state(num_streams)
        recorded = {name: initial[name] for name in self.state_specs}
        return {**recorded, _AFTER: torch.tensor([BEGINS])}

    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        assert noise is not None, "groups only sample"
        after, versions = int(state[_AFTER]), tuple(self.versions.values())
        self.ticket += 1
        self.mailbox.ask(obs, state, is_first, noise, self.ticket)
        self.line.ask(Request(self.group, self.ticket, after, versions))
        self.line.wait(self.group)
        return self.out


def record_specs_of_remote(actor: Actor) -> dict[str, TensorSpec]:
    """The records of a step if a server acts."""
    return {**actor.record_specs, VERSION: TensorSpec((), torch.int64)}
