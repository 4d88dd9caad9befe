"""Jobs on the nodes of a Ray cluster: each is a whole one, on one node, which was checked before.

A job whose node is lost starts again on another one, from its folder, which all nodes share.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, final

from quintet.checkpoints.lock import ORPHAN_GRACE_S, holder_of
from quintet.errors import ConfigError, QuintetError, WorkerFault
from quintet.jobs.job import BLAMELESS, Job, Outcome
from quintet.jobs.roster import POLL_S, JobOnNode, Node, Questions, Roster, Terms

_TRY_EVERY_S = 1.0
"""Seconds between two tries to place a job."""

_BEGUN_S = 60.0
"""Seconds after which a job that waits for cores that others use may try another node."""

_LEFT_S = ORPHAN_GRACE_S + 30.0
"""Seconds for earlier processes to leave a run's folder."""

_KILLED_S = 1.0
"""Seconds for hosts to end their jobs at once."""


class Demand(NamedTuple):
    """Needs of jobs: numbers of cores and GPUs that each takes.

    max_restarts: number of times that a job may start again on another node.
    """

    cores: int
    gpus: int
    max_restarts: int


@final
class _Run:
    """A job of the group: on a node, or waiting for one."""

    def __init__(self, place: "ClusterPlace", job: Job, say: Callable[[str], None]):
        self.job = job
        self.on_node: JobOnNode | None = None
        self._place, self._say = place, say
        self._outcome: Outcome | None = None
        self._since_s, self._tried_s = time.monotonic(), 0.0
        self._lost_nodes = 0
        self._stopping = self._wait_reported = False
        self.node: Node | None = None

    def outcome(self) -> Outcome | None:
        if self._outcome is None:
            self._place.look()
            if self.on_node is not None:
                self._hear(self.on_node)
            else:
                self._begin()
        return self._outcome

    def stop(self) -> None:
        self._stopping = True
        if self.on_node is not None and self.on_node.begun:
            self.on_node.tell("stop")
        else:
            self._end()

    def kill(self) -> None:
        if self._outcome is None and self.on_node is not None:
            self.on_node.tell("kill")
            self._place.killed.append(self.on_node)
            self.on_node = None

    def _leave(self) -> None:
        """Gives its node up."""
        if self.on_node is not None:
            self.on_node.leave()
        self.on_node, self._since_s = None, time.monotonic()

    def _end(self, error: str | None = None) -> None:
        """Ends without an outcome of its process: with an error, or stopped."""
        self._leave()
        if error is not None:
            self._outcome = Outcome(1, {"error": error, BLAMELESS: True})
        else:  # only a job whose node was lost had been started
            stopped = {"status": "stopped", "metrics": {}}
            self._outcome = Outcome(130, stopped) if self._lost_nodes else Outcome(None, None)

    def _begin(self) -> None:
        """Begins on the best node, if one has room."""
        now, place = time.monotonic(), self._place
        if now - self._tried_s < _TRY_EVERY_S:
            return
        self._tried_s = now
        free = place.free(self.node)
        if not free:
            wait_s = place.terms.wait_s
            if place.may_place:
                self._since_s = now
            elif now - self._since_s > wait_s:
                self._end(
                    f"no node was left with {place.demand.cores} cores for {wait_s:g} s "
                    "(cluster.wait_s): add nodes, and give the same command again"
                )
        elif self._is_left(now):
            self.node, self._since_s = free[0], now
            needs = place.demand.cores, place.demand.gpus
            self.on_node = JobOnNode(self.node.machine, self.job, place.folder, *needs)

    def _is_left(self, now: float) -> bool:
        """Whether no process trains in the run's folder, or one has done so for too long, which the
        run itself then reports.
        """
        if self.job.folder is None or now - self._since_s > _LEFT_S:
            return True
        with suppress(QuintetError):
            holder = holder_of(self.job.folder)
            if holder is not None and not self._wait_reported:
                self._wait_reported = True
                self._say(
                    f"waits for the process with pid {holder.pid} on {holder.host} to leave its "
                    f"folder, at most {_LEFT_S:g} s"
                )
            return holder is None
        return True

    def _hear(self, on_node: JobOnNode) -> None:
        """Takes in what its host answers, or notes that its node is lost."""
        assert self.node is not None
        had_begun = on_node.begun
        try:
            self._outcome = on_node.hear(self._place.terms.node_timeout_s, self._say)
        except WorkerFault as error:
            return self._lose(str(error))
        if self._outcome is not None:
            return self._leave()
        if not had_begun and on_node.begun:
            return self._say(f"runs on {self.node.name}")
        late = not had_begun and time.monotonic() - self._since_s > _BEGUN_S
        if late and any(each is not self.node for each in self._place.free(self.node)):
            self._say(f"tries another node, as others use {self.node.name}")
            self._leave()
        return None

    def _lose(self, why: str) -> None:
        """Starts again where the node is lost, unless that has happened too often."""
        assert self.node is not None
        loss, most = f"{self.node.name} was lost: {why}", self._place.demand.max_restarts
        self._place.roster.drop(self.node)
        self._lost_nodes += 1
        if self._stopping or self._lost_nodes > most:
            often = "" if self._stopping else f", after {most} others (runtime.max_restarts)"
            return self._end(f"{loss}{often}; give the same command again")
        self._say(
            f"{loss}; the run starts again on another node from its folder "
            f"({self._lost_nodes} of at most {most} times)"
        )
        return self._leave()


@final
class ClusterPlace:
    """The nodes of a cluster; each job takes cores of one of them.

    killed: jobs that were ended at once.
    """

    def __init__(
        self, terms: Terms, questions: Questions, demand: Demand, say: Callable[[str], None]
    ):
        """Raises ConfigError if there is no cluster, there are too few nodes, or one of them can't
        have a job of the group.
        """
        self.terms, self.demand, self.say = terms, demand, say
        self.folder = questions.working_folder
        self.killed: list[JobOnNode] = []
        self._runs: list[_Run] = []
        self.roster = Roster(terms, questions, say)
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
        self.roster.close()

    def start(self, job: Job, say: Callable[[str], None]) -> _Run:
        self._runs.append(_Run(self, job, say))
        return self._runs[-1]

    @property
    def may_place(self) -> bool:
        """Whether a job is on a node, or could be placed on one if that were empty."""
        used = any(each.on_node is not None for each in self._runs)
        return used or any(map(self._allow, self.roster.fit))

    def _allow(self, node: Node) -> bool:
        """Whether a job could be placed there if it were empty."""
        return node.machine.cores >= self.demand.cores and node.machine.gpus >= self.demand.gpus

    def free(self, before: Node | None) -> list[Node]:
        """Nodes with room, the best first: not `before`, then by the number of free cores."""
        used = [each.node.machine.id for each in self._runs if each.on_node and each.node]
        free: dict[Node, int] = {}
        for node in self.roster.fit:
            count = 1 + used.count(node.machine.id)
            cores = node.machine.cores - count * self.demand.cores
            if cores >= 0 and node.machine.gpus >= count * self.demand.gpus:
                free[node] = cores
        last = None if before is None else before.machine.id
        return sorted(free, key=lambda node: (node.machine.id == last, -free[node]))

    def _await_first(self) -> None:
        """Waits until all present nodes have been checked and there are enough of them."""
        roster, begin_s = self.roster, time.monotonic()
        while True:
            if refused := roster.look():
                raise ConfigError(refused[0])
            if not roster.asked:
                if len(roster.fit) >= self.terms.nodes_min:
                    break
                roster.require_enough(len(roster.fit), begin_s)
            time.sleep(POLL_S)
        cores, gpus = self.demand.cores, self.demand.gpus
        demand = f"{cores} core{'s' * (cores > 1)}" + (f" and {gpus} GPUs" if gpus else "")
        offers = ", ".join(f"{each.name} with {each.machine.cores}" for each in roster.fit)
        if not any(map(self._allow, roster.fit)):
            raise ConfigError(
                f"each run of the group must have {demand} of one node (runtime.threads x "
                f"runtime.num_learners + runtime.num_workers), got {offers}: lower these, or add a "
                "larger node"
            )
        self.say(f"each run takes {demand} of one node: {offers}")

    def look(self) -> None:
        """Asks new nodes, and receives answers; says which ones are unfit."""
        for refused in self.roster.look():
            self.say(f"{refused}; it is left out")
