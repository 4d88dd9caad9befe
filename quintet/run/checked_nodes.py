"""Nodes of a cluster for whole runs: each is checked before it is given one."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from quintet.cluster import on_ray
from quintet.cluster.config import ClusterConfig
from quintet.cluster.gate import compared
from quintet.cluster.on_ray import Hosted, Machine
from quintet.errors import ConfigError, WorkerFault
from quintet.run.host import Check, Host
from quintet.system.shared import SharedFolder

_POLL_S = 0.1

_LOOK_EVERY_S = 2.0
"""Seconds between two looks for new nodes."""

_ANSWER_S = 120.0
"""Seconds for a node to import quintet and to make an environment."""


class Demand(NamedTuple):
    """Needs of runs, and the check of a node.

    cores, gpus: numbers that each run takes.
    check: questions to a node; folders: folders in which it must read, write and lock.
    facts: versions and processor of this machine; exact: whether all of them must be equal.
    """

    cores: int
    gpus: int
    check: Check
    folders: Sequence[Path]
    facts: Mapping[str, str]
    exact: bool


@final
class Node:
    """A node of the cluster: asked, fit for runs, or left out.

    host: the process that is asked; None: it has answered.
    """

    def __init__(self, index: int, machine: Machine):
        self.index, self.machine = index, machine
        self.who = secrets.token_hex(8)  # in the names of the files that it writes
        self.host: Hosted | None = None
        self.asked_s = time.monotonic()
        self.fit = False

    @property
    def name(self) -> str:
        return f"node {self.index} ({self.machine.address})"

    def ask(self, check: Check) -> None:
        """Asks it for its check."""
        self.host = Hosted(self.machine, Host, 0)
        self.host.ask("check", check, self.who)

    def close(self) -> None:
        """Ends the check."""
        if self.host is not None:
            self.host.kill()
            self.host = None


@final
class CheckedNodes:
    """The nodes of the cluster to which this process is connected, by their ids.

    found: those that take part or were refused.
    """

    def __init__(self, config: ClusterConfig, demand: Demand, say: Callable[[str], None]):
        self.config, self.demand, self.say = config, demand, say
        self.found: dict[str, Node] = {}
        self._folders: list[SharedFolder] = []  # while nodes are asked
        self._refused: list[str] = []
        self._count, self._looked_s = 0, 0.0

    @property
    def fit(self) -> list[Node]:
        return [each for each in self.found.values() if each.fit]

    @property
    def asked(self) -> list[Node]:
        """Nodes that have not answered yet."""
        return [each for each in self.found.values() if each.host is not None]

    def allow(self, node: Node) -> bool:
        """Whether a run could be placed there if it were empty."""
        return node.machine.cores >= self.demand.cores and node.machine.gpus >= self.demand.gpus

    def await_first(self) -> None:
        """Waits until all present nodes have been checked and there are enough of them; raises
        ConfigError if one of them is unfit, or they are too few or too small.
        """
        least, begin_s = self.config.nodes_min, time.monotonic()
        while True:
            if refused := self.look():
                raise ConfigError(refused[0])
            if not self.asked and len(self.fit) >= least:
                break
            if not self.asked and time.monotonic() - begin_s > self.config.wait_s:
                raise ConfigError(
                    f"cluster.nodes_min={least} must be met within {self.config.wait_s:g} s "
                    f"(cluster.wait_s), got {len(self.fit)}: add nodes by `ray start "
                    "--address=HOST:PORT`, or lower it (nodes with --num-cpus=0 don't count)"
                )
            time.sleep(_POLL_S)
        cores, gpus = self.demand.cores, self.demand.gpus
        wanted = f"{cores} core{'s' * (cores > 1)}" + (f" and {gpus} GPUs" if gpus else "")
        told = ", ".join(f"{each.name} with {each.machine.cores}" for each in self.fit)
        if not any(self.allow(each) for each in self.fit):
            raise ConfigError(
                f"each run of the group must have {wanted} of one node (runtime.threads x "
                f"runtime.num_learners + runtime.num_workers), got {told}: lower these, or add a "
                "larger node"
            )
        self.say(f"each run takes {wanted} of one node: {told}")

    def look(self) -> list[str]:
        """Asks new nodes, and receives answers; returns sentences about unfit nodes."""
        refused: list[str] = []
        if time.monotonic() - self._looked_s > _LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            machines = None
            with suppress(Exception):  # of Ray, whose head may be away for a while
                machines = on_ray.machines()
            refused += [] if machines is None else self._ask(machines)
        for node in self.asked:
            assert node.host is not None
            try:
                answer = node.host.answer()
                if answer is None and time.monotonic() - node.asked_s < _ANSWER_S:
                    continue
                fault = self._fault(node, answer)
            except WorkerFault as error:
                fault = f"must have quintet installed, got {error}: install it there"
                if "No module named" not in str(error):
                    self.say(f"{node.name} can't be used yet ({error}); it is tried again")
                    self.drop(node)
                    continue
            node.close()
            node.fit = fault is None
            refused += [] if fault is None else [f"the node {node.machine.address} {fault}"]
        if not self.asked:
            self._close_folders()
        new = [each for each in refused if each not in self._refused]
        self._refused += new
        return new

    def _ask(self, machines: Sequence[Machine]) -> list[str]:
        there = {each.id for each in machines}
        for node in [each for each in self.found.values() if each.machine.id not in there]:
            self.drop(node)
        used = len(self.fit) + len(self.asked)
        new = [each for each in machines if each.id not in self.found]
        if self.config.nodes_max is not None:
            new = new[: max(0, self.config.nodes_max - used)]
        if new and not self._folders:
            try:
                for each in self.demand.folders:
                    self._folders.append(SharedFolder(each))
            except ConfigError as error:  # of this machine
                self._close_folders()
                return [str(error)]
        tokens = [(each.folder, each.token) for each in self._folders]
        for machine in new:
            node = self.found[machine.id] = Node(self._count, machine)
            node.ask(self.demand.check._replace(folders=tokens))
            self._count += 1
        return []

    def _fault(self, node: Node, answer: Mapping[str, str] | str | None) -> str | None:
        if answer is None:
            return f"must answer within {_ANSWER_S:g} s, got nothing: end it, or look at it"
        fault, told = compared(answer, self.demand.facts, self.demand.exact)
        if told is not None:
            self.say(f"{node.name} {told}")
        faults = (fault, *(each.fault(node.who) for each in self._folders))
        return next((each for each in faults if each is not None), None)

    def drop(self, node: Node) -> None:
        """Forgets a node, which is checked again, as a new one, if it is still there."""
        node.close()
        if self.found.get(node.machine.id) is node:
            del self.found[node.machine.id]

    def close(self) -> None:
        """Ends all checks."""
        for node in list(self.found.values()):
            node.close()
        self._close_folders()

    def _close_folders(self) -> None:
        while self._folders:
            self._folders.pop().close()
