"""The files of a run folder that are quintet's own; none of them is a link.

A run folder may come from another person.  A link in it may lead anywhere, a pipe may never end,
and a device is not a file.  The folder itself may be a link.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from quintet.checkpoints.manifest import REPLACED
from quintet.errors import CheckpointError
from quintet.system.files import TEMPORARY

_OURS = re.compile(
    r"config\.yaml|run\.json|log\.txt|\.lock|metrics\.jsonl|progress\.csv|population\.jsonl"
    r"|wandb\.json|wandb|tensorboard|checkpoints|best|policy|policy_\d+|replay|failed_batch"
    r"|manifest\.json|meta\.json|\w+\.safetensors"
)
_MEMBERS = re.compile(
    r"race|trials|fresh|s\d+|sweep\.json|journal\.log|trials\.csv|best\.yaml|importance\.png"
)
"""Names that a race, a sweep or a group of seeds has in its folder, beside or around runs."""

_PREFIXED = re.compile(rf"({re.escape(TEMPORARY)}|{re.escape(REPLACED)}).*", re.DOTALL)
_NOT_ENTERED = "wandb"  # a folder of another library, which makes its own links

_REPLAY = "replay"
_IN_PLACE = (".lock", "log.txt")  # written where they are, as are all files of the replay


def is_ours(name: str) -> bool:
    """Whether quintet makes files or folders of this name in a run folder or a checkpoint."""
    return bool(_OURS.fullmatch(name) or _PREFIXED.fullmatch(name))


def require_own(folder: Path, *, writes: bool = False) -> None:
    """Checks all that quintet may open, write, rename or remove in the folder of a run, a race, a
    sweep or a group of seeds, or in a checkpoint; raises CheckpointError where something is a link,
    or neither a file nor a folder.

    writes: whether files are written in place, so that they may not have a second name (hard link).
    """
    for entry in _entries(folder):
        path, other = Path(entry.path), ""
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # removed meanwhile by the process that trains in it
            continue
        if stat.S_ISLNK(status.st_mode):
            other = f"a link to {_target(path)}"
        elif not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            other = "a pipe, a socket or a device"
        in_place = path.name in _IN_PLACE or path.parent.name == _REPLAY
        if writes and in_place and stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            other = "a file with another name as well (a hard link), which would change with it"
        if other:
            raise _not_ordinary(path, other)


def require_member(folder: Path) -> None:
    """Checks the folder of a run of a group, whose folder may come from another person; raises
    CheckpointError where it is a link.
    """
    if folder.is_symlink():
        raise _not_ordinary(folder, f"a link to {_target(folder)}")


def _not_ordinary(path: Path, other: str) -> CheckpointError:
    return CheckpointError(
        f"{path} must be an ordinary file or folder, got {other}: quintet opens, writes and "
        "removes nothing through links inside the folder of a run or of several runs; put what "
        "belongs there in its place, or remove it"
    )


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    """Quintet's entries in a folder, with their contents; what can't be listed can't be opened."""
    left, top = [str(folder)], True
    while left:
        found: list[os.DirEntry[str]] = []
        with suppress(OSError, ValueError), os.scandir(left.pop()) as listed:
            found = sorted(listed, key=lambda entry: entry.name)
        for entry in found:
            if top and not (is_ours(entry.name) or _MEMBERS.fullmatch(entry.name)):
                continue
            yield entry
            if entry.name != _NOT_ENTERED and entry.is_dir(follow_symlinks=False):
                left.append(entry.path)
        top = False


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return "somewhere"
