"""The rows of a replay: one ring per stream, and an index of the rows where draws may begin.

A row is identified by (stream, number); numbers grow by one and are never reused, and row ``n`` is
at ``n % length`` of its stream's ring.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quintet.runtime.replay import ring_files
from quintet.runtime.replay.frames import FrameStacks
from quintet.runtime.replay.layout import Layout
from quintet.runtime.replay.ring_files import Array, Numbers
from quintet.runtime.replay.stored_batch import (
    FIRST,
    GAP,
    START,
    VALID,
    Begin,
    Columns,
    Fresh,
    as_array,
    as_tensor,
)
from quintet.types import Rollout, TensorSpec

More = Callable[[slice], Sequence[Array]]
"""A function that returns further data of the rows at these places, stored outside of the rings."""

_WORD = 8  # bytes


@final
class Rings:
    """`num_streams` rings of `length` rows each; a row has the fields of `packed` and of `apart`.

    The packed fields of a row form a record that is read and written at once, so a draw touches few
    memory pages, however long the rings are.

    fields: by name ``[num_streams * length, ...]``, with the dtypes of `as_array`.
    specs: specs of all fields.
    record: dtype of the records.
    """

    def __init__(
        self,
        place: Path,
        packed: Mapping[str, TensorSpec],
        apart: Mapping[str, TensorSpec],
        num_streams: int,
        length: int,
        segment: int,
    ):
        """segment: number of rows per checksum; divides `length`."""
        assert length % segment == 0
        self.specs, self.num_streams, self.length = {**packed, **apart}, num_streams, length
        self.place, rows = place, num_streams * length
        self._begins = np.arange(num_streams) * length
        self.nbytes = ring_files.rings_bytes(packed, apart, rows)
        self._memory = ring_files.allocate(place, self.nbytes)
        self.record = ring_files.record_dtype(packed)
        nbytes = self.record.itemsize * rows
        words = self.record.itemsize // _WORD
        self._records = np.frombuffer(self._memory, np.int64, words * rows).reshape(rows, words)
        self.fields: dict[str, Array] = {}
        if packed:
            records = self._records.view(self.record)[:, 0]
            self.fields = {name: records[name] for name in packed}
        self._blocks = [self._records]
        offset = ring_files.aligned(nbytes)
        for name, spec in apart.items():
            nbytes = spec.nbytes * rows
            block = np.frombuffer(self._memory, np.uint8, nbytes, offset)
            self.fields[name] = block.view(ring_files.array_dtype(spec.dtype)).reshape(
                rows, *spec.shape
            )
            self._blocks.append(self.fields[name])
            offset += ring_files.aligned(nbytes)
        self._segment = segment
        self._checksums = np.zeros((num_streams, length // segment), np.int64)
        self._sealed = np.zeros(num_streams, np.int64)

    def at(self, stream: Numbers, number: Numbers) -> Numbers:
        """The places of rows; the shapes broadcast."""
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
        self.require_declared(name, values, place.shape)
        self.fields[name][place] = values

    def take_records(self, place: Numbers) -> Array:
        """Copies of the records, ``[*place.shape]``."""
        records: Array = self._records.take(place, 0).view(self.record)[..., 0]
        return records

    def blank(self, shape: tuple[int, ...]) -> Array:
        """Records of zeros."""
        words = np.zeros((*shape, self._records.shape[1]), np.int64)
        records: Array = words.view(self.record)[..., 0]
        return records

    def require_declared(self, name: str, values: Array, rows: tuple[int, ...]) -> None:
        """Raises AssertionError unless ``[*rows, ...]`` is of the field's dtype and shape."""
        field = self.fields[name]
        dtype, shape = field.dtype, rows + field.shape[1:]
        if values.dtype != dtype or values.shape != shape:
            actual = f"{values.dtype} {values.shape}"
            raise AssertionError(f"{name}: {dtype} {shape} declared, {actual} given")

    def write_records(self, place: Numbers, values: Array) -> None:
        """Writes records ``[*place.shape]``, contiguous, to their places."""
        self._records[place] = values.view(np.int64).reshape(*place.shape, -1)

    def flush(self) -> None:
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
        self, oldest: Numbers, heads: Numbers, checksums: list[list[int]], more: More | None = None
    ) -> None:
        """Restores the result of `checksums` and verifies every row that it covers; raises
        CheckpointError if some rows differ from the checkpoint's.
        """
        for stream, (first, head) in enumerate(_pairs(oldest, heads)):
            segments = self._segments(first, head)
            if len(checksums[stream]) != len(segments):
                raise ring_files.damaged(self.place, stream)
            for segment, stored in zip(segments, checksums[stream], strict=True):
                if self._checksum(stream, segment, head, more) != stored:
                    raise ring_files.damaged(self.place, stream)
                self._checksums[stream, segment % self._checksums.shape[1]] = stored
        self._sealed[:] = heads

    def _segments(self, first: int, head: int) -> range:
        """Segments with rows ``first <= number < head``."""
        return range(first // self._segment, -(-head // self._segment) if head > first else 0)

    def _checksum(self, stream: int, segment: int, head: int, more: More | None) -> int:
        """CRC-32 of a segment's rows below `head`."""
        begin = segment * self._segment
        count = min(self._segment, head - begin)
        place = stream * self.length + begin % self.length
        rows = slice(place, place + count)
        total = 0
        for block in self._blocks:
            total = zlib.crc32(ring_files.bytes_of(block[rows]), total)
        for values in more(rows) if more is not None else ():
            total = zlib.crc32(ring_files.bytes_of(values), total)
        return total


@final
class RowStore:
    """Rows in the order of each stream, with each observation stored once: row T of an unroll is
    row 0 of the next.

    If a stream is interrupted (by a restart or undelivered columns), an extra row marks the
    gap: it holds the last observation and, as its action and reward, the last action and reward
    that the next unroll's actor saw.  A stream's first row is a gap, and so is its newest row until
    the stream continues.

    Row numbers grow per stream and are never reused.  The newest ``layout.rows_per_stream`` rows
    before the last one are live, including gaps.

    head: number of each stream's newest row.
    index: numbers of rows, by stream; entry ``n`` is at ``n % index.shape[1]``.
    starts: the memory of `index`, flat.
    first, last: each stream's oldest entry, and the entry after its newest.
    size, stored: numbers of live valid rows, and of all valid rows ever stored.
    """

    def __init__(self, layout: Layout, fresh: bool):
        """Allocates the memory; `fresh`: whether existing files belong to an old run."""
        self.layout = layout
        if fresh:
            ring_files.empty_folder(layout.folder)
        layout.require_room()
        count, length, entries = layout.num_streams, layout.length(), layout.entries()
        packed, apart = layout.packed(), layout.apart()
        self.rows = Rings(layout.file("rows"), packed, apart, count, length, layout.segment)
        self.unrolls: Rings | None = None
        if layout.states:
            self.unrolls = Rings(layout.file("states"), {}, layout.states, count, entries, 1)
        fields, at = self.rows.fields, self.rows.at
        self.stacks: dict[str, FrameStacks] = {}
        for index, (name, slices) in enumerate(layout.stacks.items()):
            place = layout.file(f"frames-{index}")
            self.stacks[name] = FrameStacks(fields, at, name, layout.leaves[name], slices, place)
        self.packed = frozenset(packed)
        self.flags = self.rows.fields["flags"]
        kept = ("obs/", "flags", "episode_id")
        self._of_actions = [name for name in self.rows.fields if not name.startswith(kept)]
        if fresh:
            self.flags[::length] = GAP
            for stack in self.stacks.values():
                stack.recover(0, np.zeros(count * length, np.bool_))
        self.head = np.zeros(count, np.int64)
        self.going_on = np.zeros(count, np.bool_)
        self.group = np.zeros(count, np.int64)
        self.index = np.zeros((count, entries), np.int64)
        self.starts = self.index.reshape(-1)
        self._index_begins = np.arange(count) * entries
        self._where: Columns = slice(None)  # the streams of the last batch, or all of them
        self._batch: tuple[Rollout, Fresh] | None = None  # the last batch, and views of its rows
        self._next_begin: Begin | None = None  # beginning of a batch that follows on the last one
        self._full = False  # whether every stream has as many rows as can be live
        self.first = np.zeros(count, np.int64)
        self.last = np.zeros(count, np.int64)
        self.size = 0
        self.stored = 0

    @property
    def nbytes(self) -> int:
        states = self.unrolls.nbytes if self.unrolls is not None else 0
        pools = sum(stack.nbytes for stack in self.stacks.values())
        return self.rows.nbytes + states + self.index.nbytes + pools

    def in_index(self, stream: Numbers, entry: Numbers) -> Numbers:
        """Positions of entries in `starts`."""
        place: Numbers = entry % self.index.shape[1]
        place += self._index_begins[stream]
        return place

    def read_obs(self, name: str, stream: Numbers, number: Numbers, place: Numbers) -> Tensor:
        """An observation leaf, by its field, of the rows (stream, number) at `place`."""
        if name in self.stacks:
            return self.stacks[name].read(stream, number, place)
        return self.rows.read(name, place)

    def kept_whole(self, rows: slice) -> list[Array]:
        """The pools' frames that belong to these rows of the rings."""
        return [stack.whole(rows) for stack in self.stacks.values()]

    def cut(self) -> None:
        """Records that the next rows do not follow the last ones."""
        self.going_on[:] = False
        self._next_begin = None

    def store(self, batch: Rollout) -> None:
        """Stores the columns that have a valid row; columns of one stream are in order."""
        # The serial sampler returns the same object with other rows: `Fresh` keeps views.
        if self._batch is None or self._batch[0] is not batch:
            fresh = Fresh.of(batch, self.layout)
            for name, values in (fresh.rows | fresh.obs).items():
                if name in self.packed:
                    self.rows.require_declared(name, values, values.shape[:2])
            self._batch = batch, fresh
        fresh = self._batch[1]
        if self.layout.numbers is not None:
            fresh = fresh._replace(stream=self.layout.rings_of(fresh.stream))
        whole = _all(fresh.valid) or _all(fresh.valid.any(0))
        if whole and self._next_begin == fresh.begin():  # the same streams follow on the last batch
            self._append(fresh, None)
        else:
            self._store_apart(fresh)

    def _store_apart(self, fresh: Fresh) -> None:
        """Stores a batch of any columns, after finding those that follow stored rows."""
        parts = _once_each(fresh.stream)
        for columns in parts:
            self._next_begin = None
            part = fresh.columns(columns) if len(parts) > 1 else fresh
            kept = part.valid.any(0)
            if not kept.all():
                self.going_on[part.stream[~kept]] = False
                part = part.columns(np.flatnonzero(kept))
            if len(part.stream):
                follows = self._follows(part)
                if not follows.all():
                    self._begin(part, ~follows)
                self._append(part, ~follows)

    def _append(self, fresh: Fresh, gaps: Array | None) -> None:
        """Stores columns of different streams.

        gaps: ``[B]``, columns that follow a gap; None: no gaps, and the streams of the last batch.
        """
        stream, steps = fresh.stream, len(fresh.valid)
        if gaps is not None:
            every = len(stream) == len(self.head) and bool((stream == np.arange(len(stream))).all())
            self._where = slice(None) if every else stream  # numpy is faster with the former
            self.going_on[stream] = True
            self.group[stream] = fresh.group
        where = self._where
        head = self.head[where]
        start = head if gaps is None else head + gaps
        number = start + np.arange(steps + 1)[:, None]
        self._retire(stream, head, number[-1], gaps is not None)
        place = self.rows.at(stream, number)
        body = place[:-1]
        flags, starts = fresh.flags()
        episodes = fresh.episodes()
        records = self.rows.blank(place.shape)  # row T has only an observation yet
        records["flags"], records["episode_id"] = flags, episodes
        for name, values in fresh.rows.items():
            if name in self.packed:
                records[name][:-1] = values
            else:
                self.rows.write(name, body, values)
        for name, values in fresh.obs.items():
            if name in self.packed:
                records[name] = values
            elif name in self.stacks:
                self.stacks[name].follow(place[1:], place[0], values)
            else:
                self.rows.write(name, place[1:], values[1:])
        self.rows.write_records(place, records)
        self._enter(stream, number[:-1], starts, fresh.states)
        count = int(np.count_nonzero(fresh.valid))
        self.size += count
        self.stored += count
        self.head[where] = number[-1]
        self._next_begin = fresh.end(episodes[-1])

    def _follows(self, fresh: Fresh) -> NDArray[np.bool_]:
        """Whether each stream continues where it stopped, by the bytes of its observation, episode,
        last action and reward: columns between may never have been delivered.
        """
        stream = fresh.stream
        going_on = self.going_on[stream]
        if not going_on.any():
            return going_on
        head = self.head[stream]
        newest, before = self.rows.at(stream, head), self.rows.at(stream, head - 1)
        going_on &= ((self.flags[newest] & FIRST) > 0) == fresh.first[0]
        going_on &= self.rows.fields["episode_id"][newest] == fresh.episode
        for name, values in fresh.last.items():
            going_on &= _equal(self.rows.fields[name][before], values)
        for name, values in fresh.obs.items():
            going_on &= _equal(as_array(self.read_obs(name, stream, head, newest)), values[0])
        return going_on

    def _begin(self, fresh: Fresh, gaps: Array) -> None:
        """Writes a gap after the newest rows of some streams, and row 0 of the batch after it."""
        stream = fresh.stream[gaps]
        head = self.head[stream]
        gap, start = self.rows.at(stream, head), self.rows.at(stream, head + 1)
        for name in self._of_actions:  # a gap has only an observation, not an older row's action
            self.rows.fields[name][gap] = 0
        for name, values in fresh.last.items():
            self.rows.write(name, gap, values[gaps])
        for name, values in fresh.obs.items():
            if name in self.stacks:
                self.stacks[name].begin(start, values[0][gaps])
            elif name not in self.packed:
                self.rows.write(name, start, values[0][gaps])

    def _retire(self, stream: Numbers, old: Numbers, new: Numbers, gaps: bool) -> None:
        """Removes from the index the rows that were live only with the old heads."""
        before = old - self.layout.rows_per_stream
        most = int((new - old).max()) if gaps else int(new[0] - old[0])
        if not self._full:
            if before.max() <= -most:
                return
            self._full = bool((self.head >= self.layout.rows_per_stream).all())
        number = before[None] if most == 1 else before + np.arange(most)[:, None]
        flags = self.flags[self.rows.at(stream, number)]
        if gaps or not self._full:
            flags[(number < 0) | (number >= new - self.layout.rows_per_stream)] = 0
        starts = (flags & START) > 0
        self.first[self._where] += starts[0] if most == 1 else starts.sum(0)
        self.size -= int(np.count_nonzero(flags & VALID))

    def _enter(
        self, stream: Numbers, number: Numbers, starts: Array, states: Mapping[str, Array]
    ) -> None:
        """Adds the rows ``[T, B]`` with `starts` set to the index."""
        place = self.last[self._where][None]
        if len(starts) > 1:
            place = place + np.cumsum(starts, 0) - starts
        place = self.in_index(stream, place)
        if _all(starts):
            self.starts[place] = number
        else:
            self.starts[place[starts]] = number[starts]
        for name, values in states.items():
            assert self.unrolls is not None
            self.unrolls.write(name, place[0], values.swapaxes(0, 1))
        self.last[self._where] += starts[0] if len(starts) == 1 else starts.sum(0)


def _all(x: Any) -> bool:
    """Like ``x.all()``, but several times as fast on few values."""
    return bool(np.count_nonzero(x) == x.size)


def _equal(a: Array, b: Array) -> Array:
    """Whether the bytes of each row are equal, ``[B]``."""
    count = len(a)

    def flat(x: Array) -> Array:
        return np.ascontiguousarray(x).reshape(count, int(np.prod(x.shape[1:]))).view(np.uint8)

    same: Array = (flat(a) == flat(b)).all(1)
    return same


def _once_each(stream: Numbers) -> list[Columns]:
    """Splits columns into parts in which a stream occurs at most once; a stream's order is kept."""
    if len(stream) == 1 or (np.diff(stream) > 0).all():
        return [slice(None)]
    order = np.argsort(stream, kind="stable")
    ordered = stream[order]
    rank = np.arange(len(stream)) - np.searchsorted(ordered, ordered, "left")
    return [np.sort(order[rank == k]) for k in range(int(rank.max()) + 1)]


def _pairs(oldest: Numbers, heads: Numbers) -> list[tuple[int, int]]:
    return list(zip(oldest.tolist(), heads.tolist(), strict=True))
