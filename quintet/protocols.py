"""All that the runtime may know of a learner: what it needs, what it gives, how it acts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

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
class ReplayPlan:
    """Which rows are kept and how batches are drawn from them.

    kind: windows: `steps` rows that begin at any valid row of a stream, drawn uniformly over all of
        them, without recurrent state; sequences: whole unrolls as they were collected, with
        their states, drawn uniformly over the stored ones.
    capacity_steps: rows kept, over all streams.
    start_steps: no draw before so many valid rows are stored.
    steps, columns: T and B of a drawn batch; sequences have the plan's unroll_steps.
    draws: how many batches are drawn after each fresh one with a valid row: owed: `rate` for every
        valid env_step since the start, what is left of 1 carried over; poisson: a number of that
        mean; fixed: `rate`, a whole number.
    column_source: per_stream: column b of a batch comes from stream b (`columns` = streams);
        any_stream: from anywhere.
    """

    kind: Literal["windows", "sequences"]
    capacity_steps: int
    steps: int
    columns: int
    draws: Literal["owed", "poisson", "fixed"]
    rate: float
    start_steps: int = 0
    column_source: Literal["per_stream", "any_stream"] = "any_stream"

    def __post_init__(self) -> None:
        if self.draws == "fixed" and self.rate != int(self.rate):
            raise AssertionError(f"a fixed number of draws must be whole: {self}")


@dataclass(frozen=True)
class DataPlan:
    """What data a learner asks for; the runtime executes it without knowing the algorithm.

    unroll_steps: T, rows of a column.
    columns_per_batch: B, columns of one update, whatever the number of streams; on-policy learners
        take every stream once.
    return_discount: discount of the running return ``Rollout.return_carry``, or None when nothing
        reads it.
    state_every: rows from one stored recurrent state to the next; must divide unroll_steps.
    max_policy_lag: rows whose weights are more versions behind the learner's, whether those were
        published or not, are masked, a column of nothing else is dropped; None: no bound.
    replay: what is kept of old data and how it is drawn; None: nothing is kept.
    """

    unroll_steps: int
    columns_per_batch: int
    return_discount: float | None = None
    state_every: int = 1
    max_policy_lag: int | None = None
    replay: ReplayPlan | None = None

    def __post_init__(self) -> None:
        if self.unroll_steps % self.state_every:
            raise AssertionError(f"state_every must divide unroll_steps: {self}")


class UpdateAdvice(NamedTuple):
    """What a person is told of the speed of a learner's update, in its own options.

    work: how it learns from a batch, as in "10 passes in minibatches of 64"; "" where there is
        nothing to say.
    less_work: what would make it faster, each with its option, as in "fewer passes than 10
        (--num-epochs)".
    larger_batches: the same for updates whose time does not lie in their rows: fewer and larger
        ones.
    """

    work: str = ""
    less_work: tuple[str, ...] = ()
    larger_batches: tuple[str, ...] = ()


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

    @property
    def state_specs(self) -> Mapping[str, TensorSpec]:
        """The leaves of the state that are recorded with the rows; the others are private: they
        never leave the process where the actor acts.
        """
        ...

    def load(self, publication: Publication) -> None:
        """Copies weights and statistics of a publication into the actor."""
        ...

    def initial_state(self, num_streams: int) -> State:
        """The state at a restart, leaves ``[B, ...]``; `act` resets it itself at ``is_first``.

        A perturbed actor's private weights are made there, of those that it has and a seed out of
        the noise, and stay until the next start; while it acts without noise nothing is drawn.
        """
        ...

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        """All the randomness of `steps` acts of one group, ``[steps, B, ...]``, drawn at once."""
        ...

    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        """One forward of one group; `noise` is one row of `draw_noise`, None takes the mode.

        It writes over nothing that it is given: an act may be made again from the same state.
        """
        ...


class Learner(Protocol):
    """Lives beside the optimizer."""

    @property
    def plan(self) -> DataPlan: ...

    @property
    def updates(self) -> int:
        """Optimizer steps made so far."""
        ...

    @property
    def version(self) -> int:
        """Calls of `update` so far; a publication carries it, and the age of weights is counted in
        it.
        """
        ...

    def update(self, batch: Rollout, env_steps: int) -> None:
        """Learns from a batch; `env_steps` have been collected before it (a replayed one: by now).

        Every fresh batch with a valid row comes once, in order, then those drawn from replay
        (``replayed``); a learner from replay alone takes its statistics from the fresh ones.

        Raises NonFiniteError when a loss or gradient became NaN or infinite, on a GPU within a
        bounded number of updates.
        """
        ...

    def configure(self, options: Any) -> None:
        """Takes these options of its own from the next update on, without compiling anew.

        Raises ConfigError where one differs that is not tunable.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """What is reported of all updates since the last call, by declared name; what is counted in
        updates is a mean, a minimum or a maximum over these, as its name says.
        """
        ...

    def histograms(self) -> Mapping[str, Tensor]:
        """Values of the last update, on the CPU, whose distribution a report shows, by declared
        name; empty unless the learner's options ask for them.
        """
        ...

    def publication(self) -> Publication:
        """The current version; its tensors may alias the learner's own."""
        ...

    def save(self) -> LearnerState: ...

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        """Goes on with what `save` gave.

        counters: whether `updates`, `version` and the generators are taken too; else it has the
            model and the optimizer's memory of another learner and remains itself.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """All that it learns with, by name: the publication's tensors, and those that only learning
        needs (critics, targets, statistics of rewards), without the optimizer's memory.
        """
        ...

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        """Begins with another learner's `weights`, complete and of its own names and shapes; all
        else is as if it were new.
        """
        ...


class Ranks(Protocol):
    """Learners in processes of their own that share every batch, as one of them sees them.

    All of them are given the whole batch and make the same calls in the same order; what a call
    gives has the same bits on every rank.  So they take the same steps and stay alike.
    """

    @property
    def size(self) -> int:
        """How many there are; 1: this learner is alone, and every call costs nothing."""
        ...

    @property
    def index(self) -> int:
        """Which of them this is; 0 is the one that publishes, reports and is saved."""
        ...

    def whole(self, batch: Rollout) -> Rollout:
        """The batch on the device where this rank computes."""
        ...

    def shard(self, batch: Rollout) -> Rollout:
        """This rank's columns, ``B / size`` of them, on the device where it computes."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, whose memory may be taken for it."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Every rank's `x`, ``[size, ...]``."""
        ...

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copies rank 0's values into the tensors of the others."""
        ...
