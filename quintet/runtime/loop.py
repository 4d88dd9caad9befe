"""The training loop: collect, update, publish, and a checkpoint when one is due."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, final

from quintet.errors import NonFiniteError
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Learner
from quintet.runtime.sampler import Episode
from quintet.runtime.serial import Batch
from quintet.types import Publication, Rollout


class Sampling(Protocol):
    """What the loop asks of a runtime kind."""

    def publish(self, publication: Publication) -> None: ...

    def restart(self, iteration: int) -> None: ...

    def collect(self, env_steps_left: int) -> Batch: ...


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
    """When a run ends and when checkpoints are scheduled, in env_steps and iterations."""

    total_env_steps: int
    checkpoint_iterations: int


def run(
    learner: Learner,
    sampling: Sampling,
    counters: Counters,
    budget: Budget,
    hooks: Hooks,
    timer: PhaseTimer,
) -> Literal["finished", "stopped"]:
    """Trains until the budget is spent or a hook asks for a stop.

    At a scheduled checkpoint every stream is re-keyed from (seed, group, iteration), whether the
    run was interrupted there or not; so what samplers hold need not be saved, and a resumed run has
    the same bytes.
    """
    sampling.publish(learner.publication())
    sampling.restart(counters.iteration)
    while counters.env_steps < budget.total_env_steps:
        batch = sampling.collect(budget.total_env_steps - counters.env_steps)
        timer.switch("learning")
        try:
            metrics = learner.update(batch.rollout, counters.env_steps)
        except NonFiniteError as error:
            place = hooks.keep_batch(batch.rollout)
            raise NonFiniteError(f"{error}. {place}") from error
        counters.iteration += 1
        counters.env_steps += batch.env_steps
        sampling.publish(learner.publication())
        timer.switch("other")
        finished = counters.env_steps >= budget.total_env_steps
        scheduled = finished or counters.iteration % budget.checkpoint_iterations == 0
        # Before the checkpoint, which holds the best score that an evaluation found.
        stop = hooks.after_iteration(metrics, batch.episodes)
        if scheduled or stop:
            hooks.save(scheduled)
        if stop and not finished:
            return "stopped"
        if scheduled and not finished:
            sampling.restart(counters.iteration)
    return "finished"
