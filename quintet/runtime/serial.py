"""The serial runtime: one process samples and learns in turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch

from quintet.envs.vector import VectorEnv
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Actor, DataPlan
from quintet.runtime.batch import Lease
from quintet.runtime.delivery import Batch, BeginsAnew, Delivery, never, rows_for
from quintet.runtime.policies import ONE_POLICY, Assignment
from quintet.runtime.sampler import GroupSampler, unroll
from quintet.runtime.seeds import group_seeds
from quintet.runtime.slots import RowSpecs, Slot, slot_specs, zeros
from quintet.runtime.spread import spread_envs
from quintet.types import Publication


@dataclass(frozen=True)
class SerialOptions:
    """Options of sampling in this process.

    threads: PyTorch's threads while actions are computed; None: as many as at other times.
    may_lag: whether some versions are not published.
    """

    assignment: Assignment = ONE_POLICY
    threads: int | None = None
    may_lag: bool = False


_DEFAULT = SerialOptions()


@final
class SerialSampling:
    """All groups in this process; one steps while actions are computed for the others."""

    restarts = True
    """Whether streams begin again at exact checkpoints."""

    def __init__(
        self,
        envs: Sequence[VectorEnv],
        make_actor: Callable[[], Actor],
        plan: DataPlan,
        seed: int,
        timer: PhaseTimer,
        options: SerialOptions = _DEFAULT,
    ):
        self.groups: list[GroupSampler] = []
        self.spread = spread_envs(envs)
        self.slots: list[Slot] = []
        first_stream, assignment = 0, options.assignment
        for index, env in enumerate(envs):
            actor, policies = assignment.make_actor(make_actor), assignment.of(index)
            rows = RowSpecs.of(env.spaces, actor)
            slot = Slot(zeros(slot_specs(rows, plan, env.num_streams)), rows, plan)
            slot.belongs_to(index, first_stream, policies[0])
            self.slots.append(slot)
            learning = assignment.num_learners
            self.groups.append(GroupSampler(env, actor, plan, first_stream, policies, learning))
            first_stream += env.num_streams
        self.seed, self.timer, self.threads = seed, timer, options.threads
        self.delivery = Delivery(
            plan, first_stream, assignment.num_policies, options.may_lag, assignment.num_learners
        )

    def publish(self, publication: Publication) -> None:
        """Gives all groups the weights by which its policy acts from their next unroll on."""
        self.delivery.publish(publication)
        for group in self.groups:
            group.publish(publication)

    def restart(self, iteration: int) -> None:
        """Re-keys every stream from (seed, group, iteration); running episodes are given up."""
        self.timer.switch("making")
        self.delivery.restart(iteration)
        for index, (group, slot) in enumerate(zip(self.groups, self.slots, strict=True)):
            group.restart(*group_seeds(self.seed, index, iteration, group.num_streams), slot)

    def collect(self, env_steps_left: int, begins_anew: BeginsAnew = never) -> Batch:
        """The next batch.  Samples if no policy has enough columns, as few rows as the budget
        needs.
        """
        while (taken := self.delivery.take(env_steps_left)) is None:
            self.delivery.keep()
            self._unroll(env_steps_left - self.delivery.waiting)
            # The lease frees nothing: what still waits is copied before the next round's writes.
            self.delivery.put_round([slot.unroll(Lease(lambda: None)) for slot in self.slots])
        return self.delivery.batch(*taken, env_steps_left, begins_anew)

    def _unroll(self, wanted: int) -> None:
        """One unroll of every group, which ends once `wanted` env_steps were executed."""
        threads = torch.get_num_threads()
        if self.threads not in (None, threads):
            torch.set_num_threads(self.threads)

        def more(rows: int) -> int:
            executed = sum(group.executed(rows) for group in self.groups) if rows else 0
            return rows_for(wanted - executed, self.delivery.num_streams)

        unroll(self.groups, self.slots, self.timer, more=more)
        torch.set_num_threads(threads)

    def report(self) -> dict[str, float]:
        count = sum(env.num_processes for env in self.spread if env.num_processes > 1)
        steppers = {"data/env_processes": float(count)} if count else {}
        return self.delivery.report() | steppers

    def kill(self) -> None:
        """Ends processes that step environments at once, before `close`."""
        for env in self.spread:
            env.kill()

    def close(self) -> None:
        for group in self.groups:
            group.env.close()
