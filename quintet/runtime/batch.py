"""From slots to a learner's batch: the only place where columns are gathered."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quintet.runtime.slots import Slot
from quintet.types import Rollout


def _join(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), 1)


def gather(slots: Sequence[Slot], device: torch.device) -> Rollout:
    """All columns of all slots, ordered by (group, stream); one slot alone is given as views."""

    def arrays(name: str) -> Tensor:
        return _join([torch.from_numpy(getattr(slot, name)) for slot in slots]).to(device)

    first = slots[0]
    return Rollout(
        obs={name: _join([slot.obs[name] for slot in slots]).to(device) for name in first.obs},
        action=_join([slot.action for slot in slots]).to(device),
        reward=arrays("reward"),
        terminated=arrays("terminated"),
        truncated=arrays("truncated"),
        valid=arrays("valid"),
        is_first=arrays("is_first"),
        record={
            name: _join([slot.record[name] for slot in slots]).to(device) for name in first.record
        },
        return_carry=arrays("return_carry"),
        version=arrays("version"),
        stream_id=torch.arange(sum(slot.num_streams for slot in slots), device=device),
    )


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
