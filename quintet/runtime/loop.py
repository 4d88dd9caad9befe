"""The training loop: collect, update, publish, and a checkpoint when one is due."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, final

import torch

from quintet.errors import NonFiniteError
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Learner
from quintet.runtime.batch import Episode, to_device
from quintet.runtime.delivery import Batch
from quintet.types import Publication, Rollout


class Sampling(Protocol):
    """What the loop asks of a runtime kind.

    restarts: whether streams begin anew at scheduled checkpoints.
    """

    restarts: bool

    def publish(self, publication: Publication, policy: int = 0) -> None: ...

    def restart(self, iteration: int) -> None: ...

    def collect(self, env_steps_left: int, more: bool) -> Batch: ...

    def report(self) -> dict[str, float]: ...

    def close(self) -> None: ...


class Replay(Protocol):
    """What the loop asks of a memory of old data."""

    def store(self, batch: Rollout) -> None: ...

    def cut(self) -> None: ...

    def draws(self, env_steps: int, iteration: int) -> Iterable[Rollout]: ...


@dataclass
class Counters:
    """How far a run has come; stored in every checkpoint."""

    iteration: int = 0
    env_steps: int = 0


@final
@dataclass(frozen=True)
class Hooks:
    """What happens around the loop; none of it has a say in the result's bytes.

    save: writes a checkpoint; its argument says whether it is a scheduled one.
    after_iteration: gets the metrics and the ended episodes; True asks for a stop.
    keep_batch: gets the batch on which an update became NaN, and says where it was kept.
    """

    save: Callable[[bool], None]
    after_iteration: Callable[[dict[str, float], list[Episode]], bool]
    keep_batch: Callable[[Rollout], str]


@dataclass(frozen=True)
class Budget:
    """When a run ends, when checkpoints are scheduled and when weights are published, in env_steps
    and iterations.
    """

    total_env_steps: int
    checkpoint_iterations: int
    publish_iterations: int = 1


@final
@dataclass(frozen=True)
class Parts:
    """What a run is made of: a learner for each policy, where their data comes from, and the memory
    of old data, if the learner's plan asks for one.

    device: where the learners compute; sampling and replay give rollouts on the CPU.
    """

    learners: Sequence[Learner]
    sampling: Sampling
    replay: Replay | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if self.replay is not None and len(self.learners) > 1:
            raise AssertionError("each learner with replay requires a memory of its own")


def run(
    parts: Parts, counters: Counters, budget: Budget, hooks: Hooks, timer: PhaseTimer
) -> Literal["finished", "stopped"]:
    """Trains until the budget is spent or a hook asks for a stop.

    At a scheduled checkpoint every stream is re-keyed from (seed, group, iteration), whether the
    run was interrupted there or not; so what samplers hold need not be saved, and a resumed run has
    the same bytes.  Where sampling promises no such thing, streams run on.
    """
    sampling = parts.sampling
    for policy, learner in enumerate(parts.learners):
        sampling.publish(learner.publication(), policy)
    _restart(parts, counters)
    while counters.env_steps < budget.total_env_steps:
        due = (counters.iteration + 1) % budget.checkpoint_iterations == 0
        more = not (due and sampling.restarts)
        batch = sampling.collect(budget.total_env_steps - counters.env_steps, more)
        timer.switch("learning")
        learner = parts.learners[batch.policy]
        metrics = _learn(parts, batch, counters, hooks)
        counters.iteration += 1
        counters.env_steps += batch.env_steps
        finished = counters.env_steps >= budget.total_env_steps
        scheduled = finished or due
        # A resumed run begins with the newest, so the uninterrupted one goes on with it.
        if scheduled or counters.iteration % budget.publish_iterations == 0:
            sampling.publish(learner.publication(), batch.policy)
        timer.switch("other")
        # Before the checkpoint, which holds the best score that an evaluation found.
        stop = hooks.after_iteration(metrics, batch.episodes)
        if scheduled or stop:
            hooks.save(scheduled)
        if stop and not finished:
            return "stopped"
        if scheduled and not finished and sampling.restarts:
            _restart(parts, counters)
    return "finished"


def _restart(parts: Parts, counters: Counters) -> None:
    parts.sampling.restart(counters.iteration)
    if parts.replay is not None:
        parts.replay.cut()


def _learn(parts: Parts, batch: Batch, counters: Counters, hooks: Hooks) -> dict[str, float]:
    """One update from the fresh batch and as many from replay as are due; each metric is the mean
    over the updates that gave it.
    """
    learner, replay = parts.learners[batch.policy], parts.replay
    if replay is not None:
        replay.store(batch.rollout)

    def update(rollout: Rollout, env_steps: int) -> dict[str, float]:
        try:
            return learner.update(to_device(rollout, parts.device), env_steps)
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}. {hooks.keep_batch(rollout)}") from error

    given = [update(batch.rollout, counters.env_steps)]
    if replay is not None:
        now = counters.env_steps + batch.env_steps
        given += [update(drawn, now) for drawn in replay.draws(batch.env_steps, counters.iteration)]
    return _mean_by_name(given) | batch.metrics


def _mean_by_name(given: Sequence[dict[str, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for metrics in given:
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}
