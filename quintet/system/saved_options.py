"""``config.yaml``, the resolved options of a run, and the options in its checkpoints.

The file begins with the hash of all that follows, so that changes are noticed.  Every checkpoint
holds the options too, with which it was trained; a run whose ``config.yaml`` is damaged uses them.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from quintet.errors import FileFault
from quintet.system import files, manifest, trust
from quintet.system.inside import require_own

FILE = "config.yaml"
CONFIG = "config"
"""Key of the options in a checkpoint's meta."""

_HASH = b"# sha256 "


class SavedOptions(NamedTuple):
    """The options in a run folder.

    values: of ``config.yaml``; empty where it can't be read, and `fault` then says why.
    altered: whether the file was changed or damaged since the run wrote it.
    stored, checkpoint: of the newest checkpoint, if any; not_own: why it has no signature of this
        user.
    """

    values: dict[str, Any]
    fault: str | None
    altered: bool
    stored: dict[str, Any]
    checkpoint: Path | None
    not_own: str | None


def write(run_dir: Path, values: Mapping[str, Any]) -> None:
    """Writes ``config.yaml``, see `files.write_whole`."""
    text = files.dump_yaml(dict(values), sort_keys=False) + trust.signature_line(values)
    files.write_whole(run_dir / FILE, _first_line(text.encode()) + text.encode())


def read(run_dir: Path) -> SavedOptions | None:
    """The options in a run folder; None where it holds none.  Raises CheckpointError."""
    require_own(run_dir)
    newest = manifest.newest(run_dir / "checkpoints")
    held = newest.meta.get(CONFIG) if newest else None
    stored = held if isinstance(held, dict) else {}
    place = newest.path if newest and stored else None
    not_own = newest.not_own if newest and stored else "is not there"
    path = run_dir / FILE
    if not stored and not os.path.lexists(path):
        return None
    values: dict[str, Any] = {}
    fault, altered = None, True
    try:
        data = files.read_bytes(path)
        values = _mapping(data, path)
        first, _, rest = data.partition(b"\n")
        altered = first + b"\n" != _first_line(rest)
    except FileFault as error:
        fault = str(error)
    return SavedOptions(values, fault, altered, stored, place, not_own)


def _first_line(text: bytes) -> bytes:
    return _HASH + hashlib.sha256(text).hexdigest().encode() + b"\n"


def _mapping(data: bytes, path: Path) -> dict[str, Any]:
    try:
        values = files.parse_yaml(data)
    except ValueError as fault:
        raise FileFault(f"{path} is no YAML: {fault}") from fault
    if not isinstance(values, dict):
        kind = "nothing" if values is None else f"a {type(values).__name__}"
        raise FileFault(f"{path} must hold options by name, it holds {kind}")
    strange = [name for name in values if not isinstance(name, str)]
    if strange:
        raise FileFault(f"{path} must hold options by name, {strange[0]!r} is no name")
    return values
