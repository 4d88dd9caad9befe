"""Stacked frames, each stored once: a row's older frames are the newer frames of the previous row.

`FrameStacks` checks this byte by byte when it stores a row.  If it doesn't hold, a mark represents
older frames that all equal the newest (the first row of an episode) or are all zero; other stacks
are stored whole in a pool next to the ring.  So every stack is read exactly as it was stored.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from quintet.runtime.replay.ring_files import Array, Numbers, allocate
from quintet.types import TensorSpec

MOST_FRAMES = 16
"""Number of frames of the deepest stack that is recognised."""

_FOLLOWING_SHARE = 0.5
# Origin of a row: the number of the pool's entry that holds its older frames, or one of these.
_REPEATED = -1  # older frames equal the newest, or are those of the row before
_ZERO = -2


def may_stack(spec: TensorSpec) -> bool:
    """Whether rows of this shape and dtype can be stacks of frames."""
    return (
        spec.dtype == torch.uint8 and len(spec.shape) >= 2 and bool(possible_slices(spec.shape[0]))
    )


def possible_slices(slices: int) -> list[int]:
    """The possible numbers of slices of the leading axis per frame."""
    return [n for n in range(1, slices) if slices % n == 0 and slices // n <= MOST_FRAMES]


def frame_slices(rows: Array) -> int | None:
    """The number of slices of the leading axis per frame; None if rows are not stacks.

    It is 1 for a gray stack ``[4, 84, 84]`` and 3 for a colour stack ``[12, 84, 84]``; no number
    fits a single image.  If no older frame changed, as from the first row of an episode to the
    second, rows count as stacks if each follows the previous one and these frames have more than
    one colour. An image that is wrongly taken for a stack is still read exactly, but takes more
    room.

    rows: ``[T + 1, B, slices, ...]``, successive in T; some may be first rows of episodes.
    """
    unmoved = []
    for slices in possible_slices(rows.shape[2]):
        stacks = _frames(rows, slices)
        # Older frames that do not change would fit many images too.
        moved = (stacks[1:, :, :-1] != stacks[:-1, :, :-1]).any((2, 3))
        follows = _follows(stacks)
        if moved.any() and follows[moved].mean() >= _FOLLOWING_SHARE:
            return slices
        if not moved.any() and follows.all() and (stacks[0, :, :-1] != stacks.flat[0]).any():
            unmoved.append(slices)
    return unmoved[0] if unmoved else None


def _frames(rows: Array, slices: int) -> Array:
    """``[T, B, frames, words]``; words have eight bytes where possible, which compares faster."""
    time, streams, count = rows.shape[:3]
    flat = np.ascontiguousarray(rows).reshape(time, streams, count // slices, -1)
    return flat.view(np.int64) if flat.shape[-1] % 8 == 0 and flat.shape[-1] else flat


def _follows(stacks: Array) -> Array:
    """Whether the older frames of row t + 1 are the newer frames of row t, ``[T, B]``."""
    words = stacks.shape[3]
    flat = stacks.reshape(*stacks.shape[:2], -1)  # one comparison per row, not one per frame
    same: Array = (flat[1:, :, :-words] == flat[:-1, :, words:]).all(2)
    return same


def stack_fields(name: str, spec: TensorSpec, slices: int) -> dict[str, TensorSpec]:
    """A ring's fields: the newest frame; the number of rows back to the last break in the frames;
    the origin of the frames before the break.
    """
    return {
        name: TensorSpec((slices, *spec.shape[1:]), spec.dtype),
        f"{name}:depth": TensorSpec((), torch.uint8),
        f"{name}:origin": TensorSpec((), torch.int32),
    }


def pool_bytes(spec: TensorSpec, slices: int, rows: int) -> int:
    """Bytes of the pool of a ring of `rows` rows at its first size."""
    return _first_entries(rows) * (spec.nbytes - spec.nbytes * slices // spec.shape[0])


def _first_entries(rows: int) -> int:
    return rows // 256 + 16


_NONE: Numbers = np.empty(0, np.int64)


class Origins(NamedTuple):
    """The pictures that the frames of some rows are made of, flat, the oldest frame of a row first.

    rows: for each frame, the place of the row whose newest frame it is.
    zero: indices of frames that are zero instead.
    whole, frames: indices of frames that come from the pool, and these frames.
    """

    rows: Numbers
    zero: Numbers
    whole: Numbers
    frames: Array


@final
class FrameStacks:
    """A leaf of the observation that is a stack of frames, in a ring."""

    def __init__(
        self,
        fields: Mapping[str, Array],
        at: Callable[[Numbers, Numbers], Numbers],
        name: str,
        spec: TensorSpec,
        slices: int,
        place: Path,
    ):
        """fields, at: fields and places of the rings that hold the rows; place: the pool's file."""
        self._at, self._spec, self.slices = at, spec, slices
        self.frames = spec.shape[0] // slices
        self._lag = np.arange(self.frames - 1, -1, -1)
        self._newest = fields[name]
        self._depth = fields[f"{name}:depth"]
        self._origin = fields[f"{name}:origin"]
        self._place = place
        self.nbytes = 0
        self._free: list[int] = []
        self._pool = np.empty((0, self.frames - 1, slices, *spec.shape[1:]), np.uint8)
        self._grow(_first_entries(len(self._newest)))

    @property
    def entries(self) -> int:
        """Size of the pool, in rows stored whole."""
        return len(self._pool)

    def flush(self) -> None:
        self._memory.flush()

    def begin(self, place: Numbers, rows: Array) -> None:
        """Stores rows ``[B, slices, ...]`` that begin a sequence."""
        self._give_back(place)
        self._newest[place] = rows[:, -self.slices :]
        self._break(place, rows)

    def follow(self, place: Numbers, before: Numbers, rows: Array) -> None:
        """Stores rows 1..T of ``[T + 1, B, slices, ...]`` at ``[T, B]``; row 0 lies at `before`."""
        self._give_back(place)
        self._newest[place] = rows[1:, :, -self.slices :]
        follows = _follows(_frames(rows, self.slices))
        step = np.arange(1, len(rows))[:, None]
        # The newest row up to each row that breaks the stack, counted in rows of `rows`.
        broken = np.where(follows, -self._depth[before].astype(np.int64), step)
        depth = step - np.maximum.accumulate(broken, 0)
        if not follows.all():
            # At a break the running maximum is the row's own number: later rows count from it.
            self._break(place[~follows], rows[1:][~follows])
        self._depth[place] = np.minimum(depth, self.frames - 1)
        self._origin[place[follows]] = _REPEATED

    def _break(self, place: Numbers, rows: Array) -> None:
        """Stores the older frames of rows ``[N, slices, ...]`` that follow no other row."""
        stacks = rows.reshape(len(rows), self.frames, -1)
        older, newest = stacks[:, :-1], stacks[:, -1:]
        origin = np.full(len(rows), _REPEATED, np.int32)
        other = ~(older == newest).all((1, 2))
        zero = other & ~older.any((1, 2))
        origin[zero] = _ZERO
        whole = np.flatnonzero(other & ~zero)
        if len(whole):
            entries = self._take(len(whole))
            self._pool[entries] = older[whole].reshape(-1, *self._pool.shape[1:])
            origin[whole] = entries
        self._depth[place] = 0
        self._origin[place] = origin

    def read(self, stream: Numbers, number: Numbers, place: Numbers) -> Tensor:
        """Stacks ``[..., B, slices, ...]`` of the rows (stream ``[B]``, number ``[..., B]``) at
        `place`.
        """
        origins = self.origins(stream, number, place)
        frames = self._newest.take(origins.rows, 0)
        if len(origins.zero):
            frames[origins.zero] = 0
        if len(origins.whole):
            frames[origins.whole] = origins.frames
        return torch.from_numpy(frames.reshape(*place.shape, *self._spec.shape))

    def origins(self, stream: Numbers, number: Numbers, place: Numbers) -> Origins:
        """The pictures that the frames of these rows are made of."""
        depths = self._depth[place]
        depth = depths.astype(np.int64)[..., None]
        lag = self._lag
        whole = bool((depths == self.frames - 1).all())
        back = number[..., None] - (lag if whole else np.minimum(lag, depth))
        rows = self._at(stream[..., None], back).reshape(-1)
        if whole:
            return Origins(rows, _NONE, _NONE, self._pool[:0, 0])
        # Frames from before the break; those that repeat its newest frame are right already.
        missing = lag > depth
        base = self._at(stream, number - depth[..., 0])
        origin = np.broadcast_to(self._origin[base][..., None], missing.shape)
        zero = np.flatnonzero(missing & (origin == _ZERO))
        kept = missing & (origin >= 0)
        # Frame j of the row is frame j + depth of the row at the break.
        frame = np.arange(self.frames) + depth
        return Origins(rows, zero, np.flatnonzero(kept), self._pool[origin[kept], frame[kept]])

    def whole(self, rows: slice) -> Array:
        """The pool's frames that belong to these rows of the ring."""
        origin = self._origin[rows]
        # A damaged row may point anywhere; the checksum of the result shows that.
        return self._pool.take(origin[origin >= 0], 0, mode="clip")

    def recover(self, entries: int, held: Array) -> None:
        """Restores the state from new or old files: the rows `held` (a mask) decide which of the
        pool's `entries` are in use.
        """
        if entries > len(self._pool):
            self._grow(entries)
        self._origin[~held] = _REPEATED
        used = self._origin[self._origin >= 0]
        free = np.ones(len(self._pool), np.bool_)
        free[used[used < len(free)]] = False
        self._free = np.flatnonzero(free)[::-1].tolist()

    def _take(self, count: int) -> Array:
        missing = count - len(self._free)
        if missing > 0:
            # At most one entry per row is in use.
            self._grow(min(len(self._pool) + max(missing, len(self._pool) // 2), len(self._newest)))
        entries = np.array(self._free[-count:], np.int32)
        del self._free[-count:]
        return entries

    def _give_back(self, place: Numbers) -> None:
        origin = self._origin[place]
        used = origin >= 0
        if used.any():
            self._free += origin[used].tolist()

    def _grow(self, entries: int) -> None:
        old = self._pool
        size = entries * TensorSpec(old.shape[1:], self._spec.dtype).nbytes
        self._memory = allocate(self._place, size)
        pool = np.frombuffer(self._memory, np.uint8, size).reshape(entries, *old.shape[1:])
        self._free += range(entries - 1, len(old) - 1, -1)
        self._pool, self.nbytes = pool, size
