"""A batch of unrolls as chunks, the unit of APPO's minibatches and traces."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import final

import torch
from torch import Tensor

from quintet.types import Obs, Rollout, State


@final
@dataclass(frozen=True)
class Chunks:
    """K chunks of C rows, ordered by (time, stream), as the loss reads them.

    obs, is_first: ``[C+1, K, ...]`` with the row after the chunk, or ``[C, K, ...]`` where
        estimates are known.
    state: recurrent state before the first row ``[K, ...]``; empty for feed-forward networks.
    record: the actor's records ``[C, K, ...]``.
    reward: normalised, ``[C, K]``.
    terminal: rows after which there is no value, ``[C, K]``.
    estimates: advantage and target ``[C, K]``, where they are known before the loss.
    """

    obs: Obs
    is_first: Tensor
    state: State
    action: Tensor
    record: Mapping[str, Tensor]
    reward: Tensor
    terminal: Tensor
    not_cut_t: Tensor
    valid: Tensor
    estimates: Mapping[str, Tensor]

    @classmethod
    def of(
        cls,
        batch: Rollout,
        reward: Tensor,
        terminal: Tensor,
        estimates: Mapping[str, Tensor],
        steps: int,
    ) -> "Chunks":
        """All chunks of `steps` rows of a batch ``[T, B]`` with a state every `steps` rows;
        `reward` and `terminal` replace the batch's own.
        """

        def rows(x: Tensor) -> Tensor:
            return split_rows(x[:-1], steps) if estimates else _split_with_next(x, steps)

        def each(leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: split_rows(x, steps) for name, x in leaves.items()}

        return cls(
            obs={name: rows(x) for name, x in batch.obs.items()},
            is_first=rows(batch.is_first),
            state={
                name: x[: len(reward) // steps].flatten(0, 1) for name, x in batch.state.items()
            },
            action=split_rows(batch.action, steps),
            record=each(batch.record),
            reward=split_rows(reward, steps),
            terminal=split_rows(terminal, steps),
            not_cut_t=split_rows(batch.not_cut_t, steps),
            valid=split_rows(batch.valid, steps),
            estimates=each(estimates),
        )

    def take(self, index: Tensor) -> "Chunks":
        """The chunks at `index`, copied."""

        def each(name: str, x: Tensor | Mapping[str, Tensor]) -> Tensor | dict[str, Tensor]:
            if isinstance(x, Tensor):
                return x.index_select(1, index)
            dim = 0 if name == "state" else 1
            return {leaf: tensor.index_select(dim, index) for leaf, tensor in x.items()}

        return Chunks(**{f.name: each(f.name, getattr(self, f.name)) for f in fields(self)})  # type: ignore[arg-type]


@final
@dataclass(frozen=True)
class Minibatch:
    """Chunks of one optimizer step; with several learners, one learner's share of them.

    count: valid rows of the whole minibatch, at least 1.
    rows: all rows of the whole minibatch.
    sums: moments of the whole minibatch's advantages (`reduce.moment_sums`); None: the chunks are
        the whole minibatch, and the loss computes the moments.
    """

    chunks: Chunks
    count: Tensor
    rows: int
    sums: Tensor | None = None


def minibatch_indices(
    valid: Tensor, size: int, generator: torch.Generator | None
) -> tuple[list[Tensor], int]:
    """One pass over chunks with `valid` ``[C, K]``, on the CPU, in minibatches of `size` chunks.

    generator: draws the order; None: the given order.

    Returns:
        The chunks of each minibatch with at least one valid row, on the CPU, and the number of
        minibatches without any.
    """
    number = valid.shape[1]
    order = (
        torch.arange(number) if generator is None else torch.randperm(number, generator=generator)
    )
    parts = torch.split(order, size)
    some = torch.stack([valid[:, part].any() for part in parts]).tolist()
    return [part for part, used in zip(parts, some, strict=True) if used], some.count(False)


def share(index: Tensor, rank: int, ranks: int) -> Tensor:
    """One learner's share of a minibatch's chunks."""
    size = len(index)
    return index[rank * size // ranks : (rank + 1) * size // ranks]


def split_rows(x: Tensor, steps: int) -> Tensor:
    """Rows ``[T, B, ...]`` as chunks ``[C, K, ...]``."""
    if len(x) == steps:
        return x.contiguous()
    return x.contiguous().view(-1, steps, *x.shape[1:]).transpose(0, 1).flatten(1, 2)


def _split_with_next(x: Tensor, steps: int) -> Tensor:
    """Rows ``[T+1, B, ...]`` as chunks ``[C+1, K, ...]`` with the row after each."""
    if len(x) == steps + 1:
        return x.contiguous()
    behind = x[steps::steps].flatten(0, 1).unsqueeze(0)
    return torch.cat((split_rows(x[:-1], steps), behind))
