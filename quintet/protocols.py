"""Everything that the runtime knows of a learner: its data, its updates and its acting."""

from __future__ import annotations  # options need no PyTorch at run time

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from quintet.types import ActOutput, LearnerState, Obs, Publication, Rollout, State, TensorSpec


LOOK_EVERY_UPDATES = 16
"""Largest number of updates within which a learner on a GPU finds a NaN; a look at every update
would wait for the GPU."""


@dataclass(frozen=True)
class ReplayPlan:
    """Rules of a replay: the rows that it keeps, and how batches are drawn.

    kind: windows: `steps` rows that begin at any valid row of a stream, drawn uniformly over all
        such rows, without recurrent state; sequences: whole unrolls as they were collected, with
        their states, drawn uniformly over the stored unrolls.
    capacity_steps: number of rows kept, over all streams.
    start_steps: valid rows that must be stored before the first draw.
    steps, columns: T and B of a drawn batch; for sequences T is the plan's unroll_steps.
    draws: batches drawn after each fresh one with a valid row.  owed: `rate` for every valid
        env_step since the start, fractions carried over; poisson: a Poisson number of mean `rate`;
        fixed: `rate`, a whole number.
    column_source: per_stream: a batch has the same number of columns from each stored stream, in
        order (with as many streams as columns, column b is from stream b); any_stream: columns are
        from any stream.
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
    """The data that a learner requests; the runtime collects it without knowing the algorithm.

    unroll_steps: T, rows of a column.
    columns_per_batch: B, columns of one update, whatever the number of streams; on-policy learners
        use every stream once.
    return_discount: discount of the running return ``Rollout.return_carry``; None: it is not
        recorded.
    state_every: number of rows between two stored recurrent states; must divide unroll_steps.
    max_policy_lag: rows whose weights are more versions than this behind the learner's (published
        or not) are masked, and a column without other rows is dropped; None: no limit.
    replay: rules by which old data is kept and drawn; None: no replay.
    versions_per_batch: largest number of versions that one fresh batch adds.
    gives_advantage: whether the learner has an attribute `advantage`: the advantages ``[T, B]`` of
        the last fresh batch before normalising, or None.  Curricula score episodes by them.
    """

    unroll_steps: int
    columns_per_batch: int
    return_discount: float | None = None
    state_every: int = 1
    max_policy_lag: int | None = None
    replay: ReplayPlan | None = None
    versions_per_batch: int = 1
    gives_advantage: bool = False

    def __post_init__(self) -> None:
        assert not self.unroll_steps % self.state_every, f"state_every must divide T: {self}"


class UpdateAdvice(NamedTuple):
    """Advice on the speed of a learner's update, in the learner's options.

    work: options that set its work per batch, as in "num_epochs=10, minibatch_steps=64"; may be "".
    less_work: ways to a faster update, as in "a lower num_epochs than 10 (--num-epochs)".
    larger_batches: ways to fewer and larger updates, for updates whose time hardly depends on their
        rows.
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
    """A metric that is evidence for the state of a learner's part.

    name: the metric's name in sentences.
    sound: values with which the part is sound.
    possible: a wider range; a value outside of it makes the part doubtful; a value outside only
        `sound` decides nothing.
    below, above: meanings of values below and above `sound`, as in "it moves too fast".
    after_updates: number of optimizer steps before which the metric decides nothing.
    given: another metric that must be present and in a range for this one to count.
    needed: whether the part can only be sound with this metric in `sound`.
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
    """A part of a learner, and the evidence for its state."""

    name: str
    evidence: tuple[Evidence, ...]


class Actor(Protocol):
    """Turns observations into actions, in the process of its groups."""

    @property
    def record_specs(self) -> Mapping[str, TensorSpec]:
        """The records of `act` per step, by name."""
        ...

    @property
    def action_spec(self) -> TensorSpec:
        """The action in the learner's form."""
        ...

    @property
    def state_specs(self) -> Mapping[str, TensorSpec]:
        """The leaves of the state that are recorded with the rows.  All other leaves are private:
        they never leave the actor's process.
        """
        ...

    def load(self, publication: Publication) -> None:
        """Copies a publication's weights and statistics into the actor."""
        ...

    def initial_state(self, num_streams: int) -> State:
        """The state at a restart, leaves ``[B, ...]``; `act` resets it at ``is_first``.

        At ``is_first`` a perturbed actor also makes private weights from the published weights and
        a seed in the noise, and keeps them until the next start; without noise it makes none.
        """
        ...

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        """All the randomness of `steps` acts of one group, ``[steps, B, ...]``, drawn at once."""
        ...

    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        """Makes one forward of a group; `noise` is one row of `draw_noise`; None: the mode.

        It changes none of its inputs: an act can be repeated from the same state.
        """
        ...


@runtime_checkable
class HostActor(Protocol):
    """An actor on a GPU whose acts can be one graph with the copies from the CPU and back."""

    @property
    def one_graph(self) -> bool:
        """Whether acts with noise are one graph; a publication may change it."""
        ...

    def from_host(
        self, block: Tensor, obs: Obs, state: State, is_first: Tensor, noise: Tensor
    ) -> Callable[..., ActOutput]:
        """A function that acts on what these page-locked tensors of the CPU then hold, and waits
        for the GPU; its next call overwrites its result.

        block: bytes, of which tensors are views; others are arguments of the function, in order.
        """
        ...


class Learner(Protocol):
    """Learns from batches, in the process of the optimizer."""

    @property
    def plan(self) -> DataPlan: ...

    @property
    def updates(self) -> int:
        """Optimizer steps made so far."""
        ...

    @property
    def version(self) -> int:
        """A number that grows with every call of `update`, by one or by its optimizer steps;
        publications carry it, and policy lag is counted in it.
        """
        ...

    def update(self, batch: Rollout, env_steps: int) -> None:
        """Learns from a batch.

        Every fresh batch with a valid row is passed once, in order, followed by the batches drawn
        from replay (``replayed``); a learner from replay alone takes only statistics from fresh
        batches.

        env_steps: env_steps collected before this batch; for a replayed batch, before the fresh one
            after which it is drawn. Schedules go by it.

        Raises NonFiniteError if this batch made a loss or gradient NaN or infinite; a learner on a
        GPU may do so in one of the next LOOK_EVERY_UPDATES - 1 calls, or in `publication`.
        """
        ...

    def configure(self, options: Any) -> None:
        """Uses these options of the learner from the next update on, without compiling again.  Only
        those with `Tune` may differ (`quintet.options.declaration.require_tunable`).
        """
        ...

    def metrics(self) -> Mapping[str, float]:
        """Metrics of all updates since the last call, by declared name: means, minima or maxima
        over these updates, according to the names.
        """
        ...

    def histograms(self) -> Mapping[str, Tensor]:
        """Values of the last update, on the CPU, by declared name, for histograms in reports; empty
        unless the learner's options ask for them.
        """
        ...

    def publication(self) -> Publication:
        """The current version; its tensors may alias the learner's own.

        Raises NonFiniteError if a weight is NaN or infinite, so that such weights never act.
        """
        ...

    def save(self) -> LearnerState: ...

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        """Restores a state that `save` returned.

        counters: whether `updates`, `version` and the generators are restored too; False: only the
            model and the optimizer's memory are.  The version is then higher than any published
            one, which distinguishes rows of the earlier weights.
        """
        ...

    def weights(self) -> dict[str, Tensor]:
        """All weights and statistics by name: the publication's tensors and the tensors that are
        only for learning (critics, targets, statistics of rewards), not the optimizer's memory.
        """
        ...

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        """Copies the complete `weights` of another learner, with the same names and shapes, into
        this new learner.
        """
        ...


class Ranks(Protocol):
    """One of several learners that share every batch, with its exchanges.

    All ranks get the whole batch and make the same calls in the same order; a call returns the same
    bits on every rank.  So they make the same steps and stay equal.
    """

    @property
    def size(self) -> int:
        """Number of ranks; with 1, calls cost nothing."""
        ...

    @property
    def index(self) -> int:
        """Index of this rank; rank 0 publishes, reports and is saved."""
        ...

    def whole(self, batch: Rollout) -> Rollout:
        """The whole batch on this rank's device."""
        ...

    def shard(self, batch: Rollout) -> Rollout:
        """This rank's ``B / size`` columns, on its device."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' `x`; may reuse the memory of `x`."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Every rank's `x`, ``[size, ...]``."""
        ...

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copies rank 0's values into the other ranks' tensors."""
        ...
