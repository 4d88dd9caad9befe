"""The inference server, a process that `quintet.runtime.processes.workers` begins: it acts on the
mailboxes of groups, see `ServerOptions`.
"""

import os
import socket as sockets
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from socket import socket
from typing import final

import torch

from quintet.jobs import user_state
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Actor
from quintet.runtime.gpu_actor import GpuActor, SharedGpuActor
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.messages import Ready, ServerWork, Stop
from quintet.runtime.processes.params import Board
from quintet.runtime.processes.process import COMPILING
from quintet.runtime.processes.remote import BEGINS, Mailbox, Request
from quintet.runtime.processes.worker import begin, report_failure
from quintet.runtime.torch_settings import OwnTorch, configure_torch, inexact_told
from quintet.system import printing
from quintet.types import ActOutput, State

_LOOK_EVERY_S = 0.25
_LONGEST_REQUEST = 65_536  # bytes


@final
class Server:
    """Waits for requests, acts, and answers."""

    def __init__(self, work: ServerWork, arena: Arena, channel: Connection, listener: socket):
        self.work, self.channel, self.listener = work, channel, listener
        self.options, assignment = work.options, work.assignment
        self.timer = PhaseTimer()
        self.row = arena.tensor("inference server/row").numpy()
        self.seconds = arena.tensor("inference server/seconds").numpy()
        self.served = arena.tensor("inference server/served").numpy()
        self.places = {place.group: place for place in work.places}
        self.mail = {group: Mailbox(arena, group) for group in self.places}
        self.boards = [Board(arena, policy) for policy in range(assignment.num_policies)]
        assigned = {assignment.of(group) for group in self.places}
        self.actors = {each: assignment.make_actor(self.options.make_actor) for each in assigned}
        # Private state of actors, by group and by ticket of the act that left it.
        self.private: dict[int, dict[int, State]] = {}
        self.device = torch.device(self.options.device)
        self.staged: dict[tuple[int, ...], GpuActor] = {}  # actors on a GPU
        if self.device.type == "cuda":
            self.staged = {
                each: GpuActor(SharedGpuActor(actor, self.device))
                for each, actor in self.actors.items()
            }
        self.loaded = [-1] * assignment.num_policies
        self.verified: dict[Connection, bool] = {}  # connections; whether one has sent the token
        self.waiting: list[tuple[Request, Connection]] = []
        self.waiting_since_s = 0.0
        self.row[1] = COMPILING  # until the first forward, which may be compiled

    def run(self) -> None:
        """Serves until it must stop."""
        self.channel.send(Ready())
        while True:
            self.timer.switch("waiting")
            for source in wait([self.channel, self.listener, *self.verified], self._wait_s()):
                if source is self.channel:
                    if isinstance(self.channel.recv(), Stop):
                        return
                elif source is self.listener:
                    self._accept()
                else:
                    self._hear(source)  # type: ignore[arg-type]
            self.row[0] = time.monotonic_ns()
            while self.waiting and self._enough():
                self._serve()
            self.seconds[:] = list(self.timer.seconds().values())

    def _wait_s(self) -> float:
        """Seconds to wait for more groups."""
        if not self.waiting:
            return _LOOK_EVERY_S
        left = self.waiting_since_s + self.options.batch_timeout_s - time.monotonic()
        return min(_LOOK_EVERY_S, max(0.0, left))

    def _enough(self) -> bool:
        streams = sum(self.places[request.group].num_streams for request, _ in self.waiting)
        least = min(self.options.batch_min, self.work.most_waiting)
        late = time.monotonic() - self.waiting_since_s >= self.options.batch_timeout_s
        return self.options.exact or streams >= least or late

    def _accept(self) -> None:
        caller = self.listener.accept()[0]
        if _another_users(caller):  # such a caller could block the server by an unfinished message
            caller.close()
            return
        self.verified[Connection(caller.detach())] = False

    def _hear(self, line: Connection) -> None:
        """Takes a worker's token, then its requests; drops those of a worker that is gone."""
        try:
            message = line.recv_bytes(_LONGEST_REQUEST)
            if not self.verified[line] and message != self.work.token:
                raise EOFError
        except (EOFError, OSError):  # the worker is gone, or gave its unroll up
            del self.verified[line]
            self.waiting = [entry for entry in self.waiting if entry[1] is not line]
            line.close()
            return
        if not self.verified[line]:
            self.verified[line] = True
            return
        request = Request.unpacked(message)
        if int(self.mail[request.group].ticket) != request.ticket:
            return  # a dead worker's request
        if not self.waiting:
            self.waiting_since_s = time.monotonic()
        self.waiting.append((request, line))

    def _serve(self) -> None:
        """Makes one forward for the first waiting group and, unless `exact`, for all others with
        the same policies that fit.
        """
        self.timer.switch("acting")
        policies = self.work.assignment.of(self.waiting[0][0].group)
        now: list[tuple[Request, Connection]] = []
        streams = 0
        for entry in self.waiting[:1] if self.options.exact else [*self.waiting]:
            if self.work.assignment.of(entry[0].group) != policies:
                continue
            more = self.places[entry[0].group].num_streams
            if now and streams + more > self.options.batch_max:
                break
            now.append(entry)
            self.waiting.remove(entry)
            streams += more
        self._load(policies, now[0][0].versions)
        actor = self.actors[policies]
        private = [self._private(actor, request) for request, _ in now]
        out = self._act(policies, [self.mail[request.group] for request, _ in now], private)
        row = 0
        for (request, line), before in zip(now, private, strict=True):
            rows = slice(row, row + self.places[request.group].num_streams)
            row = rows.stop
            # Both are kept: the worker may repeat the act from the state before.
            left = {name: out.state[name][rows] for name in before}
            self.private[request.group] = {request.after: before, request.ticket: left}
            self.mail[request.group].answer(out, rows, self.loaded[policies[0]])
            with suppress(OSError):  # the worker has ended, which `_hear` notices
                line.send_bytes(b"\1")
        self.served[:] += 1, streams
        self.row[1] = 0

    @OwnTorch()
    def _load(self, policies: tuple[int, ...], versions: tuple[int, ...]) -> None:
        """Loads the newest weights, in exact kinds the requested ones."""
        for policy, version in zip(policies, versions, strict=True):
            board = self.boards[policy]
            needed = version if self.options.exact else board.version
            if self.loaded[policy] != needed:
                load = (self.staged.get(policies) or self.actors[policies]).load
                self.loaded[policy] = board.read(load, needed if self.options.exact else None)

    @OwnTorch()
    @torch.inference_mode()
    def _act(
        self, policies: tuple[int, ...], mail: Sequence[Mailbox], private: Sequence[State]
    ) -> ActOutput:
        """The actions for requests of the same policies, computed together."""
        obs, is_first = [box.obs for box in mail], [box.is_first for box in mail]
        states = [box.state | own for box, own in zip(mail, private, strict=True)]
        noise = [box.noise for box in mail]
        if policies in self.staged:
            return self.staged[policies].act_together(obs, states, is_first, noise)

        def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
            whole = parts[0] if len(parts) == 1 else torch.cat([*parts])
            return whole.to(self.device, non_blocking=True)

        def leaves(each: Sequence[State]) -> dict[str, torch.Tensor]:
            return {leaf: joined([tree[leaf] for tree in each]) for leaf in each[0]}

        actor = self.actors[policies]
        return actor.act(leaves(obs), leaves(states), joined(is_first), joined(noise))

    @OwnTorch()
    def _private(self, actor: Actor, request: Request) -> State:
        """The actor's private state after the act `after`."""
        if request.after != BEGINS:
            return self.private[request.group][request.after]
        initial = actor.initial_state(self.places[request.group].num_streams)
        return {
            name: x.to(self.device) for name, x in initial.items() if name not in actor.state_specs
        }


def _another_users(caller: socket) -> bool:
    """Whether the caller is another user's process; False if the system doesn't report it."""
    if sys.platform != "linux":
        return False
    _, uid, _ = struct.unpack("3i", caller.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12))
    return bool(uid != os.getuid())


def main() -> int:
    callers = int(sys.argv[3])  # first: the user's own arguments take their place
    pickled, arena, channel = begin()
    try:
        work: ServerWork = user_state.work_of(pickled)
        configure_torch(work.options.threads, work.options.device, work.options.gpu)
        with inexact_told(printing.say):
            Server(work, arena, channel, socket(fileno=callers)).run()
    except BaseException as error:  # a model's own code may raise anything
        report_failure(channel, error)
        return 1
    return 0
