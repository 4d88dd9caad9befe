"""What a run takes of its machine, and what others take beside it."""

import os
from typing import final

import psutil


@final
class MachineUse:
    """Memory and cores, measured from one report to the next."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.report()  # shares of cores count from here on

    def report(self) -> dict[str, float]:
        """``process/resident_bytes`` and ``machine/cores_used``, by this process and by others.

        Only cores that this process may use are counted.
        """
        by_core = psutil.cpu_percent(percpu=True)
        usable = set(range(len(by_core)))
        if hasattr(os, "sched_getaffinity"):  # Linux only
            usable = os.sched_getaffinity(0)
        used = self._process.cpu_percent() / 100
        in_use = sum(percent for core, percent in enumerate(by_core) if core in usable) / 100
        return {
            "process/resident_bytes": float(self._process.memory_info().rss),
            "machine/cores_used": used,
            # Two clocks, read one after the other, may differ by a hundredth of a second.
            "machine/cores_used_by_others": max(0.0, in_use - used),
        }
