"""The inference server, a process begun by `quintet.runtime.processes.workers`.

Workers ask it to act on their groups' mailboxes.  In exact kinds each forward is of one group, by
the weights that it asks for; else the groups that wait are one batch, by the newest weights.
"""

import os
import pickle
import socket as sockets
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from socket import socket
from typing import final

import torch

from quintet.observe.timing import PhaseTimer
from quintet.protocols import Actor
from quintet.runtime.policies import load_policy, make_group_actor
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.mailbox import Mailbox
from quintet.runtime.processes.messages import Place, Ready, ServerWork, Stop
from quintet.runtime.processes.params import Board
from quintet.runtime.processes.process import BEGINNING
from quintet.runtime.processes.remote import unpacked
from quintet.runtime.processes.worker import begin, report_failure
from quintet.runtime.torch_settings import configure_torch, inexact_told
from quintet.types import ActOutput, Publication

_LOOK_EVERY_S = 0.25
_LONGEST_REQUEST = 65_536  # bytes


@final
class Server:
    """Waits for groups, acts on them, answers."""

    def __init__(self, work: ServerWork, arena: Arena, channel: Connection, listener: socket):
        self.work, self.channel, self.listener = work, channel, listener
        self.timer = PhaseTimer()
        self.row = arena.tensor("server/row").numpy()
        self.seconds = arena.tensor("server/seconds").numpy()
        self.served = arena.tensor("server/served").numpy()
        self.places = {place.group: place for place in work.places}
        self.mail = {group: Mailbox(arena, group) for group in self.places}
        self.boards = [Board(arena, policy) for policy in range(work.num_policies)]
        self.actor: Actor = make_group_actor(work.make_actor, work.num_policies)
        self.device = torch.device(work.device)
        self.loaded = [-1] * work.num_policies
        self.lines: list[Connection] = []
        self.strangers: set[Connection] = set()
        self.waiting: list[tuple[Place, tuple[int, ...], Connection]] = []
        self.waiting_since_s = 0.0
        self.row[1] = BEGINNING  # until the first forward, which may be compiled

    def run(self) -> None:
        """Serves until told to stop."""
        self.channel.send(Ready())
        while True:
            self.timer.switch("waiting")
            for source in wait([self.channel, self.listener, *self.lines], self._patience_s()):
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

    def _patience_s(self) -> float:
        """How long to wait for more groups."""
        if not self.waiting:
            return _LOOK_EVERY_S
        left = self.waiting_since_s + self.work.batch_timeout_s - time.monotonic()
        return min(_LOOK_EVERY_S, max(0.0, left))

    def _enough(self) -> bool:
        streams = sum(place.num_streams for place, _, _ in self.waiting)
        least = min(self.work.batch_min, self.work.most_waiting)
        late = time.monotonic() - self.waiting_since_s >= self.work.batch_timeout_s
        return self.work.exact or streams >= least or late

    def _accept(self) -> None:
        caller = self.listener.accept()[0]
        if _another_users(caller):  # who could have us wait for the rest of what he says
            caller.close()
            return
        line = Connection(caller.detach())
        self.lines.append(line)
        self.strangers.add(line)  # until it has said the token

    def _hear(self, line: Connection) -> None:
        try:
            said = line.recv_bytes(_LONGEST_REQUEST)
            if line in self.strangers and said != self.work.token:
                raise EOFError
        except (EOFError, OSError):  # the worker is gone, or gave its unroll up
            self.lines.remove(line)
            self.strangers.discard(line)
            self.waiting = [entry for entry in self.waiting if entry[2] is not line]
            line.close()
            return
        if line in self.strangers:
            self.strangers.remove(line)
            return
        group, ticket, versions = unpacked(said)
        if int(self.mail[group].ticket) != ticket:
            return  # of a worker that is dead
        if not self.waiting:
            self.waiting_since_s = time.monotonic()
        self.waiting.append((self.places[group], versions, line))

    def _serve(self) -> None:
        """One forward: of the group that came first, or of as many as there is room for."""
        self.timer.switch("acting")
        now = [self.waiting.pop(0)]
        streams = now[0][0].num_streams
        while self.waiting and not self.work.exact:
            if streams + self.waiting[0][0].num_streams > self.work.batch_max:
                break
            now.append(self.waiting.pop(0))
            streams += now[-1][0].num_streams
        self._load(now[0][1])
        out = self._act([self.mail[place.group] for place, _, _ in now])
        row = 0
        for place, _, line in now:
            rows = slice(row, row + place.num_streams)
            self.mail[place.group].answer(out, rows, self.loaded[0])
            row = rows.stop
            with suppress(OSError):  # it has ended meanwhile, which `_hear` finds
                line.send_bytes(b"\1")
        self.served[:] += 1, streams
        self.row[1] = 0

    def _load(self, versions: tuple[int, ...]) -> None:
        """The newest weights, or in exact kinds those that are asked for."""
        for policy, board in enumerate(self.boards):
            wanted = versions[policy] if self.work.exact else board.version
            if self.loaded[policy] != wanted:
                exactly = wanted if self.work.exact else None
                self.loaded[policy] = board.read(partial(self._take, policy), exactly)

    def _take(self, policy: int, publication: Publication) -> None:
        load_policy(self.actor, publication, policy)

    @torch.inference_mode()
    def _act(self, mail: Sequence[Mailbox]) -> ActOutput:
        """One forward of all these groups."""

        def joined(parts: list[torch.Tensor]) -> torch.Tensor:
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            return whole.to(self.device, non_blocking=True)

        def leaves(name: str) -> dict[str, torch.Tensor]:
            each: list[dict[str, torch.Tensor]] = [getattr(box, name) for box in mail]
            return {leaf: joined([tree[leaf] for tree in each]) for leaf in each[0]}

        return self.actor.act(
            leaves("obs"),
            leaves("state"),
            joined([box.is_first for box in mail]),
            joined([box.noise for box in mail]),
        )


def _another_users(caller: socket) -> bool:
    """Whether it belongs to somebody else on this machine; False where the system doesn't say."""
    if sys.platform != "linux":
        return False
    _, uid, _ = struct.unpack("3i", caller.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, 12))
    return bool(uid != os.getuid())


def main() -> int:
    """Serves until told to stop."""
    pickled, arena, channel = begin()
    try:
        work: ServerWork = pickle.loads(pickled)
        configure_torch(work.threads, work.device, work.exact)
        with inexact_told(print):
            Server(work, arena, channel, socket(fileno=int(sys.argv[3]))).run()
    except Exception as error:  # a model's own code may raise anything
        report_failure(channel, error)
        return 1
    return 0
