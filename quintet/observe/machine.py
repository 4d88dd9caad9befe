"""What a run takes of its machine, and what others take beside it."""

import os
import time
from typing import final

import psutil

from quintet.cores import usable_cores

_LOOK_AGAIN_S = 10.0
"""Looking for processes that this one has begun takes milliseconds on a machine with thousands."""


@final
class MachineUse:
    """Memory and cores, measured from one report to the next."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._children: dict[psutil.Process, psutil.Process] = {}
        self._looked_at = float("-inf")
        self.report()  # shares of cores count from here on

    def report(self) -> dict[str, float]:
        """``process/resident_bytes`` of this process, and ``machine/cores_used`` by it and the
        processes that it has begun (environments may be some), and by others on the cores that this
        one may use.

        Others are absent in a container whose time is limited: its cores are everybody's.
        """
        by_core = psutil.cpu_percent(percpu=True)
        usable = set(range(len(by_core)))
        if hasattr(os, "sched_getaffinity"):  # Linux only
            usable = os.sched_getaffinity(0)
        self._look_for_children()
        used = sum(map(_percent, (self._process, *self._children.values()))) / 100
        report = {
            "process/resident_bytes": float(self._process.memory_info().rss),
            "machine/cores_used": used,
        }
        if usable_cores() == len(usable):
            in_use = sum(percent for core, percent in enumerate(by_core) if core in usable) / 100
            # Clocks that are read one after the other may differ by a hundredth of a second.
            report["machine/cores_used_by_others"] = max(0.0, in_use - used)
        return report

    def _look_for_children(self) -> None:
        if time.monotonic() - self._looked_at >= _LOOK_AGAIN_S:
            self._looked_at = time.monotonic()
            found = self._process.children(recursive=True)
            # The old object of a process knows when it was asked last.
            self._children = {child: self._children.get(child, child) for child in found}


def _percent(process: psutil.Process) -> float:
    try:
        return float(process.cpu_percent())
    except psutil.Error:  # it has ended
        return 0.0
