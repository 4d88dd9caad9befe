"""All that the runtime may know of a learner: what it needs, what it gives, how it acts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from quintet.types import (
    ActOutput,
    LearnerState,
    Obs,
    Publication,
    Rollout,
    State,
    TensorSpec,
)


@dataclass(frozen=True)
class DataPlan:
    """What data a learner asks for; the runtime executes it without knowing the algorithm.

    unroll_steps: T, rows of a column.
    columns_per_batch: B, columns of one update; on-policy learners take every stream once.
    return_discount: discount of the running return ``Rollout.return_carry``, or None when nothing
    reads it.
    """

    unroll_steps: int
    columns_per_batch: int
    return_discount: float | None = None


class Actor(Protocol):
    """Lives beside its groups and turns observations into actions."""

    @property
    def record_specs(self) -> Mapping[str, TensorSpec]:
        """What `act` records per step, by name."""
        ...

    @property
    def action_spec(self) -> TensorSpec:
        """The action as the learner sees it."""
        ...

    def load(self, publication: Publication) -> None:
        """Copies weights and statistics of a publication into the actor."""
        ...

    def initial_state(self, num_streams: int) -> State:
        """Recurrent state at the start of an episode, leaves ``[B, ...]``."""
        ...

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        """All the randomness of `steps` acts of one group, ``[steps, B, ...]``, drawn at once."""
        ...

    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        """One forward of one group; `noise` is one row of `draw_noise`, None takes the mode."""
        ...


class Learner(Protocol):
    """Lives beside the optimizer."""

    @property
    def plan(self) -> DataPlan: ...

    @property
    def updates(self) -> int:
        """Optimizer steps made so far."""
        ...

    def update(self, batch: Rollout, env_steps: int) -> dict[str, float]:
        """Learns from a batch that was collected from `env_steps` on; returns metrics by declared
        name.

        Raises NonFiniteError when a loss or gradient became NaN or infinite.
        """
        ...

    def publication(self) -> Publication:
        """The current version; its tensors may alias the learner's own."""
        ...

    def save(self) -> LearnerState: ...

    def load(self, state: LearnerState) -> None: ...
