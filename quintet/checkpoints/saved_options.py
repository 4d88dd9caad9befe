"""The resolved options of a run: ``config.yaml`` has them for people, and every checkpoint those
with which it was trained, which alone a resume reads.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from quintet.checkpoints import manifest
from quintet.checkpoints.links import require_own
from quintet.errors import CheckpointError
from quintet.system import files

FILE = "config.yaml"
CONFIG = "config"
"""Key of the options in a checkpoint's meta."""


class SavedOptions(NamedTuple):
    """The options in the newest checkpoint of a run, by dotted name.

    not_own: reason why that checkpoint is not this user's; None: it has a valid signature.
    """

    values: dict[str, Any]
    checkpoint: Path
    not_own: str | None


def write(run_dir: Path, values: Mapping[str, Any]) -> None:
    """Writes ``config.yaml``, see `files.write_whole`."""
    text = files.dump_yaml(dict(values), sort_keys=False)
    files.write_whole(run_dir / FILE, text.encode())


def read(run_dir: Path) -> SavedOptions | None:
    """The options of the run in a folder; None where it has no whole checkpoint.  Raises
    CheckpointError if the folder of checkpoints can't be read, or something in the run folder is a
    link.
    """
    require_own(run_dir)
    newest = manifest.newest(run_dir / "checkpoints")
    if newest is None:
        return None
    if CONFIG not in newest.meta:
        raise CheckpointError(
            f"{newest.path} must be a run's own checkpoint, got one without options, such as a "
            "saved policy: move it out of the run folder to resume from an older checkpoint"
        )
    return SavedOptions(newest.meta[CONFIG], newest.path, newest.not_own)
