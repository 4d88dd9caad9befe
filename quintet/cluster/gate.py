"""The way into a run: an actor on each node of the cluster, checked before it takes part."""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, final

from quintet.cluster.config import ClusterConfig
from quintet.cluster.node_messages import TOKEN_BYTES
from quintet.errors import WorkerFault
from quintet.jobs import on_ray
from quintet.jobs.link import Link, filling
from quintet.jobs.on_ray import Hosted, Machine
from quintet.system import provenance

_LOOK_EVERY_S = 2.0
"""Seconds between two looks for new nodes."""

_ANSWER_S = 120.0
"""Seconds for a node to import and unpickle its work."""


class Entry(NamedTuple):
    """Conditions of taking part.

    work: is sent to every node.
    facts: versions and processor of the learner's machine, see `quintet.system.provenance`.
    exact: whether all of these must be equal; otherwise only a few must, and other differences are
        reported.
    cores: number that a node reserves in Ray, at most all of its own.
    """

    work: object
    facts: Mapping[str, str]
    exact: bool
    config: ClusterConfig
    cores: int


class _Served:
    """A node's process, which Ray starts there."""

    def serve(self, address: tuple[str, int], token: bytes) -> str:
        from quintet.cluster.node import serve

        serve(address, token)
        return "it ended"


@final
class Actor:
    """The actor of one node; it is never restarted."""

    def __init__(self, machine: Machine, cores: int, *given: Any):
        """cores: number that it reserves in Ray; given: argument of `serve`."""
        self._hosted = Hosted(machine, _Served, cores, threads=1)  # users' code may use signals
        self._hosted.ask("serve", *given)

    def failure(self) -> str | None:
        """Describes how it ended; None while it runs or waits for its cores."""
        try:
            ended: str | None = self._hosted.answer()
        except WorkerFault as error:
            return str(error)
        return ended

    def kill(self) -> None:
        """Ends it at once."""
        self._hosted.kill()


@final
class Visitor:
    """A node's actor: waiting to connect, part of the run, or `unfit`."""

    def __init__(self, machine: Machine, actor: Actor):
        self.machine, self.actor = machine, actor
        self.joined = self.unfit = False
        self.begun_s = time.monotonic()

    @property
    def awaited(self) -> bool:
        return not (self.joined or self.unfit)


@final
class Gate:
    """Begins actors and lets them connect, in threads of its own."""

    def __init__(
        self,
        entry: Entry,
        joined: Callable[[Visitor, Link], None],
        refused: Callable[[str], None],
        say: Callable[[str], None],
    ):
        """joined: receives a node and its connection; refused: a sentence about a node that can't
        take part; say: a sentence about a node that differs but may take part, or is tried again.
        """
        self._entry, self._joined, self._refused, self._say = entry, joined, refused, say
        self._listener = socket.create_server((on_ray.here(), 0), backlog=128)
        self._listener.settimeout(_LOOK_EVERY_S)
        self._visitors: dict[bytes, Visitor] = {}  # visitors by their tokens
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._look()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def awaited(self) -> list[str]:
        """Addresses of nodes that have not joined yet."""
        with self._lock:
            return [each.machine.address for each in self._visitors.values() if each.awaited]

    def forget(self, visitor: Visitor) -> None:
        """Lets a lost node take part again, as a new one, if it is still there."""
        with self._lock:
            for token in [t for t, each in self._visitors.items() if each is visitor]:
                del self._visitors[token]

    def _look(self) -> None:
        """Begins an actor on every node that has none, and gives up those that failed."""
        now, machines = time.monotonic(), on_ray.machines()
        with self._lock:
            for token, each in list(self._visitors.items()):
                why = each.actor.failure() if each.awaited else None
                if each.awaited and now - each.begun_s > _ANSWER_S:
                    why = f"it did not answer within {_ANSWER_S:g} s; others may use its cores"
                if why is not None and "No module named" in why:
                    self._refuse(each, f"must have quintet installed, got {why}: install it there")
                elif why is not None:
                    each.actor.kill()
                    del self._visitors[token]
                    if each.machine in machines:
                        told = f"the node {each.machine.address} can't be used yet ({why})"
                        self._say(f"{told}; it is tried again")
            taken = {each.machine.id for each in self._visitors.values()}
            used = sum(not each.unfit for each in self._visitors.values())
            for machine in machines:
                if machine.id in taken or used == self._entry.config.nodes_max:
                    continue
                used += 1
                token = secrets.token_bytes(TOKEN_BYTES)
                cores = min(self._entry.cores, machine.cores)
                actor = Actor(machine, cores, self._listener.getsockname()[:2], token)
                self._visitors[token] = Visitor(machine, actor)

    def _refuse(self, visitor: Visitor, why: str) -> None:
        self._refused(f"the node {visitor.machine.address} {why}")
        visitor.unfit = True
        visitor.actor.kill()

    def _watch(self) -> None:
        looked_s = time.monotonic()
        while not self._closing.is_set():
            with suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=self._greet, args=(connection,), daemon=True).start()
            if time.monotonic() - looked_s >= _LOOK_EVERY_S and not self._closing.is_set():
                with suppress(Exception):  # Ray's head may be away for a while
                    self._look()
                looked_s = time.monotonic()

    def _greet(self, connection: socket.socket) -> None:
        """Receives a node, in a thread of its own, since one may take long."""
        token = bytearray(TOKEN_BYTES)
        connection.settimeout(_LOOK_EVERY_S)
        with suppress(OSError, EOFError):
            for _ in filling(connection, token):
                pass
        visitor = self._visitors.get(bytes(token))
        if visitor is None:  # a stranger
            return connection.close()
        link = Link(connection, self._entry.config.node_timeout_s)
        try:
            link.post(self._entry.work)
            fault = self._fault(_answer(link, visitor), visitor.machine)
        except (OSError, EOFError):  # `_look` hears why from its actor
            return link.free()
        if fault is None and not self._closing.is_set():
            visitor.joined = True
            return self._joined(visitor, link)
        link.free()
        if fault is not None:
            self._refuse(visitor, fault)
        return None

    def _fault(self, there: Mapping[str, str] | str, machine: Machine) -> str | None:
        """Returns why a node may not take part; if it may, says how it differs."""
        fault, told = provenance.compared(there, self._entry.facts, self._entry.exact)
        if told:
            self._say(f"the node {machine.address} {told}")
        return fault

    def close(self) -> None:
        """Lets nobody in any more, and ends all actors."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection (Linux)
        self._thread.join()
        self._listener.close()
        for each in list(self._visitors.values()):
            each.actor.kill()


def _answer(link: Link, visitor: Visitor) -> Mapping[str, str] | str:
    """A node's first message, for which it may have to import much."""
    while True:
        try:
            return link.receive()  # type: ignore[no-any-return]
        except TimeoutError:
            if time.monotonic() - visitor.begun_s > _ANSWER_S:
                raise
