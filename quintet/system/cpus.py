"""The number of cores for this process."""

import math
import os
from pathlib import Path

from quintet.system import cgroup


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity (taskset, Slurm), at most its
    container's CPU quota (``docker --cpus``, a pod's limit; rounded up), at least 1.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # Linux only
        cores = len(os.sched_getaffinity(0))
    return max(1, math.ceil(min(cores, _quota())))


def _quota() -> float:
    """Cores in the quotas of the process's control groups; infinite without a limit."""
    return min(_quota_of(folder) for folder in cgroup.folders("cpu"))


def _quota_of(folder: Path) -> float:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        share = float(quota) / float(period)
    except (OSError, ValueError):  # ValueError: "max", no limit
        return math.inf
    return share if share > 0 else math.inf  # -1: no limit
