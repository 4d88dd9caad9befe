"""One node of a run: its workers, each with memory of its own, and its connection to the learner.

Every worker is a `Workers` of one process, as on the learner's machine, with a thread that reads
its messages.
"""

import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from quintet.cluster.node_messages import Beat, Ended, Of, Published, Said, Start
from quintet.errors import ConfigError, QuintetError
from quintet.jobs import user_state
from quintet.jobs.link import Link, Views
from quintet.runtime.processes import messages
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.grants import Asking, Died, Event, Filled
from quintet.runtime.processes.messages import Failed, Place, WorkerSpec
from quintet.runtime.processes.process import prepare
from quintet.runtime.processes.workers import Workers
from quintet.types import Publication, TensorSpec

_CONNECT_S = 30.0

_LOOK_EVERY_S = 0.5

BEAT_EVERY_S = 1.0

_END_S = 8.0
"""Seconds for workers to close their environments."""


@final
@dataclass(frozen=True)
class Work:
    """Work of a node; `spec` is pickled, since it holds users' code.

    places: groups of each worker.
    publications: tensors of each policy's publications.
    state, folder: of the learner's process, see `quintet.jobs.user_state`.
    """

    spec: bytes
    places: Sequence[tuple[Place, ...]]
    publications: Sequence[Mapping[str, TensorSpec]]
    state: Mapping[str, Any]
    folder: str


@final
class Weights:
    """The last publication of a policy in memory of its own, with the same layout everywhere."""

    def __init__(self, policy: int, specs: Mapping[str, TensorSpec]):
        arena = Arena.create(specs)
        names = list(specs)
        self.publication = Publication(-1, {name: arena.tensor(name) for name in names}, policy)
        self.bytes = arena.span(names[0], names[-1])
        arena.close()  # the memory lives as long as its views


def serve(address: tuple[str, int], token: bytes) -> None:
    """Connects to the learner and works until it ends the node or is gone."""
    prepare()  # imports go on while the learner is answered
    connection = socket.create_connection(address, _CONNECT_S)
    connection.sendall(token)
    link = Link(connection)
    try:
        work = link.receive()
        try:
            node = Node(link, work)
        except Exception as error:  # unpickling runs users' code
            link.send(refusal(error))
            return
        node.run()
    finally:
        link.free()


def refusal(error: Exception) -> str:
    """Reason why a node can't take part, as the end of a sentence about it."""
    if isinstance(error, ModuleNotFoundError):
        return f"must have the package {error.name}, which this run imports: install it there"
    if isinstance(error, ConfigError):
        return f"can't do its part: {error}"
    return f"can't read what it is sent: {type(error).__name__}: {error}"


@final
class Node:
    """The workers of one node."""

    def __init__(self, link: Link, work: Work):
        """Raises whatever the user's code raises when it is unpickled."""
        torch.set_num_threads(1)
        user_state.enter(work.folder)
        user_state.restore(user_state.for_this_machine(work.state))
        self.link, self.work = link, work
        self.spec: WorkerSpec = user_state.work_of(work.spec)
        self.weights = [Weights(k, specs) for k, specs in enumerate(work.publications)]
        self.hosted: dict[int, Hosted] = {}
        self.lock = threading.Lock()  # guards the boards and the list of workers
        self.ending = threading.Event()

    def run(self) -> None:
        """Does as the learner says until it ends the node, or is gone."""
        self.link.send(None)
        threading.Thread(target=self._beat, daemon=True).start()
        try:
            while not isinstance(message := self.link.receive(self._place), messages.Stop):
                self._do(message)
        except (OSError, EOFError):  # nobody waits for environments to be closed
            for hosted in self.hosted.values():
                hosted.stop()
        finally:
            self.ending.set()
            for hosted in self.hosted.values():
                hosted.thread.join(_END_S)

    def _place(self, message: Published) -> Views:
        return [self.weights[message.policy].bytes]

    def _do(self, message: Any) -> None:
        """Carries out a message of the learner: new weights, or one to a worker."""
        if isinstance(message, Published):
            weights = self.weights[message.policy]
            with self.lock:
                publication = replace(weights.publication, version=message.version)
                weights.publication = publication
                for hosted in self.hosted.values():
                    if hosted.workers is not None:
                        hosted.workers.publish(publication)
        elif isinstance(message.message, Start):
            before = self.hosted.get(message.worker)
            if before is not None:
                before.thread.join()  # the end is sent already
            with self.lock:
                self.hosted[message.worker] = Hosted(self, message.worker)
        else:
            self.hosted[message.worker].do(message.message)

    def _beat(self) -> None:
        """Sends the workers' progress and time shares until the node ends."""
        with suppress(OSError):
            while not self.ending.wait(BEAT_EVERY_S):
                rows: dict[str, tuple[int, str]] = {}
                shares: dict[str, float] = {}
                with self.lock:
                    for hosted in self.hosted.values():
                        if hosted.workers is not None:
                            rows |= hosted.workers.progress()
                            shares |= hosted.workers.report()
                self.link.send(Beat(rows, shares))


@final
class Hosted:
    """One worker of a node, and the thread that reads its messages.

    workers: None before it is made and after its end.
    """

    def __init__(self, node: Node, worker: int):
        self.node, self.worker = node, worker
        self.workers: Workers | None = None
        self.stopped = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def do(self, message: Any) -> None:
        """Passes a message of the learner on; it is ignored if the worker has ended."""
        if isinstance(message, messages.Stop):
            return self.stop()
        with self.node.lock:
            if (workers := self.workers) is None:
                return None
            if isinstance(message, messages.Fill):
                workers.grants.give(0, message)
            elif isinstance(message, messages.More):
                workers.grants.extend(0, message.rows)
            else:
                workers.processes[0].send(message)
        return None

    def stop(self) -> None:
        """Ends the worker at once."""
        self.stopped = True
        if (workers := self.workers) is not None:
            workers.kill()

    def _run(self) -> None:
        """Runs the worker until it is stopped or fails, then sends its end."""
        node, executed = self.node, 0
        failed = Failed("WorkerFault", f"worker {self.worker} was stopped", "")
        try:
            workers = self._make()
            try:
                workers.start()
                self._send(messages.Ready())
                while not (self.stopped or node.ending.is_set()):
                    for event in workers.events(_LOOK_EVERY_S):
                        if isinstance(event, Died):
                            executed = event.executed
                            raise event.error
                        self._tell(workers, event)
                executed = workers.grants.lose(0).executed
            finally:
                with node.lock:
                    self.workers = None
                workers.close()
        except Exception as error:
            detail = error.detail if isinstance(error, QuintetError) else ""
            failed = Failed(type(error).__name__, str(error), detail)
        with suppress(OSError):  # the learner may be gone
            self._send(Ended(failed, executed))

    def _make(self) -> Workers:
        """The worker's process, with the newest weights."""
        node = self.node
        work = node.work
        spec = replace(
            node.spec, places=work.places[self.worker], num_workers=1, first_worker=self.worker
        )
        forms = [weights.publication for weights in node.weights]
        workers = Workers(spec, forms, self._say, lambda _: None)
        with node.lock:
            for weights in node.weights:
                if weights.publication.version >= 0:
                    workers.publish(weights.publication)
            self.workers = workers
        return workers

    def _say(self, line: str) -> None:
        with suppress(OSError):
            self.node.link.send(Said(line))

    def _send(self, message: tuple[Any, ...], blocks: Views = ()) -> None:
        self.node.link.send(Of(self.worker, message), blocks)

    def _tell(self, workers: Workers, event: Event) -> None:
        """Sends the learner a worker's event, with the bytes of filled slots."""
        if isinstance(event, Asking):
            self._send(messages.Paused(event.executed))
        elif isinstance(event, Filled):
            self._send(event.full, workers.grants.bytes_of(0, event.full.slots))
