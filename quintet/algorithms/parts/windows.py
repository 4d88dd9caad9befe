"""A batch of windows from replay in the form that a loss reads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from quintet.models.normalize import ObservationNormalizer
from quintet.ops import returns
from quintet.protocols import Ranks
from quintet.types import Obs, Rollout


@dataclass(frozen=True)
class Windows:
    """B windows of T rows, this learner's share of a batch.

    obs: normalised, flat in time-major order ``[(T + 1) * B, ...]``.
    action: of row 0, ``[B, A]``.
    terminal: rows after which no value follows; cut: see `Rollout.cut`; bool ``[T, B]``.
    record: what belongs to rows, ``[T, B, ...]``, as noise for the loss.
    rows: number of rows of the whole batch.
    """

    obs: Obs
    action: Tensor
    reward: Tensor
    valid: Tensor
    terminal: Tensor
    cut: Tensor
    record: dict[str, Tensor]
    rows: int

    @property
    def first(self) -> Obs:
        """The observations of row 0, ``[B, ...]``."""
        return {name: x[: len(self.action)] for name, x in self.obs.items()}

    @property
    def following(self) -> Obs:
        """The observations of rows 1 to T, ``[T * B, ...]``."""
        return {name: x[len(self.action) :] for name, x in self.obs.items()}

    def returns(self, v: Tensor, gamma: Tensor, reward_scale: Tensor) -> Tensor:
        """The n-step returns of row 0 ``[B]``, detached; n is T.

        v: values of `following`, ``[T * B]``.
        """
        r_t = reward_scale * torch.where(self.valid, self.reward, 0.0)
        discount_t = gamma * (~self.terminal).float()
        v_t = v.view(-1, len(self.action))
        return returns.n_step(r_t, discount_t, (~self.cut).float(), v_t, n=None)[0]


def windows_of(
    batch: Rollout,
    ranks: Ranks,
    normalizer: ObservationNormalizer,
    *,
    truncation_as_termination: bool,
) -> Windows:
    """This learner's columns of a batch.  Tensors that are not contiguous are copied."""
    own = ranks.shard(batch)
    obs = normalizer({name: x.flatten(0, 1) for name, x in own.obs.items()})
    terminal = own.terminal(truncation_as_termination)
    return Windows(
        obs={name: x.contiguous() for name, x in obs.items()},
        action=own.action[0].contiguous(),
        reward=own.reward.contiguous(),
        valid=own.valid.contiguous(),
        terminal=terminal.contiguous(),
        cut=own.cut.contiguous(),
        record={name: x.contiguous() for name, x in own.record.items()},
        rows=batch.valid.shape[1],
    )
