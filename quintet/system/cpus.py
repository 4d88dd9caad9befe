"""The cores of this process, and the control groups by which a container, a pod or a batch system
limits it.
"""

import math
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

_OWN = Path("/proc/self/cgroup")


def usable_cores() -> int:
    """Cores that this process may use: of its affinity (taskset, Slurm), at most its container's
    CPU quota (``docker --cpus``, a pod's limit; rounded up), at least 1.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # Linux only
        cores = len(os.sched_getaffinity(0))
    return max(1, math.ceil(min(cores, *map(_quota, groups("cpu")))))


def _quota(folder: Path) -> float:
    """Cores in the quota of a control group; infinite without a limit."""
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


def groups(controller: str) -> list[Path]:
    """Folders of the process's control group and of its parents, innermost first, in version 2
    (``memory.max``), or version 1 if the controller has its own folder.
    """
    older = (ROOT / controller).is_dir()
    root = ROOT / controller if older else ROOT
    found = root / _path_of(controller if older else "").strip("/")
    # A container may see the host's path, which is not there.
    around = [found, *found.parents] if ".." not in found.parts and found.is_dir() else [root]
    return [folder for folder in around if folder.is_relative_to(root)]


def _path_of(controller: str) -> str:
    """The path of the process's group of a controller, of version 2 without one."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            return path
    return ""
