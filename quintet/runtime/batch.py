"""Selects and joins the columns of unrolls for a learner's batch; no other module does so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from quintet.protocols import DataPlan
from quintet.types import Rollout

_WITHOUT_TIME = ("stream_id", "group_id", "episode_id", "last_action", "last_reward")
_COLUMN_DIM = dict.fromkeys(_WITHOUT_TIME, 0)


@dataclass(frozen=True)
class Episode:
    """A whole episode, with its return in raw reward units.

    row, column: where in a batch it ended; -1 where that row was dropped before.
    success: None where the environment defines none.
    version: of the weights that acted in its first row.
    """

    row: int
    column: int
    return_: float
    length: int
    success: bool | None = None
    version: int = 0


def join(parts: Sequence[Rollout]) -> Rollout:
    """All columns of all parts, in order; a single part is returned as it is, without a copy."""
    if len(parts) == 1:
        return parts[0]
    return _combine(parts, lambda tensors, dim: torch.cat(tensors, dim))


def select(rollout: Rollout, columns: Tensor) -> Rollout:
    """The columns at the indices `columns` ``[N]``, copied."""
    return _combine([rollout], lambda tensors, dim: tensors[0].index_select(dim, columns))


def narrow(rollout: Rollout, start: int, count: int) -> Rollout:
    """`count` columns from `start` on, as views."""
    return _combine([rollout], lambda tensors, dim: tensors[0].narrow(dim, start, count))


def split(rollout: Rollout, columns: int) -> list[Rollout]:
    """Parts of so many columns each, as views; a single part is the rollout itself."""
    count = rollout.valid.shape[1] // columns
    if count == 1:
        return [rollout]

    def each(name: str, x: Any) -> Sequence[Any]:
        if isinstance(x, Tensor):
            return x.chunk(count, _COLUMN_DIM.get(name, 1))
        if isinstance(x, dict):
            leaves = zip(*(each(name, leaf) for leaf in x.values()), strict=True)
            return [dict(zip(x, parts, strict=True)) for parts in leaves] or [x] * count
        return [x] * count

    found = [each(field.name, getattr(rollout, field.name)) for field in fields(Rollout)]
    return [Rollout(*values) for values in zip(*found, strict=True)]


def _combine(parts: Sequence[Rollout], function: Callable[[list[Tensor], int], Tensor]) -> Rollout:
    """A rollout of ``function([the parts' tensors], column dimension)`` for every tensor."""
    values: dict[str, Any] = {}
    for field in fields(Rollout):
        each = [getattr(part, field.name) for part in parts]
        dim = _COLUMN_DIM.get(field.name, 1)
        if isinstance(each[0], Tensor):
            values[field.name] = function(each, dim)
        elif isinstance(each[0], dict):
            values[field.name] = {
                name: function([leaves[name] for leaves in each], dim) for name in each[0]
            }
        else:
            values[field.name] = each[0]
    return Rollout(**values)


def to_device(rollout: Rollout, device: torch.device) -> Rollout:
    """The rollout on `device`; on the CPU nothing is copied."""
    if device.type == "cpu":
        return rollout
    return _combine([rollout], lambda tensors, _: tensors[0].to(device, non_blocking=True))


def within_budget(batch: Rollout, env_steps_left: int) -> tuple[Rollout, int]:
    """The batch with the rows past the budget masked, and how many valid rows remain.

    Steps are counted in the order (row, column), so timing does not decide which are masked.
    """
    count = int(np.count_nonzero(batch.valid.numpy()))
    if count == batch.valid.numel() <= env_steps_left:
        return batch, count
    if count > env_steps_left:
        order = batch.valid.flatten().cumsum(0).view_as(batch.valid)
        batch = replace(batch, valid=batch.valid & (order <= env_steps_left))
    return with_cuts(batch), min(count, env_steps_left)


def with_cuts(batch: Rollout) -> Rollout:
    """The batch with `Rollout.trace_cut` set before each invalid row whose episode goes on (past
    the budget, of old weights, of another policy).  So every invalid row follows a cut, and no
    estimate of a valid row reads its reward.
    """
    valid, terminated, truncated = (
        x.numpy() for x in (batch.valid, batch.terminated, batch.truncated)
    )
    broken = ~(valid[1:] | terminated[:-1] | truncated[:-1])
    if not broken.any():
        return batch
    cut = torch.zeros_like(batch.valid)
    cut.numpy()[:-1] = broken
    return replace(batch, trace_cut=cut)


@final
class Lease:
    """Counts the readers of memory that may be written again after the last one.

    It begins with one reader; `share` adds one, `release` takes one away.
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
class Part:
    """Some columns of one unroll, and the episodes that ended in them.

    lease: of the slot that the rollout is a view of; None: the rollout owns its memory.
    """

    rollout: Rollout
    episodes: list[Episode]
    lease: Lease | None

    @property
    def columns(self) -> int:
        return self.rollout.stream_id.numel()

    def take(self, columns: Tensor) -> "Part":
        """Copies the columns at these indices; the part itself is released."""
        place = {column: i for i, column in enumerate(columns.tolist())}
        episodes = [replace(e, column=place[e.column]) for e in self.episodes if e.column in place]
        copied = select(self.rollout, columns)
        self.release()
        return Part(copied, episodes, None)

    def shared(self) -> "Part":
        """The same columns for one more reader."""
        return replace(self, lease=None if self.lease is None else self.lease.share())

    def release(self) -> None:
        """Called once, by the last reader."""
        if self.lease is not None:
            self.lease.release()

    def split(self, first: int) -> tuple["Part", "Part"]:
        """The first columns and the rest, as views, which replace the part."""
        head = [e for e in self.episodes if e.column < first]
        tail = [replace(e, column=e.column - first) for e in self.episodes if e.column >= first]
        rest = self.columns - first
        shared = None if self.lease is None else self.lease.share()
        return (
            Part(narrow(self.rollout, 0, first), head, self.lease),
            Part(narrow(self.rollout, first, rest), tail, shared),
        )


def _apart(parts: list[Part]) -> list[Part]:
    """The parts ordered by stream if no stream is in two of them, else as they are: columns that
    are joined in order need no second copy.
    """
    ordered = sorted(parts, key=lambda part: int(part.rollout.stream_id[0]))
    ends = [(int(p.rollout.stream_id[0]), int(p.rollout.stream_id[-1])) for p in ordered]
    return ordered if all(a[1] < b[0] for a, b in pairwise(ends)) else parts


def _joined(parts: list[Part]) -> Part:
    """All columns of all parts as one part, which replaces them."""
    if len(parts) == 1:
        return parts[0]
    episodes: list[Episode] = []
    first_column = 0
    for part in parts:
        episodes += [replace(e, column=e.column + first_column) for e in part.episodes]
        first_column += part.columns
    rollout = join([part.rollout for part in parts])
    for part in parts:
        part.release()
    return Part(rollout, episodes, None)


def pinned(part: Part) -> Part:
    """Copies the part to page-locked memory, from which a GPU reads without waiting."""
    rollout = _combine([part.rollout], lambda tensors, _: tensors[0].pin_memory())
    part.release()
    return Part(rollout, part.episodes, None)


@final
class ColumnQueue:
    """Columns of one policy that wait to become batches, oldest unroll first.

    A batch takes any columns, whatever the number of streams; the others wait for the next one.
    Rows of another policy are masked, and columns without a row of this policy are left out.  Rows
    whose weights are more than the plan's ``max_policy_lag`` updates old are masked when a batch is
    made, and columns without any other row are dropped; `ended` keeps their episodes.

    least_version: rows of older weights are masked likewise; they were another policy's.
    """

    def __init__(self, plan: DataPlan, policy: int, num_policies: int):
        self.plan, self.policy, self.shared = plan, policy, num_policies > 1
        self.waiting: list[Part] = []
        self.least_version = -1
        self.ended: list[Episode] = []
        self.dropped_columns = 0
        self.dropped_steps = 0

    def put(self, part: Part) -> None:
        """Adds columns, whose memory must stay as it is until `keep` or the batch's release."""
        if self.shared:
            mine = part.rollout.policy_id == self.policy
            own = part.rollout.valid & mine
            episodes = [e for e in part.episodes if mine[e.row, e.column]]
            part = replace(part, rollout=replace(part.rollout, valid=own), episodes=episodes)
            part = part.take(own.any(0).nonzero().squeeze(1))
        if part.columns:
            self.waiting.append(part)

    def keep(self) -> None:
        """Copies waiting columns, so that the memory of their unroll can be written again."""
        self.waiting = [
            part if part.lease is None else part.take(torch.arange(part.columns))
            for part in self.waiting
        ]

    def clear(self) -> None:
        """Drops waiting columns, as the streams begin anew."""
        for part in self.waiting:
            self.dropped_columns += int(part.rollout.valid.any(0).sum())
            self.dropped_steps += int(part.rollout.valid.sum())
            self._keep_episodes(part.episodes)
            part.release()
        self.waiting = []

    def pop_ended(self) -> list[Episode]:
        """Episodes that ended in dropped rows since the last call."""
        ended, self.ended = self.ended, []
        return ended

    @property
    def columns(self) -> int:
        return sum(part.columns for part in self.waiting)

    @property
    def env_steps(self) -> int:
        """Valid rows that wait."""
        return sum(int(part.rollout.valid.sum()) for part in self.waiting)

    def take(self, version: int) -> Part | None:
        """The columns of the next batch for weights of `version`, ordered by (group, stream), then
        by age; None if there are too few.  Columns of a single unroll are views.
        """
        self._drop_old(version)
        missing = self.plan.columns_per_batch
        if self.columns < missing:
            return None
        taken: list[Part] = []
        while missing:
            part = self.waiting.pop(0)
            if part.columns > missing:
                part, rest = part.split(missing)
                self.waiting.insert(0, rest)
            taken.append(part)
            missing -= part.columns
        return _in_order(_joined(_apart(taken)))

    def take_rest(self, version: int) -> Part | None:
        """All waiting columns and as many invalid ones as a batch lacks; None if none wait."""
        self._drop_old(version)
        missing = self.plan.columns_per_batch - self.columns
        if missing == self.plan.columns_per_batch:
            return None
        whole, self.waiting = _joined(_apart(self.waiting)), []
        none = select(whole.rollout, torch.zeros(missing, dtype=torch.long))
        none.valid.zero_()
        return _in_order(_joined([whole, Part(none, [], None)]))

    def mask_old(self, part: Part, version: int) -> Part:
        """Masks and counts the rows that are too old for weights of `version`; episodes that ended
        in them move to `ended`.
        """
        least, most = self.least_version, self.plan.max_policy_lag
        if most is not None:
            least = max(least, version - most)
        if least < 0:
            return part
        valid = part.rollout.valid
        fresh = valid & (part.rollout.version >= least)
        lost = valid & ~fresh
        if not lost.any():
            return part
        self.dropped_columns += int((lost.any(0) & ~fresh.any(0)).sum())
        self.dropped_steps += int(lost.sum())
        self._keep_episodes([e for e in part.episodes if lost[e.row, e.column]])
        kept = [e for e in part.episodes if not lost[e.row, e.column]]
        return replace(part, rollout=replace(part.rollout, valid=fresh), episodes=kept)

    def _drop_old(self, version: int) -> None:
        """Masks rows that are too old and drops columns without other rows."""
        kept = []
        for part in self.waiting:
            masked = self.mask_old(part, version)
            if masked is not part:
                masked = masked.take(masked.rollout.valid.any(0).nonzero().squeeze(1))
            if masked.columns:
                kept.append(masked)
        self.waiting = kept

    def _keep_episodes(self, episodes: Sequence[Episode]) -> None:
        self.ended += [replace(episode, row=-1, column=-1) for episode in episodes]


def _in_order(part: Part) -> Part:
    """The part's columns ordered by stream, then by age; no copy if they are so already."""
    streams = part.rollout.stream_id.numpy()
    if (streams[1:] < streams[:-1]).any():
        return part.take(part.rollout.stream_id.argsort(stable=True))
    return part
