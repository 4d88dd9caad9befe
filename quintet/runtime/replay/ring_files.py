"""Memory of a replay, mapped from files of its folder: sizes and dtypes."""

import mmap
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quintet.errors import CheckpointError, ConfigError
from quintet.system import files
from quintet.types import TensorSpec

Array = NDArray[Any]
Numbers = NDArray[np.int64]
"""Numbers of streams, of rows, or of the places of rows in a ring's fields; any shape."""

_FILE = re.compile(r"(rows|states|frames-\d+)\.bin")
_ALIGNMENT = 64


def array_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The array dtype for a tensor dtype; bfloat16, which numpy lacks, is stored as int16."""
    return torch.empty(0, dtype=torch.int16 if dtype is torch.bfloat16 else dtype).numpy().dtype


def record_dtype(specs: Mapping[str, TensorSpec]) -> np.dtype[Any]:
    """A record of these fields, aligned and padded to words of eight bytes."""
    fields: list[Any] = [(name, array_dtype(x.dtype), x.shape) for name, x in specs.items()]
    # An empty last field of whole words pads the record.
    return np.dtype([*fields, ("", np.int64, (0,))], align=True)


def rings_bytes(
    packed: Mapping[str, TensorSpec], apart: Mapping[str, TensorSpec], rows: int
) -> int:
    """Bytes of `Rings` with this many rows in total."""
    by_themselves = sum(aligned(spec.nbytes * rows) for spec in apart.values())
    return max(aligned(record_dtype(packed).itemsize * rows) + by_themselves, _ALIGNMENT)


def aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def require_room(folder: Path, nbytes: int) -> None:
    """Raises ConfigError if `nbytes` of a replay don't fit in `folder`.

    Space used by the folder's existing files counts as free.  No folder is made.
    """
    used = sum(file.stat().st_blocks * 512 for file in files_in(folder))
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    available = shutil.disk_usage(existing).free + used
    if nbytes > available:
        raise ConfigError(
            f"replay must have room for {nbytes:,} bytes on the disk of {folder}, got "
            f"{available:,}; lower the replay capacity, or make room"
        )


def files_in(folder: Path) -> list[Path]:
    """The files of a replay in its folder."""
    return [file for file in folder.glob("*.bin") if _FILE.fullmatch(file.name)]


def empty_folder(folder: Path) -> None:
    """Makes the folder, or removes an old replay's files; raises ConfigError if it can't."""
    try:
        folder.mkdir(exist_ok=True)  # without parents: a removed run folder isn't made again
        for file in files_in(folder):
            file.unlink()
    except OSError as fault:
        raise ConfigError(
            f"replay must have a folder for its files, got {folder} ({fault}); remove what is in "
            "the way, or give another run folder"
        ) from fault


def allocate(place: Path, nbytes: int) -> mmap.mmap:
    """Memory of `nbytes`, at least 1: the file `place`, created or enlarged.  Raises ConfigError if
    the system refuses.
    """
    try:
        file = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            files.reserve(file, nbytes)
            return mmap.mmap(file, nbytes)
        finally:
            os.close(file)
    except OSError as fault:
        raise ConfigError(
            f"replay must have room for {nbytes:,} bytes for {place}, got less ({fault.strerror}); "
            "lower the replay capacity, make room, or give a run folder on another disk"
        ) from fault


def require_file(place: Path, nbytes: int) -> None:
    """Raises CheckpointError unless `place` is a file of that size."""
    if not place.is_file() or place.stat().st_size != nbytes:
        raise CheckpointError(
            f"the checkpoint's replay file {place} of {nbytes:,} bytes is missing or of another "
            "size; restore it, or start again in another run folder"
        )


def bytes_of(values: Array) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def damaged(place: Path, stream: int) -> CheckpointError:
    """The error for rows that do not match a checkpoint."""
    return CheckpointError(
        f"{place} must hold the checkpoint's rows of stream {stream}, got others: they were "
        "overwritten since (those of the newest checkpoint never are), or the file is damaged; "
        "resume from the newest checkpoint, or start again in another run folder"
    )
