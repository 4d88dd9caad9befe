"""Groups of runs on the nodes of a cluster: each run is a whole one, on one node.

A run whose node is lost starts again on another one from its folder, which all nodes share.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import final

from quintet.cluster import on_ray
from quintet.cluster.on_ray import Hosted
from quintet.config.group import Placing
from quintet.errors import QuintetError, WorkerFault
from quintet.run.checked_nodes import CheckedNodes, Demand, Node
from quintet.run.host import Host
from quintet.run.seed_group import BLAMELESS, Member, Outcome, stop_request
from quintet.system.inside import ORPHAN_GRACE_S, holder_of
from quintet.system.signals import StopRequest, stop_on_signals

_POLL_S = 0.1

_TRY_EVERY_S = 1.0

_BEGUN_S = 60.0
"""Seconds after which a run that waits for cores that others use may try another node."""

_LEFT_S = ORPHAN_GRACE_S + 30.0
"""Seconds for earlier processes to leave a run's folder."""

_KILLED_S = 1.0
"""Seconds for hosts to end their runs at once."""


@final
@dataclass
class _Run:
    """A run of the group.

    node: where it is or was last; host: None while it waits.
    begun: whether its process was begun there.
    since_s: when it was placed, or could have been.
    heard_s: when its host answered; tried_s: when a placement was last tried.
    lost: number of nodes that it has lost.
    """

    member: Member
    outcome: Outcome | None = None
    node: Node | None = None
    host: Hosted | None = None
    begun: bool = False
    since_s: float = field(default_factory=time.monotonic)
    heard_s: float = 0.0
    tried_s: float = 0.0
    lost: int = 0
    waits_told: bool = False

    def leave(self) -> None:
        """Gives its place up."""
        if self.host is not None:
            self.host.kill()
        self.host, self.begun, self.since_s = None, False, time.monotonic()

    def end(self, error: str | None = None) -> None:
        """Ends without an outcome of its process: with an error, or stopped."""
        self.leave()
        if error is not None:
            self.outcome = Outcome(1, {"error": error, BLAMELESS: True})
        else:
            stopped = {"status": "stopped", "metrics": {}}
            self.outcome = Outcome(130, stopped) if self.lost else Outcome(None, None)


@final
class Placed:
    """A cluster for the runs of a group; `run` takes the place of `seed_group.run_members`."""

    def __init__(self, placing: Placing, demand: Demand, say: Callable[[str], None]):
        """Raises ConfigError if there is no cluster, there are too few nodes, or one of them can't
        have a run of the group.
        """
        assert placing.cluster.address is not None
        assert placing.max_restarts is not None
        self.config, self.most = placing.cluster, placing.max_restarts
        self.demand, self.say = demand, say
        self._nodes = CheckedNodes(placing.cluster, demand, say)
        self._runs: list[_Run] = []
        self._stopping = False
        self._connected = on_ray.connect(placing.cluster.address)
        try:
            self._nodes.await_first()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Placed":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the cluster."""
        self._nodes.close()
        if self._connected:
            on_ray.disconnect()

    def run(
        self,
        module: str,
        members: Sequence[Member],
        jobs: int,
        say: Callable[[str], None],
        stop: StopRequest | None = None,
    ) -> list[Outcome]:
        """See `seed_group.run_members`; `jobs` is for all nodes together."""
        stop = stop_request(say) if stop is None else stop
        self._runs = [_Run(each) for each in members]
        self._stopping = False
        with stop_on_signals(stop):
            try:
                while left := [each for each in self._runs if each.outcome is None]:
                    for refused in self._nodes.look():
                        say(f"{refused}; it is left out")
                    if stop.made and not self._stopping:
                        self._stop(left)
                    for each in left:
                        if each.host is not None:
                            self._hear(each, each.host)
                        elif each.outcome is None:
                            self._place(each, module, jobs)
                    time.sleep(_POLL_S)
            finally:
                self._kill()
        return [each.outcome or Outcome(None, None) for each in self._runs]

    def _stop(self, left: Sequence[_Run]) -> None:
        """Asks all runs to stop; those without a process end."""
        self._stopping = True
        for each in left:
            if each.host is not None and each.begun:
                each.host.tell("stop")
            else:
                each.end()

    def _kill(self) -> None:
        """Ends at once what still runs."""
        if left := [each for each in self._runs if each.host is not None]:
            for each in left:
                assert each.host is not None
                each.host.tell("kill")
            time.sleep(_KILLED_S)
            for each in left:
                each.leave()

    def _free(self, run: _Run) -> list[Node]:
        """Nodes with room, the best first: another node than before, then the node with most free
        cores."""
        placed = [each.node for each in self._runs if each.host is not None]
        before = None if run.node is None else run.node.machine.id
        free: dict[Node, int] = {}
        for node in self._nodes.fit:
            count = 1 + sum(
                each is not None and each.machine.id == node.machine.id for each in placed
            )
            cores = node.machine.cores - count * self.demand.cores
            if cores >= 0 and node.machine.gpus >= count * self.demand.gpus:
                free[node] = cores
        return sorted(free, key=lambda node: (node.machine.id == before, -free[node]))

    def _place(self, run: _Run, module: str, jobs: int) -> None:
        now = time.monotonic()
        count = sum(each.host is not None for each in self._runs)
        if count >= jobs or now - run.tried_s < _TRY_EVERY_S:
            return
        run.tried_s = now
        free = self._free(run)
        if not free:
            if count or any(map(self._nodes.allow, self._nodes.fit)):
                run.since_s = now
            elif now - run.since_s > self.config.wait_s:
                run.end(
                    f"no node was left with {self.demand.cores} cores for {self.config.wait_s:g} s "
                    "(cluster.wait_s): add nodes, and give the same command again"
                )
        elif self._is_left(run, now):
            run.node, run.since_s, run.heard_s = free[0], now, now
            run.host = Hosted(run.node.machine, Host, self.demand.cores, self.demand.gpus)
            run.host.ask("begin", module, run.member, self.demand.check.working_folder)

    def _is_left(self, run: _Run, now: float) -> bool:
        """Whether no process trains in the run's folder, or one has done so for too long, which the
        run itself then reports.
        """
        if run.member.folder is None or now - run.since_s > _LEFT_S:
            return True
        with suppress(QuintetError):
            holder = holder_of(run.member.folder)
            if holder is not None and not run.waits_told:
                run.waits_told = True
                self.say(
                    f"[{run.member.name}] waits for the process with pid {holder.pid} on "
                    f"{holder.host} to leave its folder, at most {_LEFT_S:g} s"
                )
            return holder is None
        return True

    def _hear(self, run: _Run, host: Hosted) -> None:
        """Takes in a host's answers, or notes that it is gone or silent."""
        now, timeout_s = time.monotonic(), self.config.node_timeout_s
        assert run.node is not None
        try:
            answer = host.answer()
        except WorkerFault as error:
            return self._lose(run, str(error))
        if answer is None and run.begun and now - run.heard_s > timeout_s:
            return self._lose(run, f"it sent nothing for {timeout_s:g} s (cluster.node_timeout_s)")
        if answer is None:
            others = (each for each in self._free(run) if each is not run.node)
            if not run.begun and now - run.since_s > _BEGUN_S and any(others):
                self.say(f"[{run.member.name}] tries another node, as others use {run.node.name}")
                run.leave()
            return None
        run.heard_s = now
        if not run.begun:
            run.begun = True
            self.say(f"[{run.member.name}] runs on {run.node.name}")
        else:
            for line in answer.lines:
                self.say(line)
            if answer.outcome is not None:
                run.leave()
                run.outcome = answer.outcome
                return None
        return host.ask("heard")

    def _lose(self, run: _Run, why: str) -> None:
        """Starts a run whose node is lost again, unless that has happened too often."""
        assert run.node is not None
        lost = f"{run.node.name} was lost: {why}"
        self._nodes.drop(run.node)
        run.lost += 1
        if self._stopping or run.lost > self.most:
            often = "" if self._stopping else f", after {self.most} others (runtime.max_restarts)"
            return run.end(f"{lost}{often}; give the same command again")
        self.say(
            f"[{run.member.name}] {lost}; the run starts again on another node from its folder "
            f"({run.lost} of at most {self.most} times)"
        )
        return run.leave()
