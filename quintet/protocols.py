"""All that the runtime knows of a learner: the data it asks for, its updates, how it acts."""

from __future__ import annotations  # so that no tensor is needed where only options are

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quintet.types import ActOutput, LearnerState, Obs, Publication, Rollout, State, TensorSpec


@dataclass(frozen=True)
class ReplayPlan:
    """Rules of a replay: the rows that it keeps, and how batches are drawn.

    kind: windows: `steps` rows that begin at any valid row of a stream, drawn uniformly over all of
        them, without recurrent state; sequences: whole unrolls as they were collected, with
        their states, drawn uniformly over the stored ones.
    capacity_steps: rows kept, over all streams.
    start_steps: valid rows that must be stored before the first draw.
    steps, columns: T and B of a drawn batch; sequences have the plan's unroll_steps.
    draws: batches drawn after each fresh one with a valid row.  owed: `rate` for every valid
        env_step since the start, fractions carried over; poisson: a Poisson number of mean `rate`;
        fixed: `rate`, a whole number.
    column_source: per_stream: as many columns of a batch from each stream whose rows are stored, in
        their order (of as many streams as columns, column b from stream b); any_stream: from any.
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
        assert self.draws != "fixed" or self.rate == int(self.rate), f"rate must be whole: {self}"


@dataclass(frozen=True)
class DataPlan:
    """The data that a learner asks for; the runtime collects it without knowing the algorithm.

    unroll_steps: T, rows of a column.
    columns_per_batch: B, columns of one update, whatever the number of streams; on-policy learners
        take every stream once.
    return_discount: discount of the running return ``Rollout.return_carry``; None: it is left out.
    state_every: rows from one stored recurrent state to the next; must divide unroll_steps.
    max_policy_lag: rows whose weights are more versions than this behind the learner's (published
        or not) are masked, and a column without other rows is dropped; None: no bound.
    replay: how old data is kept and drawn; None: none is kept.
    versions_per_batch: versions that the learner goes through in one fresh batch, at most.
    """

    unroll_steps: int
    columns_per_batch: int
    return_discount: float | None = None
    state_every: int = 1
    max_policy_lag: int | None = None
    replay: ReplayPlan | None = None
    versions_per_batch: int = 1

    def __post_init__(self) -> None:
        assert not self.unroll_steps % self.state_every, f"state_every must divide T: {self}"


class UpdateAdvice(NamedTuple):
    """Advice on the speed of a learner's update, in the learner's options.

    work: how it learns from a batch, as in "10 passes in minibatches of 64"; may be "".
    less_work: ways to a faster update, each with its option, as in "fewer passes than 10
        (--num-epochs)".
    larger_batches: ways to fewer and larger updates, for those that take long whatever their rows.
    """

    work: str = ""
    less_work: tuple[str, ...] = ()
    larger_batches: tuple[str, ...] = ()


class Range(NamedTuple):
    """Numbers from `low` to `high`, both included."""

    low: float = float("-inf")
    high: float = float("inf")

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


class Evidence(NamedTuple):
    """A metric by which a part of a learner is judged.

    name: what a person calls the metric.
    sound: values that speak for the part.
    possible: wider; a value outside of it makes the part doubtful, one that is only outside of
        `sound` decides nothing.
    below, above: what values below and above `sound` mean, as in "it moves too fast".
    after_updates: optimizer steps before which the metric decides nothing.
    given: another metric that must lie in a range for this one to count; absent it does not lie.
    needed: whether the part is sound only by this too.
    """

    metric: str
    name: str
    sound: Range = Range()
    possible: Range = Range()
    below: str = ""
    above: str = ""
    after_updates: int = 0
    given: tuple[str, Range] | None = None
    needed: bool = False


class Part(NamedTuple):
    """A part of a learner, and the evidence for it and against it."""

    name: str
    evidence: tuple[Evidence, ...]


class Actor(Protocol):
    """Lives beside its groups and turns observations into actions."""

    @property
    def record_specs(self) -> Mapping[str, TensorSpec]:
        """Records of `act` per step, by name."""
        ...

    @property
    def action_spec(self) -> TensorSpec:
        """The action as the learner sees it."""
        ...

    @property
    def state_specs(self) -> Mapping[str, TensorSpec]:
        """The leaves of the state that are recorded with the rows.  All others are private: they
        never leave the process in which the actor acts.
        """
        ...

    def load(self, publication: Publication) -> None:
        """Copies weights and statistics of a publication into the actor."""
        ...

    def initial_state(self, num_streams: int) -> State:
        """The state at a restart, leaves ``[B, ...]``; `act` itself resets it at ``is_first``.

        At ``is_first`` a perturbed actor also makes its private weights, of the published ones and
        a seed in the noise, and keeps them until the next start; without noise it makes none.
        """
        ...

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        """All the randomness of `steps` acts of one group, ``[steps, B, ...]``, drawn at once."""
        ...

    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        """One forward of one group; `noise` is one row of `draw_noise`; None takes the mode.

        It changes none of its inputs: the same act may be repeated from the same state.
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
        """Grows with every call of `update`, by one or by the optimizer steps that it made;
        publications carry it, and policy lag is counted in it.
        """
        ...

    def update(self, batch: Rollout, env_steps: int) -> None:
        """Learns from a batch.

        Every fresh batch with a valid row is given once, in order, followed by the batches that are
        drawn from replay (``replayed``); a learner from replay alone takes only its statistics from
        the fresh ones.

        env_steps: collected before this batch; of a replayed one, collected so far.

        Raises NonFiniteError when a loss or gradient became NaN or infinite by this batch.
        """
        ...

    def configure(self, options: Any) -> None:
        """Uses these options of the learner from the next update on, without compiling anew.

        Raises ConfigError where an option differs that is not tunable.
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Metrics of all updates since the last call, by declared name: a mean, a minimum or a
        maximum over these updates, as the name says.
        """
        ...

    def histograms(self) -> Mapping[str, Tensor]:
        """Values of the last update, on the CPU, by declared name, for histograms in reports; empty
        unless the learner's options ask for them.
        """
        ...

    def publication(self) -> Publication:
        """The current version; its tensors may alias the learner's own.

        Raises NonFiniteError if a weight is NaN or infinite, so that it never acts.
        """
        ...

    def save(self) -> LearnerState: ...

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        """Goes on from a state that `save` returned.

        counters: whether `updates`, `version` and the generators are taken too; False keeps this
            learner's own and takes the model and the optimizer's memory only.  The version is then
            higher than any that was published, by which rows of the former weights are known.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """All weights and statistics by name: the publication's tensors and those that only
        learning needs (critics, targets, statistics of rewards), not the optimizer's memory.
        """
        ...

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        """Takes `weights` of another learner, complete and with the same names and shapes, into
        this one, which is new.
        """
        ...


class Ranks(Protocol):
    """One of several learners that share every batch, and its exchanges with the others.

    All ranks are given the whole batch and make the same calls in the same order, and a call
    returns the same bits on every rank.  So they make the same steps and stay equal.
    """

    @property
    def size(self) -> int:
        """Number of ranks; with 1 every call costs nothing."""
        ...

    @property
    def index(self) -> int:
        """Number of this rank; rank 0 publishes, reports and is saved."""
        ...

    def whole(self, batch: Rollout) -> Rollout:
        """The batch on the device where this rank computes."""
        ...

    def shard(self, batch: Rollout) -> Rollout:
        """This rank's columns, ``B / size`` of them, on the device where it computes."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, whose memory may be reused for it."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Every rank's `x`, ``[size, ...]``."""
        ...

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copies rank 0's values into the tensors of the others."""
        ...
