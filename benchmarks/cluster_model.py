"""How many nodes can one learner have?  A simulation of a run on a cluster from measured costs.

    python benchmarks/cluster_speed.py unrolls > unrolls.jsonl
    python benchmarks/cluster_speed.py scaling --algo impala > scaling.jsonl
    python benchmarks/cluster_model.py unrolls.jsonl scaling.jsonl [--network-gbit 10]

The costs come from `unrolls` and from the row of `scaling` with one node; the speeds of its rows
are predicted and compared.  Then it predicts 10, 100 and 1,000 nodes with cores of their own, and
how much of their time the learner and the network in and out are busy.  Simulated are groups that
fill unrolls and wait for free slots, the network, the learner, which takes unrolls as they come and
learns from batches, and publications, which wait for the one before to be sent.
"""

import argparse
import json
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

WORKERS, STREAMS, ROWS = 4, 4, 20
"""Workers of a node, streams of each one's group, rows of an unroll; see cluster_speed.py."""

CORES = os.cpu_count()


@dataclass(frozen=True)
class Costs:
    """Measured costs.

    row_s: seconds of a group's row that need no core, as its environments sleep.
    row_core_s: seconds of a row that need a core, with all that goes on at a node.
    unroll_s, byte_s: core seconds of the learner's process per unroll of a stream, and per byte.
    batch_s: seconds of learning from a batch, with its publication to one node.
    batch_unrolls: unrolls of a stream in a batch.
    unroll_bytes, weights_bytes: sizes of an unroll of a stream, and of a publication.
    network_bytes_per_s: of the learner's machine, in each direction.
    publish_every: batches between two publications.
    shared_cores: cores that all processes share; None: nodes have enough of their own.
    """

    row_s: float
    row_core_s: float
    unroll_s: float
    byte_s: float
    batch_s: float
    batch_unrolls: int
    unroll_bytes: float
    weights_bytes: float
    network_bytes_per_s: float = 1.25e9
    publish_every: int = 1
    shared_cores: int | None = None


class Clock:
    """Time that passes from event to event."""

    def __init__(self) -> None:
        self.now, self._events, self._order = 0.0, [], count()  # type: ignore[var-annotated]

    def at(self, when: float, do: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._order), do))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heappop(self._events)
            do()


class Servers:
    """Cores, a network or a learner: who asks first is served first."""

    def __init__(self, clock: Clock, servers: int = 1):
        self.clock, self.free_at, self.busy_s = clock, [0.0] * servers, 0.0

    def serve(self, seconds: float, then: Callable[[], None]) -> None:
        end = max(self.clock.now, heappop(self.free_at)) + seconds
        heappush(self.free_at, end)
        self.clock.at(end, lambda: self._end(seconds, then))

    def _end(self, seconds: float, then: Callable[[], None]) -> None:
        self.busy_s += seconds
        then()


class Run:
    """A run on so many nodes, for so many seconds."""

    def __init__(self, costs: Costs, nodes: int, seconds: float):
        self.costs, self.nodes = costs, nodes
        self.clock = clock = Clock()
        self.inward, self.outward, self.learner = Servers(clock), Servers(clock), Servers(clock)
        self.cores = Servers(clock, costs.shared_cores or 1)
        # As `runtime.slots`: two for each group, or a batch and one more.
        batches = -(-costs.batch_unrolls // (STREAMS * nodes * WORKERS)) + 1
        self.slots = [max(2, batches)] * (nodes * WORKERS)
        self.waiting: set[int] = set()
        self.arrived: deque[int] = deque()
        self.learned = 0
        for group in range(len(self.slots)):
            clock.at(group * costs.row_s / len(self.slots), lambda group=group: self.fill(group))  # type: ignore[misc]
        clock.run(seconds / 3)
        before = self.counts()
        clock.run(seconds)
        both = zip(before, self.counts(), strict=True)
        passed = [(now - then) / (seconds * 2 / 3) for then, now in both]
        self.env_steps_per_s, self.learner_frac, self.in_frac, self.out_frac = passed

    def counts(self) -> list[float]:
        servers = self.learner, self.inward, self.outward
        return [self.learned * ROWS, *(each.busy_s for each in servers)]

    def fill(self, group: int, row: int = 0) -> None:
        if row == 0:
            if not self.slots[group]:
                return self.waiting.add(group)
            self.slots[group] -= 1
        if row == ROWS:
            return self.send(group)
        c = self.costs
        if c.shared_cores is None:  # nobody waits for a core: all rows at once
            seconds = ROWS * (c.row_s + c.row_core_s)
            return self.clock.at(self.clock.now + seconds, lambda: self.send(group))
        sleep = lambda: self.clock.at(self.clock.now + c.row_s, lambda: self.fill(group, row + 1))  # noqa: E731
        return self.cores.serve(c.row_core_s, sleep)

    def send(self, group: int) -> None:
        size = STREAMS * self.costs.unroll_bytes
        self.inward.serve(size / self.costs.network_bytes_per_s, lambda: self.arrive(group))
        self.fill(group)

    def arrive(self, group: int) -> None:
        unroll_s = self.costs.unroll_s + self.costs.byte_s * self.costs.unroll_bytes
        self.learner.serve(STREAMS * unroll_s, lambda: self.take(group))

    def take(self, group: int) -> None:
        self.arrived.append(group)
        c, groups = self.costs, self.costs.batch_unrolls // STREAMS
        if len(self.arrived) >= groups:
            batch = [self.arrived.popleft() for _ in range(groups)]
            sent_s = (c.unroll_s + c.byte_s * c.weights_bytes) * (self.nodes - 1)
            work = c.batch_s + sent_s / c.publish_every
            self.learner.serve(work, lambda: self.learn(batch))
            if c.shared_cores is not None:  # the learner takes one of them meanwhile
                self.cores.serve(work, lambda: None)

    def learn(self, batch: list[int]) -> None:
        self.learned += len(batch) * STREAMS
        for group in batch:
            self.slots[group] += 1
            if group in self.waiting:
                self.waiting.remove(group)
                self.fill(group)
        # A publication that waits is replaced by a newer one.
        if self.outward.free_at[0] <= self.clock.now:
            size = self.nodes * self.costs.weights_bytes / self.costs.publish_every
            self.outward.serve(size / self.costs.network_bytes_per_s, lambda: None)


def measured(unrolls: list[dict[str, Any]], row: dict[str, Any]) -> Costs:
    """Costs from both measurements; sending weights is taken to cost what receiving does."""
    small, large = (each["node_ms"] / 1e3 for each in unrolls)
    rows_per_s = row["env_steps_per_s"] / STREAMS
    core_s = (row["cores"] - row["learning_s"] * row["iterations_per_s"]) / rows_per_s
    return Costs(
        row_s=WORKERS / rows_per_s - core_s,
        row_core_s=core_s,
        unroll_s=small,
        byte_s=(large - small) / (ROWS * 4 * 84 * 84),
        batch_s=row["learning_s"],
        batch_unrolls=round(row["env_steps_per_s"] / row["iterations_per_s"] / ROWS),
        unroll_bytes=row["in_bytes_per_s"] / row["env_steps_per_s"] * ROWS,
        weights_bytes=row["out_bytes_per_s"] / row["iterations_per_s"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("unrolls", type=Path)
    parser.add_argument("scaling", type=Path)
    parser.add_argument("--network-gbit", type=float, default=10.0)
    args = parser.parse_args()
    unrolls, rows = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (args.unrolls, args.scaling)
    )
    costs = replace(measured(unrolls, rows[0]), network_bytes_per_s=args.network_gbit * 1.25e8)
    print(costs)
    for row in rows:
        nodes, found = row["nodes"], row["env_steps_per_s"]
        guess = Run(replace(costs, shared_cores=CORES), nodes, 60.0).env_steps_per_s
        told = f"measured {found:,.0f}, predicted {guess:,.0f} ({guess / found - 1:+.0%})"
        print(f"{nodes} nodes: {told}")
    numbers, pictures = costs.unroll_bytes, costs.unroll_bytes + ROWS * 4 * 84 * 84
    cases = {"numbers": (numbers, 1), "pictures": (pictures, 1), "rare weights": (numbers, 10)}
    for what, (size, every) in cases.items():
        for nodes in (10, 100, 1_000):
            run = Run(replace(costs, unroll_bytes=size, publish_every=every), nodes, 30.0)
            shares = f"learner {run.learner_frac:.0%}, in {run.in_frac:.0%}, out {run.out_frac:.0%}"
            print(f"{what}, {nodes} nodes: {run.env_steps_per_s:,.0f} env_steps/s ({shares})")


if __name__ == "__main__":
    main()
