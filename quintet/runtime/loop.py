"""The training loop: collect, update, publish, and write checkpoints when due."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, final

import torch

from quintet.envs.own_state import States
from quintet.errors import NonFiniteError, QuintetError
from quintet.observe.timing import PhaseTimer
from quintet.protocols import LOOK_EVERY_UPDATES, Learner
from quintet.runtime.batch import rollout_to_device
from quintet.runtime.delivery import Batch, Delivery, RestartsAfter
from quintet.runtime.torch_settings import OwnTorch
from quintet.types import Publication, Rollout

if TYPE_CHECKING:
    from quintet.runtime.replay.replay import Replay


class Sampling(Protocol):
    """A runtime kind, as the loop uses it.

    restarts: whether streams restart at exact checkpoints.
    delivery: the queues from which batches are made.
    save_environments: returns the state that environments offer; load_environments: gives it back,
        before the first restart.
    set_task: tells environments something from their next unrolls on, see `quintet.envs.tasks`.
    """

    restarts: bool
    delivery: Delivery

    def publish(self, publication: Publication) -> None: ...

    def restart(self, iteration: int) -> None: ...

    def collect(self, env_steps_left: int, restarts_after: RestartsAfter) -> Batch: ...

    def report(self) -> dict[str, float]: ...

    def save_environments(self) -> States: ...

    def load_environments(self, states: States) -> None: ...

    def set_task(self, text: bytes) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Counters:
    """Progress of a run, summed over its policies; stored in every checkpoint.

    iteration: number of batches learned from.
    env_steps: number of rows learned from, which the budget counts.
    executed_env_steps: all steps that environments made, except in unrolls that were unfinished
        when the run stopped; steps of a dead worker's current row may or may not count.
    discarded_env_steps: executed steps that are in no batch and never will be.
    cut_env_steps: steps in episodes that were abandoned before they ended.
    running_env_steps: steps in episodes that have not ended.
    waiting_env_steps: executed steps that wait for a batch.
    ended_episodes: number of episodes that were played to their end.
    exact_iteration: iteration of the last exact checkpoint.
    checkpoint_iteration: iteration of the last checkpoint of any kind.
    """

    iteration: int = 0
    env_steps: int = 0
    executed_env_steps: int = 0
    discarded_env_steps: int = 0
    cut_env_steps: int = 0
    running_env_steps: int = 0
    waiting_env_steps: int = 0
    ended_episodes: int = 0
    exact_iteration: int = 0
    checkpoint_iteration: int = 0

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Self:
        """The counters in a checkpoint's meta."""
        return cls(**meta["counters"])

    @property
    def cut_frac(self) -> float:
        """Fraction of the executed steps in abandoned episodes."""
        return self.cut_env_steps / max(self.executed_env_steps, 1)

    def add(self, batch: Batch) -> None:
        steps = batch.steps
        self.iteration += 1
        self.env_steps += batch.env_steps
        self.executed_env_steps += steps.executed
        self.discarded_env_steps += steps.discarded
        self.cut_env_steps += steps.cut
        self.running_env_steps, self.waiting_env_steps = steps.running, steps.waiting
        self.ended_episodes += len(batch.episodes) + sum(map(len, batch.others.values()))

    def begin_anew(self) -> None:
        """Counts running episodes and waiting rows as abandoned, since all streams restart."""
        self.cut_env_steps += self.running_env_steps
        self.running_env_steps = 0
        self.discard_waiting()

    def discard_waiting(self) -> None:
        self.discarded_env_steps += self.waiting_env_steps
        self.waiting_env_steps = 0


def _raise(policy: int, error: NonFiniteError) -> None:  # noqa: ARG001 (there is one)
    raise error


@final
@dataclass(frozen=True)
class Hooks:
    """Functions that the loop calls; only `learned` and `diverged` may change the result's bytes.

    save: writes a checkpoint; its argument says whether that is exact.
    after_iteration: receives the batch that was learned from; returns True to stop the run.
    keep_batch: writes the batch on which an update became NaN, for this policy; returns a sentence
        with its path.
    diverged: receives the policy whose update became NaN, and the error; gives its learner another
        policy's weights, or raises the error with the policy's name.
    learned: receives the batch that was learned from, before the weights are published; returns
        True if its learner now has another policy's weights, so that older rows are not its own.
    published: receives the publication.
    asks_to_save: returns whether to write a checkpoint that cuts no episode after this iteration.
    quiet: returns whether nothing that follows this batch (reports, evaluations, checkpoints, the
        population) reads another policy, so that another policy's update may start.
    stops: receives an error of sampling; returns whether the run stops, so that what stopped it may
        have ended programs of environments as well.
    stopping: returns whether to stop the run, after a checkpoint.
    """

    save: Callable[[bool], None]
    after_iteration: Callable[[Batch], bool]
    keep_batch: Callable[[Rollout, int], str]
    learned: Callable[[Batch], bool] = lambda _: False
    diverged: Callable[[int, NonFiniteError], None] = _raise
    published: Callable[[Publication], None] = lambda _: None
    asks_to_save: Callable[[], bool] = lambda: False
    quiet: Callable[[Batch], bool] = lambda _: True
    stops: Callable[[QuintetError], bool] = lambda _: False
    stopping: Callable[[], bool] = lambda: False


@final
@dataclass(frozen=True)
class Budget:
    """Rules for the end of a run, for checkpoints and for publications.

    checkpoint_iterations: iterations between two checkpoints.
    max_cut_frac: the largest fraction of executed env_steps in episodes cut by exact checkpoints;
        None: no checkpoint is exact.
    publish_iterations: batches of a learner between two publications of its weights.
    """

    total_env_steps: int
    checkpoint_iterations: int
    max_cut_frac: float | None = 0.05
    publish_iterations: int = 1

    def exact_after(self, counters: Counters, batch: Batch) -> bool:
        """Whether the checkpoint after this batch is exact, so that all streams restart.

        It is exact at the first iteration that is far enough from the last exact checkpoint and has
        few enough env_steps in running episodes.  The rule uses only collected data, so every run
        of the same configuration makes the same choice.
        """
        if self.max_cut_frac is None or not batch.env_steps:  # without any, none would follow
            return False
        passed = counters.iteration + 1 - counters.exact_iteration
        cut = counters.cut_env_steps + batch.steps.cut + batch.steps.running
        executed = counters.executed_env_steps + batch.steps.executed
        return passed >= self.checkpoint_iterations and cut <= self.max_cut_frac * executed


@final
@dataclass(frozen=True)
class Components:
    """Parts of the loop: a learner for each policy, the sampling that they share, and a replay for
    each learner if their plan has one.

    devices: device of each learner, the CPU if empty; sampling and replay return rollouts on the
        CPU.
    publication: returns a policy's publication; None: the learner's own.
    """

    learners: Sequence[Learner]
    sampling: Sampling
    replays: "Sequence[Replay]" = ()
    devices: Sequence[torch.device] = ()
    publication: Callable[[int], Publication] | None = None


@dataclass
class _Step:
    """A batch, and the state of its updates: a GPU may still be at work on them.

    exact: whether the checkpoint after it is exact.
    newest: its last rollouts.
    error: of an update that found a number that is not finite.
    counted: whether the run's counters contain it.
    """

    batch: Batch
    exact: bool
    newest: "Recent"
    error: NonFiniteError | None = None
    counted: bool = False


@final
class TrainingLoop:
    """A run from its first publication to its end.

    At an exact checkpoint every stream is re-keyed from (seed, group, iteration), also in a run
    that is not interrupted: so samplers need not be saved, and a resumed run gives the same bytes.
    Streams continue at other checkpoints, and always where ``sampling.restarts`` is False.
    """

    def __init__(
        self,
        components: Components,
        counters: Counters,
        budget: Budget,
        hooks: Hooks,
        timer: PhaseTimer,
    ):
        self.parts, self.counters, self.budget = components, counters, budget
        self.hooks, self.timer, self.sampling = hooks, timer, components.sampling
        count = len(components.learners)
        self.devices = components.devices or [torch.device("cpu")] * count
        self.unpublished = [0] * count  # batches learned from since the last publication

    def run(self) -> Literal["finished", "stopped"]:
        """Trains until the budget is spent or a hook asks for a stop."""
        counters, budget = self.counters, self.budget
        counters.begin_anew()
        self._publish_all()
        self._restart()
        while counters.env_steps < budget.total_env_steps:
            try:
                batch = self._collect()
            except QuintetError as error:
                if not self.hooks.stops(error):
                    raise
                self.hooks.save(False)
                return "stopped"
            steps = [self._start_update(batch)]
            while self._may_overlap(steps):
                steps.append(self._start_update(self._collect()))
            for step in steps:
                self._end(step)
            last = steps[-1]
            finished = counters.env_steps >= budget.total_env_steps
            if last.exact:
                self._publish_all()  # a run that is resumed there begins with the newest weights
                counters.begin_anew()
                counters.exact_iteration = counters.iteration
            if finished:
                counters.discard_waiting()
            self.timer.switch("other")
            # The checkpoint comes later: it holds the best score that an evaluation found.
            stop = self.hooks.after_iteration(last.batch)
            due = counters.iteration - counters.checkpoint_iteration >= budget.checkpoint_iterations
            if last.exact or finished or due or stop or self.hooks.asks_to_save():
                self.hooks.save(last.exact or finished)  # may leave out one that is only due
                stop = stop or self.hooks.stopping()
            if stop and not finished:
                return "stopped"
            if last.exact and not finished:
                self._restart()
        return "finished"

    def _collect(self) -> Batch:
        left = self.budget.total_env_steps - self.counters.env_steps
        return self.sampling.collect(left, self._begins_anew)

    def _begins_anew(self, batch: Batch) -> bool:
        return self.sampling.restarts and self.budget.exact_after(self.counters, batch)

    def _start_update(self, batch: Batch) -> _Step:
        """Learns from a batch; a GPU may not have begun when it returns."""
        learner, replays = self.parts.learners[batch.policy], self.parts.replays
        device = self.devices[batch.policy]
        replay = replays[batch.policy] if replays else None
        if replay is not None and replay.overwrites(batch.rollout):
            self.hooks.save(False)  # the state is still that after the last batch
        self.timer.switch("learning")
        newest: Recent = deque([(learner.updates, batch.rollout)], LOOK_EVERY_UPDATES)
        step = _Step(batch, self._begins_anew(batch), newest)
        try:
            with OwnTorch():
                for rollout, before in _rollouts(batch, replay, self.counters, self.timer):
                    newest.append((learner.updates, rollout))
                    learner.update(rollout_to_device(rollout, device), before)
        except NonFiniteError as error:
            step.error = error
        return step

    def _may_overlap(self, steps: Sequence[_Step]) -> bool:
        """Whether another policy's update may begin on another device before the updates of `steps`
        have ended: its batch is ready, and nothing that is due now needs their results.
        """
        last = steps[-1]
        if len({*self.devices}) == 1 or self.parts.replays or last.exact or last.error is not None:
            return False
        policy = self.sampling.delivery.next_policy()
        if policy is None or self.devices[policy] in [self.devices[x.batch.policy] for x in steps]:
            return False
        self._count(last)
        over = self.counters.env_steps >= self.budget.total_env_steps
        return not (over or self.hooks.asks_to_save()) and self.hooks.quiet(last.batch)

    def _count(self, step: _Step) -> None:
        if not step.counted:
            self.counters.add(step.batch)
            step.counted = True

    def _end(self, step: _Step) -> None:
        """Looks for what is not finite, counts the batch and publishes."""
        policy, hooks = step.batch.policy, self.hooks
        learner, replaced = self.parts.learners[policy], False
        try:
            with OwnTorch():
                try:
                    if step.error is not None:
                        raise step.error
                    if self.devices[policy].type != "cpu":
                        learner.publication()  # finds a NaN as long as its batch is there
                except NonFiniteError as error:
                    hooks.diverged(policy, error)
                    replaced = True
            self._count(step)
            replaced |= hooks.learned(step.batch)
            if replaced:
                self.sampling.delivery.forget(policy, learner.version)
            self.unpublished[policy] += self.budget.publish_iterations if replaced else 1
            if self.unpublished[policy] >= self.budget.publish_iterations:
                self._publish(policy)
            else:
                self.sampling.delivery.queues[policy].learned = learner.version
        except NonFiniteError as error:
            kept = hooks.keep_batch(_cause(error, step.newest), policy)
            raise NonFiniteError(f"{error}. {kept}") from error

    def _publish(self, policy: int) -> None:
        self.unpublished[policy] = 0
        own = self.parts.publication
        found = own(policy) if own else self.parts.learners[policy].publication()
        publication = replace(found, policy=policy)
        self.sampling.publish(publication)
        self.hooks.published(publication)

    def _publish_all(self) -> None:
        for policy in range(len(self.parts.learners)):
            self._publish(policy)

    def _restart(self) -> None:
        self.sampling.restart(self.counters.iteration)
        for replay in self.parts.replays:
            replay.cut()


Recent = deque[tuple[int, Rollout]]
"""The last rollouts of an iteration, each with the learner's number of updates before it."""


def _cause(error: NonFiniteError, newest: Recent) -> Rollout:
    """The rollout whose update became NaN."""
    last = newest[-1][1]
    if error.update is None:
        return last
    return next((x for before, x in reversed(newest) if before < error.update), last)


def _rollouts(
    batch: Batch, replay: "Replay | None", counters: Counters, timer: PhaseTimer
) -> Iterator[tuple[Rollout, int]]:
    """The rollouts to learn from, each with the env_steps by which schedules go: the fresh batch,
    if a row is valid, then those that replay draws.  A batch whose update fails is not stored.
    """
    before = counters.env_steps  # not after the batch: rates would be 0 in the last iteration
    if batch.env_steps:
        yield batch.rollout, before
    if replay is not None:
        timer.switch("replay")
        replay.store(batch.rollout)
        for drawn in replay.draws(batch.env_steps, counters.iteration):
            timer.switch("learning")
            yield drawn, before
            timer.switch("replay")
        timer.switch("learning")
