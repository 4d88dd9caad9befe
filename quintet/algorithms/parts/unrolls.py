"""A batch of unrolls in the form that a loss reads."""

from dataclasses import dataclass

from torch import Tensor

from quintet.algorithms.parts.normalizers import Normalizers
from quintet.protocols import Ranks
from quintet.types import Obs, Rollout, State


@dataclass(frozen=True)
class Unrolls:
    """A learner's columns of T rows, with the same shapes and strides in every update, since a
    graph is compiled for one layout.

    obs, is_first: of rows 0 to T, flat in time-major order ``[(T + 1) * B, ...]``.
    state: before row 0, ``[B, ...]``.
    action, reward, valid, record: ``[T, B, ...]``; rewards are normalised.
    terminal: rows after which there is no value ``[T, B]``: terminations, with
        ``truncation_as_termination`` also truncations.
    not_cut_t: see `Rollout.not_cut_t`.
    count, columns: the whole batch's valid rows, at least 1, and its columns.
    """

    obs: Obs
    state: State
    is_first: Tensor
    action: Tensor
    reward: Tensor
    terminal: Tensor
    not_cut_t: Tensor
    valid: Tensor
    record: dict[str, Tensor]
    count: Tensor
    columns: int


def unrolls_of(
    batch: Rollout, ranks: Ranks, normalizers: Normalizers, *, truncation_as_termination: bool
) -> Unrolls:
    """This learner's columns of a batch.  Tensors that are not contiguous are copied."""
    count, columns = batch.valid.sum().clamp_min_(1), batch.valid.shape[1]
    own = ranks.shard(batch)
    terminal = own.terminal(truncation_as_termination)
    return Unrolls(
        obs={name: x.flatten(0, 1).contiguous() for name, x in own.obs.items()},
        state={name: x[0].contiguous() for name, x in own.state.items()},
        is_first=own.is_first.flatten().contiguous(),
        action=own.action.contiguous(),
        reward=normalizers.rewards(own.reward).contiguous(),
        terminal=terminal.contiguous(),
        not_cut_t=own.not_cut_t.contiguous(),
        valid=own.valid.contiguous(),
        record={name: x.contiguous() for name, x in own.record.items()},
        count=count.to(own.valid.device),
        columns=columns,
    )
