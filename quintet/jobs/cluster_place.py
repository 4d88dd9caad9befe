"""Jobs on the nodes of a Ray cluster: each is a whole one, on one node, which was checked before.

A job whose node is lost starts again on another one, from its folder, which all nodes share.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from quintet.checkpoints.lock import ORPHAN_GRACE_S, holder_of
from quintet.errors import ConfigError, QuintetError, WorkerFault
from quintet.jobs import on_ray
from quintet.jobs.child_process import how_ended
from quintet.jobs.host import Host
from quintet.jobs.job import BLAMELESS, Job, Outcome
from quintet.jobs.on_ray import Hosted, Machine
from quintet.jobs.shared import SharedFolder
from quintet.jobs.silence import Silence
from quintet.system import provenance

_POLL_S = 0.1

_LOOK_EVERY_S = 2.0
"""Seconds between two looks for new nodes."""

_HEAR_EVERY_S = 1.0
"""Seconds in which a host answers, also where it has no news."""

_ANSWER_S = 120.0
"""Seconds for a node to import quintet and to make an environment."""

_TRY_EVERY_S = 1.0
"""Seconds between two tries to place a job."""

_BEGUN_S = 60.0
"""Seconds after which a job that waits for cores that others use may try another node."""

_LEFT_S = ORPHAN_GRACE_S + 30.0
"""Seconds for earlier processes to leave a run's folder."""

_KILLED_S = 1.0
"""Seconds for hosts to end their jobs at once."""


class Terms(NamedTuple):
    """The cluster, and how long it is waited for; see `quintet.cluster.config`.

    max_restarts: number of times that a job may start again on another node.
    """

    address: str
    nodes_min: int
    nodes_max: int | None
    wait_s: float
    node_timeout_s: float
    max_restarts: int


class Demand(NamedTuple):
    """Needs of jobs, and the check of a node.

    cores, gpus: numbers that each job takes.
    check: makes the job that checks a node, whose answer has its `facts` (versions and processor)
        or a `fault`; its arguments are tokens of `SharedFolder` by folder, and the node's name in
        them.
    folders: folders in which it must read, write and lock.
    facts: versions and processor of this machine; exact: whether all of them must be equal.
    working_folder: of this process.
    """

    cores: int
    gpus: int
    check: Callable[[Sequence[tuple[Path, str]], str], Job]
    folders: Sequence[Path]
    facts: Mapping[str, str]
    exact: bool
    working_folder: str


@final
class _OnNode:
    """A job on one node; it ends where its host does.

    begun: whether its process was begun there.
    """

    def __init__(self, machine: Machine, job: Job, demand: Demand, cores: int, gpus: int = 0):
        self.begun = False
        self._host = Hosted(machine, Host, cores, gpus)
        self._host.ask("begin", job, demand.working_folder)
        self._silence, self._answers = Silence(), 0

    def hear(self, silence_s: float, say: Callable[[str], None]) -> Outcome | None:
        """The outcome, once it has ended; raises WorkerFault if its node is lost, or silent for so
        long.
        """
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
class _Node:
    """A node of the cluster: asked, fit for jobs, or left out.

    check: while it is asked.
    """

    def __init__(self, index: int, machine: Machine):
        self.index, self.machine = index, machine
        self.who = secrets.token_hex(8)  # part of the names of its files
        self.check: _OnNode | None = None
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
class _Run:
    """A job of the group: on a node, or waiting for one."""

    def __init__(self, place: "ClusterPlace", job: Job, say: Callable[[str], None]):
        self.job = job
        self.there: _OnNode | None = None
        self._place, self._say = place, say
        self._outcome: Outcome | None = None
        self._since_s, self._tried_s = time.monotonic(), 0.0
        self._lost = 0  # number of nodes
        self._stopping = self._waits_told = False
        self.node: _Node | None = None

    def outcome(self) -> Outcome | None:
        if self._outcome is None:
            self._place.look()
            if self.there is not None:
                self._hear(self.there)
            else:
                self._begin()
        return self._outcome

    def stop(self) -> None:
        self._stopping = True
        if self.there is not None and self.there.begun:
            self.there.tell("stop")
        else:
            self._end()

    def kill(self) -> None:
        if self._outcome is None and self.there is not None:
            self.there.tell("kill")
            self._place.killed.append(self.there)
            self.there = None

    def _leave(self) -> None:
        """Gives its node up."""
        if self.there is not None:
            self.there.leave()
        self.there, self._since_s = None, time.monotonic()

    def _end(self, error: str | None = None) -> None:
        """Ends without an outcome of its process: with an error, or stopped."""
        self._leave()
        if error is not None:
            self._outcome = Outcome(1, {"error": error, BLAMELESS: True})
        else:
            stopped = {"status": "stopped", "metrics": {}}
            self._outcome = Outcome(130, stopped) if self._lost else Outcome(None, None)

    def _begin(self) -> None:
        """Begins on the best node, if one has room."""
        now, place = time.monotonic(), self._place
        if now - self._tried_s < _TRY_EVERY_S:
            return
        self._tried_s = now
        free = place.free(self.node)
        if not free:
            terms = place.terms
            if place.is_used or any(map(place.allow, place.fit)):
                self._since_s = now
            elif now - self._since_s > terms.wait_s:
                self._end(
                    f"no node was left with {place.demand.cores} cores for {terms.wait_s:g} s "
                    "(cluster.wait_s): add nodes, and give the same command again"
                )
        elif self._is_left(now):
            self.node, self._since_s = free[0], now
            demand = place.demand
            self.there = _OnNode(self.node.machine, self.job, demand, demand.cores, demand.gpus)

    def _is_left(self, now: float) -> bool:
        """Whether no process trains in the run's folder, or one has done so for too long, which the
        run itself then reports.
        """
        if self.job.folder is None or now - self._since_s > _LEFT_S:
            return True
        with suppress(QuintetError):
            holder = holder_of(self.job.folder)
            if holder is not None and not self._waits_told:
                self._waits_told = True
                self._say(
                    f"waits for the process with pid {holder.pid} on {holder.host} to leave its "
                    f"folder, at most {_LEFT_S:g} s"
                )
            return holder is None
        return True

    def _hear(self, there: _OnNode) -> None:
        """Takes in what its host answers, or notes that its node is lost."""
        assert self.node is not None
        begun = there.begun
        try:
            self._outcome = there.hear(self._place.terms.node_timeout_s, self._say)
        except WorkerFault as error:
            return self._lose(str(error))
        if self._outcome is not None:
            return self._leave()
        if not begun and there.begun:
            return self._say(f"runs on {self.node.name}")
        late = not begun and time.monotonic() - self._since_s > _BEGUN_S
        if late and any(each is not self.node for each in self._place.free(self.node)):
            self._say(f"tries another node, as others use {self.node.name}")
            self._leave()
        return None

    def _lose(self, why: str) -> None:
        """Starts again where the node is lost, unless that has happened too often."""
        assert self.node is not None
        lost, most = f"{self.node.name} was lost: {why}", self._place.terms.max_restarts
        self._place.drop(self.node)
        self._lost += 1
        if self._stopping or self._lost > most:
            often = "" if self._stopping else f", after {most} others (runtime.max_restarts)"
            return self._end(f"{lost}{often}; give the same command again")
        self._say(
            f"{lost}; the run starts again on another node from its folder "
            f"({self._lost} of at most {most} times)"
        )
        return self._leave()


@final
class ClusterPlace:
    """The nodes of a cluster; each job takes cores of one of them.

    nodes: those that take part or were refused, by their ids.
    killed: jobs that were ended at once.
    """

    def __init__(self, terms: Terms, demand: Demand, say: Callable[[str], None]):
        """Raises ConfigError if there is no cluster, there are too few nodes, or one of them can't
        have a job of the group.
        """
        self.terms, self.demand, self.say = terms, demand, say
        self.nodes: dict[str, _Node] = {}
        self.killed: list[_OnNode] = []
        self._runs: list[_Run] = []
        self._folders: list[SharedFolder] = []  # open while nodes are asked
        self._refused: list[str] = []
        self._count, self._looked_s = 0, 0.0
        self._connected = on_ray.connect(terms.address)
        try:
            self._await_first()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ClusterPlace":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what still runs, and leaves the cluster."""
        if self.killed:
            time.sleep(_KILLED_S)
        for each in self.killed:
            each.leave()
        for node in list(self.nodes.values()):
            node.close()
        self._close_folders()
        if self._connected:
            on_ray.disconnect()

    def start(self, job: Job, say: Callable[[str], None]) -> _Run:
        self._runs.append(_Run(self, job, say))
        return self._runs[-1]

    # Nodes

    @property
    def fit(self) -> list[_Node]:
        return [each for each in self.nodes.values() if each.fit]

    @property
    def _asked(self) -> list[_Node]:
        """Nodes that have not answered yet."""
        return [each for each in self.nodes.values() if each.check is not None]

    @property
    def is_used(self) -> bool:
        """Whether any job is on a node."""
        return any(each.there is not None for each in self._runs)

    def allow(self, node: _Node) -> bool:
        """Whether a job could be placed there if it were empty."""
        return node.machine.cores >= self.demand.cores and node.machine.gpus >= self.demand.gpus

    def free(self, before: _Node | None) -> list[_Node]:
        """Nodes with room, the best first: another one than `before`, then that with most free
        cores."""
        used = [x.node.machine.id for x in self._runs if x.there is not None and x.node is not None]
        free: dict[_Node, int] = {}
        for node in self.fit:
            count = 1 + used.count(node.machine.id)
            cores = node.machine.cores - count * self.demand.cores
            if cores >= 0 and node.machine.gpus >= count * self.demand.gpus:
                free[node] = cores
        last = None if before is None else before.machine.id
        return sorted(free, key=lambda node: (node.machine.id == last, -free[node]))

    def drop(self, node: _Node) -> None:
        """Forgets a node, which is checked again, as a new one, if it is still there."""
        node.close()
        if self.nodes.get(node.machine.id) is node:
            del self.nodes[node.machine.id]

    def _await_first(self) -> None:
        """Waits until all present nodes have been checked and there are enough of them."""
        least, begin_s = self.terms.nodes_min, time.monotonic()
        while True:
            if refused := self._look():
                raise ConfigError(refused[0])
            if not self._asked and len(self.fit) >= least:
                break
            if not self._asked and time.monotonic() - begin_s > self.terms.wait_s:
                raise ConfigError(
                    f"cluster.nodes_min={least} must be met within {self.terms.wait_s:g} s "
                    f"(cluster.wait_s), got {len(self.fit)}: add nodes by `ray start "
                    "--address=HOST:PORT`, or lower it (nodes with --num-cpus=0 don't count)"
                )
            time.sleep(_POLL_S)
        cores, gpus = self.demand.cores, self.demand.gpus
        wanted = f"{cores} core{'s' * (cores > 1)}" + (f" and {gpus} GPUs" if gpus else "")
        offers = ", ".join(f"{each.name} with {each.machine.cores}" for each in self.fit)
        if not any(self.allow(each) for each in self.fit):
            raise ConfigError(
                f"each run of the group must have {wanted} of one node (runtime.threads x "
                f"runtime.num_learners + runtime.num_workers), got {offers}: lower these, or add a "
                "larger node"
            )
        self.say(f"each run takes {wanted} of one node: {offers}")

    def look(self) -> None:
        """Asks new nodes, and receives answers; says which ones are unfit."""
        for refused in self._look():
            self.say(f"{refused}; it is left out")

    def _look(self) -> list[str]:
        """Sentences about unfit nodes."""
        refused: list[str] = []
        if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            machines = None
            with suppress(Exception):  # Ray's head may be away for a while
                machines = on_ray.machines()
            refused += [] if machines is None else self._ask(machines)
        for node in self._asked:
            fault = self._answered(node)
            if fault is not None:
                refused += [f"the node {node.machine.address} {fault}"]
        if not self._asked:
            self._close_folders()
        new = [each for each in refused if each not in self._refused]
        self._refused += new
        return new

    def _ask(self, machines: Sequence[Machine]) -> list[str]:
        there = {each.id for each in machines}
        for node in [each for each in self.nodes.values() if each.machine.id not in there]:
            self.drop(node)
        used = len(self.fit) + len(self._asked)
        new = [each for each in machines if each.id not in self.nodes]
        if self.terms.nodes_max is not None:
            new = new[: max(0, self.terms.nodes_max - used)]
        if new and not self._folders:
            try:
                for each in self.demand.folders:
                    self._folders.append(SharedFolder(each))
            except ConfigError as error:  # the fault is of this machine
                self._close_folders()
                return [str(error)]
        tokens = [(each.folder, each.token) for each in self._folders]
        for machine in new:
            node = self.nodes[machine.id] = _Node(self._count, machine)
            check = self.demand.check(tokens, node.who)
            node.check = _OnNode(machine, check, self.demand, 0)
            self._count += 1
        return []

    def _answered(self, node: _Node) -> str | None:
        """Takes in a node's answer; why it can't take part, if it can't."""
        assert node.check is not None
        lines: list[str] = []
        try:
            outcome = node.check.hear(_ANSWER_S, lines.append)
            if outcome is None and time.monotonic() - node.begun_s < _ANSWER_S:
                return None
            fault = self._fault(node, outcome)
        except WorkerFault as error:
            if "No module named" not in str(error):
                self.say(f"{node.name} can't be used yet ({error}); it is tried again")
                self.drop(node)
                return None
            fault = f"must have quintet installed, got {error}: install it there"
        node.close()
        node.fit = fault is None
        return fault

    def _fault(self, node: _Node, outcome: Outcome | None) -> str | None:
        if outcome is None:
            return f"must answer within {_ANSWER_S:g} s, got nothing: end it, or look at it"
        if outcome.answer is None:
            ended = how_ended(outcome.status or 0)
            return f"must answer, but the process of its check {ended}: look at it"
        if "facts" not in outcome.answer:
            return str(outcome.answer.get("fault") or outcome.answer.get("error"))
        facts = outcome.answer["facts"]
        fault, difference = provenance.compared(facts, self.demand.facts, self.demand.exact)
        if difference is not None:
            self.say(f"{node.name} {difference}")
        faults = (fault, *(each.fault(node.who) for each in self._folders))
        return next((each for each in faults if each is not None), None)

    def _close_folders(self) -> None:
        while self._folders:
            self._folders.pop().close()
