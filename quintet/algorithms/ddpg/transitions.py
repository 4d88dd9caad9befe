"""A replayed batch in the form that DDPG's loss reads."""

from dataclasses import dataclass

from torch import Tensor

from quintet.models.normalize import ObservationNormalizer
from quintet.protocols import Ranks
from quintet.types import Obs, Rollout


@dataclass(frozen=True)
class Transitions:
    """B windows of T rows, this learner's share of a batch.

    obs: normalised, flat in time-major order ``[(T + 1) * B, ...]``.
    action: of row 0, ``[B, A]``; target: target of its value ``[B]``, if known already.
    terminal, cut: bool ``[T, B]``: after which no value follows; see `Rollout.cut`.
    spread: mean and standard deviation of the units of values, ``[2]``.
    rows: number of rows of the whole batch.
    """

    obs: Obs
    action: Tensor
    reward: Tensor
    valid: Tensor
    terminal: Tensor
    cut: Tensor
    target: Tensor | None
    spread: Tensor
    rows: int


def transitions_of(
    batch: Rollout,
    ranks: Ranks,
    normalizer: ObservationNormalizer,
    spread: Tensor,
    *,
    truncation_as_termination: bool,
) -> Transitions:
    """This learner's columns of a batch."""
    own = ranks.shard(batch)
    obs = normalizer({name: x.flatten(0, 1) for name, x in own.obs.items()})
    terminal = own.terminated | own.truncated if truncation_as_termination else own.terminated
    return Transitions(
        obs={name: x.contiguous() for name, x in obs.items()},
        action=own.action[0].contiguous(),
        reward=own.reward.contiguous(),
        valid=own.valid.contiguous(),
        terminal=terminal.contiguous(),
        cut=own.cut.contiguous(),
        target=None,
        spread=spread,
        rows=batch.valid.shape[1],
    )
