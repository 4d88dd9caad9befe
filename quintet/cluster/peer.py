"""A node as the learner sees it: its connection, who lives there, and what it does, in numbers."""

import secrets
import socket
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import final

from quintet.cluster.node_messages import TOKEN_BYTES
from quintet.errors import WorkerFault
from quintet.jobs import on_ray
from quintet.jobs.link import Link, filling
from quintet.jobs.on_ray import Hosted
from quintet.jobs.roster import ANSWER_S, Node

_LOOK_EVERY_S = 0.5


class _Served:
    """A node's process, which Ray starts there."""

    def serve(self, address: tuple[str, int], token: bytes) -> str:
        from quintet.cluster.node import serve

        serve(address, token)
        return "it ended"


@final
class Peer:
    """A node that takes part as soon as it is connected.

    node.index: its number in the run; a node that comes back has another one.
    thread: receives what it sends.
    workers: those that live there.
    rows: see `Beat`.
    """

    thread: Thread

    def __init__(self, node: Node, cores: int):
        """cores: number that it reserves in Ray, at most all of its own."""
        self.node = node
        self._cores = min(cores, node.machine.cores)
        self._hosted: Hosted | None = None
        self._link: Link | None = None
        self.workers: set[int] = set()
        self.rows: Mapping[str, tuple[int, str]] = {}

    def connect(self, work: object, silence_s: float, ending: Event) -> str | None:
        """Starts the node's process, connects it and gives it work; returns the reason if it can't.
        Raises WorkerFault if it fails or takes too long, or once the run is `ending`.
        """
        token, begin_s = secrets.token_bytes(TOKEN_BYTES), time.monotonic()

        def go_on() -> None:
            if (failure := self.failure()) is not None:
                raise WorkerFault(failure)
            if ending.is_set():
                raise WorkerFault("the run ends")
            if time.monotonic() - begin_s > ANSWER_S:
                late = f"it did not answer within {ANSWER_S:g} s; others may use its cores"
                raise WorkerFault(late)

        with socket.create_server((on_ray.here(), 0)) as listener:
            listener.settimeout(_LOOK_EVERY_S)
            # Users' code may use signals, so it runs in the main thread.
            self._hosted = Hosted(self.node.machine, _Served, self._cores, threads=1)
            self._hosted.ask("serve", listener.getsockname(), token)
            while (connection := _accepted(listener, token)) is None:
                go_on()
        self._link = Link(connection, silence_s)
        go_on()  # whoever ends the run ends connections that there are
        self._begin()
        self.link.post(work)
        while True:
            try:
                return self.link.receive()  # type: ignore[no-any-return]
            except TimeoutError:  # imports may take long
                go_on()

    def failure(self) -> str | None:
        """Describes how its process ended; None while it runs or waits for its cores."""
        try:
            ended: str | None = None if self._hosted is None else self._hosted.answer()
        except WorkerFault as error:
            return str(error)
        return ended

    def kill(self) -> None:
        """Ends its process at once."""
        if self._hosted is not None:
            self._hosted.kill()
        self.shut()

    def shut(self) -> None:
        """Ends the connection, and with it the thread."""
        if self._link is not None:
            self._link.close()

    def free(self) -> None:
        """Ends all that there is of it."""
        self.kill()
        if self._link is not None:
            self._link.free()

    @property
    def link(self) -> Link:
        assert self._link is not None
        return self._link

    @property
    def name(self) -> str:
        return self.node.name

    def load(self, workers: int) -> float:
        """Workers per core with this many workers."""
        return workers / self.node.machine.cores

    def _begin(self) -> None:
        self._since_s = time.monotonic()
        self._bytes = self.link.bytes_in, self.link.bytes_out
        self._shares: Counter[str] = Counter()
        self._beats = self._executed = self._aged = 0
        self._age_s = 0.0

    def add(self, shares: Mapping[str, float]) -> None:
        """Adds the shares of the workers' time since the last beat."""
        self._beats += 1
        self._shares.update(shares)

    def unroll(self, executed: int, published_s: float | None) -> None:
        """Adds an unroll: its env_steps, and when the weights that acted were published."""
        self._executed += executed
        if published_s is not None:
            self._aged += 1
            self._age_s += time.monotonic() - published_s

    def report(self) -> dict[str, float]:
        """Means since the last report: shares of the workers' time, ``worker/INDEX/PHASE_frac``,
        and metrics of the node.
        """
        passed_s = max(time.monotonic() - self._since_s, 1e-9)
        report = {name: share / self._beats for name, share in self._shares.items()}
        waiting = sum(share for name, share in report.items() if name.endswith("/waiting_frac"))
        before_in, before_out = self._bytes
        own = {
            "workers": float(len(self.workers)),
            "env_steps_per_s": self._executed / passed_s,
            "in_bytes_per_s": (self.link.bytes_in - before_in) / passed_s,
            "out_bytes_per_s": (self.link.bytes_out - before_out) / passed_s,
        }
        if self._beats and self.workers:
            own["waiting_frac"] = waiting / len(self.workers)
        if self._aged:
            own["weights_age_s"] = self._age_s / self._aged
        self._begin()
        return report | {f"node/{self.node.index}/{name}": x for name, x in own.items()}


def _accepted(listener: socket.socket, token: bytes) -> socket.socket | None:
    """The connection of a process that has sent the token; None: nobody has, for a while."""
    received = bytearray(TOKEN_BYTES)
    with suppress(OSError):
        connection, _ = listener.accept()
        connection.settimeout(_LOOK_EVERY_S)
        with suppress(OSError, EOFError):
            for _ in filling(connection, received):
                pass
        if secrets.compare_digest(received, token):
            return connection
        connection.close()  # a stranger
    return None
