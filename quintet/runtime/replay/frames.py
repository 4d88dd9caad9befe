"""Stacked frames, each kept once: a row's older frames are the newer ones of the row before it.

That is checked, byte by byte, when a row is stored.  Where it doesn't hold, older frames that are
all equal to the newest (the first row of an episode) or all zero are remembered by a mark; any
others are kept whole in a pool beside the ring.  So every stack comes back as it was.
"""

from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from quintet.runtime.replay.rings import (
    Array,
    Numbers,
    Rings,
    allocate,
    require_room,
    row_bytes,
)
from quintet.types import TensorSpec

MOST_FRAMES = 16
"""Deepest stack that is looked for."""

_FOLLOWING_SHARE = 0.5
_REPEATED = -1  # origin of a row: its older frames equal its newest, or are the row before's
_ZERO = -2  # they are zero; from 0 on: number of the pool's entry that holds them


def may_stack(spec: TensorSpec) -> bool:
    """Whether rows of this kind can be stacks of frames, going by shape and dtype."""
    return spec.dtype == torch.uint8 and len(spec.shape) >= 2 and bool(_divisors(spec.shape[0]))


def _divisors(slices: int) -> list[int]:
    """How many slices of the leading axis one frame may have."""
    return [n for n in range(1, slices) if slices % n == 0 and slices // n <= MOST_FRAMES]


def smallest_frame(spec: TensorSpec) -> int:
    """Slices of a frame with which such rows take least memory."""
    return _divisors(spec.shape[0])[0]


def frame_slices(rows: Array) -> int | None:
    """How many slices of the leading axis one frame has, or None where rows are no stacks.

    A gray stack ``[4, 84, 84]`` has 1 and a colour stack ``[12, 84, 84]`` 3; a single image has no
    number that fits.  Rows in which nothing moved say nothing; of such alone, None.

    rows: ``[T + 1, B, slices, ...]``, successive in T; some may be first rows of episodes.
    """
    for slices in _divisors(rows.shape[2]):
        stacks = _frames(rows, slices)
        # Older frames that stay as they were would follow on those of any image, too.
        moved = (stacks[1:, :, :-1] != stacks[:-1, :, :-1]).any((2, 3))
        if moved.any() and _follows(stacks)[moved].mean() >= _FOLLOWING_SHARE:
            return slices
    return None


def _frames(rows: Array, slices: int) -> Array:
    """``[T, B, frames, words]``, of eight bytes where that goes, which compares faster."""
    time, streams, count = rows.shape[:3]
    flat = np.ascontiguousarray(rows).reshape(time, streams, count // slices, -1)
    return flat.view(np.int64) if flat.shape[-1] % 8 == 0 and flat.shape[-1] else flat


def _follows(stacks: Array) -> Array:
    """``[T, B]``: the older frames of row t + 1 are the newer ones of row t."""
    words = stacks.shape[3]
    flat = stacks.reshape(*stacks.shape[:2], -1)  # one comparison per row, not one per frame
    same: Array = (flat[1:, :, :-words] == flat[:-1, :, words:]).all(2)
    return same


def stack_fields(name: str, spec: TensorSpec, slices: int) -> dict[str, TensorSpec]:
    """What a ring keeps per row: the newest frame; how many rows back its frames reach without a
    break; where those from before the break are.
    """
    return {
        name: TensorSpec((slices, *spec.shape[1:]), spec.dtype),
        f"{name}:depth": TensorSpec((), torch.uint8),
        f"{name}:origin": TensorSpec((), torch.int32),
    }


def pool_bytes(spec: TensorSpec, slices: int, rows: int) -> int:
    """Bytes that the pool of a ring of `rows` rows begins with."""
    return _first_entries(rows) * (row_bytes(spec) - row_bytes(spec) * slices // spec.shape[0])


def _first_entries(rows: int) -> int:
    return rows // 256 + 16


@final
class FrameStacks:
    """One leaf of the observation in a ring."""

    def __init__(self, rings: Rings, name: str, spec: TensorSpec, slices: int, place: Path | None):
        self._rings, self._spec, self.slices = rings, spec, slices
        self.frames = spec.shape[0] // slices
        self._lag = np.arange(self.frames - 1, -1, -1)
        self._newest = rings.fields[name]
        self._depth = rings.fields[f"{name}:depth"]
        self._origin = rings.fields[f"{name}:origin"]
        self._place = place
        self.nbytes = 0
        self._free: list[int] = []
        self._pool = np.empty((0, self.frames - 1, slices, *spec.shape[1:]), np.uint8)
        self._grow(_first_entries(len(self._newest)))

    @property
    def entries(self) -> int:
        """Size of the pool, in rows kept whole."""
        return len(self._pool)

    def flush(self) -> None:
        """Returns when the disk has the pool."""
        if self._place is not None:
            self._memory.flush()

    def begin(self, place: Numbers, rows: Array) -> None:
        """Stores rows ``[B, slices, ...]`` that follow on nothing."""
        self._give_back(place)
        self._newest[place] = rows[:, -self.slices :]
        self._break(place, rows)

    def follow(self, place: Numbers, before: Numbers, rows: Array) -> None:
        """Stores rows 1..T of ``[T + 1, B, slices, ...]`` at ``[T, B]``; row 0 lies at `before`."""
        self._give_back(place)
        self._newest[place] = rows[1:, :, -self.slices :]
        follows = _follows(_frames(rows, self.slices))
        step = np.arange(1, len(rows))[:, None]
        # The newest row at or before each one that follows on nothing, counted in rows of `rows`.
        broken = np.where(follows, -self._depth[before].astype(np.int64), step)
        depth = step - np.maximum.accumulate(broken, 0)
        if not follows.all():
            # Where a row breaks, the running maximum is its own number: later ones count from it.
            self._break(place[~follows], rows[1:][~follows])
        self._depth[place] = np.minimum(depth, self.frames - 1)
        self._origin[place[follows]] = _REPEATED

    def _break(self, place: Numbers, rows: Array) -> None:
        """Says of rows ``[N, slices, ...]`` that follow on nothing where their older frames are."""
        stacks = rows.reshape(len(rows), self.frames, -1)
        older, newest = stacks[:, :-1], stacks[:, -1:]
        origin = np.full(len(rows), _REPEATED, np.int32)
        other = ~(older == newest).all((1, 2))
        zero = other & ~older.any((1, 2))
        origin[zero] = _ZERO
        whole = np.flatnonzero(other & ~zero)
        if len(whole):
            taken = self._take(len(whole))
            self._pool[taken] = older[whole].reshape(-1, *self._pool.shape[1:])
            origin[whole] = taken
        self._depth[place] = 0
        self._origin[place] = origin

    def read(self, stream: Numbers, number: Numbers, place: Numbers) -> Tensor:
        """The stacks of rows (stream ``[B]``, number ``[..., B]``), which lie at `place`:
        ``[..., B, slices, ...]``.
        """
        held = self._depth[place]
        depth = held.astype(np.int64)[..., None]
        lag = self._lag
        whole = bool((held == self.frames - 1).all())
        back = number[..., None] - (lag if whole else np.minimum(lag, depth))
        stacks = self._newest.take(self._rings.at(stream[..., None], back), 0)
        if not whole:
            # Frames from before the break; those that repeat the newest frame there are right.
            missing = lag > depth
            base = self._rings.at(stream, number - depth[..., 0])
            origin = np.broadcast_to(self._origin[base][..., None], missing.shape)
            stacks[missing & (origin == _ZERO)] = 0
            held = missing & (origin >= 0)
            if held.any():
                # Frame j of the row is frame j + depth of the row at the break.
                frame = np.arange(self.frames) + depth
                stacks[held] = self._pool[origin[held], frame[held]]
        return torch.from_numpy(stacks.reshape(*place.shape, *self._spec.shape))

    def whole(self, rows: slice) -> Array:
        """What the pool holds of these rows of the ring."""
        origin = self._origin[rows]
        # A damaged row may point anywhere; the checksum that is made of this says so.
        return self._pool.take(origin[origin >= 0], 0, mode="clip")

    def recover(self, entries: int, held: Array) -> None:
        """Goes on from files, new ones too: the pool has `entries`, and those of the rows `held` (a
        mask) count.
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
            # No more than one entry per row can ever be in use.
            self._grow(min(len(self._pool) + max(missing, len(self._pool) // 2), len(self._newest)))
        taken = np.array(self._free[-count:], np.int32)
        del self._free[-count:]
        return taken

    def _give_back(self, place: Numbers) -> None:
        origin = self._origin[place]
        used = origin >= 0
        if used.any():
            self._free += origin[used].tolist()

    def _grow(self, entries: int) -> None:
        held = self._pool
        size = entries * row_bytes(TensorSpec(held.shape[1:], self._spec.dtype))
        if self._place is None:
            require_room(None, size)
        self._memory = allocate(self._place, size)
        pool = np.frombuffer(self._memory, np.uint8, size).reshape(entries, *held.shape[1:])
        if self._place is None:
            pool[: len(held)] = held
        self._free += range(entries - 1, len(held) - 1, -1)
        self._pool, self.nbytes = pool, size
