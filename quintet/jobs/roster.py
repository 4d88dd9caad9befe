"""The nodes of a Ray cluster: each is checked by a job of its own before it is given work."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple, final

from quintet.errors import ConfigError, WorkerFault
from quintet.jobs import on_ray
from quintet.jobs.child_process import how_ended
from quintet.jobs.host import Host
from quintet.jobs.job import Job, Outcome
from quintet.jobs.on_ray import Hosted, Machine
from quintet.jobs.shared import SharedFolder
from quintet.jobs.silence import Silence
from quintet.system import provenance

POLL_S = 0.1
"""Seconds between two looks for answers."""

_LOOK_EVERY_S = 2.0
"""Seconds between two looks for new nodes."""

_HEAR_EVERY_S = 1.0
"""Seconds within which a host answers, news or not."""

ANSWER_S = 120.0
"""Seconds for a node to import quintet and to make an environment."""


class Terms(NamedTuple):
    """The cluster, and how long it is waited for; see `quintet.cluster.config`."""

    address: str
    nodes_min: int
    nodes_max: int | None
    wait_s: float
    node_timeout_s: float


class Questions(NamedTuple):
    """The check of a node.

    check: makes the job that checks a node, whose answer has its `facts` (versions and processor)
        or a `fault`; its arguments are tokens of `SharedFolder` by folder, and the node's name in
        them.
    facts: versions and processor of this machine; exact: whether all of them must be equal;
        otherwise only a few must, and other differences are reported.
    working_folder: of this process.
    folders: folders in which it must read, write and lock.
    """

    check: Callable[[Sequence[tuple[Path, str]], str], Job]
    facts: Mapping[str, str]
    exact: bool
    working_folder: str
    folders: Sequence[Path] = ()


@final
class JobOnNode:
    """A job on one node; it ends where its host does.

    begun: whether its process was begun there.
    """

    def __init__(self, machine: Machine, job: Job, folder: str, cores: int = 0, gpus: int = 0):
        """folder: working folder; cores, gpus: numbers that it reserves in Ray."""
        self.begun = False
        self._host = Hosted(machine, Host, cores, gpus)
        self._host.ask("begin", job, folder)
        self._silence, self._answers = Silence(), 0

    def hear(self, silence_s: float, say: Callable[[str], None]) -> Outcome | None:
        """The outcome once it has ended; raises WorkerFault if its node is lost or silent."""
        answer = self._host.answer()
        if answer is None:
            silent_s = self._silence.look(None, self._answers, _HEAR_EVERY_S)
            if self.begun and silent_s > silence_s:
                raise WorkerFault(f"it sent nothing for {silence_s:g} s (cluster.node_timeout_s)")
            return None
        self._answers += 1
        if self.begun:
            for line in answer.lines:
                say(line)
            if answer.outcome is not None:
                outcome: Outcome = answer.outcome
                return outcome
        self.begun = True
        self._host.ask("heard")
        return None

    def tell(self, method: str) -> None:
        self._host.tell(method)

    def leave(self) -> None:
        """Ends its host."""
        self._host.kill()


@final
class Node:
    """A node of the cluster: asked, fit for work, or left out.

    check: while it is asked.
    """

    def __init__(self, index: int, machine: Machine):
        self.index, self.machine = index, machine
        self.who = secrets.token_hex(8)  # part of the names of its files
        self.check: JobOnNode | None = None
        self.begun_s = time.monotonic()
        self.fit = False

    @property
    def name(self) -> str:
        return f"node {self.index} ({self.machine.address})"

    def close(self) -> None:
        """Ends the check."""
        if self.check is not None:
            self.check.leave()
            self.check = None


@final
class Roster:
    """The nodes of a cluster, of which new ones are asked.

    nodes: those that are asked, fit or unfit, by their ids.

    Any thread may call `drop`, one the other methods.
    """

    def __init__(self, terms: Terms, questions: Questions, say: Callable[[str], None]):
        """Raises ConfigError if there is no cluster."""
        self.terms, self.questions, self.say = terms, questions, say
        self.nodes: dict[str, Node] = {}
        self._folders: list[SharedFolder] = []  # open while nodes are asked
        self._reported: list[str] = []
        self._count, self._looked_s = 0, 0.0
        self._connected = on_ray.connect(terms.address)

    def close(self) -> None:
        """Ends all checks, and leaves the cluster."""
        for node in list(self.nodes.values()):
            node.close()
        self._close_folders()
        if self._connected:
            on_ray.disconnect()

    @property
    def fit(self) -> list[Node]:
        return [each for each in list(self.nodes.values()) if each.fit]

    @property
    def asked(self) -> list[Node]:
        """Nodes that have not answered yet."""
        return [each for each in list(self.nodes.values()) if each.check is not None]

    def drop(self, node: Node, why: str | None = None) -> None:
        """Forgets a node, which is checked again, as a new one, if it is still there.

        why: reason why it can't be used, which is told.
        """
        if why is not None:
            self.say(f"{node.name} can't be used yet ({why}); it is tried again")
        node.close()
        if self.nodes.get(node.machine.id) is node:
            self.nodes.pop(node.machine.id, None)

    def require_enough(self, count: int, since_s: float) -> None:
        """Raises ConfigError if so few nodes take part, and more were awaited for too long."""
        terms = self.terms
        if count < terms.nodes_min and time.monotonic() - since_s > terms.wait_s:
            raise ConfigError(
                f"cluster.nodes_min={terms.nodes_min} must be met within {terms.wait_s:g} s "
                f"(cluster.wait_s), got {count}: add nodes by `ray start "
                "--address=HOST:PORT`, or lower it (nodes with --num-cpus=0 don't count)"
            )

    def look(self) -> list[str]:
        """Asks new nodes, and receives answers; returns new sentences about unfit nodes."""
        faults: list[str] = []
        if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            listed = None
            with suppress(Exception):  # Ray's head may be away for a while
                listed = on_ray.machines()
            faults += [] if listed is None else self._ask(listed)
        for node in self.asked:
            fault = self._answered(node)
            if fault is not None:
                faults += [f"the node {node.machine.address} {fault}"]
        if not self.asked:  # no check reads the folders now
            self._close_folders()
        new = [each for each in faults if each not in self._reported]
        self._reported += new
        return new

    def _ask(self, listed: Sequence[Machine]) -> list[str]:
        """Drops nodes that are gone, and checks new ones; returns faults of this machine."""
        present = {each.id for each in listed}
        for node in [each for each in list(self.nodes.values()) if each.machine.id not in present]:
            self.drop(node)
        most, new = self.terms.nodes_max, [each for each in listed if each.id not in self.nodes]
        if most is not None:
            new = new[: max(0, most - len(self.fit) - len(self.asked))]
        if new and not self._folders:
            try:
                for each in self.questions.folders:
                    self._folders.append(SharedFolder(each))
            except ConfigError as error:  # the fault is of this machine
                self._close_folders()
                return [str(error)]
        tokens = [(each.folder, each.token) for each in self._folders]
        for machine in new:
            node = self.nodes[machine.id] = Node(self._count, machine)
            check = self.questions.check(tokens, node.who)
            node.check = JobOnNode(machine, check, self.questions.working_folder)
            self._count += 1
        return []

    def _answered(self, node: Node) -> str | None:
        """Takes in a node's answer; why it can't take part, if it can't."""
        assert node.check is not None
        lines: list[str] = []
        try:
            outcome = node.check.hear(inf, lines.append)
            if outcome is None and time.monotonic() - node.begun_s < ANSWER_S:
                return None
            fault = self._fault(node, outcome)
        except WorkerFault as error:
            if "No module named" not in str(error):
                self.drop(node, str(error))
                return None
            fault = f"must have quintet installed, got {error}: install it there"
        node.fit = fault is None
        node.close()
        return fault

    def _fault(self, node: Node, outcome: Outcome | None) -> str | None:
        """Reason why a checked node can't take part; None: it can."""
        if outcome is None:
            return f"must answer within {ANSWER_S:g} s, got nothing: end it, or look at it"
        if outcome.answer is None:
            ended = how_ended(outcome.status or 0)
            return f"must answer, but the process of its check {ended}: look at it"
        if "facts" not in outcome.answer:
            return str(outcome.answer.get("fault") or outcome.answer.get("error"))
        facts, ours = outcome.answer["facts"], self.questions.facts
        fault, difference = provenance.compared(facts, ours, self.questions.exact)
        if difference is not None:
            self.say(f"{node.name} {difference}")
        faults = (fault, *(each.fault(node.who) for each in self._folders))
        return next((each for each in faults if each is not None), None)

    def _close_folders(self) -> None:
        while self._folders:
            self._folders.pop().close()
