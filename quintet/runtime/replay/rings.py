"""Memory of the replay: rings of rows, one for each stream, mapped from a file or anonymous.

A row is identified by (stream, number); numbers grow by one and are never reused, and row ``n`` is
at ``n % length`` of its stream's ring.  The owner knows which rows are live.
"""

import mmap
import os
import re
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quintet.errors import CheckpointError, ConfigError
from quintet.system.memory import free_bytes
from quintet.types import TensorSpec

Array = NDArray[Any]
Numbers = NDArray[np.int64]
"""Numbers of streams, of rows, or of the places of rows in a ring's fields; any shape."""

More = Callable[[slice], Sequence[Array]]
"""Returns the data of the rows at these places that is kept elsewhere."""

_FILE = re.compile(r"(rows|states|frames-\d+)\.bin")
_ALIGNMENT = 64
_WORD = 8


def as_array(x: Tensor) -> Array:
    """The tensor as a numpy array; bfloat16, which numpy lacks, as int16."""
    if x.dtype is torch.bfloat16:
        x = x.view(torch.int16)
    return x.numpy(force=True)


def as_tensor(x: Array, dtype: torch.dtype) -> Tensor:
    """The inverse of `as_array`."""
    tensor = torch.from_numpy(x)
    return tensor.view(dtype) if dtype is torch.bfloat16 else tensor


def array_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    return as_array(torch.empty(0, dtype=dtype)).dtype


def row_bytes(spec: TensorSpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64)) * spec.dtype.itemsize


def record_dtype(specs: Mapping[str, TensorSpec]) -> np.dtype[Any]:
    """A record of these fields, aligned and padded to words of eight bytes."""
    fields: list[Any] = [(name, array_dtype(x.dtype), x.shape) for name, x in specs.items()]
    # An empty last field of whole words pads the record.
    return np.dtype([*fields, ("", np.int64, (0,))], align=True)


def rings_bytes(
    packed: Mapping[str, TensorSpec], apart: Mapping[str, TensorSpec], rows: int
) -> int:
    """Bytes of `Rings` with this many rows in all."""
    by_themselves = sum(_aligned(row_bytes(spec) * rows) for spec in apart.values())
    return max(_aligned(record_dtype(packed).itemsize * rows) + by_themselves, _ALIGNMENT)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def require_room(folder: Path | None, nbytes: int, what: str = "replay") -> None:
    """Raises ConfigError when `nbytes` of a replay don't fit in `folder`, or in memory.

    Space that the folder's own files take counts as free.  No folder is made.
    """
    if folder is None:
        available, where = int(free_bytes()), "in memory"
    else:
        held = sum(file.stat().st_blocks * 512 for file in files_in(folder))
        there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
        available, where = shutil.disk_usage(there).free + held, f"on the disk of {folder}"
    if nbytes > available:
        raise ConfigError(
            f"{what} requires {nbytes:,} bytes {where}, {available:,} are available; lower the "
            "replay capacity, or make room"
        )


def files_in(folder: Path) -> list[Path]:
    """The files of a replay in its folder."""
    return [file for file in folder.glob("*.bin") if _FILE.fullmatch(file.name)]


def empty_folder(folder: Path) -> None:
    """Makes the folder, or removes an old replay's files from it; raises ConfigError if it can't be
    made or emptied.
    """
    try:
        folder.mkdir(exist_ok=True)  # without parents: a removed run folder isn't made again
        for file in files_in(folder):
            file.unlink()
    except OSError as fault:
        raise ConfigError(
            f"replay requires a folder for its files, {folder} can't be one ({fault}); remove "
            "what is in the way, or give another run folder"
        ) from fault


def allocate(place: Path | None, nbytes: int) -> mmap.mmap:
    """Memory of `nbytes`, at least 1: the file `place`, created or enlarged, or anonymous.

    The file's blocks are allocated at once: a full disk is an error here, not SIGBUS in a later
    write.

    Raises:
        ConfigError: the system refuses.
    """
    try:
        return mmap.mmap(-1, nbytes) if place is None else _map_file(place, nbytes)
    except OSError as fault:
        where = "in memory" if place is None else f"for {place}"
        raise ConfigError(
            f"replay requires {nbytes:,} bytes {where}, they can't be had ({fault.strerror}); "
            "lower the replay capacity, make room, or give a run folder on another disk"
        ) from fault


def _map_file(place: Path, nbytes: int) -> mmap.mmap:
    file = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(file, 0, nbytes)
        return mmap.mmap(file, nbytes)
    finally:
        os.close(file)


def require_file(place: Path, nbytes: int) -> None:
    """Raises CheckpointError unless `place` is a file of that size."""
    if not place.is_file() or place.stat().st_size != nbytes:
        raise CheckpointError(
            f"the checkpoint requires the replay file {place} of {nbytes:,} bytes, which is "
            "missing or has another size; restore it, or begin anew in another run folder"
        )


@final
class Rings:
    """`num_streams` rings of `length` rows each; a row has the fields of `packed` and of `apart`.

    The packed fields of a row lie together, as a record, and are read and written at once, so a
    draw touches few memory pages, however long the rings are.

    fields: by name ``[num_streams * length, ...]``, with the dtypes of `as_array`.
    specs: of all fields.
    record: dtype of the records.
    """

    def __init__(
        self,
        place: Path | None,
        packed: Mapping[str, TensorSpec],
        apart: Mapping[str, TensorSpec],
        num_streams: int,
        length: int,
        segment: int,
    ):
        """segment: rows under one checksum; divides `length`."""
        assert length % segment == 0
        self.specs, self.num_streams, self.length = {**packed, **apart}, num_streams, length
        self.place, rows = place, num_streams * length
        self._begins = np.arange(num_streams) * length
        self.nbytes = rings_bytes(packed, apart, rows)
        self._memory = allocate(place, self.nbytes)
        self.record = record_dtype(packed)
        nbytes = self.record.itemsize * rows
        words = self.record.itemsize // _WORD
        self._records = np.frombuffer(self._memory, np.int64, words * rows).reshape(rows, words)
        self.fields: dict[str, Array] = {}
        if packed:
            records = self._records.view(self.record)[:, 0]
            self.fields = {name: records[name] for name in packed}
        self._blocks = [self._records]
        offset = _aligned(nbytes)
        for name, spec in apart.items():
            nbytes = row_bytes(spec) * rows
            block = np.frombuffer(self._memory, np.uint8, nbytes, offset)
            self.fields[name] = block.view(array_dtype(spec.dtype)).reshape(rows, *spec.shape)
            self._blocks.append(self.fields[name])
            offset += _aligned(nbytes)
        self._segment = segment
        self._checksums = np.zeros((num_streams, length // segment), np.int64)
        self._sealed = np.zeros(num_streams, np.int64)

    def at(self, stream: Numbers, number: Numbers) -> Numbers:
        """Places of rows; the shapes broadcast."""
        place: Numbers = number % self.length
        place += self._begins[stream]
        return place

    def take(self, name: str, place: Numbers) -> Array:
        """A copy of the rows, ``[*place.shape, ...]``."""
        # numpy's indexing is faster for single values and slower for whole rows; `take` would copy
        # all of a field that is not contiguous.
        field = self.fields[name]
        single = field.ndim == 1 or not field.flags.c_contiguous
        return field[place] if single else field.take(place, 0)

    def read(self, name: str, place: Numbers) -> Tensor:
        return as_tensor(self.take(name, place), self.specs[name].dtype)

    def write(self, name: str, place: Numbers, values: Array) -> None:
        """Writes rows ``[*place.shape, ...]`` to their places."""
        field = self.fields[name]
        _require_alike(name, field.dtype, place.shape + field.shape[1:], values)
        field[place] = values

    def take_records(self, place: Numbers) -> Array:
        """Copies of the records, ``[*place.shape]``."""
        records: Array = self._records.take(place, 0).view(self.record)[..., 0]
        return records

    def blank(self, shape: tuple[int, ...]) -> Array:
        """Records of zeros."""
        words = np.zeros((*shape, self._records.shape[1]), np.int64)
        records: Array = words.view(self.record)[..., 0]
        return records

    def require_declared(self, name: str, values: Array) -> None:
        """Raises AssertionError unless ``[T, B, ...]`` is of the field's dtype and shape."""
        field = self.fields[name]
        _require_alike(name, field.dtype, values.shape[:2] + field.shape[1:], values)

    def write_records(self, place: Numbers, values: Array) -> None:
        """Writes records ``[*place.shape]``, contiguous, to their places."""
        self._records[place] = values.view(np.int64).reshape(*place.shape, -1)

    def flush(self) -> None:
        if self.place is not None:
            self._memory.flush()

    def seal(self, heads: Numbers, more: More | None = None) -> None:
        """Computes the checksums of rows written since the last call, up to `heads` (excluded)."""
        for stream, head in enumerate(heads.tolist()):
            for segment in self._segments(int(self._sealed[stream]), head):
                slot = segment % self._checksums.shape[1]
                self._checksums[stream, slot] = self._checksum(stream, segment, head, more)
        self._sealed[:] = heads

    def checksums(self, oldest: Numbers, heads: Numbers) -> list[list[int]]:
        """Checksums of the segments with rows ``oldest <= number < head``, by stream."""
        return [
            [
                int(self._checksums[stream, segment % self._checksums.shape[1]])
                for segment in self._segments(first, head)
            ]
            for stream, (first, head) in enumerate(_pairs(oldest, heads))
        ]

    def restore(
        self,
        oldest: Numbers,
        heads: Numbers,
        checksums: list[list[int]],
        more: More | None = None,
    ) -> None:
        """Restores the result of `checksums` and verifies every row under it; raises
        CheckpointError if some rows are not those of the checkpoint.
        """
        for stream, (first, head) in enumerate(_pairs(oldest, heads)):
            segments = self._segments(first, head)
            if len(checksums[stream]) != len(segments):
                raise damaged(self.place, stream)
            for segment, stored in zip(segments, checksums[stream], strict=True):
                if self._checksum(stream, segment, head, more) != stored:
                    raise damaged(self.place, stream)
                self._checksums[stream, segment % self._checksums.shape[1]] = stored
        self._sealed[:] = heads

    def _segments(self, first: int, head: int) -> range:
        """Segments with rows ``first <= number < head``."""
        return range(first // self._segment, -(-head // self._segment) if head > first else 0)

    def _checksum(
        self,
        stream: int,
        segment: int,
        head: int,
        more: More | None,
    ) -> int:
        begin = segment * self._segment
        count = min(self._segment, head - begin)
        place = stream * self.length + begin % self.length
        rows = slice(place, place + count)
        total = 0
        for block in self._blocks:
            total = zlib.crc32(bytes_of(block[rows]), total)
        for values in more(rows) if more is not None else ():
            total = zlib.crc32(bytes_of(values), total)
        return total


def _require_alike(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], values: Array) -> None:
    if values.dtype != dtype or values.shape != shape:
        raise AssertionError(
            f"{name}: {dtype} {shape} declared, {values.dtype} {values.shape} given"
        )


def _pairs(oldest: Numbers, heads: Numbers) -> list[tuple[int, int]]:
    return list(zip(oldest.tolist(), heads.tolist(), strict=True))


def bytes_of(values: Array) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def damaged(place: Path | None, stream: int) -> CheckpointError:
    """The error for rows that are not those of a checkpoint."""
    return CheckpointError(
        f"the checkpoint requires rows of stream {stream} that {place} does not hold: they were "
        "overwritten since (those of the newest checkpoint never are), or the file is damaged; "
        "resume from the newest checkpoint, or begin anew in another run folder"
    )
