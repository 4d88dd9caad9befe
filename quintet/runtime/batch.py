"""Columns of unrolls: selected, split, joined and moved to a device, only in this module."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple, final

import optree
import torch
from torch import Tensor

from quintet.system.transfer import all_to_device, page_locked, to_device
from quintet.types import Rollout

_WITHOUT_TIME = ("stream_id", "group_id", "episode_id", "last_action", "last_reward")

_STAYS = ("policy_id", *_WITHOUT_TIME)
"""Fields of a rollout that stay on the CPU, since no learner reads them."""

_FLAGS = ("valid", "terminated", "truncated", "version", "stream_id")
"""Fields that decide about columns; of rows on a GPU, `Rollout.source` has them on the CPU."""


@dataclass(frozen=True)
class Episode:
    """A whole episode, with its return in raw reward units.

    row, column: place in a batch where it ended; -1 if that row was dropped.
    success: None if the environment defines no success.
    version: version of the weights that acted in its first row.
    metrics: the environment's own numbers, NaN where it gave none.
    options: of its reset, if a curriculum gave them.
    """

    row: int
    column: int
    return_: float
    length: int
    success: bool | None = None
    version: int = 0
    metrics: tuple[float, ...] = ()
    options: Mapping[str, Any] | None = None


def known(rollout: Rollout) -> Rollout:
    """The rollout with its flags on the CPU, so that no decision waits for a GPU."""
    return rollout.source or rollout


def join(parts: Sequence[Rollout]) -> Rollout:
    """All columns of all parts, in order; a single part is returned without a copy."""
    if len(parts) == 1:
        return parts[0]
    return _map(lambda dim, *tensors: torch.cat(tensors, dim), *parts)


def select(rollout: Rollout, columns: Tensor) -> Rollout:
    """The columns at the indices `columns` ``[N]``, copied."""
    there = to_device(columns, rollout.reward.device)
    return _map(lambda dim, x: x.index_select(dim, columns if x.is_cpu else there), rollout)


def narrow(rollout: Rollout, start: int, count: int) -> Rollout:
    """`count` columns from `start` on, as views."""
    return _map(lambda dim, x: x.narrow(dim, start, count), rollout)


def _map(function: Callable[..., Tensor], *parts: Rollout) -> Rollout:
    """A rollout of ``function(column dimension, *the parts' tensors)`` for every tensor."""

    def of(path: tuple[Any, ...], *leaves: Any) -> Any:
        return function(column_dim(path), *leaves) if isinstance(leaves[0], Tensor) else leaves[0]

    trees: list[Any] = [vars(part) for part in parts]
    mapped = Rollout(**optree.tree_map_with_path(of, *trees))
    if mapped.source is None:
        return mapped
    flags: Any = {
        name: function(column_dim((name,)), *(getattr(part.source, name) for part in parts))
        for name in _FLAGS
    }
    return replace(mapped, source=replace(mapped, source=None, **flags))


def column_dim(path: tuple[Any, ...]) -> int:
    """The dimension of a rollout's columns in one of its tensors."""
    return 0 if path[0] in _WITHOUT_TIME else 1


def rollout_to_device(rollout: Rollout, device: torch.device) -> Rollout:
    """The rollout on `device`, with the CPU's as its `source`; on the CPU nothing is copied.

    The host does not wait.  What only the runtime reads stays on the CPU.
    """
    if device.type == "cpu" or rollout.reward.device.type != "cpu":
        return rollout
    moved = _map_together(lambda tensors: all_to_device(tensors, device), rollout)
    return replace(moved, source=rollout)


def pinned(rollout: Rollout) -> Rollout:
    """A copy, with what learners read in page-locked memory, for which a GPU does not wait."""
    return _map_together(page_locked, rollout, Tensor.clone)


def _map_together(
    function: Callable[[list[Tensor]], list[Tensor]],
    rollout: Rollout,
    others: Callable[[Tensor], Tensor] = lambda x: x,
) -> Rollout:
    """The rollout with the results of a function of all tensors that learners read; `others`:
    function of each other tensor of the CPU.
    """
    fields: Any = vars(rollout)
    paths, leaves, tree = optree.tree_flatten_with_path(fields)
    moves = [
        i
        for i, (path, x) in enumerate(zip(paths, leaves, strict=True))
        if isinstance(x, Tensor) and x.is_cpu and path[0] not in _STAYS
    ]
    for i, x in zip(moves, function([leaves[i] for i in moves]), strict=True):
        leaves[i] = x
    for i in {*range(len(leaves))} - {*moves}:
        if isinstance(leaves[i], Tensor) and leaves[i].is_cpu:
            leaves[i] = others(leaves[i])
    return Rollout(**tree.unflatten(leaves))


@final
class Lease:
    """Counts the readers of memory that may be overwritten after the last one.

    It starts with one reader; `share` adds one, `release` removes one.
    """

    def __init__(self, free: Callable[[], None]):
        """free: called when the last reader is done."""
        self._free, self._readers, self._lock = free, 1, Lock()

    def share(self) -> "Lease":
        with self._lock:
            self._readers += 1
        return self

    def release(self) -> None:
        with self._lock:  # only one of two threads sees 0
            self._readers -= 1
            assert self._readers >= 0
            last = self._readers == 0
        if last:
            self._free()


@dataclass(frozen=True)
class ColumnBlock:
    """Some columns of one or several unrolls, and the episodes that ended in them.

    lease: lease of the slot of which the rollout is a view; None: the rollout owns its memory.
    """

    rollout: Rollout
    episodes: list[Episode]
    lease: Lease | None

    @property
    def columns(self) -> int:
        return self.rollout.stream_id.numel()

    def copy(self, columns: Tensor) -> "ColumnBlock":
        """Copies the columns at these indices."""
        place = {column: i for i, column in enumerate(columns.tolist())}
        episodes = [replace(e, column=place[e.column]) for e in self.episodes if e.column in place]
        return ColumnBlock(select(self.rollout, columns), episodes, None)

    def take(self, columns: Tensor) -> "ColumnBlock":
        """Copies the columns at these indices and releases the block."""
        copied = self.copy(columns)
        self.release()
        return copied

    def release(self) -> None:
        """Ends the reading of a slot; called once."""
        if self.lease is not None:
            self.lease.release()

    def split(self, first: int) -> tuple["ColumnBlock", "ColumnBlock"]:
        """The first columns and the rest, as views; they replace the block."""
        head = [e for e in self.episodes if e.column < first]
        tail = [replace(e, column=e.column - first) for e in self.episodes if e.column >= first]
        rest = self.columns - first
        shared = None if self.lease is None else self.lease.share()
        return (
            ColumnBlock(narrow(self.rollout, 0, first), head, self.lease),
            ColumnBlock(narrow(self.rollout, first, rest), tail, shared),
        )


class Unroll(NamedTuple):
    """All columns of a group's unroll.

    executed: env_steps in it; running: env_steps so far in episodes that continue after it.
    """

    block: ColumnBlock
    group: int
    executed: int
    running: int


def joined(blocks: list[ColumnBlock]) -> ColumnBlock:
    """All columns of all blocks as one block, which replaces them."""
    blocks = _apart(blocks)
    episodes: list[Episode] = []
    first_column = 0
    for block in blocks:
        episodes += [replace(e, column=e.column + first_column) for e in block.episodes]
        first_column += block.columns
    rollout = join([block.rollout for block in blocks])
    for block in blocks:
        block.release()
    return ColumnBlock(rollout, episodes, None)


def _apart(blocks: list[ColumnBlock]) -> list[ColumnBlock]:
    """The blocks ordered by stream if no stream is in two of them, which saves a second copy."""
    ordered = sorted(blocks, key=lambda block: int(known(block.rollout).stream_id[0]))
    streams = [known(block.rollout).stream_id for block in ordered]
    ends = [(int(x[0]), int(x[-1])) for x in streams]
    return ordered if all(a[1] < b[0] for a, b in pairwise(ends)) else blocks
