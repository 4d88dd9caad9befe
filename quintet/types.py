"""The records that learners and the runtime exchange.

Notation: T time, B streams, K minibatch rows.  Everything is time-major ``[T, B, ...]``.  Row ``t``
    of a rollout holds the observation in which action ``t`` was taken, and the results of that
    action; ``obs`` and ``is_first`` have one more row, in which the next action will be taken.

The layout is next-step autoreset: the row after an ending carries the true final observation and is
invalid (its action was not executed); the row after it is the first of the next episode.
"""

from __future__ import annotations  # spaces need no PyTorch at run time

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from gymnasium import spaces

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Float, Float32, Float64, Int64, Shaped
    from torch import Tensor

ACTION_MASK = "action_mask"
"""Reserved observation key of the action mask, 1 where an action is allowed; only heads read it."""

LAST_ACTION, LAST_REWARD = "last_action", "last_reward"
"""Reserved observation keys: the last action and the last reward (``env.observe_last``).  Encoders
read them unchanged; normalisers skip them."""

REWARD_SHAPING = "reward_shaping"
"""Name of a publication's tensor ``[N]`` that is not for actors: weights of rewards in environments
while this policy plays, sorted by name (``env.reward_shaping``)."""

Obs = dict[str, "Tensor"]
"""Observation leaves by path; a plain Box space has the single leaf ``"obs"``."""

State = dict[str, "Tensor"]
"""An actor's state from act to act, leaves ``[B, ...]`` by name: recurrent state, which is
recorded, and private state (exploration); empty for a plain feed-forward policy."""


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one tensor of a row, without the leading ``[T, B]``."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


class Spaces(NamedTuple):
    """Observation and action space of one stream, in the form for actors and learners.

    own: both as the environment declares them, with the ``start`` of discrete values and its
        dtypes; None: the same.
    """

    observation: spaces.Space  # type: ignore[type-arg]
    action: spaces.Space  # type: ignore[type-arg]
    own: "Spaces | None" = None


@dataclass(frozen=True)
class Publication:
    """One version of everything needed for acting: weights, normaliser statistics, noise scales.

    ``tensors`` is flat and named.  Receivers copy it, since the publisher keeps updating its
    tensors.

    policy: index of the policy in its run, set by the loop.
    """

    version: int
    tensors: Mapping[str, Tensor]
    policy: int = 0


@dataclass(frozen=True)
class ActOutput:
    """The output of one forward of a group.

    action: the action for the learner, before clipping or squashing.
    env_action: the action for the environment.
    record: the tensors that the actor declared to record.
    state: the next state, with its private leaves.
    """

    action: Shaped[Tensor, "B ..."]
    env_action: Shaped[Tensor, "B ..."]
    record: dict[str, Tensor]
    state: State


@dataclass(frozen=True)
class Rollout:
    """A batch of columns, each T rows of one stream, ordered by (group, stream).

    reward: after clipping, before normalising, in reward units of the environment.
    valid: whether the row's action was executed and is within the step budget.  Other rows hold
        meaningless finite numbers, except for their observation.
    is_first: whether the row's observation is the first of an episode.
    record: the actor's records by name (``logp_mu``, distribution parameters, values, ...).
    return_carry: running discounted return ``G_t = r_t + gamma * G_(t-1)``, restarted at every
        episode, in reward units, for the variance in return normalisation.  None unless the plan
        requests it.
    version: version of the weights that acted in the row.
    policy_id: policy that acted in the row; rows of other policies than the learner's are invalid.
    stream_id, group_id: numbers of the stream and of its group in the run, from 0.
    episode_id: number of row 0's episode, counted per stream from its last restart; it grows by one
        at every ``is_first`` after row 0.
    last_action, last_reward: action and reward before row 0; zeros at a restart.
    state: recorded recurrent state before the acts of rows 0, state_every, 2 * state_every, ...
        and T if it is a multiple; not yet reset at ``is_first``, which the network does.
        Empty for feed-forward policies.
    trace_cut: whether the next row is invalid although the episode continues: it is beyond the
        budget, of too old weights, or of another policy.  None if there is no such row.
    replayed: whether it was drawn from replay.
    source: for a batch that was copied to a GPU, the same batch on the CPU (`policy_id` and fields
        without a time axis are on the CPU in both); for a batch that was collected on a GPU, the
        same batch with only these flags on the CPU: the fields of `on_cpu`, and `stream_id`.
    """

    obs: dict[str, Shaped[Tensor, "T1 B ..."]]
    action: Shaped[Tensor, "T B ..."]
    reward: Float32[Tensor, "T B"]
    terminated: Bool[Tensor, "T B"]
    truncated: Bool[Tensor, "T B"]
    valid: Bool[Tensor, "T B"]
    is_first: Bool[Tensor, "T1 B"]
    record: dict[str, Shaped[Tensor, "T B ..."]]
    version: Int64[Tensor, "T B"]
    policy_id: Int64[Tensor, "T B"]
    stream_id: Int64[Tensor, " B"]
    group_id: Int64[Tensor, " B"]
    episode_id: Int64[Tensor, " B"]
    last_action: Shaped[Tensor, "B ..."]
    last_reward: Float32[Tensor, " B"]
    state: dict[str, Shaped[Tensor, "S B ..."]]
    return_carry: Float64[Tensor, "T B"] | None = None
    trace_cut: Bool[Tensor, "T B"] | None = None
    replayed: bool = False
    source: "Rollout | None" = None

    def on_cpu(self, name: Literal["valid", "terminated", "truncated", "version"]) -> Tensor:
        """A field ``[T, B]`` on the CPU; waits for a GPU only where there is no `source`."""
        of_batch: Tensor = getattr(self.source or self, name)
        return of_batch.cpu()

    def terminal(self, truncations_too: bool) -> Bool[Tensor, "T B"]:
        """True where no value follows: at terminations, and perhaps at truncations."""
        return self.terminated | self.truncated if truncations_too else self.terminated

    @property
    def cut(self) -> Bool[Tensor, "T B"]:
        """True where traces stop: at endings and at `trace_cut`."""
        ended = self.terminated | self.truncated
        return ended if self.trace_cut is None else ended | self.trace_cut

    @property
    def not_cut_t(self) -> Float[Tensor, "T B"]:
        """0 where traces stop, see `cut`, else 1."""
        return (~self.cut).float()


@dataclass(frozen=True)
class LearnerState:
    """Everything that a learner needs to continue with the same bytes; scalars are JSON-able."""

    tensors: dict[str, Tensor]
    scalars: Mapping[str, int | float | str | bool | None] = field(default_factory=dict)
