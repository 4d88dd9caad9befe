"""The control groups of this process, by which a container, a pod or a batch system limits it."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")

_OWN = Path("/proc/self/cgroup")


def folders(controller: str) -> list[Path]:
    """The folders of the process's control group and of those around it, innermost first.

    They hold the files of version 2 (``memory.max``), or those of version 1
    (``memory.limit_in_bytes``) where the controller has a folder of its own.
    """
    older = (ROOT / controller).is_dir()
    root = ROOT / controller if older else ROOT
    found = root / _path_of(controller if older else "").strip("/")
    # In a container the path may be the host's, which is not there.
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
