"""How learners that pass several times over a batch lay it out and split it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from quintet.types import Obs, Rollout, State


@final
@dataclass(frozen=True)
class Rows:
    """N rows of a batch, flat, as a loss reads them, and the recurrent states of their chunks.

    A chunk is C rows in a row of one stream, N = C * chunks, ordered by (row in the chunk, chunk);
    feed-forward networks have chunks of one row and no state.

    state: leaves ``[chunks, ...]``, as it was before the chunk's first row was acted on.
    """

    obs: Obs
    is_first: Tensor
    action: Tensor
    logp_mu: Tensor
    params_mu: Tensor
    value_mu: Tensor
    advantage: Tensor
    target: Tensor
    state: State

    def take(self, rows: Tensor, chunks: Tensor) -> "Rows":
        """The rows and the states at these indices, copied."""
        return self._map(lambda x: x.index_select(0, rows), lambda x: x.index_select(0, chunks))

    def _map(
        self, of_row: Callable[[Tensor], Tensor], of_chunk: Callable[[Tensor], Tensor]
    ) -> "Rows":
        plain = [field.name for field in fields(self) if field.name not in ("obs", "state")]
        return Rows(
            obs={name: of_row(x) for name, x in self.obs.items()},
            state={name: of_chunk(x) for name, x in self.state.items()},
            **{name: of_row(getattr(self, name)) for name in plain},
        )


@final
class Chunks:
    """Where the chunks of `chunk_steps` rows of a batch ``[T, B]`` stand among its T * B rows.

    rows: numbers of the rows ``[C, chunks]``; chunks are ordered by (time, stream).
    """

    def __init__(self, shape: tuple[int, ...], chunk_steps: int, device: torch.device):
        steps, streams = shape
        grid = torch.arange(steps * streams, device=device)
        grid = grid.view(steps // chunk_steps, chunk_steps, streams)
        self.rows = grid.transpose(0, 1).flatten(1)
        self.chunk_steps = chunk_steps

    @property
    def order(self) -> Tensor:
        """All rows in the order of `Rows` ``[T * B]``."""
        return self.rows.flatten()

    def minibatches(
        self, use: Tensor, size: int, drop_last: bool, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """One pass over the rows where `use` ``[T * B]`` is set, see `even_minibatches`.

        Whole chunks stay together; those without any row to use are left out.

        Returns:
            Rows ``[parts * size]`` and chunks, part after part, and the rows' weights ``[size]`` in
            each part, which sum to 1.
        """
        wanted = use[self.rows].any(0).nonzero().squeeze(1)
        units = size // self.chunk_steps
        chunks, weights = even_minibatches(wanted, units, drop_last, generator)
        if self.chunk_steps == 1:
            return self.rows[0, chunks], chunks, weights
        rows = self.rows[:, chunks].view(self.chunk_steps, -1, units).transpose(0, 1).flatten(1)
        present = use[rows].float()
        for part, weight in enumerate(weights):
            present[part] *= (weight > 0).float().repeat(self.chunk_steps)
        return rows.flatten(), chunks, list((present / present.sum(1, keepdim=True)).unbind(0))


def even_minibatches(
    index: Tensor, size: int, drop_last: bool, generator: torch.Generator
) -> tuple[Tensor, list[Tensor]]:
    """One pass over the rows at `index` ``[N]`` in fresh random order, in minibatches of one shape.

    The rows are split in ceil(N / size) parts that differ by at most one row; what a part lacks is
    filled with repeats of its last row at weight 0, so that none is tiny and all have `size` rows.
    With `drop_last` the parts are whole and what fills none is left out, if there is a whole one.

    Returns:
        All rows, part after part ``[parts * size]``, and the weights ``[size]`` of each part, which
        sum to 1.
    """
    count = index.numel()
    order = index[torch.randperm(count, generator=generator).to(index.device)]
    whole = drop_last and count >= size
    parts = count // size if whole else math.ceil(count / size)
    starts = [k * size if whole else k * count // parts for k in range(parts + 1)]
    spans = [(start, end - start) for start, end in pairwise(starts)]
    place = torch.arange(size, device=index.device)
    rows = torch.cat([order[start + place.clamp_max(n - 1)] for start, n in spans])
    weights = {n: (place < n).float() / n for _, n in spans}
    return rows, [weights[n] for _, n in spans]


def ended_rows(batch: Rollout) -> Tensor:
    """Valid rows that belong to episodes which end within the unroll and the budget, ``[T, B]``."""
    ended = ((batch.terminated | batch.truncated) & batch.valid).int()
    return batch.valid & (ended.flip(0).cummax(0).values.flip(0) > 0)


def size_faults(
    minibatch_steps: int, unroll_steps: int, num_streams: int, drop_last: bool
) -> list[str]:
    """What is wrong with the size of minibatches, a sentence."""
    batch = num_streams * unroll_steps
    words = f"the batch of {num_streams} streams x {unroll_steps} steps = {batch}"
    if minibatch_steps > batch:
        return [
            f"minibatch_steps must be at most {words}, got {minibatch_steps}; lower it or raise "
            "unroll_steps"
        ]
    if batch % minibatch_steps and not drop_last:
        return [
            f"minibatch_steps must divide {words}, got {minibatch_steps}; change one of them or "
            "set --drop-last true"
        ]
    return []


def chunk_faults(bptt_steps: int, unroll_steps: int, minibatch_steps: int | None) -> list[str]:
    """Which sizes are no multiple of a recurrent network's chunk, a sentence each."""
    sizes = {"unroll_steps": unroll_steps, "minibatch_steps": minibatch_steps}
    return [
        f"{name} must be a multiple of bptt_steps={bptt_steps} with a recurrent model.core, got "
        f"{size}; change one of them"
        for name, size in sizes.items()
        if size is not None and size % bptt_steps
    ]
