"""The nodes of a cluster with the interface of `quintet.runtime.processes.workers.Workers`.

The groups of a worker are fixed by the configuration; a node is where it lives, and each worker's
seat says where that is.  A worker moves by ending on one node and starting on another, where its
streams begin again.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, final

from quintet.cluster.node import Weights, Work
from quintet.cluster.node_messages import Beat, Ended, Of, Published, Said, Start
from quintet.cluster.peer import Peer
from quintet.errors import ConfigError, WorkerFault
from quintet.jobs import user_state
from quintet.jobs.link import Views, no_block
from quintet.jobs.roster import POLL_S, Questions, Roster, Terms
from quintet.runtime.processes import messages
from quintet.runtime.processes.grants import Died, Event, Filled, Grants, Lost
from quintet.runtime.processes.messages import WorkerSpec
from quintet.runtime.processes.process import WaitNotice, error_of
from quintet.runtime.processes.workers import sendable, whereabouts
from quintet.runtime.slots import RowSpecs
from quintet.system import printing
from quintet.system.transfer import to_host
from quintet.types import Publication, TensorSpec

_LOOK_EVERY_S = 0.5

_OTHERS_S = 15.0
"""Seconds that a run waits for further nodes once it has the least number."""

_END_S = 10.0
"""Seconds for nodes to end their workers."""


class _Joined(NamedTuple):
    """Reports that a node may be given workers."""


class _Disconnected(NamedTuple):
    """A node's connection ended."""

    why: str


@final
class Seat:
    """The place of a worker: none while a node is awaited.

    leaving: it was told to end on its node, to move to another.
    received: number of its unrolls that are in their slots but not yet reported as events.
    """

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.vacate()

    def vacate(self) -> None:
        self.peer: Peer | None = None
        self.ready = self.leaving = False
        self.received = 0
        self._restart: messages.Restart | None = None  # sent once it is ready

    def send(self, message: tuple[Any, ...]) -> None:
        """Sends the worker a message; a restart as soon as it is ready."""
        if isinstance(message, messages.Restart) and not self.ready:
            self._restart = message
        elif self.peer is not None:
            self.peer.link.post(Of(self.worker, message))

    def welcome(self) -> None:
        """Notes that the worker is ready."""
        self.ready = True
        if self._restart is not None:
            self.send(self._restart)


@final
class Nodes:
    """Gives workers to nodes, grants them slots of this machine and reports their events.

    One thread at a time may call `start`, `replace`, `events` and `close`; other methods, and
    leases of its unrolls, may be used by any thread.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        publications: Sequence[Publication],
        terms: Terms,
        questions: Questions,
        say: Callable[[str], None] = printing.say,
        notice: Callable[[str], None] = lambda _: None,
    ):
        """See `Workers`.  Raises ConfigError if there is no cluster, there are too few nodes, one
        of them may not take part, or nodes can't be sent their work.
        """
        assert spec.server is None
        self.spec, self.terms, self.say, self.notice = spec, terms, say, notice
        self._moves = not questions.exact  # whether workers may move while they have grants
        self.grants = Grants(spec)
        groups = [sampler.places for sampler in self.grants.samplers]
        forms = [
            {k: TensorSpec(tuple(x.shape), x.dtype) for k, x in each.tensors.items()}
            for each in publications
        ]
        state, folder = user_state.capture(), questions.working_folder
        self._work = Work(sendable(spec), groups, forms, state, folder)
        actor = spec.assignment.make_actor(spec.make_actor)
        rows = RowSpecs.of(spec.spaces, actor, spec.num_metrics)
        self.grants.open(rows, {})
        self._lock = self.grants.lock
        self._seats = [Seat(sampler.index) for sampler in self.grants.samplers]
        for sampler, seat in zip(self.grants.samplers, self._seats, strict=True):
            sampler.process = seat
        self._peers: list[Peer] = []
        self._lost_nodes = 0  # number of nodes
        self._weights = [Weights(policy, form) for policy, form in enumerate(forms)]
        self._published: dict[int, tuple[Published, Views]] = {}
        self._published_s: dict[tuple[int, int], float] = {}
        self._inbox: SimpleQueue[tuple[Peer, Any]] = SimpleQueue()
        self._refused: list[str] = []
        self._free: list[int] = []  # workers that became ready
        self._started = self._uneven = self._closed = False
        self._enough_s = time.monotonic()  # last time with enough nodes
        self._ending = threading.Event()
        self._hosts: set[Peer] = set()  # nodes whose process was begun
        self._roster: Roster | None = None
        self._watch: threading.Thread | None = None
        try:
            self._roster = Roster(terms, questions, say)
            self._watch = threading.Thread(target=self._admit, args=(self._roster,), daemon=True)
            self._watch.start()
            self._await_first(self._roster)
        except BaseException:
            self.close()
            raise

    def _admit(self, roster: Roster) -> None:
        """Has nodes checked, and connects those that are fit, until the run ends."""
        while not self._ending.wait(POLL_S):
            with suppress(Exception):  # Ray's head may be away for a while
                for refused in roster.look():
                    self._refuse(refused)
                hosted = {peer.node for peer in list(self._hosts)}
                nodes = min(len(roster.nodes), self.terms.nodes_max or self.spec.num_workers)
                cores = -(-self.spec.num_workers // max(1, nodes))
                for node in [each for each in roster.fit if each not in hosted]:
                    peer = Peer(node, cores)
                    peer.thread = threading.Thread(target=self._host, args=(peer,), daemon=True)
                    self._hosts.add(peer)
                    peer.thread.start()

    def _await_first(self, roster: Roster) -> None:
        """Waits until the present nodes have joined or been refused, and at least the least number
        has joined."""
        begin_s, least = time.monotonic(), self.terms.nodes_min
        notice = self.wait_notice()
        while len(self._peers) < least or (
            self._awaited and time.monotonic() - self._enough_s < _OTHERS_S
        ):
            self.events(_LOOK_EVERY_S)
            notice.look()
            if self._refused:
                break
            if len(self._peers) < least:
                self._enough_s = time.monotonic()
                if not roster.asked:
                    roster.require_enough(len(self._peers), begin_s)
        if self._refused:
            raise ConfigError(self._refused[0])

    @property
    def _awaited(self) -> list[str]:
        """Addresses of nodes that are checked or connected."""
        joined = {peer.node for peer in self._peers}
        nodes = [] if self._roster is None else list(self._roster.nodes.values())
        awaited = [each for each in nodes if each.check is not None or each.fit]
        return [each.machine.address for each in awaited if each not in joined]

    def _refuse(self, sentence: str) -> None:
        self._refused.append(sentence)
        if self._published:
            self.say(f"{sentence}; it is left out")

    def start(self) -> None:
        """Gives every worker a node and waits until all are ready.  Raises QuintetError if one of
        them failed, or took too long; the others continue to start.
        """
        with self._lock:
            self._started = True
            self._settle(even=True)
        notice = self.wait_notice()
        while not all(seat.ready for seat in self._seats):
            notice.look()
            for event in self.events(_LOOK_EVERY_S):
                if isinstance(event, Died):
                    raise event.error

    def replace(self, index: int) -> None:  # noqa: ARG002 (all that have no seat)
        """A worker that died starts again, on any node, as soon as there is one."""
        with self._lock:
            self._settle(even=False)

    def publish(self, publication: Publication) -> None:
        """Publishes weights to all nodes."""
        policy, tensors = publication.policy, to_host(publication.tensors)
        weights = self._weights[policy]
        with self._lock:
            for name, x in weights.publication.tensors.items():
                x.copy_(tensors[name])
            posted = (Published(policy, publication.version), [memoryview(weights.bytes.tobytes())])
            self._published[policy] = posted
            self._published_s[policy, publication.version] = time.monotonic()
            while len(self._published_s) > 1_000:
                del self._published_s[next(iter(self._published_s))]
            # Workers act with the newest weights: a slow node never gets some of them.
            key = policy if self._moves else None
            for peer in self._peers:
                peer.link.post(*posted, key=key)

    def events(self, timeout_s: float) -> list[Event]:
        """Events since the last call, oldest first; waits for one as long as `timeout_s`.  Raises
        WorkerFault if there were too few nodes for too long.
        """
        found: list[Event] = []
        with self._lock:
            self._settle(even=self._moves)
        try:
            heard = [self._inbox.get(timeout=timeout_s)]
            while not self._inbox.empty():
                heard.append(self._inbox.get())
        except Empty:
            heard = []
        for peer, message in heard:
            with self._lock:
                found += self._take_in(peer, message)
        while self._free:  # without the lock, which whoever is called may wait for
            self.grants.on_free(self._free.pop())
        self._require_nodes()
        return found

    def _take_in(self, peer: Peer, message: Any) -> list[Event]:
        """Events that follow from a node's message."""
        if isinstance(message, Of):
            return self._take_in_of(peer, *message)
        if isinstance(message, _Disconnected):
            return self._lose(peer, message.why)
        if isinstance(message, _Joined):
            self._welcome(peer)
        elif isinstance(message, Beat):
            peer.rows = message.rows
            peer.add(message.shares)
        else:
            self.say(f"[{peer.name}] {message.line}")
        return []

    def _take_in_of(self, peer: Peer, worker: int, message: Any) -> list[Event]:
        """Events that follow from a message of a worker of the node."""
        seat = self._seats[worker]
        if isinstance(message, Ended):
            leaving = seat.leaving
            executed = self._vacate(worker).executed + message.executed
            if leaving:
                return [Lost(worker, executed)]
            error = error_of(message.failed, f"worker {worker}")
            error.args = (f"on {peer.name}: {error}",)
            return [Died(worker, error, executed)]
        if isinstance(message, messages.Ready):
            if not seat.leaving:
                seat.welcome()
                self._free.append(worker)
            return []
        event = self.grants.hear(worker, message)
        if isinstance(event, Filled):
            seat.received -= 1
            for unroll in event.unrolls:
                rollout = unroll.block.rollout
                acted = int(rollout.policy_id[0, 0]), int(rollout.version[0, 0])
                peer.unroll(unroll.executed, self._published_s.get(acted))
        return [event]

    def _welcome(self, peer: Peer) -> None:
        for posted in self._published.values():
            peer.link.post(*posted)
        self._peers.append(peer)
        self._uneven = True
        if self._published:
            self.say(f"{peer.name} joins, with {peer.node.machine.cores} cores")

    def _host(self, peer: Peer) -> None:
        """Connects a node and receives from it, unrolls right into slots, until it is gone."""
        silence_s = self.terms.node_timeout_s
        try:
            fault = peer.connect(self._work, silence_s, self._ending)
            if fault is not None:
                peer.node.fit = False
                peer.kill()
                return self._refuse(f"the node {peer.node.machine.address} {fault}")
            self._inbox.put((peer, _Joined()))
            while True:
                self._inbox.put((peer, peer.link.receive(partial(self._place, peer))))
        except TimeoutError:
            silent = f"it sent nothing for {silence_s:g} s (cluster.node_timeout_s)"
            why = "its machine, its process or the network was stopped"
            self._inbox.put((peer, _Disconnected(f"{silent}: {why}")))
        except Exception as error:  # whatever it is, the connection can't be used any more
            self._inbox.put((peer, _Disconnected(str(error) or type(error).__name__)))

    def _place(self, peer: Peer, message: Any) -> Views:
        """The memory of the slots that a worker has filled."""
        if not isinstance(message, Of) or not isinstance(message.message, messages.Full):
            return no_block(message)
        worker, slots = message.worker, message.message.slots
        with self._lock:
            sampler, seat = self.grants.samplers[worker], self._seats[worker]
            granted = [fill.slots for fill in sampler.granted][seat.received :]
            if seat.peer is not peer or slots not in granted[:1]:
                raise ConnectionError(f"worker {worker} filled {slots} there, not {granted[:1]}")
            seat.received += 1
            return self.grants.bytes_of(worker, slots)

    def _lose(self, peer: Peer, why: str) -> list[Event]:
        """Gives up the workers of a node.  Only the death of the first worker carries the error, so
        the loss counts once; the rows of unfinished unrolls are not known and are not counted.
        """
        why = peer.failure() or why
        peer.free()
        assert self._roster is not None
        self._roster.drop(peer.node, None if peer in self._peers else why)
        self._hosts.discard(peer)  # only now, or it would be connected once more
        if peer not in self._peers:
            return []
        self._peers.remove(peer)
        self._lost_nodes += 1
        events = [self._vacate(worker)._replace(executed=0) for worker in sorted(peer.workers)]
        error = WorkerFault(f"{peer.name} was lost: {why}")
        if not events:
            self.say(str(error))
            return []
        return [Died(events[0].worker, error, 0), *events[1:]]

    def _vacate(self, worker: int) -> Lost:
        """Takes away a worker's seat and grants."""
        peer = self._seats[worker].peer
        assert peer is not None
        peer.workers.discard(worker)
        self._seats[worker].vacate()
        return self.grants.lose(worker)

    def _settle(self, even: bool) -> None:
        """Gives seats to workers that have none; `even`: also moves workers to emptier nodes."""
        if not self._peers or not self._started or self._closed:
            return
        for worker, seat in enumerate(self._seats):
            if seat.peer is None:
                seat.peer = min(self._peers, key=lambda peer: peer.load(len(peer.workers) + 1))
                seat.peer.workers.add(worker)
                self.grants.samplers[worker].new = True
                seat.send(Start())
        if not (even and self._uneven):
            return
        self._uneven = False
        staying = {peer: sorted(peer.workers) for peer in self._peers}
        while True:
            full = max(staying, key=lambda peer: peer.load(len(staying[peer])))
            empty = min(staying, key=lambda peer: peer.load(len(staying[peer]) + 1))
            if empty.load(len(staying[empty]) + 1) >= full.load(len(staying[full])):
                return
            worker = staying[full].pop()
            staying[empty].append(worker)
            seat = self._seats[worker]
            if seat.peer is full:
                seat.ready, seat.leaving = False, True
                seat.send(messages.Stop())

    def _require_nodes(self) -> None:
        """Raises WorkerFault if too few nodes have been present for too long."""
        now, least, count = time.monotonic(), self.terms.nodes_min, len(self._peers)
        if count >= least or not self._published:
            self._enough_s = now
        elif now - self._enough_s > self.terms.wait_s:
            raise WorkerFault(
                f"cluster.nodes_min={least} nodes must be present, got {count} for "
                f"{now - self._enough_s:.0f} s (cluster.wait_s): add nodes, and give the same "
                "command again"
            )

    def wait_notice(self) -> WaitNotice:
        """Notices about a wait for samples that begins now."""
        return WaitNotice(self.notice, self._whereabouts)

    def _whereabouts(self) -> str:
        if len(self._peers) < self.terms.nodes_min:
            starting = f"; starting: {', '.join(self._awaited)}" if self._awaited else ""
            return f"{len(self._peers)} of at least {self.terms.nodes_min} nodes{starting}"
        rows: dict[str, tuple[int, str]] = {}
        for peer in list(self._peers):
            rows |= {f"{worker} on {peer.name}": row for worker, row in peer.rows.items()}
        for worker, seat in enumerate(self._seats):
            if not seat.ready:
                where = "a node that is awaited" if seat.peer is None else seat.peer.name
                return f"worker {worker} on {where} is starting"
        return whereabouts(rows, self.spec.plan.unroll_steps)

    def report(self) -> dict[str, float]:
        """Shares of each worker's time by phase, and node metrics ``node/INDEX/...``."""
        report = {"data/nodes": float(len(self._peers)), "data/lost_nodes": float(self._lost_nodes)}
        with self._lock:
            for peer in self._peers:
                report |= peer.report()
        return report

    def kill(self) -> None:
        """Ends all nodes at once; from any thread, before `close`."""
        for peer in list(self._hosts):
            peer.kill()

    def close(self) -> None:
        """Ends all workers and nodes and gives memory back.  A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.grants.on_free = lambda _: None
        try:
            deadline = time.monotonic() + _END_S
            for peer in self._peers:
                peer.link.post(messages.Stop())
            for peer in self._peers:
                peer.thread.join(max(0.0, deadline - time.monotonic()))
            while not self._inbox.empty():  # last words of environments
                peer, message = self._inbox.get()
                if isinstance(message, Said):
                    self._take_in(peer, message)
        finally:
            self._ending.set()
            if self._watch is not None:
                self._watch.join()
            for peer in list(self._hosts):
                peer.shut()
                peer.thread.join()  # the thread writes to the memory
                peer.free()
            if self._roster is not None:
                self._roster.close()
            self.grants.close()
