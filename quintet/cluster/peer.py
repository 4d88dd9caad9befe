"""A node as the learner sees it: who lives there, and what it does, in numbers."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import final

from quintet.cluster.gate import Visitor
from quintet.jobs.link import Link


@final
class Peer:
    """A node that takes part.

    index: its number in the run; a node that comes back has another one.
    workers: those that live there.
    rows: see `Beat`.
    read: set when nothing is received from it any more.
    """

    def __init__(self, index: int, visitor: Visitor, link: Link):
        self.index, self.visitor, self.link = index, visitor, link
        self.workers: set[int] = set()
        self.rows: Mapping[str, tuple[int, str]] = {}
        self.read = threading.Event()
        self._begin()

    @property
    def name(self) -> str:
        return f"node {self.index} ({self.visitor.machine.address})"

    def load(self, workers: int) -> float:
        """Workers per core with this many workers."""
        return workers / self.visitor.machine.cores

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
        return report | {f"node/{self.index}/{name}": x for name, x in own.items()}
