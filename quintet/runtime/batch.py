"""From unrolls to a learner's batch: the only place where columns are selected and joined."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

import torch
from torch import Tensor

from quintet.protocols import DataPlan
from quintet.types import Rollout

_WITHOUT_TIME = ("stream_id", "group_id", "episode_id", "last_action", "last_reward")
_COLUMN_DIM = dict.fromkeys(_WITHOUT_TIME, 0)


@dataclass(frozen=True)
class Episode:
    """One whole episode, in raw reward units, that ended at `row` of `column` of a batch.

    success: None where the environment doesn't say what that is.
    """

    row: int
    column: int
    return_: float
    length: int
    success: bool | None = None


def join(parts: Sequence[Rollout]) -> Rollout:
    """All columns of all parts, in order; one part alone is given as it is, nothing is copied."""
    if len(parts) == 1:
        return parts[0]
    return _combine(parts, lambda tensors, dim: torch.cat(tensors, dim))


def select(rollout: Rollout, columns: Tensor) -> Rollout:
    """The columns at the indices `columns` ``[N]``, copied."""
    return _combine([rollout], lambda tensors, dim: tensors[0].index_select(dim, columns))


def _narrow(rollout: Rollout, start: int, count: int) -> Rollout:
    """`count` columns from `start` on, as views."""
    return _combine([rollout], lambda tensors, dim: tensors[0].narrow(dim, start, count))


def _combine(parts: Sequence[Rollout], function: Callable[[list[Tensor], int], Tensor]) -> Rollout:
    """Applies `function` to every tensor of the parts and the dimension of its columns."""
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
    """The rollout on another device; on the same one nothing is copied."""
    if device.type == "cpu":
        return rollout
    return _combine([rollout], lambda tensors, _: tensors[0].to(device, non_blocking=True))


def within_budget(batch: Rollout, env_steps_left: int) -> tuple[Rollout, int]:
    """The batch with the rows past the budget masked, and how many valid rows remain.

    Steps count in order of (row, column), so which ones are past the budget does not depend on
    timing.  As every invalid row those past the budget follow a cut, `Rollout.budget_cut`, so that
    no estimate within it sees their rewards.
    """
    count = int(batch.valid.sum())
    if count <= env_steps_left:
        return batch, count
    order = batch.valid.flatten().cumsum(0).view_as(batch.valid)
    within = batch.valid & (order <= env_steps_left)
    past = batch.valid & ~within
    last = torch.zeros_like(within)
    last[:-1] = within[:-1] & past[1:]
    return replace(batch, valid=within, budget_cut=last), env_steps_left


@dataclass(frozen=True)
class Part:
    """Some columns of one unroll, and the episodes that ended in them."""

    rollout: Rollout
    episodes: list[Episode]
    owned: bool = False
    """Whether its memory is its own, not that of a slot which will be written again."""

    @property
    def columns(self) -> int:
        return self.rollout.stream_id.numel()

    def take(self, columns: Tensor) -> "Part":
        """The part's columns at these indices, copied."""
        place = {column: i for i, column in enumerate(columns.tolist())}
        episodes = [replace(e, column=place[e.column]) for e in self.episodes if e.column in place]
        return Part(select(self.rollout, columns), episodes, owned=True)

    def split(self, first: int) -> tuple["Part", "Part"]:
        """The first so many columns and the rest, as views."""
        head = [e for e in self.episodes if e.column < first]
        tail = [replace(e, column=e.column - first) for e in self.episodes if e.column >= first]
        rest = self.columns - first
        return (
            Part(_narrow(self.rollout, 0, first), head, self.owned),
            Part(_narrow(self.rollout, first, rest), tail, self.owned),
        )


@final
class ColumnQueue:
    """Columns of one policy that wait to become batches, oldest unroll first.

    A batch takes any columns, whatever the number of streams; what is left over waits for the
    next one.  Rows that another policy played are masked, columns in which it played all are left
    out.  Rows of weights that are older than the plan's ``max_policy_lag`` are masked when a
    batch is made, columns without any other are dropped.
    """

    def __init__(self, plan: DataPlan, policy: int, num_policies: int):
        self.plan, self.policy, self.shared = plan, policy, num_policies > 1
        self.waiting: list[Part] = []
        self.dropped_columns = 0
        self.dropped_steps = 0

    def put(self, part: Part) -> None:
        """Adds an unroll's columns; the part's memory is read until `keep` or the batch is used."""
        if self.shared:
            own = part.rollout.valid & (part.rollout.policy_id == self.policy)
            part = replace(part, rollout=replace(part.rollout, valid=own))
            part = part.take(own.any(0).nonzero().squeeze(1))
        if part.columns:
            self.waiting.append(part)

    def keep(self) -> None:
        """Copies what waits, so that the memory of its unroll can be written again."""
        self.waiting = [
            part if part.owned else part.take(torch.arange(part.columns)) for part in self.waiting
        ]

    def clear(self) -> None:
        """Drops what waits: the streams begin anew."""
        for part in self.waiting:
            self.dropped_columns += int(part.rollout.valid.any(0).sum())
            self.dropped_steps += int(part.rollout.valid.sum())
        self.waiting = []

    def take(self, version: int) -> tuple[Rollout, list[Episode]] | None:
        """The next batch for weights of `version`, ordered by (group, stream), then by age; None
        if columns are missing.
        """
        if self.plan.max_policy_lag is not None:
            self._drop_old(version - self.plan.max_policy_lag)
        size = self.plan.columns_per_batch
        if sum(part.columns for part in self.waiting) < size:
            return None
        taken: list[Part] = []
        missing = size
        while missing:
            part = self.waiting.pop(0)
            if part.columns > missing:
                part, rest = part.split(missing)
                self.waiting.insert(0, rest)
            taken.append(part)
            missing -= part.columns
        episodes: list[Episode] = []
        first_column = 0
        for part in taken:
            episodes += [replace(e, column=e.column + first_column) for e in part.episodes]
            first_column += part.columns
        whole = Part(join([part.rollout for part in taken]), episodes)
        order = whole.rollout.stream_id.argsort(stable=True)
        if not torch.equal(order, torch.arange(size)):
            whole = whole.take(order)
        return whole.rollout, whole.episodes

    def _drop_old(self, oldest: int) -> None:
        """Masks rows of versions before `oldest` and drops columns that have no other."""
        kept = []
        for part in self.waiting:
            valid = part.rollout.valid
            fresh = valid & (part.rollout.version >= oldest)
            lost = valid & ~fresh
            if lost.any():
                self.dropped_columns += int((lost.any(0) & ~fresh.any(0)).sum())
                self.dropped_steps += int(lost.sum())
                part = replace(part, rollout=replace(part.rollout, valid=fresh))
                part = part.take(fresh.any(0).nonzero().squeeze(1))
            if part.columns:
                kept.append(part)
        self.waiting = kept
